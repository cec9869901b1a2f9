"""queryCq and searchOffset: show consume queue entries, and find the offset of a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import BrokerAddress, broker_name, option, time_option, topic_option
from skylark.mqadmin.render import Table, java_value, time_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.query import ConsumeQueueData
    from skylark.sdk.admin.reports.queues import QueueEntries, SearchedOffsets, SearchedQueue

_LINE = "=" * 38


def _entry_text(entry: "ConsumeQueueData") -> str:
    """RocketMQ's ``ConsumeQueueData.toString``."""
    texts = (
        f"{name}='{visible(java_value(value))}'"
        for name, value in (("extendDataJson", entry.extend_data_json), ("bitMap", entry.bit_map))
    )
    return (
        f"ConsumeQueueData{{physicOffset={entry.physic_offset}, physicSize={entry.physic_size},"
        f" tagsCode={entry.tags_code}, {', '.join(texts)}, eval={java_value(entry.eval)},"
        f" msg='{visible(java_value(entry.msg))}'}}"
    )


def _cq_lines(entries: "QueueEntries") -> Iterator[str]:
    found = entries.found
    if found.subscription_data is not None:
        yield from ("Subscription data: ", visible(pretty(found.subscription_data.to_wire())), _LINE)
    if found.filter_data is not None:
        yield from ("Filter data: ", visible(found.filter_data), _LINE)
    yield "Queue data: "
    yield f"max: {found.max_queue_index}, min: {found.min_queue_index}"
    yield _LINE
    for number, entry in enumerate(found.queue_data, entries.index):
        yield from (f"idx: {number}", _entry_text(entry), _LINE)


@command(
    "queryCq",
    topic_option(),
    option("q", "queue", "queue num, ie. 1", type=click.IntRange(min=0), required=True),
    option("i", "index", "start queue index.", type=click.IntRange(min=0), required=True),
    option("c", "count", "how many.", type=click.IntRange(1, 2**31 - 1), default=10, show_default=True),
    option("b", "broker", "broker addr.", type=BrokerAddress(), metavar="HOST:PORT|NAME", default=None),
    option("g", "consumer", "consumer group.", default=None),
    show=_cq_lines,
)
async def query_cq(
    session: Session, topic: str, queue: int, index: int, count: int, broker: str | None, consumer: str | None
) -> "QueueEntries":
    """Show entries of a consume queue, and with -g whether the group's subscription takes them.

    Without -b, the first broker that has the queue is asked.
    """
    from skylark.sdk.admin.reports.queues import queue_entries

    return await queue_entries(
        session.admin,
        topic,
        queue,
        index,
        count,
        broker_addr=broker,
        group=consumer,
        on_problem=session.report_problem,
        on_progress=session.progress,
    )


def _lower(row: "SearchedQueue") -> object:
    return "" if row.lower is None else row.lower.offset


def _time_of_lower(row: "SearchedQueue") -> str:
    return "" if row.lower is None else time_text(row.lower.store_timestamp_ms or 0)


_SEARCH = Table(
    (
        ("#Broker Name", "broker_name"),
        ("#QID", "queue_id"),
        ("#Min Offset", "min_offset"),
        ("#Max Offset", "max_offset"),
        ("#Lower", _lower),
        ("#Upper", lambda row: "" if row.upper is None else row.upper),
        ("#Time Of Lower", _time_of_lower),
    ),
    "%-32s  %-4d  %-20d  %-20d  %-20s  %-20s  %s",
)


def _search_lines(found: "SearchedOffsets") -> Iterator[str]:
    return _SEARCH.lines(found.queues)


@command(
    "searchOffset",
    topic_option(),
    time_option("s", "timestamp", "the time to look for", required=True),
    broker_name("broker name", default=None),
    option("i", "queueId", "queue id", type=click.IntRange(min=0), default=None),
    option(
        "",
        "boundary",
        "LOWER: first message stored at or after the time; UPPER: last message stored at or before it; default: both",
        type=click.Choice(["LOWER", "UPPER"], case_sensitive=False),
        default=None,
    ),
    show=_search_lines,
)
async def search_offset(
    session: Session,
    topic: str,
    timestamp: int,
    broker_name: str | None,
    queue_id: int | None,
    boundary: Literal["LOWER", "UPPER"] | None,
) -> "SearchedOffsets":
    """Find the offsets of a time in all queues of a topic, in one broker's queues (-b) or in one queue (-b, -i).

    LOWER is the end of the queue when all messages are older; UPPER is the queue's start when all are newer.
    """
    from skylark.sdk.admin.reports.queues import search_offsets

    async with session.consumer() as consumer:
        return await search_offsets(
            consumer,
            topic,
            timestamp,
            broker_name=broker_name,
            queue_id=queue_id,
            boundary=boundary,
            on_problem=session.report_problem,
            on_progress=session.progress,
        )


FAMILIES = {
    "Queues": (
        query_cq,
        search_offset,
    ),
}
