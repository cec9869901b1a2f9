"""Accepts connections within a budget, for all kinds of servers."""

import errno
from collections.abc import Awaitable, Callable

import trio

from skylark.mqcommon.addresses import limited_network, split_address
from skylark.remoting.net.limits import ConnectionBudget, Refusals
from skylark.remoting.net.transport import Listener, Transport

# After an error of _RETRY (no more descriptors or memory) accepting pauses for this long, then goes on.
_PAUSE_S = 0.1
_RETRY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


async def accept_connections(
    listener: Listener,
    nursery: trio.Nursery,
    serve: Callable[[Transport], Awaitable[None]],
    budget: ConnectionBudget,
    refusals: Refusals,
) -> None:
    """Run ``serve`` in ``nursery`` for each connection that ``budget`` allows, until cancelled; closes ``listener``."""
    async with listener:
        while True:
            try:
                transport = await listener.accept()
            except OSError as error:
                if error.errno not in _RETRY:
                    raise
                detail = f"accept failed: {error}; connections wait"
                refusals.count("accepts_failed", trio.current_time(), listener.address, detail)
                await trio.sleep(_PAUSE_S)
                continue
            if transport.direct_calls is not None:
                # A proxy in this process, which limits its clients itself: it has one address for all of them.
                nursery.start_soon(serve, transport)
                continue
            # Taken before the task starts, so that a burst cannot pass the limit; `_serve` returns it.
            network = limited_network(split_address(transport.remote)[0])
            now_s = trio.current_time()
            if refusal := budget.take(network, now_s):
                refusals.count(refusal, now_s, transport.remote, f"connections refused: {budget.used} are open")
                await trio.aclose_forcefully(transport)
                continue
            nursery.start_soon(_serve, serve, transport, budget, network)


async def _serve(
    serve: Callable[[Transport], Awaitable[None]], transport: Transport, budget: ConnectionBudget, network: str
) -> None:
    try:
        await serve(transport)
    finally:
        budget.give(network)
