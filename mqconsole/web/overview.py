"""The overview: clusters, sets, brokers, rates and disks; the drawn topology; one broker."""

from collections.abc import Mapping

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.people.person import with_problems
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.charts import Line, as_csv, chart
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.watching.history import DAY_S, HOUR_S
from skylark.mqconsole.watching.snapshot import USER
from skylark.mqconsole.web.asking import Asked, Done, Download, NoSuchThing, View
from skylark.mqconsole.web.site import Site
from skylark.sdk.admin.reports.brokers import broker_configs
from skylark.sdk.admin.topology_picture import picture

#: Name in the address → the span of charts.
SPANS = {"hour": HOUR_S, "day": DAY_S}
SHORTEST_S = 60
MOST_IN_PICTURE = 12
BROKERS = (
    Column("brokerName", "Set"),
    Column("brokerId", "Id", is_number=True, hint="0 is the master"),
    Column("brokerAddr", "Address"),
    Column("clusterName", "Cluster"),
    Column("version", "Version"),
    Column("inTps", "In /s", texts.count, is_number=True, hint="messages a second that producers send"),
    Column("outTps", "Out /s", texts.count, is_number=True, hint="messages a second that consumers get"),
    Column("lagBytes", "Behind", texts.size, is_number=True, hint="what a slave lacks of its master's log"),
    Column("commitLogDiskRatio", "Disk", texts.percent, is_number=True, hint="how full the disk of the log is"),
    Column("inTotalToday", "In today", texts.count, is_number=True),
    Column("outTotalToday", "Out today", texts.count, is_number=True),
)


@lazy_dataclass(frozen=True, slots=True)
class NamedValue:
    """A counter or an option of a broker."""

    name: str
    value: str


@lazy_dataclass(frozen=True, slots=True)
class LateGroup:
    """A group that has a lag."""

    group: str
    lag: int


_SECRET = ("secret", "password", "credential", "initauthenticationuser")
_VALUES = (Column("name", "Name"), Column("value", "Value"))


def span_of(ask: Asked) -> tuple[str, int, int]:
    """The span in the address: its name, its first and its last second."""
    name = ask.fields.text("span", "hour")
    name = name if name in SPANS else "hour"
    now_s = ask.snapshot.at_ms // 1000
    # A console that has just started shows the time since its start, not an empty hour.
    known = ask.collector.history.get("in")
    began_s = min(known[0].first_s if known else now_s, now_s - SHORTEST_S)
    return name, max(now_s - SPANS[name], began_s), now_s


def add_overview(site: Site) -> None:
    """Register the pages."""

    site.page("/", Role.READER, "overview.html", overview)
    site.download("/topology.svg", Role.READER, topology_svg)
    site.download("/rates.csv", Role.READER, rates_csv)
    site.page("/brokers/<addr>", Role.READER, "broker.html", broker)
    site.change("/brokers/<addr>/left", Role.OPERATOR, broker_has_left)


def _unless_secret(name: str, value: str) -> str:
    """The value, or a placeholder for a secret: RocketMQ's brokers show secrets."""
    return "******" if value and any(part in name.lower() for part in _SECRET) else value


async def overview(ask: Asked) -> View:
    snapshot = ask.snapshot
    span, from_s, to_s = span_of(ask)
    lines = [Line(name, ask.collector.history.get(name, from_s)) for name in ("in", "out")]
    data = {
        "at": snapshot.at_ms,
        "error": snapshot.error,
        "span": span,
        "clusters": snapshot.topology.clusters,
        "topicCount": len(snapshot.topology.topics),
        "groupCount": sum(row.kind == USER for row in snapshot.groups),
        "brokerCount": len(snapshot.brokers),
        "silent": [row.broker_addr for row in snapshot.brokers if row.error is not None],
        "away": [one.row() for one in snapshot.away],
        "lag": sum(row.lag for row in snapshot.groups),
        "inTps": sum(row.load.in_tps for row in snapshot.masters()),
        "outTps": sum(row.load.out_tps for row in snapshot.brokers),
        "late": [LateGroup(row.consumer_group, row.lag) for row in snapshot.topology.groups[:5] if row.lag],
    }
    asked = wanted(ask.fields.values, keep=("span",))
    brokers = table(
        snapshot.brokers,
        BROKERS,
        asked,
        searched=("clusterName", "brokerName", "brokerAddr", "version"),
        sort="brokerName",
    )
    drawn = chart(lines, f"Messages in and out a second, in the last {span}", from_s, to_s, unit=" /s")
    return View("Overview", data, {"brokers": brokers}, {"rates": drawn}, list(snapshot.problems))


async def topology_svg(ask: Asked) -> Download:
    return Download(picture(ask.snapshot.topology, MOST_IN_PICTURE), "image/svg+xml")


async def rates_csv(ask: Asked) -> Download:
    history = ask.collector.history
    names = [name for name in history.names("") if name.partition(" ")[0] in ("in", "out")]
    return Download(as_csv([Line(name, history.get(name)) for name in names]), "text/csv", "rates.csv")


async def broker(ask: Asked, addr: str) -> View:
    row = ask.snapshot.broker(addr)
    if row is None:
        raise NoSuchThing(f"the NameServers know no broker at {addr}")
    span, from_s, to_s = span_of(ask)
    history = ask.collector.history
    lines = [Line(name, history.get(f"{name} {addr}", from_s)) for name in ("in", "out")]
    drawn = chart(lines, f"Messages in and out a second at {addr}, in the last {span}", from_s, to_s, unit=" /s")
    its_id = "former master" if row.broker_id is None else row.broker_id
    view = View(f"Broker {row.broker_name}:{its_id}", {"broker": row, "span": span}, {}, {"rates": drawn})
    if row.error is not None:
        return view
    # Asked with this person's credentials: a person who may not see a broker's options does not see them here.
    admin = ask.person.admin
    info: Mapping[str, str] = await ask.person.recent(f"info {addr}", lambda: admin.broker_runtime_info(addr))
    configs, view.problems = await ask.person.recent(
        f"config {addr}", lambda: with_problems(lambda tell: broker_configs(admin, {addr: None}, on_problem=tell))
    )
    asked = wanted(ask.fields.values, keep=("span",))
    every = {name: _unless_secret(name, value) for one in configs for name, value in one.config.items()}
    for name, values in (("status", info), ("options", every)):
        rows = [NamedValue(key, value) for key, value in sorted(values.items())]
        view.tables[name] = table(rows, _VALUES, asked, searched=("name", "value"), sort="name")
    return view


async def broker_has_left(ask: Asked, addr: str) -> Done:
    if not ask.collector.broker_has_left(addr):
        raise InvalidArgument(
            f"no broker is away from {addr}, or a NameServer still lists it: load the page again; mqadmin forgetBroker"
            " takes a broker out of the NameServers"
        )
    return Done("/", f"broker {addr} is shown no longer")
