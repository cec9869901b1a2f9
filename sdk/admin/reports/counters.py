"""How many messages go into a topic, and out of it to each group: a second, in the last day, and how many wait."""

from collections.abc import Sequence
from dataclasses import field

from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.brokers import BrokerStatsData
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.all_groups import ProgressOfGroups
from skylark.sdk.admin.reports.report import named


@lazy_dataclass(frozen=True, slots=True)
class CountedMessages:
    """Messages a second in the last minute, and messages in the last day."""

    tps: float = 0.0
    of_day: int = 0


@lazy_dataclass(frozen=True, slots=True)
class CounterRow:
    """A topic and a group that consumes it; a topic without groups has one row, whose group is None.

    ``accumulation`` is the number of messages that the group has not consumed. As in RocketMQ's
    tool, messages that consumers read from slaves are not counted.
    """

    topic: str
    accumulation: int
    in_tps: float
    in_of_day: int = field(metadata=named("inMsg24Hour"))
    consumer_group: str | None
    out_tps: float
    out_of_day: int = field(metadata=named("outMsg24Hour"))


@lazy_dataclass(frozen=True, slots=True)
class TopicCounters:
    """The rows of a topic. ``absent``: names of brokers that are away, and whose messages are not counted."""

    rows: tuple[CounterRow, ...]
    absent: tuple[str, ...]


async def topic_counters(admin: Admin, topic: str, known: ProgressOfGroups | None = None) -> TopicCounters:
    """The counters of a topic. Without ``known``, the answers of whole brokers, brokers are asked for each group."""
    route = await admin.topic_route(topic)
    masters = [one.broker_addrs[MASTER_ID] for one in route.broker_datas if MASTER_ID in one.broker_addrs]
    broker_names = [one.broker_name for one in route.broker_datas]
    sums_known = None if known is None else _known_sums(known, topic, masters, len(broker_names))
    sums = await _asked_sums(admin, masters, topic) if sums_known is None else sums_known
    put = sums.pop("")
    rows: list[CounterRow] = []
    for group, got in sums.items():
        left = None if known is None else known.lag(group, topic, broker_names)
        if left is None:
            # At one broker the group has consumed nothing of the topic yet, so all messages there wait.
            left = await _asked_lag(admin, group, topic)
        # A group may have offsets past the ends of a topic that was deleted and made again.
        rows.append(CounterRow(topic, max(left, 0), put.tps, put.of_day, group, got.tps, got.of_day))
    absent = tuple(one.broker_name for one in route.absent_brokers or ())
    return TopicCounters(tuple(rows) or (CounterRow(topic, 0, put.tps, put.of_day, None, 0.0, 0),), absent)


def _known_sums(
    known: ProgressOfGroups, topic: str, masters: Sequence[str], sets: int
) -> dict[str, CountedMessages] | None:
    """Group → messages, "" → messages sent to the topic; None unless the masters of all ``sets`` answered."""
    answers = [known.traffic[addr] for addr in masters if addr in known.traffic]
    if len(answers) < sets:
        return None

    def total(group: str) -> CountedMessages:
        rows = [row for one in answers if (row := one.counted.get((topic, group))) is not None]
        return CountedMessages(sum((row.tps for row in rows), 0.0), sum(row.of_day for row in rows))

    readers = sorted({group for one in answers for group in one.readers.get(topic, ())})
    return {group: total(group) for group in ("", *readers)}


async def _asked_sums(admin: Admin, masters: Sequence[str], topic: str) -> dict[str, CountedMessages]:
    sums = {"": await _counted(admin, masters, "TOPIC_PUT_NUMS", topic)}
    for group in await admin.groups_of_topic(topic):
        sums[group] = await _counted(admin, masters, "GROUP_GET_NUMS", f"{topic}@{group}")
    return sums


async def _counted(admin: Admin, masters: Sequence[str], name: str, key: str) -> CountedMessages:
    tps, total = 0.0, 0
    for addr in masters:
        try:
            data = await admin.broker_stats(addr, name, key)
        except BrokerError:
            continue  # the broker has counted nothing
        tps += data.stats_minute.tps
        total += of_a_day(data)
    return CountedMessages(tps, total)


async def _asked_lag(admin: Admin, group: str, topic: str) -> int:
    try:
        stats = await admin.consume_stats(group, topic)
    except BrokerError:
        return 0
    return sum(one.broker_offset - one.consumer_offset for one in stats.offset_table.values())


def of_a_day(data: BrokerStatsData) -> int:
    """Messages in the last day. A RocketMQ broker has this count only an hour after the first message."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
