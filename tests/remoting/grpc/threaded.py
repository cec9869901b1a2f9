"""A server in a thread of its own, for clients that block."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from skylark.remoting.grpc.call import Streaming, Unary
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.server import GrpcServer
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.tls.server import TlsListener, TlsServer
from tests.support.waiting import DEADLINE_S

LEAVE_S = 30.0


@dataclass
class Threaded:
    """A server that runs in a thread."""

    server: GrpcServer
    address: str
    _token: trio.lowlevel.TrioToken

    def stop(self) -> bool:
        """Stop gracefully; whether no connection was cut."""

        async def leave() -> bool:
            self.server.stop_accepting()
            return await self.server.leave(LEAVE_S)

        return trio.from_thread.run(leave, trio_token=self._token)


@contextmanager
def threaded(
    methods: Mapping[str, Unary | Streaming], limits: GrpcLimits | None = None, tls: TlsServer | None = None
) -> Iterator[Threaded]:
    """Serve ``methods`` until the end of the block; with ``tls`` for clients with and without it."""
    ready, ending = threading.Event(), trio.Event()
    found: list[Threaded] = []

    async def serve() -> None:
        server = GrpcServer(methods, limits=limits)
        listeners = await listen("127.0.0.1", 0)
        if tls is not None:
            listeners = [TlsListener(listener, tls) for listener in listeners]
        async with trio.open_nursery() as nursery:
            if tls is not None:
                nursery.start_soon(tls.watch)
            address = await nursery.start(server.serve_on, listeners)
            found.append(Threaded(server, address, trio.lowlevel.current_trio_token()))
            ready.set()
            await ending.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=[serve])
    thread.start()
    try:
        assert ready.wait(DEADLINE_S), "the server does not start"
        yield found[0]
    finally:
        for one in found:
            one._token.run_sync_soon(ending.set)
        thread.join()
