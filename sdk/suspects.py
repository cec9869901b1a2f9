"""Suspects: brokers that did not answer. They are avoided until they answer a probe.

Producers send to a suspect, and consumers read from one, only when there is no other broker. Refreshing of routes and
pauses are in producer/brokers.py and consumer/replicas.py.
"""

from collections.abc import Awaitable, Callable, Collection
from itertools import count

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.names import AUTO_CREATE_TOPIC
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET, GetMaxOffsetRequestHeader
from skylark.sdk.client import ClientHandle
from skylark.sdk.runtime import survived

PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_MS = 500
# How long a suspect that has left the routes is probed: most are restarting.
DEPARTED_S = 120

# Any answer counts, also that the topic is unknown; only "the broker is stopping" does not.
_PROBE = GetMaxOffsetRequestHeader(AUTO_CREATE_TOPIC, 0)


async def answers(remoting: RemotingClient, addr: str) -> bool:
    """Whether the broker at ``addr`` accepts requests now."""
    try:
        answer = await remoting.invoke(addr, GET_MAX_OFFSET.command(_PROBE), PROBE_TIMEOUT_MS)
    except RemotingError:
        return False
    return answer.code != ResponseCode.GO_AWAY


class Suspects:
    """The suspects of one producer or consumer.

    A suspect is cleared when it answers a probe and its address is ``in_routes``, since a broker in no route is not
    used even if it answers; or when it has been in no route for DEPARTED_S. ``pause_s(n)`` is the pause after n probes.
    ``not_cleared(addr, answered)`` is called after each probe that did not clear the suspect; it may refresh routes.
    ``cleared(addr, is_back)`` is called when it is no longer a suspect; ``is_back`` says whether it can be used again.
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
        #: The addresses of all suspects.
        self.addrs: dict[str, None] = {}

    def add(self, addr: str) -> bool:
        """Suspect the broker at ``addr``, which did not answer, and probe it. Returns whether it is a new suspect."""
        if addr in self.addrs:
            return False
        self.addrs[addr] = None
        if addr not in self._probed:
            self._probed[addr] = None
            self._client.nursery.start_soon(self._probe, addr)
        return True

    def discard(self, addr: str) -> None:
        """Suspect the broker at ``addr`` no longer, as it has answered. ``cleared`` is not called."""
        self.addrs.pop(addr, None)

    @enable_ki_protection
    async def _probe(self, addr: str) -> None:
        seen_at = trio.current_time()
        for probes in count():
            await trio.sleep(self._pause_s(probes))
            with survived("probing a broker"):
                # An answer to a request may have cleared the suspect while this task slept or asked: hence the checks
                # of ``addrs`` after each wait.
                answered = addr in self.addrs and await answers(self._client.instance.remoting, addr)
                if addr in self.addrs and not (answered and addr in self._in_routes()):
                    await self._not_cleared(addr, answered)
                # Routes change while suspects are probed: a suspect that is in no route for long has been removed for
                # good.
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
