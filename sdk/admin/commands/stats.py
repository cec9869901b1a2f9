"""statsAll: what goes into each topic and out to each of its groups."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mqcommon.errors import BrokerError, RouteNotFound
from mqcommon.names import DLQ_PREFIX, RETRY_PREFIX
from sdk.admin.command import command
from sdk.admin.params import option
from sdk.admin.render import Row, Table
from sdk.admin.session import Session
from sdk.admin.targets import MASTER_ID

if TYPE_CHECKING:
    from remoting.protocol.requests.brokers import BrokerStatsData

FAMILY = "Statistics"
_COLUMNS = (
    ("#Topic", "topic"),
    ("#Consumer Group", "consumerGroup"),
    ("#Accumulation", "accumulation"),
    ("#InTPS", "inTps"),
    ("#OutTPS", "outTps"),
    ("#InMsg24Hour", "inMsg24Hour"),
    ("#OutMsg24Hour", "outMsg24Hour"),
)
_OF_GROUP = Table(_COLUMNS, "%-64s  %-64s %12d %11.2f %11.2f %14d %14d", "%-64s  %-64s %12s %11s %11s %14s %14s")
_WITHOUT_GROUP = Table(_COLUMNS, "%-64s  %-64s %12d %11.2f %11s %14d %14s")


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield _OF_GROUP.head()
    for row in rows:
        if row["consumerGroup"] is None:
            yield _WITHOUT_GROUP.row({**row, "consumerGroup": "", "outTps": "", "outMsg24Hour": "NO_CONSUMER"})
        else:
            yield _OF_GROUP.row(row)


@command(
    "statsAll",
    option("a", "activeTopic", "print active topic only", type=bool, is_flag=True),
    option("t", "topic", "print select topic only", default=None),
    show=_lines,
)
async def stats_all(session: Session, active_topic: bool, topic: str | None) -> list[dict[str, Any]]:
    """Show the messages in and out of each topic and group: a second, in the last day, and those that wait."""
    every = [
        name for name in sorted(await session.admin.topic_list()) if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    ]
    answers = await session.each(
        every if topic is None else [name for name in every if name == topic] or [topic],
        lambda name: _rows(session, name),
    )
    for name, error in answers.errors.items():
        # a topic that was deleted meanwhile has no route
        if topic is not None or not isinstance(error, RouteNotFound):
            session.fail(error, f"topic {name}")
    rows = [row for rows in answers.values.values() for row in rows]
    return [row for row in rows if not active_topic or row["inMsg24Hour"] or row["outMsg24Hour"]]


async def _rows(session: Session, topic: str) -> list[dict[str, Any]]:
    route = await session.admin.topic_route(topic)
    masters = [one.broker_addrs[MASTER_ID] for one in route.broker_datas if MASTER_ID in one.broker_addrs]
    put_tps, put = await _sums(session, masters, "TOPIC_PUT_NUMS", topic)
    base = {"topic": topic, "accumulation": 0, "inTps": put_tps, "inMsg24Hour": put}
    rows: list[dict[str, Any]] = []
    for group in await session.admin.groups_of_topic(topic):
        got_tps, got = await _sums(session, masters, "GROUP_GET_NUMS", f"{topic}@{group}")
        left = await _accumulation(session, group, topic)
        rows.append({**base, "consumerGroup": group, "accumulation": left, "outTps": got_tps, "outMsg24Hour": got})
    return rows or [{**base, "consumerGroup": None, "outTps": 0.0, "outMsg24Hour": 0}]


async def _sums(session: Session, masters: Sequence[str], name: str, key: str) -> tuple[float, int]:
    """Messages a second in the last minute, and messages in the last day, of all the brokers."""
    tps, total = 0.0, 0
    for addr in masters:
        try:
            data = await session.admin.broker_stats(addr, name, key)
        except BrokerError:
            continue  # it has counted nothing
        tps += data.stats_minute.tps
        total += of_a_day(data)
    return tps, total


async def _accumulation(session: Session, group: str, topic: str) -> int:
    try:
        stats = await session.admin.consume_stats(group, topic)
    except BrokerError:
        return 0
    return max(sum(one.broker_offset - one.consumer_offset for one in stats.offset_table.values()), 0)


def of_a_day(data: "BrokerStatsData") -> int:
    """Messages in the last day. A RocketMQ broker has that only an hour after the first message."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum


COMMANDS = (stats_all,)
