"""The brokers of one producer: counts their failures, probes suspects, and refreshes routes.

Four states of a broker are tracked (`Faults`, which has no clock: callers pass the time):
- isolated: it answered slowly. RocketMQ's table says for how long it is avoided.
- suspect: it did not answer or cannot be reached (sdk/suspects.py). It is avoided until it answers a probe.
- resting: it failed or is busy. It rests for a pause that grows with its failures in a row.
- weak: it stored messages with less safety than it should (weak.py).
Isolated, suspect and weak brokers still get sends when there is no other broker; a resting broker gets none.
Neighbours: lane.py (sends), sdk/suspects.py (probes).
"""

import logging
from collections.abc import Callable, Collection
from random import Random

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    SkylarkError,
    WrongBroker,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.sends import NOT_SAFE_HERE
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.result import SendStatus
from skylark.sdk.producer.routing import SendRoutes
from skylark.sdk.producer.weak import FIRST_PAUSE_S, LONGEST_PAUSE_S, WeakBrokers
from skylark.sdk.retry import Outcome, outcome_of
from skylark.sdk.runtime import survived
from skylark.sdk.suspects import PROBE_INTERVAL_S, Suspects

logger = logging.getLogger(__name__)

# (latency in ms, isolation in ms), as RocketMQ's MQFaultStrategy has it.
LATENCY_TABLE = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))


def isolation_ms(latency_ms: float) -> int:
    """How long a broker that took ``latency_ms`` to answer is avoided."""
    for latency, isolation in LATENCY_TABLE:
        if latency_ms >= latency:
            return isolation
    return 0


class Faults:
    """The failures and slow answers of brokers, by address. ``suspects`` is maintained by `Suspects`."""

    def __init__(self, backoff: Backoff, suspects: Collection[str], random: Random) -> None:
        self._backoff = backoff
        self._suspects = suspects
        self._isolated_until: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._rests_until: dict[str, float] = {}
        # The latest time in the two tables above.
        self._all_until = 0.0
        #: Brokers that store messages with less safety than they should.
        self.weak = WeakBrokers(Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, random))

    def answered(self, addr: str, latency_ms: float, now_ms: float) -> None:
        """Avoid the broker for a while, if it took long to answer a send (``latency_ms``)."""
        if isolation := isolation_ms(latency_ms):
            self._isolated_until[addr] = now_ms + isolation
            self._all_until = max(self._all_until, now_ms + isolation)

    def stored(self, addr: str) -> bool:
        """Forget the failures of a broker that has stored a send; returns whether there were any."""
        if addr not in self._failures:
            return False
        self.cleared(addr)
        return True

    def failed(self, addr: str, now_ms: float) -> None:
        """Let the broker rest: it is busy, did not answer in time, or cannot be reached."""
        if self._rests_until.get(addr, 0) > now_ms:
            # The failed send started before the broker began to rest: it does not count as another failure in a row.
            return
        failures = self._failures[addr] = self._failures.get(addr, 0) + 1
        self._rests_until[addr] = until_ms = now_ms + self._backoff.pause_s(failures) * 1000
        self._all_until = max(self._all_until, until_ms)

    def cleared(self, addr: str) -> None:
        """Forget the failures of a broker that accepts sends again."""
        self._isolated_until.pop(addr, None)
        self._failures.pop(addr, None)
        self._rests_until.pop(addr, None)

    def all_usable(self, now_ms: float) -> bool:
        """Whether every broker is `usable`; False may also mean that a broker has recovered early."""
        return self._all_until <= now_ms and not self._suspects and not self.weak

    def usable(self, addr: str, now_ms: float, *, weak_too: bool = False) -> bool:
        """Whether the broker is neither a suspect nor isolated nor resting, nor weak unless ``weak_too``."""
        return (
            self.answers(addr, now_ms)
            and self._isolated_until.get(addr, 0) <= now_ms
            and (weak_too or self.weak.usable(addr, now_ms))
        )

    def answers(self, addr: str, now_ms: float) -> bool:
        """Whether the broker is neither a suspect nor resting; it may be slow, or weak."""
        return addr not in self._suspects and self._rests_until.get(addr, 0) <= now_ms

    def rests_until(self, addr: str) -> float:
        """The end of the broker's rest (ms): from then on it may be tried if there is no usable broker."""
        return self._rests_until.get(addr, 0)


class Brokers:
    """The brokers of one producer. ``wake_lanes`` is called when a broker becomes usable."""

    def __init__(self, client: ClientHandle, sendable: SendRoutes, wake_lanes: Callable[[], None]) -> None:
        self._client = client
        self._sendable = sendable
        self._wake_lanes = wake_lanes
        self._wanted: dict[str, None] = {}
        self.suspects = Suspects(
            client,
            in_routes=client.instance.routes.masters,
            pause_s=lambda probes: PROBE_INTERVAL_S,
            not_cleared=self._not_cleared,
            cleared=self._cleared,
        )
        self.faults = Faults(client.instance.backoff, self.suspects.addrs, Random())

    def want_route(self, topic: str) -> None:
        """Refresh the topic's route in the background."""
        if topic not in self._wanted:
            self._wanted[topic] = None
            self._client.nursery.start_soon(self._ask, topic)

    def suspect(self, addr: str) -> None:
        """Avoid ``addr`` until it answers a probe."""
        self.faults.failed(addr, _now_ms())
        self.suspects.add(addr)

    def failed(self, addr: str, error: SkylarkError) -> bool:
        """Judge the broker at ``addr`` by the ``error`` of a send; returns whether it is avoided from now on."""
        if isinstance(error, WrongBroker):
            self._client.instance.drop_address(error.wanted, addr)
            return False
        if isinstance(error, BrokerError) and error.remark == NOT_SAFE_HERE:
            self._is_weak(addr, SendStatus.SLAVE_NOT_AVAILABLE)
            return False
        is_leaving = isinstance(error, BrokerError) and error.code == ResponseCode.GO_AWAY
        if is_leaving or isinstance(error, (RequestTimeout, ConnectFailed, ConnectionLost)):
            self.suspect(addr)
            return True
        if outcome_of(error) is Outcome.NOTHING:
            self.faults.failed(addr, _now_ms())
            return True
        return False

    def stored(self, addr: str, status: SendStatus = SendStatus.SEND_OK) -> None:
        """Judge the broker at ``addr``, which has stored a send, by how safe the message is (``status``)."""
        if self.faults.stored(addr):
            self.suspects.discard(addr)
            self._wake_lanes()
        weak = self.faults.weak
        if status is not SendStatus.SEND_OK:
            self._is_weak(addr, status)
        elif weak and weak.forget(addr):
            logger.info("the broker at %s stores messages as safely as it should again", addr)
            self._wake_lanes()

    def _is_weak(self, addr: str, status: SendStatus) -> None:
        if self.faults.weak.answered_weakly(addr, _now_ms()):
            logger.warning(
                "the broker at %s stores messages with less safety than it should (%s): until it answers SEND_OK it"
                " is avoided, and what it stores is sent once more to another broker, if there is one",
                addr,
                status.name,
            )

    @enable_ki_protection
    async def _ask(self, topic: str) -> None:
        with survived(f"refreshing the route of topic {topic}"):
            await self._ask_for_route(topic)

    async def _ask_for_route(self, topic: str) -> None:
        routes = self._client.instance.routes
        before = routes.get(topic)
        try:
            route = await self._sendable.refresh(topic)
        except SkylarkError:
            # The old route stays in use; the next failure or poll refreshes it again.
            return
        finally:
            del self._wanted[topic]
        # No send fails at a master that has left the route, so its return would go unnoticed.
        masters = routes.masters()
        for addr in before.writable_at if before else ():
            if addr not in masters:
                # The master has stopped or crashed. Probes notice its return, which may be before the next poll.
                self.suspect(addr)
        if route is not before:
            self._wake_lanes()

    async def _not_cleared(self, addr: str, is_back: bool) -> None:
        routes = self._client.instance.routes
        if is_back and addr not in routes.masters():
            # The broker is back before the next poll. It stays a suspect until a NameServer's route contains it again.
            for topic in routes.topics():
                self.want_route(topic)

    def _cleared(self, addr: str, is_back: bool) -> None:
        self.faults.cleared(addr)
        if not is_back:
            self.faults.weak.forget(addr)
        self._wake_lanes()


def _now_ms() -> float:
    return trio.current_time() * 1000
