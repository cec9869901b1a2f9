"""Plans the ranges to read: chooses topics and queues, asks brokers for their offsets, and computes with offsets.py.

The ends of the ranges are fixed here: a message that arrives while the job runs is not read.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, is_system_topic
from skylark.sdk.arrow.records import Records
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.routes import TopicQueues
from skylark.spark_connector.offsets import COMMITTED, OffsetRange, QueueBounds, resolve, within_bounds
from skylark.spark_connector.options.read import FAIL, ReadOptions
from skylark.spark_connector.reading.data_loss import report_lost
from skylark.spark_connector.reading.pulling import AWAY, Pulled, SlaveBehind, when_back
from skylark.spark_connector.reading.pushdown import ALL, Only
from skylark.spark_connector.reading.whole import whole_queues
from skylark.spark_connector.schema import KAFKA, MAX_QUEUES, partition_number
from skylark.spark_connector.tasks import ReadTask, grouped, task_count

if TYPE_CHECKING:
    from skylark.sdk.blocking import Admin


logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")
# With this many queues of a topic on a broker, or more, their offsets are asked for at once.
MANY_QUEUES = 8
_THREADS = 16  # requests at the same time: a topic may have hundreds of queues
# The mean size of a queue's messages is measured on its next messages, up to one of these limits.
SAMPLE_MESSAGES = 32
SAMPLE_BYTES = 64 * 1024
# The number of tasks depends on the sizes in this many queues, the queues with the most messages to read: sampling
# thousands of queues would take longer than the tasks that it saves.
SAMPLE_QUEUES = 16
# The mean size where no message could be sampled.
DEFAULT_BYTES = 1024.0


def with_topics(options: ReadOptions, list_topics: Callable[[ReadOptions], Iterable[str]]) -> ReadOptions:
    """The options with the topics that the pattern matches now, in place of the pattern."""
    if not options.topic_pattern:
        return options
    names = when_back(lambda: list_topics(options), options.broker_wait_ms)
    found = matching(options.topic_pattern, names)
    if not found:
        raise UserError(f"option topicPattern: no topic of the cluster matches {options.topic_pattern!r}")
    return replace(options, topic=",".join(found), topic_pattern="")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The topics whose whole name matches, sorted. Retry and dead-letter topics are read by name only."""
    fits = re.compile(pattern).fullmatch
    own = (RETRY_PREFIX, DLQ_PREFIX)
    return sorted(name for name in set(names) if fits(name) and not is_system_topic(name) and not name.startswith(own))


def chosen(queues: Sequence[MessageQueue], options: ReadOptions) -> list[MessageQueue]:
    """The queues of the topics that the options choose; UserError when an assigned queue does not exist."""
    wanted = set(options.assigned)
    unknown = sorted(wanted.difference(queues))
    if unknown:
        raise UserError(f"option assign names {_names(unknown)}, which no broker has; queues: {_names(queues)}")
    found = [queue for queue in queues if is_chosen(queue, options)]
    check_numbers(found, options)
    return found


def is_chosen(queue: MessageQueue, options: ReadOptions) -> bool:
    """Whether the options choose ``queue``, if it exists."""
    if options.assign:
        return queue in options.assigned
    if options.topic_pattern:
        return bool(matching(options.topic_pattern, [queue.topic]))
    return queue.topic in options.topics


def check_numbers(queues: Iterable[MessageQueue], options: ReadOptions) -> None:
    """Raise UserError when the columns need partition numbers, and two queues would get the same."""
    if options.schema_style == KAFKA:
        check_partition_numbers(queues)


def check_partition_numbers(queues: Iterable[MessageQueue]) -> None:
    """Raise UserError unless the queues of each topic have different partition numbers."""
    owners: dict[tuple[str, int], MessageQueue] = {}
    for queue in queues:
        if queue.queue_id >= MAX_QUEUES:
            raise UserError(
                f"schemaStyle=kafka cannot number queue {queue.queue_id} of topic {queue.topic}: it has room for"
                f" {MAX_QUEUES} queues of a broker; use schemaStyle=rocketmq"
            )
        owner = owners.setdefault((queue.topic, partition_number(queue.broker_name, queue.queue_id)), queue)
        if owner.broker_name != queue.broker_name:
            raise UserError(
                f"schemaStyle=kafka gives queues of brokers {owner.broker_name} and {queue.broker_name} the same"
                " partition numbers; read the brokers one by one with option assign, or use schemaStyle=rocketmq"
            )


def list_topics(options: ReadOptions) -> list[str]:
    """The topics of the cluster, without those that are named after clusters and brokers."""
    with _admin(options) as admin:
        # A topic whose brokers are all away must not be left out silently: its route says that they are away.
        names = admin.topic_list(also_absent=options.missing_brokers == FAIL)
        return sorted(set(names).difference(admin.system_topics()))


def list_clusters(options: ReadOptions) -> list[str]:
    """The names of the clusters that have the topics."""
    with _admin(options) as admin:
        return sorted({data.cluster for topic in options.topics for data in admin.topic_route(topic).broker_datas})


def _admin(options: ReadOptions) -> "Admin":
    from skylark.sdk.blocking import Admin

    return Admin(**options.client, timeout_ms=options.pull_timeout_ms)


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(f"{topic} {broker} {queue}" for topic, broker, queue in queues)


class QueueDirectory(Protocol):
    """A source of queues and their offsets."""

    def topic_queues(self, topic: str) -> TopicQueues: ...
    def min_offset(self, mq: MessageQueue) -> int: ...
    def end_position(self, mq: MessageQueue) -> Position: ...
    def topic_offsets(self, topic: str, broker_name: str) -> Mapping[MessageQueue, OffsetSpan]: ...
    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int: ...
    def committed_offset(self, mq: MessageQueue) -> int | None: ...
    def pull_bytes(self, mq: MessageQueue, offset: int, *, max_count: int, max_bytes: int, wait_ms: int) -> Pulled: ...


class PatientDirectory:
    """A directory that asks again for ``wait_ms`` while servers are away."""

    def __init__(self, directory: QueueDirectory, wait_ms: float) -> None:
        self._directory = directory
        self._wait_ms = wait_ms

    def topic_queues(self, topic: str) -> TopicQueues:
        return when_back(lambda: self._directory.topic_queues(topic), self._wait_ms)

    def min_offset(self, mq: MessageQueue) -> int:
        return when_back(lambda: self._directory.min_offset(mq), self._wait_ms)

    def end_position(self, mq: MessageQueue) -> Position:
        return when_back(lambda: self._directory.end_position(mq), self._wait_ms)

    def topic_offsets(self, topic: str, broker_name: str) -> Mapping[MessageQueue, OffsetSpan]:
        # Not asked again: without an answer the queues are asked one by one, and these requests wait.
        return self._directory.topic_offsets(topic, broker_name)

    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
        return when_back(lambda: self._directory.search_offset(mq, timestamp_ms), self._wait_ms)

    def committed_offset(self, mq: MessageQueue) -> int | None:
        return when_back(lambda: self._directory.committed_offset(mq), self._wait_ms)

    def pull_bytes(self, mq: MessageQueue, offset: int, *, max_count: int, max_bytes: int, wait_ms: int) -> Pulled:
        return when_back(
            lambda: self._directory.pull_bytes(mq, offset, max_count=max_count, max_bytes=max_bytes, wait_ms=wait_ms),
            self._wait_ms,
        )


class NextMessages(NamedTuple):
    """A sample of a few messages of a queue from an offset on; 0 and None when there was no message.

    ``mean_bytes``: their mean size, as they are stored. ``oldest_ms``: when the first was stored, by the broker's
    clock.
    """

    mean_bytes: float
    oldest_ms: int | None


def next_messages(directory: QueueDirectory, queue: MessageQueue, offset: int) -> NextMessages:
    """Sample the messages of ``queue`` from ``offset`` on."""
    try:
        pulled = directory.pull_bytes(queue, offset, max_count=SAMPLE_MESSAGES, max_bytes=SAMPLE_BYTES, wait_ms=0)
    except AWAY:  # reading needs no sample, and waits for the broker
        return NextMessages(0, None)
    mean_bytes = len(pulled.data) / max(pulled.next_offset - offset, 1)
    try:
        times = Records(pulled.data).column("store_timestamp")
    except DamagedRecord:  # the task that reads the record reports its place
        return NextMessages(mean_bytes, None)
    return NextMessages(mean_bytes, int(times[0]) if len(times) else None)


#: The mean stored size of a queue's messages from an offset on; 0 when there is no message.
Sample = Callable[[MessageQueue, int], float]


def sampled(directory: QueueDirectory) -> Sample:
    """The `Sample` that reads the messages themselves."""
    return lambda queue, offset: next_messages(directory, queue, offset).mean_bytes


def tasks_of(ranges: Sequence[OffsetRange], options: ReadOptions, sample: Sample) -> list[ReadTask]:
    """The tasks that read ``ranges``."""
    return grouped(ranges, count_of(ranges, options, sample), options.splitting)


def count_of(ranges: Sequence[OffsetRange], options: ReadOptions, sample: Sample) -> int:
    """How many tasks the options want for ``ranges``."""
    rows, most = sum(one.end - one.start for one in ranges), options.most_tasks
    if most == 1 or not options.bytes_per_task or not rows:
        return most
    largest = sorted(ranges, key=lambda one: one.start - one.end)[:SAMPLE_QUEUES]
    starts = {one.queue: one.start for one in largest}
    sizes = dict(zip(starts, ask_all(lambda queue: sample(queue, starts[queue]), list(starts)), strict=True))
    known = [(one.end - one.start, sizes[one.queue]) for one in largest if sizes[one.queue]]
    counted = sum(count for count, _ in known)
    mean_bytes = sum(count * size for count, size in known) / counted if counted else DEFAULT_BYTES
    return task_count(rows, mean_bytes, most, options.bytes_per_task)


def plan(directory: QueueDirectory, options: ReadOptions, only: Only = ALL) -> list[OffsetRange]:
    """The ranges to read, one per queue: the queues that the options choose, narrowed to ``only``."""
    directory = PatientDirectory(directory, options.broker_wait_ms)
    bounds = bounds_of(directory, options)
    starts = starting(directory, options, bounds)
    ends = ending(directory, options, bounds)
    ranges, lost = within_bounds(starts, ends, bounds)
    # A slave that answered for its master may be behind: messages that it lacks are not lost.
    if lost:
        check_masters(directory, [one.queue for one in lost if one.end > bounds[one.queue].maximum], bounds)
        report_lost(lost, options)
    return _narrowed(directory, ranges, only)


def bounds_of(directory: QueueDirectory, options: ReadOptions) -> dict[MessageQueue, QueueBounds]:
    """The bounds of all queues that the options choose; BrokersMissing when brokers of them are missing."""
    queues = chosen(whole_queues(directory, options), options)
    at_once = bounds_at_once(directory, queues, MANY_QUEUES)
    rest = [queue for queue in queues if queue not in at_once]
    # The ends first: if the topic is made again before its starts are asked for, the plan has the old topic's stamp,
    # and the tasks refuse the new topic.
    ends = ask_all(directory.end_position, rest)
    lows = ask_all(directory.min_offset, rest)
    one_by_one = {
        queue: QueueBounds(low, max(low, end.offset), end.created_ms)
        for queue, low, end in zip(rest, lows, ends, strict=True)
    }
    return {queue: at_once.get(queue) or one_by_one[queue] for queue in queues}


def bounds_at_once(
    directory: QueueDirectory, queues: Iterable[MessageQueue], many_queues: int
) -> dict[MessageQueue, QueueBounds]:
    """The bounds of queues that are ``many_queues`` or more on their broker: two requests for all of them.

    Queues that the broker leaves out, and queues of a broker that does not answer these requests, are missing in the
    result.
    """
    places: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        places.setdefault((queue.topic, queue.broker_name), []).append(queue)
    many = [found for found in places.values() if len(found) >= many_queues]
    firsts = [found[0] for found in many]
    # As in `bounds_of`: the stamp comes first. It is the same for all queues of a topic on a broker.
    stamps = [position.created_ms for position in ask_all(directory.end_position, firsts)]
    spans = ask_all(lambda queue: _spans(directory, queue), firsts)
    return {
        queue: QueueBounds(span.start, max(span), stamp)
        for found, stamp, at in zip(many, stamps, spans, strict=True)
        for queue in found
        if (span := at.get(queue)) is not None
    }


def _spans(directory: QueueDirectory, queue: MessageQueue) -> Mapping[MessageQueue, OffsetSpan]:
    try:
        return directory.topic_offsets(queue.topic, queue.broker_name)
    except AWAY as error:
        # The request needs another right than reading does. Other errors are raised when the queues are asked one by
        # one.
        logger.info("broker %s is asked for each queue of topic %s: %s", queue.broker_name, queue.topic, error)
        return {}


def starting(
    directory: QueueDirectory, options: ReadOptions, bounds: Mapping[MessageQueue, QueueBounds]
) -> dict[MessageQueue, int]:
    """Where to start in each queue: by time if a time is given, else by the offsets."""
    times, name = _times(options.starting_timestamp, options.start_times, bounds, "startingOffsetsByTimestamp")
    if not times and options.wanted_start == COMMITTED:
        queues = list(bounds)
        committed = zip(queues, ask_all(directory.committed_offset, queues), strict=True)
        return {queue: bounds[queue].minimum if offset is None else offset for queue, offset in committed}
    if not times:
        return resolve(options.wanted_start, bounds, "startingOffsets")
    # A search finds the first message at or after the time; without one, the end of the queue.
    found = _searched(directory, times)
    late = [queue for queue, offset in found.items() if offset >= bounds[queue].maximum]
    if late and options.starting_offsets_by_timestamp_strategy == "error":
        first = late[0]
        raise UserError(
            f"option {name}: topic {first.topic}, broker {first.broker_name}, queue {first.queue_id} has no message"
            f" since {times[first]}; set startingOffsetsByTimestampStrategy=latest to read none of such queues"
        )
    return {queue: max(offset, bounds[queue].minimum) for queue, offset in found.items()}


def ending(
    directory: QueueDirectory, options: ReadOptions, bounds: Mapping[MessageQueue, QueueBounds]
) -> dict[MessageQueue, int]:
    """Where to end in each queue: by time if a time is given, else by the offsets."""
    times, _ = _times(options.ending_timestamp, options.end_times, bounds, "endingOffsetsByTimestamp")
    if not times:
        return resolve(options.wanted_end, bounds, "endingOffsets")
    return {queue: min(offset, bounds[queue].maximum) for queue, offset in _searched(directory, times).items()}


def _times(
    of_all: int, by_queue: Mapping[MessageQueue, int], queues: Iterable[MessageQueue], name: str
) -> tuple[dict[MessageQueue, int], str]:
    """(the time of each queue, the option that gives it); empty when no option does."""
    if of_all >= 0:
        return dict.fromkeys(queues, of_all), "startingTimestamp"
    if by_queue:
        # The same checks as for offsets: a queue without a time, and a time without a queue, are mistakes.
        anything = {queue: QueueBounds(0, 0) for queue in queues}
        return resolve(by_queue, anything, name), name
    return {}, name


def _searched(directory: QueueDirectory, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    queues = list(times)
    return dict(zip(queues, ask_all(lambda queue: directory.search_offset(queue, times[queue]), queues), strict=True))


def _narrowed(directory: QueueDirectory, ranges: list[OffsetRange], only: Only) -> list[OffsetRange]:
    """The parts of ``ranges`` that may have messages which ``only`` needs; see pushdown.py."""
    left = [one for one in ranges if only.needs(one.queue)]
    queues = [one.queue for one in left]
    low, high = only.search_from_ms, only.search_to_ms
    # Store times of a queue only grow, so a search by time finds the edge of what can pass; Spark filters the rest.
    starts = {} if low is None else _searched(directory, dict.fromkeys(queues, low))
    ends = {} if high is None else _searched(directory, dict.fromkeys(queues, high))
    found = [
        one._replace(
            start=max(one.start, starts.get(one.queue, one.start)), end=min(one.end, ends.get(one.queue, one.end))
        )
        for one in left
    ]
    return [one for one in found if one.start < one.end]


def check_masters(
    directory: QueueDirectory, queues: Iterable[MessageQueue], bounds: Mapping[MessageQueue, QueueBounds]
) -> None:
    """Raise SlaveBehind when the end of one of ``queues`` came from a slave: the master may have more messages."""
    for queue in queues:
        end = bounds[queue].maximum
        # Only the answer to a pull says which broker answered.
        answer = directory.pull_bytes(queue, end, max_count=1, max_bytes=1, wait_ms=0)
        if answer.broker_id != MASTER_ID:
            raise SlaveBehind(
                f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}: the master is"
                f" unreachable, and the slave with id {answer.broker_id} has messages up to offset {end} only;"
                " run the job when the master is back"
            )


def ask_all(ask: Callable[[K], T], things: Sequence[K]) -> list[T]:
    """The answers for all ``things``, such as queues, asked at the same time."""
    # Threads cost more than one answer does, and a stream asks ten times a second.
    if len(things) <= 1:
        return [ask(one) for one in things]
    # A request is a round trip: one after another, the requests for a thousand queues would take longer than the query.
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rocketmq-plan") as threads:
        return list(threads.map(ask, things))
