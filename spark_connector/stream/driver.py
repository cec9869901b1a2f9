"""The driver's part of a stream, without Spark: its start, the ends of each micro-batch, its commits.

A micro-batch is two offsets. Its ranges are computed from them without asking a broker, so a micro-batch that is run
again has the same rows. `StreamQueues` knows what brokers have at this moment. While a broker is away the stream is
held, for some time; then the queues of that broker are left out until it answers. The log says both once. New topics,
queues and brokers are searched for from time to time (a discovery).
Neighbours: offsets.py (computes), reader.py (Spark), reading/planning.py (batches, where all brokers must answer).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.position import Position
from skylark.sdk.retry import is_refusal
from skylark.sdk.routes import away_because
from skylark.spark_connector.offsets import OffsetRange, QueueBounds
from skylark.spark_connector.options.read import FAIL, HOLD, ReadOptions
from skylark.spark_connector.reading.data_loss import report_lost
from skylark.spark_connector.reading.planning import (
    DEFAULT_BYTES,
    SAMPLE_QUEUES,
    NextMessages,
    PatientDirectory,
    ask_all,
    bounds_at_once,
    bounds_of,
    check_masters,
    check_numbers,
    count_of,
    is_chosen,
    matching,
    next_messages,
    sampled,
    starting,
    with_topics,
)
from skylark.spark_connector.reading.pulling import AWAY, BrokersMissing, when_back
from skylark.spark_connector.stream.arrivals import Arrivals
from skylark.spark_connector.stream.offsets import (
    StreamOffsets,
    TopicOnBroker,
    advanced,
    between,
    check_chosen,
    check_cluster,
    first_end,
    made_again,
    passed,
    rows_in,
    shares,
    waiting,
)
from skylark.spark_connector.stream.report import StreamReport
from skylark.spark_connector.tasks import ReadTask, grouped, single

if TYPE_CHECKING:
    from skylark.spark_connector.reading.batch_reader import Consumer, ListTopics

logger = logging.getLogger(__name__)

T = TypeVar("T")

# With this many queues of a topic on a broker, or more, their bounds are asked for with two requests, not one for each.
MANY_QUEUES = 3
# An idle stream asks brokers this long after it asked them last. Spark lets 10 ms pass between triggers.
IDLE_S = 0.09
# The messages that wait are sampled once in this time, for the report.
SAMPLE_S = 1.0


class StreamQueues:
    """The queues that the options choose; ``now`` is a clock in seconds."""

    def __init__(
        self, consumer: "Consumer", options: ReadOptions, list_topics: "ListTopics", now: Callable[[], float]
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._list_topics = list_topics
        self._now = now
        self._discovered_s: float | None = None
        self._found: list[MessageQueue] = []
        #: Minimum offsets, known since the last discovery, of queues that are asked one by one.
        self._lows: dict[MessageQueue, Position] = {}
        #: Where the broker did not give the bounds of all queues at once, since the last discovery.
        self._one_by_one: set[TopicOnBroker] = set()
        #: What the last discovery did not find, with the reason.
        self._missing: dict[str, str] = {}
        #: Brokers that did not answer since then. They are asked again after the next discovery: each try may take
        #: seconds.
        self._unanswered: dict[str, str] = {}
        #: The servers that were away in the last trigger.
        self.away: frozenset[str] = frozenset()
        #: The creation stamps of the topics, from the last answers of brokers.
        self.stamps: dict[TopicOnBroker, int] = {}

    def stamp_of(self, queue: MessageQueue) -> int | None:
        """The creation stamp of the queue's topic, if its broker has sent it."""
        return self.stamps.get((queue.topic, queue.broker_name))

    @property
    def found(self) -> Sequence[MessageQueue]:
        """The queues that the last discovery found."""
        return self._found

    def bounds(self, *, discover: bool = False) -> dict[MessageQueue, QueueBounds]:
        """The bounds of all queues whose brokers answer; ``discover``: find new queues even if it is not time yet."""
        interval_s = self._options.discovery_interval_ms / 1000
        if discover or self._discovered_s is None or self._now() - self._discovered_s >= interval_s:
            self._discover()
            self._discovered_s = self._now()
        # A broker that did not answer is left out until the next discovery: each request to it may take as long as the
        # timeout.
        here = self._answering(self._found)
        at_once = self._bounds_at_once(here)
        rest = self._answering([queue for queue in here if queue not in at_once])
        return {**at_once, **self._answered(rest, self._bounds_of)}

    def confirmed(
        self, bounds: Mapping[MessageQueue, QueueBounds], start: StreamOffsets
    ) -> dict[MessageQueue, QueueBounds]:
        """``bounds`` without bounds of slaves that have less than was read already; logs which brokers are away."""
        # An end below the read offset means a slave that is behind, or a loss; another topic of the name may be an
        # older topic on a slave. Only the master can tell: without the master the queue is left out of this
        # micro-batch.
        read_to = start.at
        short = [
            queue
            for queue, one in bounds.items()
            if one.maximum < read_to.get(queue, 0) or start.stamp_of(queue) not in (None, self.stamp_of(queue))
        ]
        masters = self._answered(short, lambda queue: check_masters(self._consumer, [queue], bounds))
        gone = {_broker(queue) for queue in read_to} - {_broker(queue) for queue in self._found}
        self._log_away(dict.fromkeys(gone, "no NameServer lists it for the topics that are read"))
        return {queue: one for queue, one in bounds.items() if queue not in short or queue in masters}

    def _answering(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """``queues`` without the queues of silent brokers."""
        return [queue for queue in queues if _broker(queue) not in self._unanswered] if self._unanswered else queues

    def _bounds_at_once(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """The bounds of queues of which a broker has many, if it gives them at once."""
        places: dict[TopicOnBroker, list[MessageQueue]] = {}
        for queue in queues:
            places.setdefault((queue.topic, queue.broker_name), []).append(queue)
        firsts = [
            found[0] for place, found in places.items() if len(found) >= MANY_QUEUES and place not in self._one_by_one
        ]
        answers = self._answered(
            firsts,
            lambda first: bounds_at_once(self._consumer, places[first.topic, first.broker_name], MANY_QUEUES),
        )
        for first, answer in answers.items():
            if answer:  # all queues have the same stamp
                self._keep_stamp(first, next(iter(answer.values())).created_ms)
            else:
                self._one_by_one.add((first.topic, first.broker_name))
        return {queue: bounds for answer in answers.values() for queue, bounds in answer.items()}

    def _answered(self, queues: Sequence[MessageQueue], ask: Callable[[MessageQueue], T]) -> dict[MessageQueue, T]:
        """The answers for those queues whose brokers answer."""
        answers: dict[MessageQueue, T] = {}
        for queue, answer in zip(queues, ask_all(lambda queue: _answer(ask, queue), queues), strict=True):
            if isinstance(answer, SkylarkError):
                self._unanswered[_broker(queue)] = str(answer)
            else:
                answers[queue] = answer
        return answers

    def mean_bytes(self, starts: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """The mean stored size of the next messages of each queue, from ``starts`` on."""
        queues, sample = list(starts), sampled(self._consumer)
        sizes = dict(zip(queues, ask_all(lambda queue: sample(queue, starts[queue]), queues), strict=True))
        known = [size for size in sizes.values() if size]
        other = sum(known) / len(known) if known else DEFAULT_BYTES
        return {queue: size or other for queue, size in sizes.items()}

    def _discover(self) -> None:
        """Discover the queues. Queues of a broker that is away are in no route."""
        queues: list[MessageQueue] = []
        self._missing, self._unanswered, self._lows, self._one_by_one = {}, {}, {}, set()
        for topic in self._topics():
            try:
                found = self._consumer.topic_queues(topic)
            except AWAY as error:
                _raise_refusal(error)
                self._missing[f"topic {topic}"] = str(error)
                continue
            queues += found.queues
            # These brokers may come back with queues that this query has never seen.
            self._missing |= {f"broker {one.broker_name}": away_because(one) for one in found.absent}
        self._found = [queue for queue in queues if is_chosen(queue, self._options)]
        check_numbers(self._found, self._options)

    def _topics(self) -> Sequence[str]:
        if not self._options.topic_pattern:
            return self._options.topics
        try:
            return matching(self._options.topic_pattern, self._list_topics(self._options))
        except AWAY as error:
            _raise_refusal(error)
            self._missing["the list of topics"] = str(error)
            return list(dict.fromkeys(queue.topic for queue in self._found))

    def _bounds_of(self, queue: MessageQueue) -> QueueBounds:
        high, created_ms = self._consumer.end_position(queue)
        self._keep_stamp(queue, created_ms)
        low = self._lows.get(queue)
        if low is None or low.created_ms != created_ms or high < low.offset:
            low = Position(self._consumer.min_offset(queue), created_ms)
        self._lows[queue] = low
        return QueueBounds(low.offset, max(low.offset, high))

    def _keep_stamp(self, queue: MessageQueue, created_ms: int | None) -> None:
        if created_ms is not None:
            self.stamps[queue.topic, queue.broker_name] = created_ms

    def _log_away(self, gone: Mapping[str, str]) -> None:
        """Log once which servers are away, and which are back."""
        away = {**gone, **self._missing, **self._unanswered}
        for name in sorted(away.keys() - self.away):
            logger.warning("%s is away, its messages are read when it is back: %s", name, away[name])
        for name in sorted(self.away - away.keys()):
            logger.warning("%s is back", name)
        self.away = frozenset(away)


def _answer(ask: Callable[[MessageQueue], T], queue: MessageQueue) -> T | SkylarkError:
    """The result of a request, or the error of a broker that is away."""
    try:
        return ask(queue)
    except AWAY as error:
        _raise_refusal(error)
        return error


def _raise_refusal(error: SkylarkError) -> None:
    """Raise ``error`` when a server has refused, as after a right was taken away: the query ends with this error."""
    if is_refusal(error):
        raise error


def _broker(queue: MessageQueue) -> str:
    return f"broker {queue.broker_name}"


class StreamDriver:
    """One run of a query; ``now`` is a clock in seconds, ``idle_s`` the time between questions of an idle stream."""

    def __init__(
        self,
        consumer: "Consumer",
        options: ReadOptions,
        list_topics: "ListTopics",
        list_clusters: "ListTopics",
        now: Callable[[], float],
        idle_s: float = IDLE_S,
    ) -> None:
        #: The source of queues and messages: brokers, or a bucket.
        self.consumer = consumer
        self.options = options
        self._list_topics = list_topics
        self._list_clusters = list_clusters
        self._idle_s = idle_s
        self._arrivals = Arrivals(consumer)
        #: When brokers were last asked, if there was nothing to read and no micro-batch has run since.
        self._idle_since_s: float | None = None
        #: The bounds that the brokers gave at that time.
        self._seen: Mapping[MessageQueue, QueueBounds] = {}
        self._now = now
        self._queues = StreamQueues(consumer, options, list_topics, now)
        self._last_batch_s = now()
        self._are_offsets_checked = False
        #: With the trigger AvailableNow: the ends of the queues when the run began.
        self._frozen: dict[MessageQueue, QueueBounds] | None = None
        self._initial: StreamOffsets | None = None
        self._committed: dict[MessageQueue, int] = {}
        self._is_commit_late = False
        #: Since when brokers are away, and whether the stream goes on without them; None: no broker is away.
        self._away_since_s: float | None = None
        self._is_without_them = False
        #: The ends of all queues, from the answers of brokers in the last trigger.
        self.newest: StreamOffsets | None = None
        #: Where the micro-batch of the last trigger ends.
        self._reached: Mapping[MessageQueue, int] = {}
        self._skipped_rows = 0
        self._sampled_s: float | None = None
        self._next: dict[MessageQueue, NextMessages] = {}

    def initial(self) -> StreamOffsets:
        """Where a new query starts, the same however often Spark asks; all listed brokers must answer."""
        if self._initial is not None:
            return self._initial
        options = with_topics(self.options, self._list_topics)
        directory = PatientDirectory(self.consumer, options.broker_wait_ms)
        bounds = bounds_of(directory, options)
        starts = starting(directory, options, bounds)
        if self._frozen is not None:
            # Messages may have come since `freeze`: a query that starts at a queue's end may start after the end of the
            # run.
            capped_starts = {queue: min(start, bounds[queue].maximum) for queue, start in starts.items()}
            frozen = self._frozen.items()
            # Spark asks for the start after `freeze`, and keeps it; so the end of the run is moved to the start.
            self._frozen = {
                queue: one._replace(maximum=max(one.maximum, capped_starts.get(queue, 0))) for queue, one in frozen
            }
        stamps = {
            (queue.topic, queue.broker_name): one.created_ms
            for queue, one in bounds.items()
            if one.created_ms is not None
        }
        clusters = when_back(lambda: self._list_clusters(options), options.broker_wait_ms)
        self._initial = StreamOffsets(",".join(clusters), starts, stamps=stamps)
        return self._initial

    def unknown(self) -> StreamOffsets:
        """A start in which all queues are new, for versions of Spark that do not tell the start."""
        return StreamOffsets(",".join(self._list_clusters(with_topics(self.options, self._list_topics))), {})

    def freeze(self) -> None:
        """Read only messages that exist now, from now on; all brokers must be present, see whole.py."""
        # Raises when a broker is missing, or does not answer: otherwise a run would end as if it had read everything.
        options = self.options
        wanted: Collection[MessageQueue] = ()
        if options.missing_brokers == FAIL:
            directory = PatientDirectory(self.consumer, options.broker_wait_ms)
            wanted = bounds_of(directory, with_topics(options, self._list_topics))
        self._frozen = self._queues.bounds(discover=True)
        if lacking := sorted({queue.broker_name for queue in wanted if queue not in self._frozen}):
            raise BrokersMissing(f"broker {', '.join(lacking)} has just stopped to answer; run the query again")

    def after(self, start: StreamOffsets, *, is_limited: bool) -> StreamOffsets:
        """The end of the micro-batch from ``start`` on; ``start`` itself when there is nothing to read yet.

        ``is_limited``: the micro-batch has as much as the options allow, otherwise all messages. There is always a
        first micro-batch, so that the checkpoint has the start of the query. While the stream is idle this waits a
        little.
        """
        self._wait_while_idle()
        asked_s = self._now()
        end = self._end(start, is_limited=is_limited)
        self._idle_since_s = asked_s if end is start and self._frozen is None else None
        self._reached = end.at
        if end is not start:
            # The number of tasks is decided once, and kept in the checkpoint: after a restart the cluster may have
            # another size.
            end = replace(end, tasks=count_of(between(start, end)[0], self.options, sampled(self.consumer)))
        return first_end(start, end) if start == self._initial else end

    def report(self) -> StreamReport:
        """The report of the last trigger."""
        rows = {queue: count for queue, count in waiting(self._reached, self._seen).items() if count}
        self._sample(rows)
        oldest_ms: dict[str, int] = {}
        sizes: dict[str, list[float]] = {}
        for queue, found in self._next.items():
            if queue in rows and found.oldest_ms is not None:
                oldest_ms[queue.topic] = min(found.oldest_ms, oldest_ms.get(queue.topic, found.oldest_ms))
                sizes.setdefault(queue.topic, []).append(found.mean_bytes)
        mean_bytes = {topic: sum(some) / len(some) for topic, some in sizes.items()}
        return StreamReport(oldest_ms, mean_bytes, self._skipped_rows, tuple(sorted(self._queues.away)))

    def _sample(self, rows: Mapping[MessageQueue, int]) -> None:
        """Sample the next messages of the queues in which most wait, unless that was done a moment ago."""
        if self._sampled_s is not None and self._now() - self._sampled_s < SAMPLE_S and self._next.keys() & rows.keys():
            return
        # With a limit, most waiting messages are in these queues, and the queues advance alike.
        largest = sorted(rows, key=lambda queue: -rows[queue])[:SAMPLE_QUEUES]
        starts = {queue: max(self._reached.get(queue, 0), self._seen[queue].minimum) for queue in largest}
        samples = ask_all(lambda queue: next_messages(self.consumer, queue, starts[queue]), largest)
        self._next = dict(zip(largest, samples, strict=True))
        self._sampled_s = self._now()

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
        """The messages of a micro-batch, the same ones when it is run again."""
        self._check(end)
        ranges, lost = between(start, end)
        if lost:
            report_lost(lost, self.options)
        return ranges

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[ReadTask]:
        """The tasks of a micro-batch, the same ones when it is run again: sinks may know rows by their task."""
        ranges, splitting = self.ranges(start, end), self.options.splitting
        # Offsets that an older version has written have no number of tasks: it had a task for each queue.
        return grouped(ranges, end.tasks, splitting) if end.tasks else single(ranges, splitting)

    def commit(self, end: StreamOffsets) -> None:
        """Commit the offsets of the group, if the options want that; never moves them back, and never raises."""
        if not self.options.commit_offsets:
            return
        # Only changed offsets: a query without new messages commits nothing.
        late = [queue for queue, offset in end.at.items() if self._committed.get(queue) != offset]
        # Not the offsets of a topic that was made again since.
        late = [queue for queue in late if end.stamp_of(queue) in (None, self._queues.stamp_of(queue))]
        errors = [error for error in ask_all(lambda queue: self._commit(queue, end.at[queue]), late) if error]
        if errors and not self._is_commit_late:
            logger.warning("offsets are committed later: %s", errors[0])
        self._is_commit_late = bool(errors)

    def batch_done(self) -> None:
        """Record that a micro-batch of the query has run.

        It may have had rows of other sources, which must not wait here.
        """
        self._idle_since_s = None

    def close(self) -> None:
        """End, as the query has ended."""
        self._arrivals.close()

    def _wait_while_idle(self) -> None:
        """Wait for a message, at most until the brokers must be asked again.

        Other sources of the query wait meanwhile.
        """
        if self._idle_since_s is None:
            return
        # Counted from when the brokers were asked last, so that sources of a query do not each add a wait of their own.
        left_s = self._idle_since_s + self._idle_s - self._now()
        if left_s > 0:
            self._arrivals.wait({queue: one.maximum for queue, one in self._seen.items()}, left_s)

    def _end(self, start: StreamOffsets, *, is_limited: bool) -> StreamOffsets:
        options = self.options
        max_rows = options.max_offsets_per_trigger if is_limited else 0
        min_rows = options.min_offsets_per_trigger if is_limited else 0
        max_bytes = options.max_bytes_per_trigger if is_limited else 0
        bounds = self._queues.bounds() if self._frozen is None else self._frozen
        self._check(start)
        self._seen = seen = self._queues.confirmed(bounds, start)
        stamps = self._queues.stamps
        again = made_again(start, seen, stamps)
        read_to = {queue: offset for queue, offset in start.at.items() if queue not in again}
        counts = waiting(read_to, seen)
        self.newest = advanced(start, seen, counts, stamps, again)
        # With AvailableNow all brokers were present at the beginning. Without a start (`unknown`) there is no offset to
        # hold.
        if self._frozen is None and start.at and self._holds():
            return start
        if again and options.when_lost == FAIL:
            report_lost(between(start, advanced(start, seen, {}, stamps, again))[1], options)
        total = sum(counts.values())
        # With AvailableNow no further message is read, so the stream does not wait for more.
        if total < min_rows and self._frozen is None and not self._has_waited_long():
            return start
        limit = min(total, max_rows or total)
        if max_bytes and total:
            firsts = {
                queue: max(read_to.get(queue, 0), seen[queue].minimum) for queue, count in counts.items() if count
            }
            limit = min(limit, rows_in(max_bytes, counts, self._queues.mean_bytes(firsts)))
        end = self.newest
        if limit < total:
            # The starts grow by what is taken, so the turn goes round, also over restarts.
            end = advanced(start, seen, shares(counts, limit, turn=sum(start.at.values())), stamps, again)
        if end is not start:
            self._last_batch_s = self._now()
            self._skipped_rows += passed(read_to, seen)
        return end

    def _holds(self) -> bool:
        """Whether to read nothing now, as a broker is away.

        A watermark follows the newest times of all rows. If it passes the times of rows that wait at the broker, Spark
        drops these rows when they are read at last.
        """
        if not self._queues.away:
            self._away_since_s, self._is_without_them = None, False
            return False
        options, hold_s = self.options, self.options.broker_away_hold_ms / 1000
        self._away_since_s = self._now() if self._away_since_s is None else self._away_since_s
        if options.on_broker_away == HOLD and self._now() - self._away_since_s < hold_s:
            return True
        if not self._is_without_them:
            self._is_without_them = True
            logger.warning(
                "the stream goes on without %s (onBrokerAway=%s): if the query has a watermark, rows that are read when"
                " it is back may be too late, and dropped",
                ", ".join(sorted(self._queues.away)),
                options.on_broker_away,
            )
        return False

    def _commit(self, queue: MessageQueue, offset: int) -> Exception | None:
        try:
            committed = self.consumer.committed_offset(queue)
            if committed is None or committed < offset:
                self.consumer.commit_offset(queue, offset)
        except AWAY as error:
            return error
        self._committed[queue] = offset
        return None

    def _has_waited_long(self) -> bool:
        return (self._now() - self._last_batch_s) * 1000 >= self.options.max_trigger_delay_ms

    def _check(self, kept: StreamOffsets) -> None:
        """Raise UserError when ``kept`` is of another cluster or topic; once, when brokers of the topics are there."""
        if self._are_offsets_checked:
            return
        check_chosen(kept, lambda queue: is_chosen(queue, self.options))
        if not self._queues.found:
            self._queues.bounds(discover=True)
        found = self._queues.found
        topics = ",".join(sorted({queue.topic for queue in found}))
        if not topics:
            return
        try:
            clusters = self._list_clusters(replace(self.options, topic=topics, topic_pattern="", assign=""))
        except AWAY as error:
            _raise_refusal(error)
            return
        check_cluster(kept, clusters, found)
        self._are_offsets_checked = True
