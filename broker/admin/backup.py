"""Backs up the store while the broker serves (7150), and says how far that is (7151).

The steps and their order are in store/backup/taking.py. Here are the locks around them:
- No file is removed for its age, and no metadata replaced, from before the cut until all files are linked.
- The cut is one turn of the event loop: the log, the journal of metadata and the offsets in it belong together. All
  changed offsets are in the journal then, so no group's offset is past the end of the backup's log.
- Checkpoints, deletions of topics and cuts of a slave's log wait while log and metadata are linked, and for some
  queues at a time. Sends wait for nothing.
The copying runs in a thread after all of that. A stop of the broker ends it, and the unfinished backup is removed; one
that a crash left is removed by the next start.
Neighbours: mqadmin/commands/backups.py, broker/commands/restore.py.
"""

import logging
import re

import trio

from skylark.broker.meta.journal import Journal, JournalPosition
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.backup.manifest import Origin
from skylark.broker.store.backup.taking import QueueFilesNow, StoreBackup, files_now, remove_partial
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.clean import Cleaner
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.persist import Persister
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, RequestRefused, StoreError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal
from skylark.mqcommon.version import VERSION
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.backups import (
    BACK_UP_STORE,
    DONE,
    FAILED,
    GET_BACKUP_STATUS,
    RUNNING,
    BackupStatus,
)

logger = logging.getLogger(__name__)

# Queues whose files are linked at once, under the lock of checkpoints: some 20 ms.
QUEUES_AT_ONCE = 200
# The name is a directory's, so it can have no slash; a leading dot or an ending .partial would hide it.
_NAME = re.compile(r"(?!.*\.partial$)[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,99}")


class _Stopped(Exception):
    """The broker stops."""


@lazy_dataclass(frozen=True, slots=True)
class Steady:
    """What keeps files as they are for a backup."""

    flusher: Flusher
    persister: Persister
    cleaner: Cleaner


class Backups(Part):
    """Makes backups of one store, one at a time."""

    def __init__(
        self,
        fs: FileSystem,
        options: BrokerOptions,
        store: MessageStore,
        journal: Journal,
        steady: Steady,
        role: RoleMachine,
        clock: Clock,
    ) -> None:
        self._fs = fs
        self._options = options
        self._store = store
        self._journal = journal
        self._steady = steady
        self._role = role
        self._clock = clock
        self._wanted = Signal()
        self._status = BackupStatus()
        # Read by the thread that copies.
        self._stopping = False

    def handlers(self) -> dict[int, Handler]:
        return {BACK_UP_STORE.code: self.begin, GET_BACKUP_STATUS.code: self.status}

    def begin(self, channel: Channel, request: Command) -> Command:
        """7150: begin a backup. Refused for a name that is no directory's, and while another backup runs."""
        name = BACK_UP_STORE.header(request).name
        if not _NAME.fullmatch(name):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{name!r} is not the name of a backup: give up to 100 letters, digits and _ . : + - without a slash;"
                " the broker makes the directory backup/NAME in its storePathRootDir",
            )
        if self._status.state == RUNNING:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"the backup {self._status.name} is being made: try again when it is done"
            )
        self._status = BackupStatus(RUNNING, name)
        logger.info("a backup called %s is wanted by %s", name, channel.remote)
        self._wanted.set()
        return request.respond()

    def status(self, channel: Channel, request: Command) -> Command:
        """7151: how far the last backup is."""
        return answer_with(GET_BACKUP_STATUS, request, self._status, channel.max_frame_bytes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make the backups that are wanted, until cancelled."""
        try:
            removed = await trio.to_thread.run_sync(remove_partial, self._fs, self._options.store_path_root_dir)
            for path in removed:
                logger.warning("removed %s, a backup that was not finished", path)
        except OSError as error:
            logger.warning("a backup that was not finished cannot be removed: %s", error)
        task_status.started()
        while True:
            await self._wanted.wait()
            await self._back_up()

    async def stop(self) -> None:
        """End the copying; what is there of the backup is removed."""
        self._stopping = True

    async def _back_up(self) -> None:
        status, began_ms = self._status, self._clock.monotonic_ms()
        backup = StoreBackup(self._fs, self._store, status.name)
        status.directory = backup.directory
        error = "the broker stopped before the backup was done"
        try:
            await trio.to_thread.run_sync(backup.begin)
            try:
                made_ms = await self._link_all(backup)
                status.log_start, status.log_end = backup.log_start, backup.log_end
                status.linked, status.to_copy = backup.linked, backup.to_copy
                await trio.to_thread.run_sync(backup.finish, self._origin(), made_ms, self._copied)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(backup.give_up)
                raise
            error = ""
        except _Stopped:
            pass
        except (OSError, DiskFull, UserError) as failure:
            # Another StoreError ends the broker: what is on disk of its store is unknown.
            error = str(failure)
        finally:
            status.files = backup.files
            status.took_ms = self._clock.monotonic_ms() - began_ms
            status.state, status.error = (FAILED, error) if error else (DONE, "")
        if error:
            logger.error("the backup %s failed: %s", status.name, error)
        else:
            logger.info(
                "backup %s: files=%d log=%d to %d copied=%d linked=%d ms=%d",
                backup.directory, status.files, status.log_start, status.log_end, status.to_copy, status.linked,
                status.took_ms,
            )  # fmt: skip

    async def _link_all(self, backup: StoreBackup) -> int:
        """Cut, and link all files; returns the time of the cut."""
        flusher, persister = self._steady.flusher, self._steady.persister
        queues = self._store.queues
        async with self._steady.cleaner.nothing_removed():
            async with persister.files_kept():
                backup.note_index()
                await flusher.checkpoint(note_ends=True)
                if flusher.unwritten:
                    raise UserError(
                        f"queue entries cannot be written, so a backup would lack them: {flusher.unwritten}"
                    )
                async with flusher.one_at_a_time:
                    await self._append_offsets()
                    # One turn of the loop.
                    backup.cut()
                    position, made_ms = self._journal.position, self._clock.now_ms()
                    await trio.to_thread.run_sync(self._link, backup, position)
            present = list(queues)
            for at in range(0, len(present), QUEUES_AT_ONCE):
                self._stop_if_stopping()
                async with flusher.one_at_a_time:
                    # A queue whose topic was deleted meanwhile is made anew from the log, should the backup be used.
                    steps: list[QueueFilesNow] = [
                        files_now(queue)
                        for queue in present[at : at + QUEUES_AT_ONCE]
                        if queues.find(queue.topic, queue.queue_id) is queue
                    ]
                    await trio.to_thread.run_sync(backup.link_queues, steps)
        await flusher.flush()  # the backup's checkpoint says that all of the log is on disk
        return made_ms

    async def _append_offsets(self) -> None:
        try:
            await self._steady.persister.append_offsets()
        except StoreError as error:
            raise UserError(f"the offsets of groups cannot be written, so a backup would lack them: {error}") from error

    def _link(self, backup: StoreBackup, position: JournalPosition) -> None:
        """Link log, index and metadata. Blocks."""
        files, directory = self._journal.files_to(position), f"{self._options.store_path_root_dir}/config"
        # RocketMQ's files, which an import reads.
        others = [f"{directory}/{name}" for name in self._fs.listdir(directory) if not name.startswith("metadata.")]
        files += [(path, self._fs.size(path)) for path in others if not self._fs.is_dir(path)]
        copies = sum(limit for _, limit in files if limit is not None)
        backup.link_log(self._options.retention_rules.refuse_ratio, copies)
        for path, limit in files:
            backup.link(path, limit)

    def _copied(self, done: int, total: int) -> None:
        self._status.copied = done
        self._stop_if_stopping()

    def _stop_if_stopping(self) -> None:
        if self._stopping:
            raise _Stopped

    def _origin(self) -> Origin:
        options = self._options
        mode = "DLedger" if options.enable_dleger_commit_log else "Controller" if options.elects_master else "plain"
        kind = "master" if self._role.now.is_master else "slave"
        return Origin(options.broker_name, options.broker_cluster_name, kind, mode, VERSION)
