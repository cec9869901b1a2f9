"""Pulls the stored bytes of a range of a queue, one buffer after the other.

Pulls are retried when a broker does not answer. Since each one starts at a known offset and the range's end is fixed,
no message is read twice. Messages that the broker does not have are reported to ``on_lost``, which raises or logs.
`ahead` runs the next pull in a thread while the caller works on the last one.
Neighbours: batch_reader.py (caller), sdk.blocking (its PullConsumer is the real `QueueReader`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SendFailed, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.sdk.arrow.records import Ints
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.retry import is_refusal
from skylark.spark_connector.offsets import MADE_AGAIN, LostRange, OffsetRange
from skylark.spark_connector.options.read import ReadOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Measured: broker and worker take 0.6 of the processor time per row that pulls of 640 KiB take, as each pull has its
# fixed part. With twice as many bytes a pull the rows cost as much, and the answers take twice as much memory.
MAX_PULL_BYTES = 2 * 1024 * 1024
# Small pulls are decoded together, which costs less per row (RocketMQ's brokers return 32 messages per pull). Pulls
# near the largest size are decoded alone: to copy them together costs more than it saves.
JOIN_BYTES = MAX_PULL_BYTES * 3 // 4
# How many queues are asked at once: more would save little, and a broker handles all of one request in one turn.
MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 32, 8 * 1024 * 1024
# Jitter takes up to half of a pause, so the first one is between 0.75 and 1.5 times retryIntervalMs.
MOST_INTERVALS = 1.5
MAX_PAUSE_S = 10.0
# Between tries of `when_back`.
FIRST_PAUSE_S, MAX_WAIT_PAUSE_S = 0.1, 1.0


class ReadFailed(SkylarkError):
    """Reading a queue failed after all retries; ``__cause__`` is the last error."""


class SlaveBehind(SkylarkError):
    """A slave lacks messages that the master may have, so they are not lost."""


class BrokersMissing(SkylarkError):
    """Brokers that have queues of a topic, or may have, are in no route now; see whole.py."""


# Errors of brokers, NameServers or buckets that may answer later, except refusals, see `is_final`.
AWAY = (RemotingError, BrokerError, RouteNotFound, SlaveBehind, ReadFailed, BrokersMissing, BucketAway)


def is_final(error: SkylarkError) -> bool:
    """Whether waiting is useless: the server has refused, or there is no such topic."""
    # A wrapper names the server's own error as its cause.
    cause = error.__cause__ if isinstance(error, (ReadFailed, SendFailed)) and error.__cause__ else error
    return is_refusal(cause) or (isinstance(cause, RouteNotFound) and not cause.is_passing)


def when_back(
    ask: Callable[[], T],
    wait_ms: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> T:
    """The answer of ``ask``, which is asked again for ``wait_ms`` while servers are away; then raises its error."""
    backoff = Backoff(FIRST_PAUSE_S, MAX_WAIT_PAUSE_S, Random())
    started, failures = now(), 0
    while True:
        try:
            return ask()
        except (*AWAY, SendFailed) as error:
            if is_final(error) or (now() - started) * 1000 >= wait_ms:
                raise
            failures += 1
            if failures == 1:
                logger.warning("%s; waits up to %.0f s", error, wait_ms / 1000)
        sleep(backoff.pause_s(failures))


class Pulled(Protocol):
    """One answer of a broker: whole stored records, and the next offset. ``broker_id`` 0 is the master."""

    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def broker_id(self) -> int: ...
    @property
    def created_ms(self) -> int | None: ...


class QueueReader(Protocol):
    """A consumer that pulls stored records."""

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Pulled: ...


class QueuesReader(QueueReader, Protocol):
    """A consumer that pulls from many queues at once, too."""

    def pull_bytes_of_queues(
        self,
        offsets: Mapping[MessageQueue, int],
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Mapping[MessageQueue, Pulled | SkylarkError]: ...


class FirstAnswers:
    """A `QueueReader` that already has the first answers of several ranges, which were asked for at once.

    One call for each small queue would cost more than the pull: it waits for the answer, and for the event loop's
    thread.
    """

    def __init__(self, reader: QueuesReader, ranges: Sequence[OffsetRange], options: ReadOptions) -> None:
        """``ranges`` of different queues; no answer is larger than its share of MOST_BYTES_AT_ONCE."""
        self._reader = reader
        self._answers = dict(
            reader.pull_bytes_of_queues(
                {wanted.queue: wanted.start for wanted in ranges},
                max_count=min(max(wanted.end - wanted.start for wanted in ranges), options.pull_batch_size),
                max_bytes=max(MOST_BYTES_AT_ONCE // len(ranges), 1),
                expression=options.expression,
                wait_ms=options.pull_timeout_ms,
            )
        )

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Pulled:
        """Pull; the first pull of a queue gets the answer that has come already."""
        answer = self._answers.pop(mq, None)
        if answer is None:
            return self._reader.pull_bytes(
                mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
            )
        if isinstance(answer, SkylarkError):
            raise answer
        return answer


def at_once(ranges: Iterable[OffsetRange], max_rows: int) -> Iterator[list[OffsetRange]]:
    """``ranges`` in lists of different queues; a list of several ranges has at most ``max_rows`` rows."""
    some: dict[MessageQueue, OffsetRange] = {}
    rows = 0
    for wanted in ranges:
        more = wanted.end - wanted.start
        if some and (rows + more > max_rows or wanted.queue in some or len(some) == MOST_AT_ONCE):
            yield list(some.values())
            some, rows = {}, 0
        some[wanted.queue] = wanted
        rows += more
    if some:
        yield list(some.values())


class Buffer(NamedTuple):
    """Records; the first one has queue offset ``offset`` (or a higher one, if the log was compacted).

    ``starts``: where each record begins in ``data``; None: not known.
    """

    offset: int
    data: bytes
    starts: Ints | None = None


def pulls(
    reader: QueueReader,
    wanted: OffsetRange,
    options: ReadOptions,
    on_lost: Callable[[LostRange], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Buffer]:
    """Buffers with all messages of ``wanted`` that the broker's filter lets pass; the last may have later ones, too."""
    queue, offset, end, created_ms = wanted
    while offset < end:
        pulled = _pull(reader, OffsetRange(queue, offset, end, created_ms), options, sleep, now)
        # Checked from the first answer on: the plan and all answers must be of the same topic, which may be made again.
        created_ms = pulled.created_ms if created_ms is None else created_ms
        if is_other_topic(pulled, created_ms):
            on_lost(LostRange(queue, offset, end, f"{MADE_AGAIN} since this range was planned"))
            return
        # Three answers: records; none, but a later offset; none, and no later offset, so the rest of the range does not
        # exist.
        if pulled.data:
            yield Buffer(offset, pulled.data)
            # Otherwise a broker in trouble would make this an endless loop over the same records.
            if pulled.next_offset <= offset:
                raise ReadFailed(f"{_name(queue)}: the broker says that {pulled.next_offset} follows offset {offset}")
        elif pulled.next_offset > offset:
            # With a filter the broker also advances when no message passes; then only messages before its first one are
            # lost.
            goes_on = pulled.min_offset if options.filters else pulled.next_offset
            if goes_on > offset:
                on_lost(LostRange(queue, offset, min(goes_on, end), f"deleted: the queue goes on at {goes_on}"))
        else:
            on_lost(LostRange(queue, offset, end, f"missing: the queue ends at {pulled.max_offset}"))
            return
        offset = pulled.next_offset


def joined(buffers: Iterator[Buffer], min_bytes: int = JOIN_BYTES) -> Iterator[Buffer]:
    """The same bytes in buffers of at least ``min_bytes``."""
    parts: list[bytes] = []
    first = size = 0
    for offset, data, _ in buffers:
        first = first if parts else offset
        parts.append(data)
        size += len(data)
        if size >= min_bytes:
            yield Buffer(first, parts[0] if len(parts) == 1 else b"".join(parts))
            parts, size = [], 0
    if parts:
        yield Buffer(first, b"".join(parts))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while the caller has the last."""
    with ThreadPoolExecutor(1, thread_name_prefix="rocketmq-pull") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def _pull(
    reader: QueueReader,
    wanted: OffsetRange,
    options: ReadOptions,
    sleep: Callable[[float], None],
    now: Callable[[], float],
) -> Pulled:
    """One answer; asks again until all retries are used and the time to wait for a broker is over."""
    first_s = MOST_INTERVALS * options.retry_interval_ms / 1000
    backoff = Backoff(first_s, max(first_s, MAX_PAUSE_S), Random())
    started = now()
    failures = 0
    while True:
        try:
            pulled = _answer(reader, wanted, options)
        except AWAY as error:
            if is_refusal(error):
                raise ReadFailed(f"{_name(wanted.queue)} cannot be read at offset {wanted.start}: {error}") from error
            # Both limits must be reached: the retries are for a hiccup, ``broker_wait_ms`` is for a broker that
            # restarts while a stream runs.
            failures += 1
            if failures > options.num_retries:
                place = (
                    f"{_name(wanted.queue)} cannot be read at offset {wanted.start} (after {failures} tries): {error}"
                )
                if (now() - started) * 1000 >= options.broker_wait_ms:
                    raise ReadFailed(place) from error
                if failures == options.num_retries + 1:
                    logger.warning("%s; waits up to %.0f s for it", place, options.broker_wait_ms / 1000)
            sleep(backoff.pause_s(failures))
            continue
        if failures > options.num_retries:
            logger.warning("%s goes on at offset %d", _name(wanted.queue), wanted.start)
        return pulled


def _answer(reader: QueueReader, wanted: OffsetRange, options: ReadOptions) -> Pulled:
    pulled = reader.pull_bytes(
        wanted.queue,
        wanted.start,
        max_count=min(wanted.end - wanted.start, options.pull_batch_size),
        max_bytes=MAX_PULL_BYTES,
        expression=options.expression,
        wait_ms=options.pull_timeout_ms,
    )
    if pulled.broker_id != MASTER_ID and is_other_topic(pulled, wanted.created_ms):
        raise SlaveBehind(
            f"the master is unreachable, and the slave with id {pulled.broker_id} has another topic of this name"
        )
    # Only the master can say that a message does not exist. A slave may be behind.
    if pulled.broker_id == MASTER_ID or pulled.data or pulled.next_offset > wanted.start:
        return pulled
    raise SlaveBehind(
        f"the master is unreachable, and the slave with id {pulled.broker_id} does not have the message (yet):"
        f" its queue ends at {pulled.max_offset}"
    )


def is_other_topic(pulled: Pulled, created_ms: int | None) -> bool:
    """Whether an answer is about another topic than the topic with this creation stamp."""
    return created_ms is not None and pulled.created_ms not in (None, created_ms)


def _name(queue: MessageQueue) -> str:
    return f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}"
