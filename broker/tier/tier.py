"""The part that keeps a set's log in a bucket: what is uploaded when, and how far files may leave this disk.

The master of the set is the owner: it claims the set, uploads one closed file of the log after the other, copies the
open file and the metadata at intervals, and removes what has expired. Another broker of the set reads the manifests.
Invariant: `uploaded_to` rises only to the end of a segment whose objects, and whose manifest, were read back. No file
that ends after it is removed from this disk (tasks/clean.py). When the bucket is away, everything waits but sends.
Neighbours: owner.py (the steps), tasks.py (what an uploader does), child.py (the uploader of a broker).
"""

import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.role import Role, RoleMachine
from skylark.broker.store.retention import HOUR_MS
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import BLOCK_BYTES
from skylark.broker.tier.owner import Disagrees, SetOwner, is_same_log, stored_bytes
from skylark.broker.tier.tasks import DamagedFile, DamagedIndex, Uploader, UploadTask
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal
from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefused,
    DamagedObject,
    NewerFormat,
    NoSuchObject,
)
from skylark.mqcommon.tier.manifest import Manifest, Segment, Span, StoredObject, Tombstone
from skylark.mqcommon.tier.manifests import DamagedManifest, Deposed
from skylark.mqcommon.tier.opening import probe
from skylark.mqcommon.tier.view import TierView
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.tier import FOLLOWER, OWNER, STARTING, STOPPED, TierStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often the owner looks for a closed file, and others for a new manifest.
LOOK_S, FOLLOW_S = 1.0, 30.0
# The pause after a failure: the first, and the longest.
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
# The pause when the log differs from the log in the bucket: to compare both takes a second for a gigabyte.
COMPARE_AGAIN_S = 600.0
# A failure that an administrator has to end is logged again after this time; a failure of another kind at once.
_LOG_AGAIN_MS = 600_000
# After this time without a file to upload the uploader rests.
REST_MS = 30_000
_RETENTION_MS, _LEFTOVERS_MS, _SWEEP_MS = HOUR_MS, 60_000, 7 * 24 * HOUR_MS


class MetadataSource(Protocol):
    """Makes copies of the metadata."""

    async def make(self) -> bytes | None:
        """The bytes of a copy; None if nothing has changed since the copy that is in the bucket."""

    def stored(self) -> None:
        """The last copy is in the bucket."""


@lazy_dataclass(frozen=True)
class TierSources:
    """What the tier needs to know of the broker.

    ``limit``: bytes of the log before it are on disk, confirmed, and on all slaves that are in sync. ``may_write``:
    whether this broker is the master, and no other master was elected. ``term``: of the election; None where nobody is
    elected. ``classes``: the retention classes of topics, without class 0. ``deletions``: deleted topics,
    with the end of the log at that time. ``metadata`` makes copies of topics, groups and offsets. ``suspect`` is told
    which blocks of the log are damaged. ``is_following``: whether this broker copies a master's log.
    """

    limit: Callable[[], int]
    may_write: Callable[[], bool]
    term: Callable[[], int | None]
    classes: Callable[[], Mapping[str, int]]
    deletions: Callable[[], Mapping[str, int]]
    metadata: MetadataSource
    suspect: Callable[[Sequence[int]], None]
    is_following: Callable[[], bool]


class StoreLog:
    """The log of a store as `LocalLog`."""

    def __init__(self, store: MessageStore) -> None:
        self._log = store.log

    @property
    def start(self) -> int:
        """Where the first file begins."""
        return self._log.start

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self._log.raw_end

    @property
    def segment_bytes(self) -> int:
        """The size of a file."""
        return self._log.chain.segment_bytes

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes of one file; fewer where the log has no more."""
        return self._log.chain.read_file(offset, size)


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call that blocks; a thread that is not waited for any more goes on."""
    return await trio.to_thread.run_sync(call, *args, abandon_on_cancel=True)


class NotRepaired(SkylarkError):
    """The index of the newest segment is damaged, and so is every source from which it could be made again."""


class Tier(Part):
    """The tier of one broker. ``bucket`` may be called from any thread."""

    def __init__(
        self,
        bucket: Bucket,
        broker_set: str,
        view: TierView,
        store: MessageStore,
        role: RoleMachine,
        options: BrokerOptions,
        clock: Clock,
        uploader: Uploader,
        sources: TierSources,
        run_sync: Callable[..., Awaitable[Any]] = in_thread,
    ) -> None:
        """``run_sync`` calls a function that blocks, with its arguments."""
        self.bucket = bucket
        self.broker_set = broker_set
        self._view = view
        self._store = store
        self._log = StoreLog(store)
        self._role = role
        self._options = options
        self._clock = clock
        self._uploader = uploader
        self._sources = sources
        self._run_sync = run_sync
        #: Files of the log that end at or before this offset are in the bucket and were read back.
        self.uploaded_to = 0
        #: How the log on this disk differs from the log in the bucket; "" if both agree, or were not compared yet.
        #: While the logs differ, no message of the bucket may be read as a message of this log.
        self.disagreement = ""
        self.manifest: Manifest | None = None
        self._owner: SetOwner | None = None
        self._is_probed = False
        # A segment whose objects are in the bucket, and that no manifest lists yet.
        self._pending: Segment | None = None
        self._noted: Mapping[str, int] = {}
        # Where the file begins whose damage other brokers were asked to mend last. The next try uploads damaged bytes
        # without a sum as they are: nobody knows how they were.
        self._doubted = -1
        # The next claim begins a new generation.
        self._takes_over = False
        # Segments from this offset on are not purged yet; None: no purge was asked for.
        self._purge_at: int | None = None
        # The tombstones whose bytes the running purge removes, and tombstones of which no object has bytes any more.
        # The broker knows a deletion as long as its own log has bytes of the topic, and tombstones are kept as long.
        self._purging: Collection[Tombstone] = ()
        self._purged: set[Tombstone] = set()
        # When each kind of work is due next, by the monotonic clock.
        self._tail_ms = self._copy_ms = self._retention_ms = self._leftovers_ms = self._sweep_ms = self._rest_ms = 0
        self._check_ms = 0
        # --- failures
        self._problem = ""
        self._problem_ms = 0
        self._tries = 0
        # Nothing is tried before this time; with `_is_stopped` not before the role or the term changes.
        self._retry_ms = 0
        self._is_stopped = False
        # The term in which this broker was stopped.
        self._stopped_term: int | None = None
        # Whether a file of this log was compared with the bucket since the role changed.
        self._is_compared = False
        self._logged: type[Exception] | None = None
        self._logged_ms = 0
        # --- for the status
        self._uploads = self._upload_messages = self._upload_bytes = self._upload_ms = self._metadata_ms = 0
        self._spans: dict[str, tuple[int, int]] = {}
        self._in_bucket = 0, 0
        self._wake = Signal()
        self._step_scope = trio.CancelScope()
        role.observe(self._role_changed)

    # --- the loop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Never waits for the bucket before it counts as started."""
        task_status.started()
        try:
            while True:
                wait_s = 0.0
                with trio.CancelScope() as self._step_scope:
                    wait_s = await self.step()
                with trio.move_on_after(wait_s):
                    await self._wake.wait()
        finally:
            await self._uploader.rest()

    async def close(self) -> None:
        """Let the bucket's connections go."""
        await trio.to_thread.run_sync(self.bucket.close)

    def _role_changed(self, before: Role, now: Role) -> None:
        if before.is_master != now.is_master:
            self._is_stopped = self._is_compared = False
            self._owner = self._pending = self._purge_at = None
            self._purged = set()
            self._retry_ms = 0
            self._step_scope.cancel()
            self._wake.set()

    async def step(self) -> float:
        """Do what is due next; returns after how many seconds there may be more to do."""
        if (left_ms := self._retry_ms - self._clock.monotonic_ms()) > 0:
            return left_ms / 1000
        try:
            wait_s = await self._step()
        except Deposed as error:
            self._owner = self._pending = None
            self.disagreement = ""  # the log was compared before the claim or the commit that has failed
            self._is_stopped, self._stopped_term = True, self._sources.term()
            if self._stopped_term is None:
                text = f"{error}: two masters are called {self.broker_set}: stop the other one, then restart this one"
                self._failed(error, text, logging.ERROR)
            else:
                self._failed(error, str(error), logging.WARNING)
            return FOLLOW_S
        except Disagrees as error:
            self._owner = self._pending = None
            self.uploaded_to = 0  # nothing is removed
            self.disagreement = str(error)
            self._failed(error, str(error), logging.ERROR)
            self._retry_in(COMPARE_AGAIN_S)
            return COMPARE_AGAIN_S
        except NotRepaired as error:
            self._failed(error, str(error), logging.ERROR)
            self._retry_in(COMPARE_AGAIN_S)  # a try may read a gigabyte
            return COMPARE_AGAIN_S
        except (DamagedFile, OSError, BucketRefused) as error:
            text = str(error)
            if isinstance(error, DamagedFile):
                self._sources.suspect(error.blocks)
                if (owner := self._owner) is not None:
                    self._doubted = owner.next_start()
                text += ". Other brokers of the set mend it; without them run broker verifyStore --repair"
            self._failed(error, text, logging.ERROR)
            self._retry_in(MAX_RETRY_S)
            return MAX_RETRY_S
        except BucketError as error:
            text = str(error)
            if isinstance(error, DamagedManifest):
                self._owner = self._pending = None  # a claim goes on from the manifest before
            if isinstance(error, NoSuchObject):
                text += f" is not in {self.bucket.url}: bring it back from a version or a copy; see mqadmin tierVerify"
            self._failed(error, text, logging.WARNING if isinstance(error, BucketAway) else logging.ERROR)
            self._tries += 1
            pause_s: float = min(FIRST_RETRY_S * 2.0 ** (self._tries - 1), MAX_RETRY_S) * random.uniform(0.5, 1)
            self._retry_in(pause_s)
            return pause_s
        if not self._is_stopped:
            self._succeeded()
        return wait_s

    async def _step(self) -> float:
        if not self._sources.may_write():
            self._owner = self._pending = None
            await self._follow()
            return FOLLOW_S
        if self._is_stopped:
            if self._sources.term() == self._stopped_term:
                return FOLLOW_S
            self._is_stopped = False  # elected again, without a change of the role
        owner = self._owner
        if owner is None:
            await self._claim()
            return 0.0
        if self._problem:
            # What has failed may have failed because another owner is there, or the bucket was emptied.
            await self._call(owner.check)
        try:
            has_more = await self._upload_next(owner)
        except (DamagedFile, NotRepaired):
            # The metadata is needed for a restore all the same.
            await self._do_due(owner)
            raise
        if self._sources.may_write():
            # Also between two of many files that wait: to upload them may take hours.
            await self._do_due(owner)
            has_more = has_more or await self._purge_next(owner)
        return 0.0 if has_more else LOOK_S

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        result: T = await self._run_sync(function, *args)
        return result

    # --- failures

    def _failed(self, error: Exception, text: str, level: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self._problem:
            self._problem_ms = self._clock.now_ms()
            self._logged = None
        is_other = self._logged is None or (level > logging.WARNING and type(error) is not self._logged)
        if is_other or (level > logging.WARNING and now_ms - self._logged_ms >= _LOG_AGAIN_MS):
            what = "nothing is uploaded" if self._role.now.is_master else "the bucket is not read"
            logger.log(level, "tier: %s, and no file that is not in the bucket leaves this disk: %s", what, text)
            self._logged, self._logged_ms = type(error), now_ms
        self._problem = text

    def _retry_in(self, seconds: float) -> None:
        self._retry_ms = self._clock.monotonic_ms() + int(seconds * 1000)

    def _succeeded(self) -> None:
        if self._problem:
            seconds = (self._clock.now_ms() - self._problem_ms) / 1000
            logger.info("tier: %s works again, after %.0f s", self.bucket.url, seconds)
        self._problem, self._tries = "", 0
        self.disagreement = ""

    @property
    def problem(self) -> str:
        """Why nothing is written to the bucket, or read from it; "" if it is."""
        return self._problem

    def why_kept(self) -> str:
        """Why files of the log must stay on this disk; "" if none waits for the bucket."""
        waiting = self._closed_to() - max(self.uploaded_to, self._log.start)
        if waiting <= 0 and not self._problem:
            return ""
        why = f": {self._problem}" if self._problem else ""
        return f"{max(waiting, 0):,} bytes of full files are not in {self.bucket.url} yet{why}"

    def _closed_to(self) -> int:
        size = self._log.segment_bytes
        return self._sources.limit() // size * size

    # --- what others have written

    async def _follow(self) -> None:
        manifest = await self._call(self._view.refresh)
        if manifest is None:
            self.uploaded_to = 0
            return
        if not self._is_compared:
            # A bucket of another set with this name would have files removed that it does not have.
            self._is_compared = await self._call(is_same_log, self.bucket, self.broker_set, manifest, self._log)
        await self._take(manifest)
        restored = self._store.restored
        if restored.manifest and manifest.number > restored.manifest[0] and self._sources.is_following():
            # The set has an owner, whose log is copied here: its terms go on.
            await self._call(restored.forget)

    async def _take(self, manifest: Manifest) -> None:
        """``manifest`` is the newest one, and was read from the bucket."""
        self.manifest = manifest
        if manifest.segments or manifest.spans:
            self.uploaded_to = max(self.uploaded_to, manifest.end)
        self._in_bucket = await self._call(stored_bytes, self.bucket, manifest, self._spans)
        self._spans = {span.stored.name: self._spans[span.stored.name] for span in manifest.spans}

    # --- the owner

    async def _claim(self) -> None:
        if not self._is_probed:
            await self._call(probe, self.bucket)
            self._is_probed = True
        owner = SetOwner(self.bucket, self.broker_set, self._log, self._clock)
        restored = self._store.restored
        is_known = self.manifest is not None
        await self._call(owner.claim, self._sources.term(), restored.manifest, self._takes_over, is_known)
        self._takes_over = False
        if restored.manifest is not None:
            await self._call(restored.forget)
        self._owner, self._noted = owner, {}
        now_ms = self._clock.monotonic_ms()
        self._tail_ms = self._copy_ms = self._retention_ms = self._check_ms = now_ms
        self._sweep_ms = now_ms + 24 * HOUR_MS
        await self._took(owner)
        logger.info(
            "tier: this broker owns %s in %s: manifest=%d epoch=%d uploaded_to=%d",
            self.broker_set, self.bucket.url, owner.manifest.number, owner.manifest.epoch, self.uploaded_to,
        )  # fmt: skip

    async def _took(self, owner: SetOwner) -> None:
        self._view.use(owner.manifest)
        await self._take(owner.manifest)

    async def _upload_next(self, owner: SetOwner) -> bool:
        """Upload the next closed file; returns whether there was one."""
        if self._pending is None:
            start, size = owner.next_start(), self._log.segment_bytes
            segment = self._store.log.chain.at(start)
            if segment is None or self._sources.limit() < start + size:
                if self._clock.monotonic_ms() >= self._rest_ms:
                    await self._uploader.rest()
                return False
            before = owner.manifest.segments[-1].index if owner.manifest.segments else None
            try:
                self._pending = await self._uploader.upload(segment.path, self._task(owner, start, size, before))
            except DamagedIndex as damage:
                await self._repair_newest(owner, damage)
                return True
            self._rest_ms = self._clock.monotonic_ms() + REST_MS
        if not self._sources.may_write():
            return True
        pending = self._pending
        await self._call(owner.note_deletions, dict(self._sources.deletions()))
        await self._call(owner.add_segment, pending)
        self._pending = None
        self._uploads += 1
        self._upload_messages += pending.records
        self._upload_bytes += pending.end - pending.start
        self._upload_ms = self._clock.now_ms()
        await self._took(owner)
        logger.info(
            "tier: the log from %d to %d is in the bucket: records=%d manifest=%d",
            pending.start, pending.end, pending.records, owner.manifest.number,
        )  # fmt: skip
        return True

    async def _check_newest(self, owner: SetOwner) -> None:
        """Notice that the index of the newest segment is damaged: all reads of the bucket need it."""
        if not owner.manifest.segments:
            return
        try:
            await self._call(self._view.check, owner.manifest.segments[-1])
        except NewerFormat:
            raise
        except (DamagedObject, NoSuchObject) as error:
            await self._repair_newest(owner, DamagedIndex(str(error)))

    async def _repair_newest(self, owner: SetOwner, damage: DamagedIndex) -> None:
        """Make the newest segment again, whose index is damaged. Raises NotRepaired."""
        # After a failure the next check waits: a try may read a gigabyte.
        self._check_ms = self._clock.monotonic_ms() + int(COMPARE_AGAIN_S * 1000)
        await self._call(owner.check)
        segment, before = await self._call(owner.segment_after, owner.manifest.end - 1)
        while segment is not None:
            start, size = segment.start, segment.end - segment.start
            file = self._store.log.chain.at(start)
            source = "the records in the bucket" if file is None else "the log on this disk"
            logger.error("tier: %s. The segment is made again of %s", damage, source)
            task = self._task(owner, start, size, None if before is None else before.index)
            try:
                made = await self._uploader.repair(segment, "" if file is None else file.path, task)
            except DamagedIndex as error:
                damage = error
                segment, before = await self._call(owner.segment_after, start - 1)
                continue
            except (DamagedObject, NoSuchObject) as error:
                raise NotRepaired(
                    f"{damage}, and it cannot be made again: {error}. Bring both objects back from their versions or a"
                    " copy of the bucket; mqadmin tierVerify --full names all that are missing or damaged"
                ) from None
            self._rest_ms = self._clock.monotonic_ms() + REST_MS
            if made is not None and self._sources.may_write():
                await self._call(owner.replace_segment, segment, made)
                await self._took(owner)
                logger.warning("tier: in place of %s there is %s now", segment.index.name, made.index.name)
            return

    async def _purge_next(self, owner: SetOwner) -> bool:
        """Remove deleted topics from the next segment; returns whether there was one."""
        if self._purge_at is None:
            return False
        segment, before = await self._call(owner.segment_after, self._purge_at)
        if segment is None or not owner.manifest.tombstones:
            end = self._purge_at
            self._purged |= {each for each in self._purging if each.physical_offset <= end}
            self._purge_at = None
            await self._forget_purged(owner)
            return False
        index_before = None if before is None else before.index
        task = self._task(owner, segment.start, segment.end - segment.start, index_before)
        task = replace(task, crcs=())
        made = None
        try:
            made = await self._uploader.purge(segment, task)
        except (DamagedObject, NoSuchObject) as error:
            logger.error(
                "tier: deleted topics stay in %s: %s. Run mqadmin tierVerify --full, and tierPurge again afterwards",
                segment.folder, error,
            )  # fmt: skip
            self._purging = [each for each in self._purging if each.physical_offset <= segment.start]
        self._rest_ms = self._clock.monotonic_ms() + REST_MS
        if made is not None and self._sources.may_write():
            await self._call(owner.replace_segment, segment, made)
            await self._took(owner)
            logger.info("tier: deleted topics are gone from %s", segment.folder)
        self._purge_at = segment.end
        return True

    async def _forget_purged(self, owner: SetOwner) -> None:
        known = self._sources.deletions()
        if gone := [each for each in self._purged if each.topic not in known]:
            await self._call(owner.forget_purged, gone)
        self._purged &= set(owner.manifest.tombstones)

    def _task(self, owner: SetOwner, start: int, size: int, before: StoredObject | None) -> UploadTask:
        manifest, sums = owner.manifest, self._store.log.sums
        known = [sums.sum_of(block) for block in sums.blocks(start, start + size)]
        tombstones = {each.topic: each.physical_offset for each in manifest.tombstones}
        return UploadTask(
            self.broker_set,
            start,
            size,
            manifest.epoch,
            secrets.token_hex(4),
            self._sources.classes(),
            before,
            tombstones | dict(self._sources.deletions()),
            BLOCK_BYTES,
            [-1 if each is None else each.crc for each in known],
            start == self._doubted,
        )

    async def _do_due(self, owner: SetOwner) -> None:
        options, before = self._options, owner.manifest
        now_ms, limit = self._clock.monotonic_ms(), self._sources.limit()
        deletions = dict(self._sources.deletions())
        if deletions != self._noted:
            await self._call(owner.note_deletions, deletions)
            self._noted = deletions
        # A full file that waits is uploaded whole.
        is_open = limit < owner.next_start() + self._log.segment_bytes
        is_due = now_ms >= self._tail_ms
        if is_open and (is_due or limit - owner.tail_to() >= options.tier_tail_bytes):
            await self._call(owner.put_tail, limit, options.tier_tail_bytes)
            if is_due:
                self._tail_ms = now_ms + options.tier_tail_interval_ms
        if now_ms >= self._copy_ms:
            if (copy := await self._sources.metadata.make()) is not None:
                await self._call(owner.put_metadata, copy)
                self._sources.metadata.stored()
                self._metadata_ms = self._clock.now_ms()
            self._copy_ms = now_ms + options.tier_tail_interval_ms
        if now_ms >= self._retention_ms:
            await self._call(owner.expire, options.tier_reserved_time_hours)
            await self._forget_purged(owner)
            self._retention_ms = now_ms + _RETENTION_MS
            self._leftovers_ms = now_ms
        if now_ms >= self._leftovers_ms:
            removed = await self._call(owner.remove_leftovers)
            if removed:
                logger.info("tier: %d objects that have expired or were replaced are removed", removed)
            self._leftovers_ms = now_ms + _LEFTOVERS_MS
        if now_ms >= self._sweep_ms:
            orphans = await self._call(owner.sweep)
            if orphans:
                logger.info("tier: %d objects that no manifest names are removed", orphans)
            self._sweep_ms = now_ms + _SWEEP_MS
        if owner.manifest != before:
            await self._took(owner)
        if now_ms >= self._check_ms:
            await self._check_newest(owner)
            self._check_ms = now_ms + HOUR_MS

    # --- requests

    def begin_purge(self) -> None:
        """Remove the bytes of deleted topics from the bucket, from now on. RequestRefused unless this is the owner."""
        if self._owner is None:
            why = self._problem or ("it has not begun yet" if self._role.now.is_master else "it is not the master")
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"this broker does not write to its bucket: {why}")
        self._purge_at = 0
        self._purging = self._owner.manifest.tombstones
        self._wake.set()

    def take_over(self) -> None:
        """Own the set, whatever term its last owner had. RequestRefused unless this broker is the master."""
        if not self._role.now.is_master:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "this broker is not the master of its set: ask the master")
        logger.warning("tier: an administrator has this broker own %s, whoever owns it now", self.broker_set)
        self._takes_over = True
        self._owner = self._pending = None
        self._is_stopped = False
        self._problem = ""
        self._retry_ms = 0
        self._wake.set()

    def status(self) -> TierStatus:
        """What `mqadmin tierStatus`, metrics and the doctor show."""
        manifest, owner = self.manifest, self._owner
        retry_ms = -1 if self._is_stopped else max(self._retry_ms - self._clock.monotonic_ms(), 0)
        if not self._role.now.is_master:
            role = FOLLOWER
        elif owner is None:
            role = STOPPED if self._problem else STARTING
        else:
            role = OWNER
        segments, size = self._in_bucket
        status = TierStatus(
            role=role,
            url=self.bucket.url,
            broker_set=self.broker_set,
            uploaded_to=self.uploaded_to,
            behind_bytes=max(self._closed_to() - max(self.uploaded_to, self._log.start), 0),
            segments=segments,
            stored_bytes=size,
            metadata_ms=self._metadata_ms,
            uploads=self._uploads,
            upload_messages=self._upload_messages,
            upload_bytes=self._upload_bytes,
            upload_ms=self._upload_ms,
            problem=self._problem,
            problem_since_ms=self._problem_ms if self._problem else 0,
            retry_in_ms=retry_ms if self._problem else 0,
        )
        if manifest is not None:
            oldest: list[Span | Segment] = [*manifest.spans[:1], *manifest.segments[:1]]
            status.epoch, status.manifest, status.start = manifest.epoch, manifest.number, manifest.start
            status.tail_to = manifest.tails[-1].end if manifest.tails else manifest.end
            status.oldest_ms = min([each.first_ms for each in oldest], default=0)
            if self._purge_at is not None:
                status.purge_left = sum([each.segments for each in manifest.spans if each.end > self._purge_at])
                status.purge_left += sum([each.end > self._purge_at for each in manifest.segments])
            status.tombstones, status.leftovers = len(manifest.tombstones), len(manifest.leftovers)
        return status
