"""Requests that the master of any broker set can answer, so that no call waits for a master that does not answer."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.routes import BrokerData

T = TypeVar("T")

# When a master has not answered within this time, the next is asked, too. Most answer within milliseconds.
SOON_S = 0.5


class Asked(NamedTuple, Generic[T]):
    """The outcome. ``found``: the first answer of a master that has the object.

    ``is_missing``: a master has answered that it has no such object. ``error``: why a master could not be asked.
    """

    found: T | None
    is_missing: bool
    error: SkylarkError | None


async def ask_masters(brokers: Iterable[BrokerData], ask: Callable[[str], Awaitable[T | None]]) -> Asked[T]:
    """Ask masters until one has the wanted object. ``ask`` returns None when its broker has no such object."""
    found: T | None = None
    is_missing, failed = False, None

    async def ask_one(addr: str, has_answered: trio.Event) -> None:
        nonlocal found, is_missing, failed
        try:
            answer = await ask(addr)
        except SkylarkError as error:
            failed = error
        else:
            if answer is None:
                is_missing = True
            elif found is None:
                found = answer
                nursery.cancel_scope.cancel()
        has_answered.set()

    async with trio.open_nursery() as nursery:
        for broker in brokers:
            if (addr := broker.broker_addrs.get(MASTER_ID)) is not None:
                has_answered = trio.Event()
                nursery.start_soon(ask_one, addr, has_answered)
                with trio.move_on_after(SOON_S):
                    await has_answered.wait()
    return Asked(found, is_missing, failed)
