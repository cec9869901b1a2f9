"""Routes as clients use them: which queues can be written and read, and at which address. Pure.

A `TopicRoute` is an immutable form of a NameServer's answer about one topic. Unusable parts of the answer (an invalid
address, an impossible number of queues, an address where another broker listens) are left out and listed in
``skipped``. `RouteCache` keeps the last route of each topic, also when the route cannot be refreshed: brokers work on
while NameServers are down.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from skylark.mqcommon.addresses import is_address
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID, PERM_READ, PERM_WRITE
from skylark.remoting.protocol.logical_queues import NO_LEADER, logical_broker_name
from skylark.remoting.protocol.requests.routes import LOST, NOT_WHOLE, STOPPED, UNHEARD, AbsentBroker, TopicRouteData

# No topic has more queues than this. A larger number is invalid data and would use too much memory.
MAX_QUEUES = 65_536

# (broker name, address) → whether another broker is known to listen there.
IsOtherBroker = Callable[[str, str], bool]


def master_of(addrs: Mapping[int, str]) -> str | None:
    """The address of id 0; None when the broker has no master now."""
    return addrs.get(MASTER_ID)


def reader_of(addrs: Mapping[int, str], preferred_id: int = MASTER_ID) -> str | None:
    """The address to read from: the preferred id's, else the lowest id's; None when there is no address."""
    found = addrs.get(preferred_id)
    return found if found is not None else addrs[min(addrs)] if addrs else None


@lazy_dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic and the brokers that hold them.

    ``writable`` (the queues that a producer chooses from) and ``readable`` are sorted. ``writable_at`` is ``writable``
    by the master's address; it lacks queues without a master, which only an ordered or a static topic has. ``brokers``
    is broker name → id → address. ``is_guess``: no NameServer knew the topic, so this is the route that the topic would
    get by a send.
    """

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    writable_at: Mapping[str, tuple[MessageQueue, ...]]
    skipped: tuple[str, ...] = field(default=(), compare=False)
    is_guess: bool = False
    #: Of a static topic: the broker that leads each logical queue now; empty for other topics.
    leaders: Mapping[MessageQueue, str] = field(default_factory=dict)
    #: By broker name: the creation stamp of the topic there, as far as NameServers know it.
    stamps: Mapping[str, int] = field(default_factory=dict)
    #: Brokers that have, or may have, queues of the topic, and are missing here; RocketMQ's NameServers name none.
    absent: tuple[AbsentBroker, ...] = ()

    def master(self, broker_name: str) -> str | None:
        """The address of the broker's master; None when the master is not in the route."""
        return master_of(self.brokers.get(broker_name, {}))

    def addrs_of(self, queue: MessageQueue) -> Mapping[int, str]:
        """The brokers that serve a queue: id and address."""
        return self.brokers.get(self.leaders.get(queue, queue.broker_name), {})

    def master_of(self, queue: MessageQueue) -> str | None:
        """The address of the master that serves a queue; None when the route has no such master."""
        return master_of(self.addrs_of(queue))

    def has_queue_of(self, queue: MessageQueue) -> bool:
        """Whether the broker of the queue is in the route, or the queue belongs to a static topic."""
        return queue in self.leaders or queue.broker_name in self.brokers

    def without(self, broker_name: str, addr: str) -> "TopicRoute":
        """This route without the broker's address ``addr``."""
        addrs = self.brokers.get(broker_name, {})
        kept = MappingProxyType({number: each for number, each in addrs.items() if each != addr})
        writable_at = dict(self.writable_at)
        others = tuple(
            queue for queue in writable_at.pop(addr, ()) if self.leaders.get(queue, queue.broker_name) != broker_name
        )
        if others:
            writable_at[addr] = others
        return replace(
            self,
            brokers=MappingProxyType({**self.brokers, broker_name: kept}),
            writable_at=MappingProxyType(writable_at),
        )


def make_route(
    topic: str, data: TopicRouteData, is_other_broker: IsOtherBroker = lambda name, addr: False
) -> TopicRoute:
    """The route of ``topic`` that ``data`` describes."""
    skipped: list[str] = []
    brokers = _brokers(data, is_other_broker, skipped)
    counts = _counts(data, brokers, skipped)
    if data.topic_queue_mapping_by_broker and not data.order_topic_conf:
        return _static_route(topic, data, brokers, counts, skipped)
    if data.order_topic_conf:
        writable = _queues(topic, _ordered_counts(data.order_topic_conf, skipped))
    else:
        masters = {name for name, addrs in brokers.items() if master_of(addrs)}
        writable = _queues(topic, {name: n for name, n in counts[PERM_WRITE].items() if name in masters})
    return TopicRoute(
        topic,
        MappingProxyType(brokers),
        writable,
        _queues(topic, counts[PERM_READ]),
        _by_master(writable, lambda queue: queue.broker_name, brokers),
        tuple(skipped),
        stamps=MappingProxyType(
            {each.broker_name: each.topic_created_ms for each in data.queue_datas if each.topic_created_ms is not None}
        ),
        absent=tuple(data.absent_brokers or ()),
    )


class TopicQueues(NamedTuple):
    """The queues of a topic that can be read now, sorted.

    ``absent``: brokers that have, or may have, queues of the topic and are away, as Skylark's NameServers report.
    RocketMQ's NameServers report none.
    """

    queues: list[MessageQueue]
    absent: tuple[AbsentBroker, ...]


_AWAY_BECAUSE = {
    LOST: "its connection ended, or it was silent",
    STOPPED: "it was stopped",
    UNHEARD: "it has not registered since the NameServer was started",
    NOT_WHOLE: "its topics have not arrived in full",
}


def away_because(one: AbsentBroker) -> str:
    """Why a broker is away."""
    return _AWAY_BECAUSE.get(one.reason, one.reason)


def absent_text(absent: Iterable[AbsentBroker]) -> str:
    """Which brokers are missing in a route, and why."""
    return ", ".join(
        f"broker {one.broker_name} {'has queues' if one.has_topic else 'may have queues'} and is away"
        f" ({away_because(one)})"
        for one in absent
    )


def with_unheard(route: TopicRoute, known: TopicRoute | None) -> TopicRoute:
    """``route``, with brokers that the NameServer has not heard of yet added from the route ``known`` before.

    A NameServer that was just restarted lacks living brokers. Until it has heard of them, the older route is better:
    otherwise all members of a group would divide the queues again, and a moment later once more.
    """
    if known is None or known.is_guess or known.leaders or route.leaders:
        return route
    # A broker whose end the NameServer has noticed is gone, and so are its queues.
    unheard = {one.broker_name for one in route.absent if one.reason in (UNHEARD, NOT_WHOLE)}
    names = unheard.intersection(name for name, addrs in known.brokers.items() if addrs).difference(route.brokers)
    if not names:
        return route
    brokers = {**route.brokers, **{name: known.brokers[name] for name in sorted(names)}}
    writable = _with_queues(route.writable, known.writable, names)
    return replace(
        route,
        brokers=MappingProxyType(brokers),
        writable=writable,
        readable=_with_queues(route.readable, known.readable, names),
        writable_at=_by_master(writable, lambda queue: queue.broker_name, brokers),
        stamps=MappingProxyType({**route.stamps, **{n: ms for n, ms in known.stamps.items() if n in names}}),
        absent=tuple(one for one in route.absent if one.broker_name not in names),
    )


def _with_queues(
    queues: tuple[MessageQueue, ...], others: tuple[MessageQueue, ...], names: Collection[str]
) -> tuple[MessageQueue, ...]:
    """``queues``, and the queues of ``others`` that brokers of ``names`` have, sorted."""
    return tuple(sorted({*queues, *(queue for queue in others if queue.broker_name in names)}))


def _by_master(
    queues: Iterable[MessageQueue],
    broker_of: Callable[[MessageQueue], str | None],
    brokers: Mapping[str, Mapping[int, str]],
) -> Mapping[str, tuple[MessageQueue, ...]]:
    """``queues`` by the addresses of their masters, without queues that have no master."""
    by_addr: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        addr = master_of(brokers.get(broker_of(queue) or "", {}))
        if addr is not None:
            by_addr.setdefault(addr, []).append(queue)
    return MappingProxyType({addr: tuple(queues) for addr, queues in by_addr.items()})


def _static_route(
    topic: str,
    data: TopicRouteData,
    brokers: dict[str, Mapping[int, str]],
    counts: dict[int, dict[str, int]],
    skipped: list[str],
) -> TopicRoute:
    """The route of a static topic: all its logical queues, also without a leader, so that keys keep their queues."""
    leaders: dict[MessageQueue, str] = {}
    totals: dict[str, int] = {}
    parts = (data.topic_queue_mapping_by_broker or {}).items()
    # The newest epochs last: while a queue moves, two brokers may claim to lead it.
    for name, part in sorted(parts, key=lambda item: item[1].epoch):
        broker_name = logical_broker_name(part.scope)
        if not _is_possible(part.total_queues, {key: n for key, n in totals.items() if key != broker_name}):
            skipped.append(f"the part of broker {name!r} in a static topic (impossible number)")
            continue
        totals[broker_name] = max(part.total_queues, totals.get(broker_name, 0))
        leaders.update((MessageQueue(topic, broker_name, number), name) for number in part.curr_id_map)
    queues = _queues(topic, totals)
    leaders = {queue: leaders.get(queue, NO_LEADER) for queue in queues}
    can_write = counts[PERM_WRITE]
    return TopicRoute(
        topic,
        MappingProxyType(brokers),
        queues,
        queues,
        _by_master((queue for queue in queues if leaders[queue] in can_write), leaders.get, brokers),
        tuple(skipped),
        leaders=MappingProxyType(leaders),
        absent=tuple(data.absent_brokers or ()),
    )


def _brokers(data: TopicRouteData, is_other_broker: IsOtherBroker, skipped: list[str]) -> dict[str, Mapping[int, str]]:
    """Broker name → id → address, with usable addresses only."""
    brokers: dict[str, Mapping[int, str]] = {}
    for broker in sorted(data.broker_datas, key=lambda broker: broker.broker_name):
        name, usable = broker.broker_name, {}
        for broker_id, addr in sorted(broker.broker_addrs.items()):
            if broker_id < 0 or not is_address(addr):
                skipped.append(f"broker {name!r} id {broker_id} at {addr!r} (invalid address)")
            elif is_other_broker(name, addr):
                skipped.append(f"broker {name!r} id {broker_id} at {addr} (another broker listens there)")
            else:
                usable[broker_id] = addr
        brokers[name] = MappingProxyType(usable)
    return brokers


def _counts(
    data: TopicRouteData, brokers: Mapping[str, Mapping[int, str]], skipped: list[str]
) -> dict[int, dict[str, int]]:
    """Permission → broker name → number of queues."""
    counts: dict[int, dict[str, int]] = {PERM_READ: {}, PERM_WRITE: {}}
    for queues in data.queue_datas:
        name = queues.broker_name
        if not brokers.get(name):
            skipped.append(f"the queues of broker {name!r} (no address)")
            continue
        for perm, count in ((PERM_READ, queues.read_queue_nums), (PERM_WRITE, queues.write_queue_nums)):
            if not queues.perm & perm:
                continue
            if _is_possible(count, counts[perm]):
                counts[perm][name] = count
            else:
                skipped.append(f"{count} queues of broker {name!r} (impossible number)")
    return counts


def _is_possible(count: int, others: Mapping[str, int]) -> bool:
    return 0 <= count <= MAX_QUEUES - sum(others.values())


def _ordered_counts(conf: str, skipped: list[str]) -> dict[str, int]:
    """``broker-a:4;broker-b:4`` of an ordered topic: its queues stay the same while a broker is away."""
    counts: dict[str, int] = {}
    for part in conf.split(";"):
        name, _, count = part.partition(":")
        if name and count.isdecimal() and len(count) < 10 and _is_possible(int(count), counts):
            counts[name] = int(count)
        elif part:
            skipped.append(f"{part!r} of the order configuration")
    return counts


def _queues(topic: str, counts: Mapping[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, name, number) for name in sorted(counts) for number in range(counts[name]))


class RouteCache:
    """The last known route of each topic in use."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        # The addresses of all brokers and of all masters; None when they must be collected again, after a route was
        # replaced or dropped. The route of a new topic only adds to them: the client reads both after each answer, and
        # collecting them each time would be slow with many topics.
        self._known: tuple[dict[str, None], dict[str, None]] | None = None

    def get(self, topic: str) -> TopicRoute | None:
        """The cached route, whatever its age."""
        return self._routes.get(topic)

    def put(self, route: TopicRoute) -> TopicRoute:
        """Cache ``route`` and return it. An equal cached route is kept and returned: ``is`` shows a change."""
        known = self._routes.get(route.topic)
        if known == route:
            return known
        self._routes[route.topic] = route
        # A replaced route may have lost addresses, so they are collected again; a new topic's route only adds
        # addresses.
        if known is not None:
            self._known = None
        elif self._known is not None:
            _note_addrs(route, *self._known)
        return route

    def forget_address(self, broker_name: str, addr: str) -> list[str]:
        """Remove ``addr`` from the broker's addresses in all routes; returns the topics whose routes had it."""
        changed = [
            topic for topic, route in self._routes.items() if addr in route.brokers.get(broker_name, {}).values()
        ]
        for topic in changed:
            self._routes[topic] = self._routes[topic].without(broker_name, addr)
        if changed:
            self._known = None
        return changed

    def topics(self) -> list[str]:
        """All topics with a route, in the order in which they were added."""
        return list(self._routes)

    def broker_names(self) -> set[str]:
        """The names of all brokers in the routes."""
        return {name for route in self._routes.values() for name in route.brokers}

    def masters(self) -> list[str]:
        """The addresses of all masters, each once."""
        return list(self._addrs()[1])

    def addrs(self) -> list[str]:
        """The addresses of all brokers, each once."""
        return list(self._addrs()[0])

    def _addrs(self) -> tuple[dict[str, None], dict[str, None]]:
        if self._known is None:
            self._known = {}, {}
            for route in self._routes.values():
                _note_addrs(route, *self._known)
        return self._known


def _note_addrs(route: TopicRoute, brokers: dict[str, None], masters: dict[str, None]) -> None:
    """Add the addresses in ``route``."""
    for addrs in route.brokers.values():
        brokers.update(dict.fromkeys(addrs.values()))
        if MASTER_ID in addrs:
            masters[addrs[MASTER_ID]] = None
