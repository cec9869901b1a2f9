"""Queues: entries of a consume queue, and the offsets of a time."""

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.query import ConsumeQueueEntries
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ReportProblem, ask_each
from skylark.sdk.admin.reports.reading import chosen_queues
from skylark.sdk.admin.reports.report import FLAT, OPTIONAL, named

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.consumer.pull import PullConsumer


@lazy_dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries of a consume queue from ``index`` on, as the broker returns them."""

    broker_addr: str
    topic: str
    queue_id: int
    index: int
    found: ConsumeQueueEntries = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class LowerOffset:
    """The offset of the first message stored at or after a time; the end of the queue when all are older."""

    offset: int = field(metadata=named("lower"))
    #: When that message was stored; None at the end of the queue.
    store_timestamp_ms: int | None = field(metadata=named("lowerTimestamp"))


@lazy_dataclass(frozen=True, slots=True)
class SearchedQueue:
    """The offsets of a time in one queue; None for an offset that was not asked for."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    lower: LowerOffset | None = field(metadata=FLAT)
    #: The offset of the last message stored at or before the time; the start of the queue when all are newer.
    upper: int | None = field(metadata=OPTIONAL)


@lazy_dataclass(frozen=True, slots=True)
class SearchedOffsets:
    """The offsets of a time in the queues of a topic."""

    topic: str
    timestamp_ms: int = field(metadata=named("timestamp"))
    queues: tuple[SearchedQueue, ...]


async def queue_entries(
    admin: "Admin",
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    *,
    broker_addr: str | None = None,
    group: str | None = None,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> QueueEntries:
    """At most ``count`` entries of a consume queue, and whether the subscription of ``group`` takes them.

    Without ``broker_addr`` the first broker that has the queue is asked. An index outside the queue is a problem.
    """
    addr = broker_addr or await _first_with(admin, topic, queue_id, on_problem)
    found = await admin.query_consume_queue(addr, topic, queue_id, index, count, group)
    if not found.min_queue_index <= index < found.max_queue_index:
        has = (
            f"index {index} is not in queue {queue_id} of {topic} at {addr}; "
            f"it has {found.min_queue_index} to {found.max_queue_index - 1}"
            if found.max_queue_index > found.min_queue_index
            else f"queue {queue_id} of {topic} at {addr} has no message"
        )
        on_problem(ReportProblem("", UserError(has)))
    entries = list(found.queue_data)
    end = min(index + count, found.max_queue_index)
    while entries and index + len(entries) < end:
        if on_progress is not None:
            on_progress(f"{len(entries)} of {end - index} entries")
        at = index + len(entries)
        more = await admin.query_consume_queue(addr, topic, queue_id, at, end - at, group)
        if not more.queue_data:
            break
        entries += more.queue_data
    found.queue_data = entries
    return QueueEntries(addr, topic, queue_id, index, found)


async def _first_with(admin: "Admin", topic: str, queue_id: int, on_problem: OnProblem) -> str:
    from skylark.sdk.routes import reader_of

    route = await admin.topic_route(topic)
    names = sorted(
        one.broker_name for one in route.queue_datas if queue_id < max(one.read_queue_nums, one.write_queue_nums)
    )
    addrs = {one.broker_name: reader_of(one.broker_addrs) for one in route.broker_datas}
    having = [name for name in names if addrs.get(name)]
    if not having:
        raise UserError(f"no broker of topic {topic} has queue {queue_id}; see mqadmin topicRoute")
    if len(having) > 1:
        others = ", ".join(having[1:])
        on_problem(
            ReportProblem(
                f"asking {having[0]}; for another broker that has the queue ({others}) name the broker (mqadmin: -b)"
            )
        )
    return str(addrs[having[0]])


async def search_offsets(
    consumer: "PullConsumer",
    topic: str,
    timestamp_ms: int,
    *,
    broker_name: str | None = None,
    queue_id: int | None = None,
    boundary: Literal["LOWER", "UPPER"] | None = None,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> SearchedOffsets:
    """The offsets of a time in the queues of a topic, of one broker or of one queue; both boundaries or one."""
    queues = {
        f"{queue.broker_name} queue {queue.queue_id}": queue
        for queue in await chosen_queues(consumer, topic, broker_name, queue_id)
    }
    answers = await ask_each(queues, lambda name: _search(consumer, queues[name], timestamp_ms, boundary), on_progress)
    for name, error in answers.errors.items():
        on_problem(ReportProblem(name, error))
    return SearchedOffsets(topic, timestamp_ms, tuple(answers.values.values()))


async def _search(
    consumer: "PullConsumer", queue: "MessageQueue", timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] | None
) -> SearchedQueue:
    first, after = await consumer.min_offset(queue), await consumer.max_offset(queue)
    lower = upper = None
    if boundary != "UPPER":
        at = await consumer.search_offset(queue, timestamp_ms, "LOWER")
        found = (await consumer.pull(queue, at, max_count=1)).messages if at < after else []
        lower = LowerOffset(at, found[0].store_timestamp if found else None)
    if boundary != "LOWER":
        upper = await consumer.search_offset(queue, timestamp_ms, "UPPER")
    return SearchedQueue(queue.broker_name, queue.queue_id, first, after, lower, upper)
