"""Which broker and queue get the next request of a lane, and how many requests each broker has."""

from collections.abc import Iterable, Mapping, Sequence

import trio

from mqcommon.errors import RouteNotFound, SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk.producer.alarm import Alarm
from sdk.producer.pending import LaneOwner
from sdk.producer.pick import Turns
from sdk.retry import FailedTries


class Targets:
    """Of ``topic``, or of ``queue`` alone: each broker may have ``slots`` requests in flight.

    When no broker can take a send, ``alarm`` is set to the time at which one may. With ``many_a_turn`` the brokers
    found are used again until `new_turn`.
    """

    def __init__(
        self,
        owner: LaneOwner,
        topic: str,
        queue: MessageQueue | None,
        turns: Turns,
        alarm: Alarm,
        slots: int,
        *,
        many_a_turn: bool,
    ) -> None:
        self._owner = owner
        self._topic = topic
        self._queue = queue
        self._turns = turns
        self._alarm = alarm
        self._slots = slots
        self._many_a_turn = many_a_turn
        self._in_flight: dict[str, int] = {}
        # With ``many_a_turn``: where sends of one turn may go that have not failed.
        self._open_at: Mapping[str, Sequence[MessageQueue]] = {}
        # While no broker is known: how often in a row the route was refreshed, and when it will be.
        self._asked = 0
        self._asks_at = 0.0
        #: Requests that have no answer yet.
        self.requests = 0
        #: In a lane of one queue: failed sends wait for their retry, and later ones must not overtake them.
        self.paused = False
        #: The last failure in this lane, reported by sends that time out before their first try.
        self.last_error: SkylarkError | None = None

    def took(self, addr: str) -> None:
        """A request to ``addr`` begins."""
        self._in_flight[addr] = self._in_flight.get(addr, 0) + 1
        self.requests += 1

    def released(self, addr: str) -> None:
        """A request to ``addr`` has ended."""
        self._in_flight[addr] -= 1
        self.requests -= 1

    def free_slots(self, addr: str) -> int:
        """How many more requests ``addr`` takes."""
        return self._slots - self._in_flight.get(addr, 0)

    def new_turn(self) -> None:
        """Brokers may have failed since the last turn: look at them again."""
        self._open_at = {}

    def next(self, failed: FailedTries | None) -> tuple[str, MessageQueue] | None:
        """The address and queue for a send with these failed tries; None when every broker is busy or rests."""
        owner = self._owner
        faults, in_flight, slots = owner.brokers.faults, self._in_flight, self._slots
        if self._open_at and failed is None:
            return self._turns.next(self._open_at)
        route = owner.route_of(self._topic)
        now = trio.current_time()
        if self._queue is not None:
            if (addr := None if route is None else route.master(self._queue.broker_name)) is None:
                self._wait_for_route(now)
                return None
            self._asked = 0
            is_free = not self.paused and in_flight.get(addr, 0) < slots and self._not_resting([addr], now)
            return (addr, self._queue) if is_free else None
        if route is None or not route.writable_at:
            self._wait_for_route(now)
            return None
        self._asked = 0
        rested = [addr for addr in route.writable_at if faults.usable(addr, now * 1000)]
        usable = rested or self._not_resting(route.writable_at, now)
        avoid = () if failed is None else failed.avoid
        # Better wait for a broker that has not failed this send than use a free slot of one that has.
        best = [addr for addr in usable if addr not in avoid] or usable
        open_at = {addr: route.writable_at[addr] for addr in best if in_flight.get(addr, 0) < slots}
        self._open_at = open_at if self._many_a_turn and not avoid else {}
        return self._turns.next(open_at) if open_at else None

    def has_other(self, addr: str, failed: FailedTries | None, now: float) -> bool:
        """Whether another usable broker can take a send that failed at ``addr``, and before as ``failed`` says."""
        route = self._owner.route_of(self._topic)
        if route is None or self._queue is not None:
            return False
        avoid = () if failed is None else failed.avoid
        usable = self._owner.brokers.faults.usable
        return any(at != addr and at not in avoid and usable(at, now * 1000) for at in route.writable_at)

    def _not_resting(self, addrs: Iterable[str], now: float) -> list[str]:
        """The brokers that do not rest. When all rest, the alarm is set to the end of the first rest."""
        until_ms = {addr: self._owner.brokers.faults.rests_until(addr) for addr in addrs}
        found = [addr for addr, when_ms in until_ms.items() if when_ms <= now * 1000]
        if not found:
            # Add 1 ms, so that rounding does not make the alarm ring too early.
            self._alarm.at((min(until_ms.values()) + 1) / 1000)
        return found

    def _wait_for_route(self, now: float) -> None:
        """No known broker can take the first send: refresh the route, with growing pauses."""
        if now >= self._asks_at:
            lack = "has no broker that accepts sends" if self._queue is None else f"lacks {self._queue.broker_name}"
            self.last_error = RouteNotFound(self._topic, f"its route {lack} now; see mqadmin topicRoute")
            self._asked += 1
            self._asks_at = now + self._owner.backoff.pause_s(self._asked)
            self._owner.brokers.want_route(self._topic)
        self._alarm.at(self._asks_at)
