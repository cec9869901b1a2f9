"""startMonitoring: in each round, what every group has not consumed yet, and its dead letters."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import BrokerError, RouteNotFound
from mqcommon.names import DLQ_PREFIX, RETRY_PREFIX
from sdk.admin.command import command
from sdk.admin.params import option
from sdk.admin.render import java_object
from sdk.admin.rounds import in_rounds
from sdk.admin.session import Session

if TYPE_CHECKING:
    from remoting.protocol.requests.groups import ConsumeStats
    from remoting.protocol.requests.topics import TopicStatsTable

FAMILY = "Statistics"
_PREFIX = "[MONITOR] "
_LINE = "=" * 41


def undone_of(group: str, stats: "ConsumeStats", topics: "Mapping[str, TopicStatsTable]") -> list[dict[str, Any]]:
    """A row for each topic that the group consumes: messages that wait, in all and in the fullest queue, and the delay.

    The delay is that of the queue that lags most: from the last message consumed to the last one stored.
    """
    rows: dict[str, dict[str, Any]] = {}
    for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        row = rows.setdefault(
            queue.topic,
            {"consumerGroup": group, "topic": queue.topic, "total": 0, "singleQueue": 0, "delayMs": 0},
        )
        left = max(offsets.broker_offset - offsets.consumer_offset, 0)
        row["total"] += left
        row["singleQueue"] = max(row["singleQueue"], left)
        stored = topics[queue.topic].offset_table.get(queue) if queue.topic in topics else None
        if left and stored is not None and offsets.last_timestamp > 0:
            row["delayMs"] = max(row["delayMs"], stored.last_update_timestamp - offsets.last_timestamp)
    return list(rows.values())


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_PREFIX}{_LINE}beginRound"
    for row in found["undone"]:
        members = {
            "consumerGroup": row["consumerGroup"],
            "topic": row["topic"],
            "undoneMsgsTotal": row["total"],
            "undoneMsgsSingleMQ": row["singleQueue"],
            "undoneMsgsDelayTimeMills": row["delayMs"],
        }
        yield f"{_PREFIX}reportUndoneMsgs: {java_object('UndoneMsgs', members)}"
    for row in found["dead"]:
        members = {
            "consumerGroup": row["consumerGroup"],
            "topic": row["topic"],
            "failedMsgsTotalRecently": row["total"],
        }
        yield f"{_PREFIX}reportFailedMsgs: {java_object('FailedMsgs', members)}"
    yield f"{_PREFIX}{_LINE}endRound"


@command(
    "startMonitoring",
    option(
        "i",
        "interval",
        "time between two rounds",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=60.0,
        show_default=True,
    ),
)
async def start_monitoring(session: Session, interval: float) -> None:
    """Print the messages that each group has not consumed yet, and its dead letters, every minute until Ctrl-C.

    With --output json each round is one line.
    """
    await in_rounds(session, interval, lambda: _round(session), _lines)


async def _round(session: Session) -> dict[str, Any]:
    topics = sorted(await session.admin.topic_list())
    groups = [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]

    async def undone(group: str) -> list[dict[str, Any]]:
        stats = await session.admin.consume_stats(group)
        lags = {queue.topic for queue, one in stats.offset_table.items() if one.broker_offset > one.consumer_offset}
        return undone_of(group, stats, {topic: await session.admin.topic_stats(topic) for topic in sorted(lags)})

    async def dead(topic: str) -> dict[str, Any]:
        stats = await session.admin.topic_stats(topic)
        total = sum(one.max_offset - one.min_offset for one in stats.offset_table.values())
        return {"consumerGroup": topic.removeprefix(DLQ_PREFIX), "topic": topic, "total": total}

    waiting = await session.each(groups, undone)
    lost = await session.each([topic for topic in topics if topic.startswith(DLQ_PREFIX)], dead)
    for name, error in (waiting.errors | lost.errors).items():
        # a group or topic that was deleted meanwhile
        if not isinstance(error, (BrokerError, RouteNotFound)):
            session.fail(error, name)
    return {
        "undone": [row for rows in waiting.values.values() for row in rows],
        "dead": [row for row in lost.values.values() if row["total"]],
    }


COMMANDS = (start_monitoring,)
