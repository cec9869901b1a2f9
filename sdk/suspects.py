"""Brokers that did not answer: left alone until they answer a probe.

Producers send to a suspect, and consumers read from it, only when nobody else is left. What each does besides (asking
for routes, resting) it does itself: producer/brokers.py, consumer/replicas.py.
"""

from collections.abc import Awaitable, Callable, Collection
from itertools import count

import trio

from mqcommon.errors import RemotingError
from mqcommon.names import AUTO_CREATE_TOPIC
from remoting.net.client import RemotingClient
from remoting.protocol.codes import ResponseCode
from remoting.protocol.headers.offsets import GetMaxOffsetRequestHeader
from remoting.protocol.requests.offsets import GET_MAX_OFFSET
from sdk.runtime import survived
from sdk.shared import ClientHandle

PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_MS = 500
# A suspect that has left the routes is probed for so long: most come back from a restart.
DEPARTED_S = 120

# Any answer will do, also that there is no such topic; not that of a broker that is stopping.
_PROBE = GetMaxOffsetRequestHeader(AUTO_CREATE_TOPIC, 0)


async def answers(remoting: RemotingClient, addr: str) -> bool:
    """Whether the broker at ``addr`` takes requests now."""
    try:
        answer = await remoting.invoke(addr, GET_MAX_OFFSET.command(_PROBE), PROBE_TIMEOUT_MS)
    except RemotingError:
        return False
    return answer.code != ResponseCode.GO_AWAY


class Suspects:
    """The suspects of one producer or consumer.

    A suspect is cleared when it answers a probe and is ``in_routes``, or was in no route for DEPARTED_S: a broker that
    is in no route is not used, even if it answers. ``pause_s(n)`` is the pause after n probes. ``not_cleared`` is
    called after each probe that did not clear the suspect, with whether it answered; it may bring new routes.
    ``cleared`` is called when it is no longer a suspect, with whether it can be used again.
    """

    def __init__(
        self,
        client: ClientHandle,
        in_routes: Callable[[], Collection[str]],
        pause_s: Callable[[int], float],
        not_cleared: Callable[[str, bool], Awaitable[None]],
        cleared: Callable[[str, bool], None],
    ) -> None:
        self._client = client
        self._in_routes = in_routes
        self._pause_s = pause_s
        self._not_cleared = not_cleared
        self._cleared = cleared
        self._probed: dict[str, None] = {}
        #: By address, for ``in``.
        self.addrs: dict[str, None] = {}

    def add(self, addr: str) -> bool:
        """The broker at ``addr`` did not answer; whether that is news."""
        if addr in self.addrs:
            return False
        self.addrs[addr] = None
        if addr not in self._probed:
            self._probed[addr] = None
            self._client.nursery.start_soon(self._probe, addr)
        return True

    def discard(self, addr: str) -> None:
        """The broker is known to answer; ``cleared`` is not called."""
        self.addrs.pop(addr, None)

    async def _probe(self, addr: str) -> None:
        seen_at = trio.current_time()
        for probes in count():
            await trio.sleep(self._pause_s(probes))
            with survived("probing a broker"):
                answered = addr in self.addrs and await answers(self._client.instance.remoting, addr)
                if addr in self.addrs and not (answered and addr in self._in_routes()):
                    await self._not_cleared(addr, answered)
                if addr in self._in_routes():
                    seen_at = trio.current_time()
                is_back = answered and addr in self._in_routes()
                is_gone = trio.current_time() > seen_at + DEPARTED_S
                if addr in self.addrs and (is_back or is_gone):
                    self.discard(addr)
                    self._cleared(addr, is_back)
            if addr not in self.addrs:
                break
        del self._probed[addr]
