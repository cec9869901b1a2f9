"""queryCq and searchOffset: show consume queue entries, and find the offset of a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import BrokerAddress, broker_name, option, time_option, topic_option
from skylark.mqadmin.reading import chosen_queues, queue_json
from skylark.mqadmin.render import Row, Table, java_value, time_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.consumer.pull import PullConsumer

_LINE = "=" * 38


def _entry_text(entry: Mapping[str, Any]) -> str:
    """RocketMQ's ``ConsumeQueueData.toString``."""
    numbers = ", ".join(f"{name}={entry[name]}" for name in ("physicOffset", "physicSize", "tagsCode"))
    texts = {name: visible(java_value(entry.get(name))) for name in ("extendDataJson", "bitMap", "msg")}
    return (
        f"ConsumeQueueData{{{numbers}, extendDataJson='{texts['extendDataJson']}', bitMap='{texts['bitMap']}', "
        f"eval={java_value(entry['eval'])}, msg='{texts['msg']}'}}"
    )


def _cq_lines(result: Mapping[str, Any]) -> Iterator[str]:
    if result.get("subscriptionData") is not None:
        yield from ("Subscription data: ", visible(pretty(result["subscriptionData"])), _LINE)
    if result.get("filterData") is not None:
        yield from ("Filter data: ", visible(result["filterData"]), _LINE)
    yield "Queue data: "
    yield f"max: {result['maxQueueIndex']}, min: {result['minQueueIndex']}"
    yield _LINE
    for number, entry in enumerate(result["queueData"], result["index"]):
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
) -> dict[str, Any]:
    """Show entries of a consume queue, and with -g whether the group's subscription takes them.

    Without -b, the first broker that has the queue is asked.
    """
    addr = broker or await _first_with(session, topic, queue)
    found = await session.admin.query_consume_queue(addr, topic, queue, index, count, consumer)
    if not found.min_queue_index <= index < found.max_queue_index:
        session.fail(
            UserError(
                f"index {index} is not in queue {queue} of {topic} at {addr}; "
                f"it has {found.min_queue_index} to {found.max_queue_index - 1}"
                if found.max_queue_index > found.min_queue_index
                else f"queue {queue} of {topic} at {addr} has no message"
            )
        )
    entries = list(found.queue_data)
    end = min(index + count, found.max_queue_index)
    while entries and index + len(entries) < end:
        session.progress(f"{len(entries)} of {end - index} entries")
        at = index + len(entries)
        more = await session.admin.query_consume_queue(addr, topic, queue, at, end - at, consumer)
        if not more.queue_data:
            break
        entries += more.queue_data
    found.queue_data = entries
    return {"brokerAddr": addr, "topic": topic, "queueId": queue, "index": index, **found.to_wire()}


async def _first_with(session: Session, topic: str, queue_id: int) -> str:
    from skylark.sdk.routes import reader_of

    route = await session.admin.topic_route(topic)
    names = sorted(
        one.broker_name for one in route.queue_datas if queue_id < max(one.read_queue_nums, one.write_queue_nums)
    )
    addrs = {one.broker_name: reader_of(one.broker_addrs) for one in route.broker_datas}
    having = [name for name in names if addrs.get(name)]
    if not having:
        raise UserError(f"no broker of topic {topic} has queue {queue_id}; see mqadmin topicRoute")
    if len(having) > 1:
        session.warn(f"asking {having[0]}; for another broker that has the queue ({', '.join(having[1:])}) give -b")
    return str(addrs[having[0]])


_SEARCH = Table(
    (
        ("#Broker Name", "brokerName"),
        ("#QID", "queueId"),
        ("#Min Offset", "minOffset"),
        ("#Max Offset", "maxOffset"),
        ("#Lower", "lower"),
        ("#Upper", "upper"),
        ("#Time Of Lower", "lowerTime"),
    ),
    "%-32s  %-4d  %-20d  %-20d  %-20s  %-20s  %s",
)


def _search_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield _SEARCH.head()
    for row in result["queues"]:
        shown = {name: "" if row.get(name) is None else row[name] for name in ("lower", "upper")}
        yield _SEARCH.row({**row, **shown, "lowerTime": time_text(row.get("lowerTimestamp") or 0)})


@command(
    "searchOffset",
    topic_option(),
    time_option("s", "timestamp", "the time to look for", required=True),
    broker_name("broker name", default=None),
    option("i", "queueId", "queue id", type=click.IntRange(min=0), default=None),
    option(
        "",
        "boundary",
        "LOWER: the first message stored at or after the time; UPPER: the last one at or before it; default: both",
        type=click.Choice(["LOWER", "UPPER"], case_sensitive=False),
        default=None,
    ),
    show=_search_lines,
)
async def search_offset(
    session: Session, topic: str, timestamp: int, broker_name: str | None, queue_id: int | None, boundary: str | None
) -> dict[str, Any]:
    """Find the offsets of a time in all queues of a topic, in those of one broker (-b) or in one queue (-b, -i).

    LOWER is the end of the queue when all messages are older, UPPER is its start when all are newer.
    """
    async with session.consumer() as consumer:
        queues = {
            f"{queue.broker_name} queue {queue.queue_id}": queue
            for queue in await chosen_queues(consumer, topic, broker_name, queue_id)
        }
        answers = await session.each(queues, lambda name: _search(consumer, queues[name], timestamp, boundary))
    for name, error in answers.errors.items():
        session.fail(error, name)
    rows: Sequence[Row] = list(answers.values.values())
    return {"topic": topic, "timestamp": timestamp, "queues": rows}


async def _search(
    consumer: "PullConsumer", queue: "MessageQueue", timestamp: int, boundary: str | None
) -> dict[str, Any]:
    row = queue_json(queue, minOffset=await consumer.min_offset(queue), maxOffset=await consumer.max_offset(queue))
    if boundary != "UPPER":
        row["lower"] = at = await consumer.search_offset(queue, timestamp, "LOWER")
        first = (await consumer.pull(queue, at, max_count=1)).messages if at < row["maxOffset"] else []
        row["lowerTimestamp"] = first[0].store_timestamp if first else None
    if boundary != "LOWER":
        row["upper"] = await consumer.search_offset(queue, timestamp, "UPPER")
    return row


FAMILIES = {
    "Queues": (
        query_cq,
        search_offset,
    ),
}
