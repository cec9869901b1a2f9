"""Keeps a broker whose log does not fit the bucket from storing messages at offsets that other messages have.

- A master whose log ends before the bucket's lost messages: new ones would get the same offsets. Its sends are refused.
- A slave that began amid its master's log lacks queues whose messages all came before (store/begun.py). It learns from
  the bucket where they go on; as a master it refuses sends until then.
- An empty store beside a bucket that has the set: its start is refused where it would be the master at once.
Otherwise a bucket that is away keeps nobody from sending.
Neighbours: tier.py (uploads), store/begun.py.
"""

import logging
from collections.abc import Iterator

import trio

from skylark.broker.part import Part
from skylark.broker.replication.role import Role, RoleMachine
from skylark.broker.store.begun import QueueEnd, learn_ends
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.writing.admission import Admission, Reason
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.signal import Signal
from skylark.mqcommon.tier.bucket import BucketError
from skylark.mqcommon.tier.manifest import Manifest
from skylark.mqcommon.tier.view import TierView

logger = logging.getLogger(__name__)

RETRY_S = 5.0
# A slave may begin anew at any time.
LOOK_S = 1.0
# Queues that learn their ends in one turn of the event loop: some 5 ms.
_QUEUES_AT_ONCE = 500


def why_refused(bucket_end: int | None, log_end: int, begun_at: int, problem: str = "") -> str:
    """Why a master must store no message; "" if it may.

    ``bucket_end``: where the bucket's segments end; None if the bucket was not read yet. ``begun_at``: as
    `BegunAt.offset`. ``problem``: why the bucket cannot be read; "" if it can be read, or was not asked yet.
    """
    cause = f"cannot be read: {problem}" if problem else "was not read yet"
    if bucket_end is None and not log_end:
        return f"the store is empty, and the bucket of tierPath, which may have messages of this set, {cause}"
    if bucket_end is not None and bucket_end > log_end:
        return (
            f"the bucket of tierPath has the log of this set up to {bucket_end:,}, and the store only up to"
            f" {log_end:,}: make the store from the bucket (mqadmin tierRestore), or give the set a new tierPath"
        )
    if begun_at:
        if bucket_end is not None and not problem:
            cause = (
                f"ends at {bucket_end:,}: let a broker with an older log be the master until its log is in the bucket"
            )
        return (
            f"the store has the log from {begun_at:,} on. The next offsets of queues without later messages are only in"
            f" the bucket of tierPath, which {cause}"
        )
    return ""


def end_of(manifest: Manifest | None, log_end: int) -> int:
    """The least end that the log of a master must have by ``manifest``; the log ends at ``log_end`` now.

    An empty log must have the copies of the open file, too. Another log may lack them: its broker may have become the
    master without the last messages of the old master.
    """
    if manifest is None:
        return 0
    return manifest.tails[-1].end if manifest.tails and not log_end else manifest.end


def queue_ends(view: TierView) -> Iterator[QueueEnd]:
    """Where each queue goes on after the last segment; without queues of deleted topics. Blocks.

    A queue that was empty before the bucket began is in no segment: the copy of the metadata names it.
    """
    if view.count:
        for row in view.table(view.segment(view.count - 1)).queues():
            if not view.hides(row.topic, row.last_physical):
                yield QueueEnd(row.topic, row.queue_id, row.next_offset)
    if (copy := view.metadata()) is not None:
        for topic, queues in copy.empty_queues.items():
            if not view.hides(topic, copy.log_end - 1):
                yield from [QueueEnd(topic, queue_id, next_offset) for queue_id, next_offset in queues.items()]


class BucketGuard(Part):
    """Compares one store with its bucket, at the start and at each change of the role."""

    def __init__(
        self,
        view: TierView,
        store: MessageStore,
        flusher: Flusher,
        admission: Admission,
        role: RoleMachine,
        *,
        elects_master: bool,
    ) -> None:
        """``elects_master``: masters are elected, so an empty store may join a set that has a log."""
        self._view = view
        self._store = store
        self._flusher = flusher
        self._admission = admission
        self._role = role
        self._elects_master = elects_master
        # Whether the bucket was read since the start, and since the last change of the role.
        self._is_read = self._is_fresh = False
        # Why the last try to read it failed.
        self._problem = ""
        self._changed = Signal()
        # Requests of this part wait for no other part's.
        self._thread = trio.CapacityLimiter(1)
        self._reported = ""
        role.observe(self._role_changed)
        self._judge()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. UserError, before this counts as started, for an empty master of a set with a log."""
        if self._role.now.is_master and not self._elects_master and not self._store.log.end:
            await self._refuse_new_store()
        task_status.started()
        while True:
            settled = await self._look()
            with trio.move_on_after(LOOK_S if settled else RETRY_S):
                await self._changed.wait()

    async def _refuse_new_store(self) -> None:
        try:
            manifest = await self._refresh()
        except BucketError as error:
            raise UserError(
                f"the store is empty, and the bucket of tierPath, which may have messages of this set, cannot be read:"
                f" {error}"
            ) from None
        if end := end_of(manifest, 0):
            raise UserError(
                f"the store is empty, and the bucket of tierPath has the log of this set up to {end:,}: make"
                " the store from the bucket first (mqadmin tierRestore --to, docs/operate/tiered.md), or let the set"
                " begin anew with another brokerName or another tierPath"
            )
        self._judge()

    async def _look(self) -> bool:
        """Compare store and bucket, if needed; returns whether both fit."""
        store = self._store
        if self._is_fresh and not store.begun.offset and not self._admission.holds(Reason.BUCKET):
            return True
        try:
            manifest = await self._refresh()
            if store.begun.offset:
                if manifest is None:
                    await trio.to_thread.run_sync(store.begun.forget)
                elif not manifest.end or manifest.end >= store.begun.offset:
                    await self._learn()
            self._problem = ""
        except BucketError as error:
            self._problem = str(error)
        self._judge()
        self._report()
        return self._is_fresh and not store.begun.offset and not self._admission.holds(Reason.BUCKET)

    async def _refresh(self) -> Manifest | None:
        role = self._role.now
        manifest = await trio.to_thread.run_sync(self._view.refresh, limiter=self._thread, abandon_on_cancel=True)
        self._is_read, self._is_fresh = True, self._role.now == role
        return manifest

    async def _learn(self) -> None:
        store, begun_at = self._store, self._store.begun.offset
        ends = await trio.to_thread.run_sync(
            lambda: list(queue_ends(self._view)), limiter=self._thread, abandon_on_cancel=True
        )
        count = 0
        async with self._flusher.one_at_a_time:
            for at in range(0, len(ends), _QUEUES_AT_ONCE):
                count += learn_ends(store.queues, ends[at : at + _QUEUES_AT_ONCE])
                await trio.lowlevel.checkpoint()
        await self._flusher.checkpoint(note_ends=True)
        # Otherwise the slave has begun anew meanwhile, or the ends are in memory only: the next look does this again.
        if store.begun.offset == begun_at and not self._flusher.unwritten:
            await trio.to_thread.run_sync(store.begun.forget)
            logger.info("tier: %d queues without local messages go on where the bucket's messages end", count)

    def _role_changed(self, before: Role, now: Role) -> None:
        self._is_fresh = False
        self._judge()
        self._changed.set()

    def _report(self) -> None:
        why = self._admission.why(Reason.BUCKET)
        if why != self._reported:
            if why:
                logger.error("tier: sends are refused: %s", why)
            else:
                logger.info("tier: sends are taken again: store and bucket fit")
            self._reported = why

    def _judge(self) -> None:
        log_end = self._store.log.end
        end = end_of(self._view.manifest, log_end) if self._is_read else None
        begun_at = self._store.begun.offset
        why = why_refused(end, log_end, begun_at, self._problem) if self._role.now.is_master else ""
        if why:
            self._admission.refuse(Reason.BUCKET, why)
        else:
            self._admission.allow(Reason.BUCKET)
