"""The brokers of one producer: routes that are asked for again, suspects that are probed, failures put down to brokers.

Neighbours: faults.py (what is known against brokers, pure), lane.py (sends), sdk/probe.py (whether one answers).
"""

from collections.abc import Callable

import trio

from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    SkylarkError,
    WrongBroker,
)
from remoting.protocol.codes import ResponseCode
from sdk.probe import PROBE_INTERVAL_S, answers
from sdk.producer.faults import Faults
from sdk.retry import Outcome, outcome_of
from sdk.runtime import survived
from sdk.shared import ClientHandle

# A suspect that has left the routes is asked for so long: most come back from a restart.
DEPARTED_MS = 120_000


class Brokers:
    """``wake_lanes`` is called when a broker may be used that could not be before."""

    def __init__(self, client: ClientHandle, wake_lanes: Callable[[], None]) -> None:
        self._client = client
        self._wake_lanes = wake_lanes
        self._wanted: dict[str, None] = {}
        self._probing = False
        self.faults = Faults(client.instance.backoff)

    def want_route(self, topic: str) -> None:
        """Ask for the topic's route again, in the background."""
        if topic not in self._wanted:
            self._wanted[topic] = None
            self._client.nursery.start_soon(self._ask, topic)

    def suspect(self, addr: str) -> None:
        """Leave ``addr`` alone until it answers a probe."""
        self.faults.suspect(addr, _now_ms())
        if not self._probing:
            self._probing = True
            self._client.nursery.start_soon(self._probe)

    def failed(self, addr: str, error: SkylarkError) -> bool:
        """A send to ``addr`` ended in ``error``; whether nothing is sent there for a while."""
        if isinstance(error, WrongBroker):
            self._client.instance.is_elsewhere(error.wanted, addr)
            return False
        is_leaving = isinstance(error, BrokerError) and error.code == ResponseCode.GO_AWAY
        if is_leaving or isinstance(error, (RequestTimeout, ConnectFailed, ConnectionLost)):
            self.suspect(addr)
            return True
        if outcome_of(error) is Outcome.NOTHING:
            self.faults.busy(addr, _now_ms())
            return True
        return False

    def stored(self, addr: str) -> None:
        """A send to ``addr`` was stored."""
        if self.faults.stored(addr):
            self._wake_lanes()

    async def _ask(self, topic: str) -> None:
        with survived(f"asking for the route of topic {topic}"):
            await self._ask_for_route(topic)

    async def _ask_for_route(self, topic: str) -> None:
        routes = self._client.instance.routes
        before = routes.get(topic)
        try:
            route = await self._client.instance.refresh(topic)
        except SkylarkError:
            # The route that we have stays in use; the next failure or poll asks again.
            return
        finally:
            del self._wanted[topic]
        masters = routes.masters()
        for addr in before.writable_at if before else ():
            if addr not in masters:
                # It stopped, or died; it may be back before the next poll of the routes.
                self.suspect(addr)
        if route is not before:
            self._wake_lanes()

    async def _probe(self) -> None:
        """Ask suspects, until none is left, whether they answer again."""
        while self.faults.suspects:
            await trio.sleep(PROBE_INTERVAL_S)
            with survived("probing brokers"):
                async with trio.open_nursery() as nursery:
                    for addr in self.faults.suspects:
                        nursery.start_soon(self._probe_one, addr)
        self._probing = False

    async def _probe_one(self, addr: str) -> None:
        routes = self._client.instance.routes
        is_back = await answers(self._client.instance.remoting, addr)
        if addr in routes.masters():
            if not is_back:
                return
        elif self.faults.suspect_for_ms(addr, _now_ms()) < DEPARTED_MS:
            if is_back:
                # It is back before the next poll of the routes; it stays suspect until a NameServer says so, too.
                for topic in routes.topics():
                    self.want_route(topic)
            return
        self.faults.cleared(addr)
        self._wake_lanes()


def _now_ms() -> float:
    return trio.current_time() * 1000
