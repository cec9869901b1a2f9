"""Long polling: requests of pop consumers that found nothing wait here for a message, or for their deadline.

A held request is a row, as in held_pulls.py. Rows wait for a topic and group, as a pop reads all queues of a topic
and of the group's retry topics. Rows of one group compete for the same messages: they are tried in order of arrival,
and when a row finds nothing, rows with the same queue and filter are not tried.
Deadlines have the precision of `TICK_S`. Times are trio's.
"""

from collections.abc import Callable
from typing import TypeVar

from skylark.broker.store.filter import Filter
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import failure
from skylark.remoting.protocol.command import Command

TICK_S = 0.1
# A request waits no longer than this.
MAX_WAIT_S = 600.0

K = TypeVar("K")
#: Topic and group.
Place = tuple[str, str]


@lazy_dataclass(slots=True, eq=False)
class HeldPop:
    """A request while it is tried, and while it waits for messages of ``topics``, which all requests of a place share.

    ``answer(pop)`` returns the answer if there are messages, or if ``is_last``. ``wanted``: the queue, the filter and
    whether messages come in order; requests with equal ``wanted`` find the same messages.
    """

    channel: Channel
    request: Command
    place: Place
    wanted: tuple[int, Filter, bool]
    wait_ms: int
    answer: Callable[["HeldPop"], Command | None]
    #: Whether the request is tried for the last time, and answered in any case.
    is_last: bool = False
    # Whether the request waits, and the tables have it.
    is_held: bool = False
    topics: tuple[str, ...] = ()
    tick: int = 0


Pops = dict[HeldPop, None]


class HeldPops:
    """All held requests of a broker."""

    def __init__(self, most: int, most_of_place: int) -> None:
        """At most ``most`` requests wait, and ``most_of_place`` of one group for one topic."""
        self._most = most
        self._most_of_place = most_of_place
        self._by_place: dict[Place, Pops] = {}
        self._by_topic: dict[str, dict[Place, None]] = {}
        self._by_channel: dict[Channel, Pops] = {}
        self._by_tick: dict[int, Pops] = {}
        self._next_tick = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, place: Place, queue_id: int) -> int:
        """How many requests wait for this queue, as they named it."""
        return sum(pop.wanted[0] == queue_id for pop in self._by_place.get(place, ()))

    def hold(self, pop: HeldPop, topics: tuple[str, ...], now: float) -> bool:
        """Keep ``pop`` until a message comes into one of ``topics``; False when too many wait already."""
        # Two bounds: for the memory of all rows, and for the cost that one group adds to each message.
        pops = self._by_place.get(pop.place)
        if self._count >= self._most or (pops is not None and len(pops) >= self._most_of_place):
            return False
        if pops is None:
            pops = self._by_place[pop.place] = {}
            for topic in topics:
                self._by_topic.setdefault(topic, {})[pop.place] = None
        pops[pop] = None
        if not self._by_tick:
            self._next_tick = int(now / TICK_S)
        pop.tick = max(int((now + min(pop.wait_ms / 1000, MAX_WAIT_S)) / TICK_S) + 1, self._next_tick)
        self._by_tick.setdefault(pop.tick, {})[pop] = None
        self._by_channel.setdefault(pop.channel, {})[pop] = None
        self._count += 1
        pop.is_held, pop.topics = True, topics
        return True

    def arrived(self, queue: ConsumeQueue) -> bool:
        """Messages came into ``queue``: try the requests for its topic. Returns whether any of them still wait."""
        for place in list(self._by_topic.get(queue.topic, ())):
            self.wake(place)
        return queue.topic in self._by_topic

    def wake(self, place: Place) -> None:
        """Try the requests of a place."""
        empty: list[tuple[int, Filter, bool]] = []
        # A copy, as answering a request removes its row.
        for pop in list(self._by_place.get(place, ())):
            if pop.wanted in empty:
                continue
            if not self._try(pop):
                empty.append(pop.wanted)

    def expire(self, now: float) -> None:
        """Answer the requests whose deadline has passed."""
        tick = int(now / TICK_S)
        if not self._by_tick:
            self._next_tick = tick + 1
        while self._next_tick <= tick:
            for pop in list(self._by_tick.get(self._next_tick, ())):
                self._try_last(pop)
            self._next_tick += 1

    def drop(self, channel: Channel) -> None:
        """Forget the requests of a closed connection."""
        for pop in list(self._by_channel.get(channel, ())):
            self._remove(pop)

    def release(self) -> None:
        """Answer all requests: the broker stops, or is not the master any more."""
        for pops in list(self._by_place.values()):
            for pop in list(pops):
                self._try_last(pop)

    def _try_last(self, pop: HeldPop) -> None:
        pop.is_last = True
        self._try(pop)

    def _try(self, pop: HeldPop) -> bool:
        """Send the answer of ``pop``, if there is one; returns whether there was, now or before."""
        if not pop.is_held:
            # The callback of a client in this event loop has tried it meanwhile.
            return True
        # This runs in the turn of the message's sender: an error here must not reach the sender's connection.
        try:
            response = pop.answer(pop)
        except Exception as error:
            response = failure(pop.request, error)
        if response is None:
            return False
        # Removed first: a client in this event loop may get the answer, and ask again, before `reply` returns.
        self._remove(pop)
        pop.channel.reply(pop.request, response)
        return True

    def _remove(self, pop: HeldPop) -> None:
        _take_out(self._by_place, pop.place, pop)
        if pop.place not in self._by_place:
            for topic in pop.topics:
                places = self._by_topic[topic]
                del places[pop.place]
                if not places:
                    del self._by_topic[topic]
        _take_out(self._by_channel, pop.channel, pop)
        _take_out(self._by_tick, pop.tick, pop)
        self._count -= 1
        pop.is_held = False


def _take_out(table: dict[K, Pops], key: K, pop: HeldPop) -> None:
    pops = table[key]
    del pops[pop]
    if not pops:
        del table[key]
