"""The driver's part of a stream, without Spark: where it starts, what each micro-batch takes, what it commits.

A micro-batch is two offsets. Its ranges are computed from them without asking a broker, so a micro-batch that is run
again has the same rows.
Neighbours: offsets.py and admission.py (decide), queues.py (asks brokers), reader.py (Spark).
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mqcommon.message.queue import MessageQueue
from spark_connector.offsets import OffsetRange, QueueBounds, split, spread
from spark_connector.options.read import ReadOptions
from spark_connector.reading.choosing import is_chosen, with_topics
from spark_connector.reading.data_loss import report_lost
from spark_connector.reading.planning import ask_all, bounds_of, starting
from spark_connector.reading.pulling import AWAY
from spark_connector.stream.admission import AdmissionLimits, rows_in, shares
from spark_connector.stream.offsets import (
    StreamOffsets,
    advanced,
    between,
    check_chosen,
    check_cluster,
    first_end,
    waiting,
)
from spark_connector.stream.queues import StreamQueues

if TYPE_CHECKING:
    from spark_connector.reading.batch_reader import Consumer, ListTopics

logger = logging.getLogger(__name__)


class StreamDriver:
    """One run of a query; ``now`` is a clock in seconds."""

    def __init__(
        self,
        consumer: "Consumer",
        options: ReadOptions,
        list_topics: "ListTopics",
        list_clusters: "ListTopics",
        now: Callable[[], float],
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._list_topics = list_topics
        self._list_clusters = list_clusters
        self._now = now
        self._queues = StreamQueues(consumer, options, list_topics, now)
        self._last_batch_s = now()
        self._is_checked = False
        #: With the trigger AvailableNow: what there was when the run began.
        self._frozen: dict[MessageQueue, QueueBounds] | None = None
        self._initial: StreamOffsets | None = None
        self._committed: dict[MessageQueue, int] = {}
        self._is_commit_late = False
        #: Where all that the brokers had in the last trigger would be read.
        self.newest: StreamOffsets | None = None

    def initial(self) -> StreamOffsets:
        """Where a new query starts, the same however often Spark asks; all brokers that are listed must answer."""
        if self._initial is not None:
            return self._initial
        options = with_topics(self._options, self._list_topics)
        bounds = bounds_of(self._consumer, options)
        starts = starting(self._consumer, options, bounds)
        if self._frozen is not None:
            # More may have come since then: the end of a queue, as a start, is behind the end of the run.
            grown = {queue: min(start, bounds[queue].maximum) for queue, start in starts.items()}
            frozen = self._frozen.items()
            self._frozen = {queue: QueueBounds(low, max(high, grown.get(queue, 0))) for queue, (low, high) in frozen}
        self._initial = StreamOffsets(",".join(self._list_clusters(options)), starts)
        return self._initial

    def unknown(self) -> StreamOffsets:
        """A start in which all queues are new, for versions of Spark that do not tell the start."""
        return StreamOffsets(",".join(self._list_clusters(with_topics(self._options, self._list_topics))), {})

    def freeze(self) -> None:
        """From now on only what there is now is read."""
        self._frozen = self._queues.bounds(look=True)

    def after(self, start: StreamOffsets, limits: AdmissionLimits) -> StreamOffsets:
        """The end of the micro-batch from ``start`` on; ``start`` itself when there is nothing to read yet.

        There is always a first micro-batch, so that the checkpoint has where the query started.
        """
        end = self._end(start, limits)
        return first_end(start, end) if start == self._initial else end

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
        """The ranges of a micro-batch, one per partition."""
        self._check(end)
        ranges, lost = between(start, end)
        if lost:
            report_lost(lost, self._options)
        return spread(split(ranges, self._options.min_partitions, self._options.max_records_per_partition))

    def commit(self, end: StreamOffsets) -> None:
        """Commit the offsets of the group, if the options want that; never back, and never an error."""
        if not self._options.commit_offsets:
            return
        late = [queue for queue, offset in end.at.items() if self._committed.get(queue) != offset]
        errors = [error for error in ask_all(lambda queue: self._commit(queue, end.at[queue]), late) if error]
        if errors and not self._is_commit_late:
            logger.warning("offsets are committed later: %s", errors[0])
        self._is_commit_late = bool(errors)

    def _end(self, start: StreamOffsets, limits: AdmissionLimits) -> StreamOffsets:
        bounds = self._queues.bounds() if self._frozen is None else self._frozen
        self._check(start)
        seen = self._queues.confirmed(bounds, start.at)
        counts = waiting(start.at, seen)
        self.newest = advanced(start, seen, counts)
        total = sum(counts.values())
        if total < limits.min_rows and self._frozen is None and not self._has_waited_long():
            return start
        limit = min(total, limits.max_rows or total)
        if limits.max_bytes and total:
            firsts = {
                queue: max(start.at.get(queue, 0), seen[queue].minimum) for queue, count in counts.items() if count
            }
            limit = min(limit, rows_in(limits.max_bytes, counts, self._queues.mean_bytes(firsts)))
        # The starts grow by what is taken, so the turn goes round, also over restarts.
        end = advanced(start, seen, shares(counts, limit, turn=sum(start.at.values())))
        if end is not start:
            self._last_batch_s = self._now()
        return end

    def _commit(self, queue: MessageQueue, offset: int) -> Exception | None:
        try:
            committed = self._consumer.committed_offset(queue)
            if committed is None or committed < offset:
                self._consumer.commit_offset(queue, offset)
        except AWAY as error:
            return error
        self._committed[queue] = offset
        return None

    def _has_waited_long(self) -> bool:
        return (self._now() - self._last_batch_s) * 1000 >= self._options.max_trigger_delay_ms

    def _check(self, kept: StreamOffsets) -> None:
        """Raise UserError when ``kept`` is of another cluster or topic; once, when brokers of the topics are there."""
        if self._is_checked:
            return
        check_chosen(kept, lambda queue: is_chosen(queue, self._options))
        if not self._queues.found:
            self._queues.bounds(look=True)
        found = self._queues.found
        topics = ",".join(sorted({queue.topic for queue in found}))
        if not topics:
            return
        try:
            clusters = self._list_clusters(replace(self._options, topic=topics, topic_pattern="", assign=""))
        except AWAY:
            return
        check_cluster(kept, clusters, found)
        self._is_checked = True
