"""Deletes topics: 215, 316, and deletions that a slave copies. A kill at any time leaves no half deletion.

The steps, each of which can be repeated:
1. The mark of the deletion is on disk (meta/topic_deletions.py), and the topic leaves the table: sends are refused, and
   the next registration takes the topic off the NameServers. From here on the deletion can only go forward.
2. The queues, their files and directories are removed, and a checkpoint without them is written.
3. Offsets of groups, seals of queues and counters are removed.
4. The mark says that the deletion is finished. Only now may a topic of this name be made.
Messages are removed before metadata: if offsets were removed first and the process died, a group would read the old
messages again from the topic that an administrator makes next. The mark is written first: without the mark a kill after
step 2 would leave a topic that has lost its messages.
A start finishes unfinished deletions before clients are served; a step that fails is tried again every RETRY_S. A start
may also have rebuilt queues from the whole log, including queues of deleted topics: these are removed again.
Neighbours: admin/topics.py (215), replication/slave_sync.py (a slave's part), flush.py (step 2).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.table import Durable
from skylark.broker.meta.topic_deletions import TopicDeletion
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.part import Part
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.names import LATE_GROUP, LATE_TOPIC_PREFIX
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.steps import run_slices

logger = logging.getLogger(__name__)

RETRY_S = 5.0

#: Removes the queues of a topic, or only those with messages before an offset of the log; returns the log's end.
DeleteMessages = Callable[[str, int | None], Awaitable[int]]


class TopicRemoval(Part):
    """Deletes topics, step by step. ``log_bounds`` returns where the log starts and ends now.

    ``has_queues`` returns whether a topic has queues whose messages are all before an offset.
    """

    def __init__(
        self,
        metadata: Metadata,
        stats: BrokerStats,
        durable: Durable,
        delete_messages: DeleteMessages,
        log_bounds: Callable[[], tuple[int, int]],
        has_queues: Callable[[str, int], bool],
    ) -> None:
        self._topics = metadata.topics
        self._deletions = metadata.topics.deletions
        self._offsets = metadata.consumer_offsets
        self._seals = metadata.seals
        self._stats = stats
        self._durable = durable
        self._delete_messages = delete_messages
        self._log_bounds = log_bounds
        self._has_queues = has_queues
        self._wanted = Signal()
        self._then: list[Callable[[], None]] = []
        #: Held while topics are deleted, and while topics are made.
        self.lock = trio.Lock()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Finish the deletions of an earlier process, then deletions that fail or are begun elsewhere."""
        start, end = self._log_bounds()
        self._deletions.log_was_found(end)
        self._deletions.log_starts_at(start)
        for name, log_end in self._deletions.finished().items():
            if self._has_queues(name, log_end):
                self._deletions.begin(name, log_end)
        await self._finish_all()
        task_status.started()
        while True:
            with trio.move_on_after(RETRY_S if self._deletions.unfinished() else float("inf")):
                await self._wanted.wait()
            self._wanted.clear()
            await self._finish_all()

    async def delete(self, names: Sequence[str]) -> None:
        """Delete topics; the caller holds `lock`. OSError or StoreError if the deletion is not finished yet."""
        self._deletions.log_starts_at(self._log_bounds()[0])
        with self._continued_by_run():
            for name in names:
                # Both in one turn of the event loop. A kill between the two records leaves the mark, which is enough.
                self._deletions.begin(name)
                self._topics.delete(name)
            for name in names:
                await self._finish(self._deletions.all()[name])

    async def follow(self, name: str, log_end: int) -> None:
        """On a slave whose log has reached ``log_end``: delete a topic that the master deleted at this offset."""
        async with self.lock:
            self._deletions.log_starts_at(self._log_bounds()[0])
            with self._continued_by_run():
                self._deletions.begin(name, log_end)
                await self._finish(self._deletions.all()[name])

    def finish_soon(self, then: Callable[[], None]) -> None:
        """Have `run` finish deletions that were begun elsewhere, and call ``then`` when it has tried all of them."""
        self._then.append(then)
        self._wanted.set()

    @contextmanager
    def _continued_by_run(self) -> Iterator[None]:
        """If the block ends early, with an error or cancelled, have `run` finish the deletions that it began.

        This includes errors of the first steps: a mark may be in the journal already, and the next start would delete a
        topic that was used until then.
        """
        try:
            yield
        except BaseException:
            self._wanted.set()
            raise

    async def _finish_all(self) -> None:
        async with self.lock:
            # A call that comes while this round runs belongs to the next round, which also has its marks.
            then, self._then = self._then, []
            for mark in self._deletions.unfinished():
                try:
                    await self._finish(mark)
                except (OSError, StoreError) as error:
                    logger.error("the deletion of topic %s is unfinished, tried again soon: %s", mark.name, error)
                else:
                    logger.info("the deletion of topic %s, which had begun before, is finished", mark.name)
        for call in then:
            call()

    async def _finish(self, mark: TopicDeletion) -> None:
        name, before = mark.name, mark.log_end if mark.log_end >= 0 else None
        if before is None:
            self._topics.delete(name)
        # The removal of files cannot be undone: the mark must be on disk before.
        await self._durable()
        end = await self._delete_messages(name, before)
        if before is None:
            await run_slices(self._offsets.remove_topic(name))
            if self._offsets.queues_of(LATE_GROUP, late := f"{LATE_TOPIC_PREFIX}{name}"):
                await run_slices(self._offsets.remove_topic(late))
            self._seals.drop(name)
            self._stats.drop_topic(name)
        self._deletions.finish(name, end if before is None else before)
        if not self._topics.is_mirror:
            # Slaves ask for the table of topics when its version has changed, and get the marks with it.
            self._topics.deletion_finished(name)
        await self._durable()
