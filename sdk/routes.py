"""Routes as clients use them: which queues can be written and read, and at which address. Pure.

A `TopicRoute` is what the NameServer said about one topic, made ready to use, and never changed: a new answer makes a
new one. `RouteCache` keeps the last of each topic; a route that could not be refreshed stays, since brokers outlive
NameServers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mqcommon.errors import ProtocolError
from mqcommon.message.queue import MessageQueue
from mqcommon.names import MASTER_ID, PERM_READ, PERM_WRITE
from remoting.protocol.bodies.route import QueueData, TopicRouteData

# More queues than anyone has; a larger number is damage, and would fill the memory.
MAX_QUEUES = 65_536


def master_of(addrs: Mapping[int, str]) -> str | None:
    """The address of id 0; None when the broker has no master now."""
    return addrs.get(MASTER_ID)


def reader_of(addrs: Mapping[int, str], preferred_id: int = MASTER_ID) -> str | None:
    """Where to read: the preferred id, else the lowest; None when there is no address."""
    found = addrs.get(preferred_id)
    return found if found is not None else addrs[min(addrs)] if addrs else None


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic and the brokers that hold them.

    ``writable`` (what a producer chooses from) and ``readable`` are sorted. ``writable_at`` is ``writable`` by the
    master's address, as far as there is one: an ordered topic keeps the queues of a broker that is away. ``brokers``
    is broker name → id → address.
    """

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    writable_at: Mapping[str, tuple[MessageQueue, ...]]

    def master(self, broker_name: str) -> str | None:
        """The address of the broker's master; None when it is not in the route."""
        return master_of(self.brokers.get(broker_name, {}))

    def reader(self, broker_name: str, preferred_id: int = MASTER_ID) -> str | None:
        """The address to read from; None when the broker is not in the route."""
        return reader_of(self.brokers.get(broker_name, {}), preferred_id)


def make_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """What ``data`` means for producers and consumers of ``topic``."""
    brokers = {
        broker.broker_name: MappingProxyType(dict(sorted(broker.broker_addrs.items())))
        for broker in sorted(data.broker_datas, key=lambda broker: broker.broker_name)
    }
    if data.order_topic_conf:
        writable = _queues(topic, _ordered_counts(data.order_topic_conf))
    else:
        counts = _counts(data.queue_datas, PERM_WRITE)
        writable = _queues(topic, {name: n for name, n in counts.items() if master_of(brokers.get(name, {}))})
    by_addr: dict[str, list[MessageQueue]] = {}
    for queue in writable:
        addr = master_of(brokers.get(queue.broker_name, {}))
        if addr is not None:
            by_addr.setdefault(addr, []).append(queue)
    return TopicRoute(
        topic,
        MappingProxyType(brokers),
        writable,
        _queues(topic, _counts(data.queue_datas, PERM_READ)),
        MappingProxyType({addr: tuple(queues) for addr, queues in by_addr.items()}),
    )


def _counts(queue_datas: Iterable[QueueData], perm: int) -> dict[str, int]:
    """Broker name → number of queues, of those that have the permission."""
    return {
        data.broker_name: data.write_queue_nums if perm == PERM_WRITE else data.read_queue_nums
        for data in queue_datas
        if data.perm & perm
    }


def _ordered_counts(conf: str) -> dict[str, int]:
    """``broker-a:4;broker-b:4`` of an ordered topic: its queues stay the same while a broker is away."""
    counts = {}
    for part in conf.split(";"):
        name, _, count = part.partition(":")
        if name and count.isdigit():
            counts[name] = int(count)
    return counts


def _queues(topic: str, counts: Mapping[str, int]) -> tuple[MessageQueue, ...]:
    total = sum(max(count, 0) for count in counts.values())
    if total > MAX_QUEUES:
        raise ProtocolError(f"the route of topic {topic} has {total} queues, more than {MAX_QUEUES}")
    return tuple(MessageQueue(topic, name, number) for name in sorted(counts) for number in range(counts[name]))


class RouteCache:
    """The last known route of each topic in use."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}

    def get(self, topic: str) -> TopicRoute | None:
        """The route, however old."""
        return self._routes.get(topic)

    def put(self, route: TopicRoute) -> TopicRoute:
        """Keep ``route``; an equal one that was there already stays, so that identity tells of a change."""
        known = self._routes.get(route.topic)
        if known == route:
            return known
        self._routes[route.topic] = route
        return route

    def drop(self, topic: str) -> None:
        """Forget the topic."""
        self._routes.pop(topic, None)

    def topics(self) -> list[str]:
        """Every topic that has a route, in the order they came."""
        return list(self._routes)

    def masters(self) -> list[str]:
        """The addresses of all masters, each once."""
        return self._addrs(masters_only=True)

    def addrs(self) -> list[str]:
        """The addresses of all brokers, each once."""
        return self._addrs(masters_only=False)

    def _addrs(self, *, masters_only: bool) -> list[str]:
        found: dict[str, None] = {}
        for route in self._routes.values():
            for addrs in route.brokers.values():
                for broker_id, addr in addrs.items():
                    if broker_id == MASTER_ID or not masters_only:
                        found[addr] = None
        return list(found)
