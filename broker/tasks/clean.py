"""The loop that keeps the disk from filling up: removes old files, and has messages refused while it is too full.

Removals block, so they run in a thread. Steps that must not overlap with a checkpoint run under the lock of
checkpoints. After a failed removal nothing is removed until redeleteHangedFileInterval has passed; then the failed
removal is tried first.
Neighbours: store/retention.py (decides), store/removal.py (the steps), admin/clean.py (asks for a cleaning).
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.removal import Removal
from skylark.broker.store.retention import CleanDecision
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.writing.admission import Admission, Reason
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.signal import Signal

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The most rounds when an admin asks, as in RocketMQ.
ASKED_ROUNDS = 20
# Queues whose start is searched for at once, under the lock of checkpoints: a search takes some 100 µs.
QUEUES_AT_ONCE = 100


class Cleaner(Part):
    """Cleans one store, at intervals and when `ask` is called."""

    def __init__(
        self,
        store: MessageStore,
        removal: Removal,
        flusher: Flusher,
        admission: Admission,
        options: BrokerOptions,
        clock: Clock,
        needed: Callable[[], float] = lambda: math.inf,
        uploaded_to: Callable[[], float] = lambda: math.inf,
        why_kept: Callable[[], str] = str,
    ) -> None:
        """``needed`` returns the offset from which other members need the log.

        Later files are removed only when the disk is full. ``uploaded_to``: the offset from which only this disk has
        the log: later files are never removed. ``why_kept``: why files are not in the bucket yet; "" if none wait.
        """
        self._needed = needed
        self._uploaded_to = uploaded_to
        self._why_kept = why_kept
        self._store = store
        self._removal = removal
        self._flusher = flusher
        self._admission = admission
        self._options = options
        self._clock = clock
        self._asked = Signal()
        self._following = trio.Lock()
        # Held while files of the log are removed.
        self._removing = trio.Lock()
        # The start of the log to which queues and index were last adapted.
        self._followed = -1
        # When a failed removal is tried again.
        self._next_try = 0.0
        self._logged_full = False

    def ask(self) -> None:
        """Remove expired files now, at any hour."""
        self._asked.set()

    @asynccontextmanager
    async def nothing_removed(self) -> AsyncIterator[None]:
        """Let no file of log, queues or index be removed for its age, or to make room."""
        async with self._removing, self._following:
            yield

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Counts as started after the first check of the disk: sends may have to be refused."""
        asked = False
        decision = await self._decide(asked=asked)
        task_status.started()
        while True:
            for _ in range(ASKED_ROUNDS if asked else 1):
                if not await self._clean(decision):
                    break
                decision = await self._decide(asked=asked)
            asked = False
            with trio.move_on_after(self._options.clean_resource_interval / 1000):
                await self._asked.wait()
                asked = True
            decision = await self._decide(asked=asked)

    async def follow_log(self) -> None:
        """Let queues and index start where the log starts now. OSError if a file could not be removed."""
        async with self._following:
            start = self._store.log.start
            queues = list(self._store.queues)
            for at in range(0, len(queues), QUEUES_AT_ONCE):
                await self._follow(queues[at : at + QUEUES_AT_ONCE])
            async with self._flusher.one_at_a_time:
                self._removal.retire_index_files()
            if removed := await trio.to_thread.run_sync(self._removal.remove_index_files):
                logger.info("removed %d index files: their messages are gone", removed)
            self._followed = start

    async def _follow(self, queues: list[ConsumeQueue]) -> None:
        async with self._flusher.one_at_a_time:
            # Topics may have been deleted since the list was made. Searches read files in a thread. The queues
            # themselves change here, on the event loop, under the lock that keeps a checkpoint from writing queues.
            present = [queue for queue in queues if self._store.queues.find(queue.topic, queue.queue_id) is queue]
            searches = [queue.bounds_search() for queue in present]
            starts = await trio.to_thread.run_sync(self._removal.find_starts, searches, self._store.log.start)
            for queue, start in zip(present, starts, strict=True):
                queue.start_at(start)
                if queue.min_offset:
                    self._store.queues.touch(queue)  # the next checkpoint notes the new start of the queue
            shorter = [queue.chain for queue in present if queue.chain.retired]
            if shorter:
                await trio.to_thread.run_sync(self._removal.remove_queue_files, shorter)

    async def _decide(self, *, asked: bool) -> CleanDecision:
        now_ms = self._clock.now_ms()
        # deleteWhen is in the machine's local time, as RocketMQ's is.
        hour = datetime.fromtimestamp(now_ms / 1000).hour
        rules, before = self._options.retention_rules, self._uploaded_to()
        decide = partial(self._removal.decide, rules, now_ms, hour, asked=asked, before=before)
        try:
            decision = await trio.to_thread.run_sync(decide)
        except OSError as error:
            logger.error("the disk usage cannot be read: %s", error)
            return CleanDecision()
        self._refuse(decision)
        return decision

    def _refuse(self, decision: CleanDecision) -> None:
        refused_before = self._admission.holds(Reason.DISK_FULL)
        if decision.refuse:
            most = self._options.retention_rules.refuse_ratio
            why = f"{decision.used:.1%} in use, at most {most}%: make room"
            if kept := self._why_kept():
                why += f". {kept}"
            self._admission.refuse(Reason.DISK_FULL, why)
            if not refused_before:
                logger.error("sends are refused: the disk is too full: %s", why)
        elif refused_before:
            self._admission.allow(Reason.DISK_FULL)
            logger.info("sends are accepted again: %.1f%% of the disk is in use", decision.used * 100)
        if not decision.too_full:
            self._logged_full = False
        elif not decision.files and not self._logged_full:
            kept = f": {kept}" if (kept := self._why_kept()) else ""
            logger.warning("%.1f%% of the disk is in use, and no file may be removed yet%s", decision.used * 100, kept)
            self._logged_full = True

    async def _clean(self, decision: CleanDecision) -> int:
        """Do what ``decision`` says; returns how many files of the log were removed."""
        if trio.current_time() < self._next_try:
            return 0
        removed = await self._try(partial(self._remove_log_files, decision))
        if self._followed != self._store.log.start:
            await self._try(self.follow_log)
        return removed or 0

    async def _try(self, step: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await step()
        except OSError as error:
            pause_ms = self._options.redelete_hanged_file_interval
            self._next_try = trio.current_time() + pause_ms / 1000
            logger.error("a file could not be deleted, next try in %d ms: %s", pause_ms, error)
            return None

    async def _remove_log_files(self, decision: CleanDecision) -> int:
        async with self._removing:
            return await self._remove_each(decision)

    async def _remove_each(self, decision: CleanDecision) -> int:
        remove = self._removal.remove_log_files
        await trio.to_thread.run_sync(remove)  # files whose removal failed before
        if not decision.files:
            return 0
        # No file is removed before the ends of the queues are on disk. When all messages of a queue are removed, only
        # the noted end says which offset is next; without it the queue would assign the same offsets again.
        await self._flusher.checkpoint(note_ends=True)
        durable = self._store.ends_noted_to
        rules = self._options.retention_rules
        is_full = rules.force and decision.used * 100 > rules.force_ratio
        for number in range(decision.files):
            if number:
                await trio.sleep(self._options.delete_commit_log_files_interval / 1000)
            # A member that still copies these files would have to begin anew. A full disk cannot wait for that member.
            before = min(durable, self._uploaded_to(), math.inf if is_full else self._needed())
            segment = self._removal.retire_log_file(before)
            if segment is None:
                return number
            await trio.to_thread.run_sync(remove)
            logger.info("removed %s: %s", segment.path, decision.why(number))
        return decision.files
