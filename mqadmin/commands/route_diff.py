"""routeDiff: differences between the answers of NameServers.

NameServers do not exchange data, and a broker registers with each NameServer at another moment. So values that differ
are asked for a second time, and only values that differ both times are reported.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from skylark.mqadmin.command import command
from skylark.mqadmin.params import option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import RouteNotFound, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.failures import explain

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.routes import TopicRouteData
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.admin.route_diff import Difference

T = TypeVar("T")

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
_TABLE = Table(
    (
        ("#Kind", "kind"),
        ("#Name", lambda row: visible(row.name)),
        ("#What", lambda row: visible(row.what)),
        ("#NameServer", "namesrv_addr"),
        ("#Value", "text"),
    ),
    "%-11s %-32s %-28s %-22s %s",
)


@lazy_dataclass(frozen=True, slots=True)
class RouteDifference:
    """A value in which NameServers differ: the value by NameServer address, None where a NameServer has no value."""

    kind: str
    name: str
    what: str
    values: Mapping[str, str | None]


@lazy_dataclass(frozen=True, slots=True)
class RouteDifferences:
    """What was compared, and the differences."""

    namesrv_addrs: Sequence[str]
    broker_count: int
    topic_count: int
    differences: Sequence[RouteDifference]


def _lines(found: RouteDifferences) -> Iterator[str]:
    if found.differences:
        yield _TABLE.head()
    for row in found.differences:
        for addr, value in row.values.items():
            yield _TABLE.row(
                row,
                namesrv_addr=visible(addr),
                text=visible("-" if value is None else value),
            )
    count = len(found.differences)
    compared = f"{len(found.namesrv_addrs)} NameServers, {found.broker_count} brokers, {found.topic_count} topics"
    yield f"{compared}: {f'{count} differences' if count else 'all tell the same'}"


class _NameServers:
    """The NameServers of -n. A NameServer that fails is not asked again, and its error is kept."""

    def __init__(self, admins: "dict[str, Admin]") -> None:
        self._admins = admins
        self.errors: dict[str, str] = {}

    @property
    def addrs(self) -> list[str]:
        return [addr for addr in self._admins if addr not in self.errors]

    async def ask(self, what: "Callable[[Admin], Awaitable[T]]") -> dict[str, T]:
        """The answer of each NameServer, by address."""
        from skylark.sdk.endpoint import ask_all

        answers = await ask_all(self.addrs, lambda addr: what(self._admins[addr]))
        for addr, error in answers.errors.items():
            self.errors.setdefault(addr, explain(error))
        return answers.values


async def _tables(servers: _NameServers, topics: Collection[str]) -> "tuple[list[Difference], int]":
    """The differences in brokers, and in the order of ``topics`` (or of all topics); and the number of brokers."""
    from skylark.sdk.admin.route_diff import differences, order_facts, set_differences

    infos = await servers.ask(lambda admin: admin.cluster_info())
    orders = await servers.ask(lambda admin: admin.kv_list(ORDER_TOPIC_CONFIG))
    brokers = {
        (name, broker_id)
        for info in infos.values()
        for name, data in info.broker_addr_table.items()
        for broker_id in data.broker_addrs
    }
    of_orders = differences({addr: order_facts(table) for addr, table in orders.items()})
    chosen = [each for each in of_orders if not topics or each.fact.name in topics]
    return set_differences(infos) + chosen, len(brokers)


async def _topics(
    session: Session, servers: _NameServers, topics: Sequence[str], differing_sets: set[str]
) -> "tuple[list[Difference], list[str]]":
    """The differences in the topics' routes, and the topics that no NameServer knows."""
    from skylark.sdk.admin.route_diff import topic_differences

    unknown: list[str] = []

    async def compare(topic: str) -> "list[Difference]":
        async def route(admin: "Admin") -> "TopicRouteData | None":
            try:
                return await admin.topic_route(topic)
            except RouteNotFound:
                return None

        routes = await servers.ask(route)
        if routes and not any(routes.values()):
            unknown.append(topic)
        return topic_differences(topic, routes, differing_sets)

    answers = await session.each(topics, compare)
    return [each for found in answers.all() for each in found], unknown


@command(
    "routeDiff",
    option("t", "topic", "compare only this topic; may be given several times", multiple=True, metavar="TOPIC"),
    show=_lines,
)
async def route_diff(session: Session, topic: tuple[str, ...]) -> RouteDifferences:
    """Show differences between the NameServers of -n: brokers, routes of topics, order of queues.

    The exit code is 1 when NameServers differ, or when a NameServer does not answer.
    """
    from skylark.sdk.admin.route_diff import confirmed

    addrs = list(dict.fromkeys(session.namesrv_addrs))
    if len(addrs) < 2:
        raise UserError("this compares NameServers: give several with -n HOST:PORT;HOST:PORT")
    async with AsyncExitStack() as stack:
        admins = {addr: await stack.enter_async_context(session.admin_at(addr)) for addr in addrs}
        servers = _NameServers(admins)
        found, brokers = await _tables(servers, topic)
        if found:
            found = confirmed(found, (await _tables(servers, topic))[0])
        sets = {each.fact.name for each in found if each.fact.kind == "set"}
        if topic:
            topics = sorted(set(topic))
        else:
            lists = await servers.ask(lambda admin: admin.topic_list())
            topics = sorted({name for names in lists.values() for name in names})
        of_topics, unknown = await _topics(session, servers, topics, sets)
        if of_topics:
            again = sorted({each.fact.name for each in of_topics})
            of_topics = confirmed(of_topics, (await _topics(session, servers, again, sets))[0])
    if topic and unknown and servers.addrs:
        session.fail(UserError(f"no NameServer knows topic {', '.join(unknown)}; check it with mqadmin topicList"))
    rows = [
        RouteDifference("nameServer", addr, "error", {addr: error}) for addr, error in sorted(servers.errors.items())
    ]
    rows += [RouteDifference(*each.fact, dict(each.values)) for each in [*found, *of_topics]]
    session.failed = session.failed or bool(rows)
    return RouteDifferences(servers.addrs, brokers, len(topics), rows)


FAMILIES = {"NameServers": (route_diff,)}
