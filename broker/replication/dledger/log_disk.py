"""What a member of a DLedger group keeps on disk, and how its entries travel; see `skylark.remoting.raft.disk.Disk`.

In the directory ``dledger`` of the store: ``entries/`` (entry_index.py), ``state`` (who this node is, its term and
vote, and up to where entries were committed), ``mark`` (mark.py: how many entries it had). Bytes are in the commit log.

Invariant: the commit log ends where the last entry ends, or later by bytes that are no entry yet: messages that a
leader's broker has just stored, or bytes that a crash or a deposed leader left. The second kind is cut before any byte
follows it (`align`). A start forgets entries after the mark that are not whole, and raises `LostDisk` when an entry
before the mark is not whole. A conflicting tail is first forgotten and then cut: a member that stands for election
meanwhile does not count it.
"""

import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from struct import Struct
from zlib import crc32

import cbor2
import trio

from skylark.broker.replication.copying import QueueBuilding, add_file
from skylark.broker.replication.dledger.entry_file import IN_LOG, IndexedEntry, SlotRun
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.replication.dledger.group_store import DIRECTORY, LostDisk, has_entries
from skylark.broker.replication.dledger.log_entries import (
    REFERENCE,
    LogEntries,
    check_travelled,
    has_travelled_whole,
    reference_of,
    travelling_bytes,
)
from skylark.broker.replication.mark import NO_MARK, Mark, Marked, boot_of
from skylark.broker.replication.replica import Replica
from skylark.broker.store.damaged_bytes import keep_damaged
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.valid_record import SECTOR_BYTES, may_lack_sectors
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.atomic import read_with_crc, without_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.disk.write_again import sync_apart
from skylark.mqcommon.errors import DiskFull, FileClosed, NewerVersion, OutOfDescriptors, StoreCorrupt, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.log import RaftLog
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import APPLICATION, AppendRequest, InstallSnapshot, RaftEntry, RaftMessage, Snapshot
from skylark.mqcommon.raft.raft import Raft
from skylark.mqcommon.raft.ready import HardState, Persist
from skylark.remoting.raft.codec import (
    check_snapshots,
    decode_messages,
    encode_messages,
    restored_state,
    snapshot_fields,
    snapshot_of,
)
from skylark.remoting.raft.disk import Loaded

logger = logging.getLogger(__name__)

# Version 1 may have no mark.
_VERSION_WITHOUT_MARK, _VERSION = 1, 2
_POSITION = Struct(">Q")
# The pause after an entry for which the disk had no room.
FULL_PAUSE_S = 1.0
# At most one log line in this time about bytes that cannot be read.
UNREAD_LOG_S = 10.0
# More members than a group has, under all their ids.
MAX_RECEIVERS = 100
# The pause when no file descriptor is left.
PAUSE_DESCRIPTORS_S = 1.0


@lazy_dataclass(frozen=True, slots=True)
class GroupLog:
    """The log of a member. ``flush`` makes the commit log durable, ``cut`` lets it end earlier (tasks/truncate.py).

    ``sync_flush``: nothing is promised before it is on disk.
    """

    log: CommitLog
    flush: Callable[[], Awaitable[None]]
    cut: Callable[[int], Awaitable[None]]
    sync_flush: bool


@lazy_dataclass(frozen=True, slots=True)
class CopyingTo:
    """Where a follower's bytes go, and the queues that are made of them."""

    replica: Replica
    queues: QueueBuilding
    guard: trio.Lock


class LogDisk:
    """The disk of a member, as its Raft node sees it. ``directory`` is the store's.

    `load` returns only once `follow` was called: before that the bytes of a leader's entries have no place to go.
    """

    def __init__(self, fs: FileSystem, directory: str, group: GroupLog) -> None:
        self.node = ""
        self._fs = fs
        self._root = directory
        self._directory = f"{directory}/{DIRECTORY}"
        self._state_path = f"{self._directory}/state"
        self._log = group.log
        self._group = group
        self.entries = LogEntries(open_index(fs, directory), group.log)
        self._hard_state = HardState()
        self._snapshot: Snapshot | None = None
        self._mark = Mark(fs, f"{self._directory}/mark")
        self._boot = boot_of(fs)
        # Held while the log is flushed, and while entries that the mark counts are removed.
        self._marking = trio.Lock()
        self._has_mark = False
        # The contents of the file of the state.
        self._state_written = b""
        self._copying: CopyingTo | None = None
        self._opened = trio.Event()
        self._is_loaded = False
        self._unread_logged_at = -math.inf
        #: Called with the index of an entry that is damaged here, when a member needs it.
        self.on_damaged: Callable[[int], None] = _ignored
        #: Called with the entries that `load` has found damaged, though they were on disk whole.
        self.on_damaged_at_start: Callable[[Sequence[int]], None] = _ignored
        self._damaged_at_start: list[int] = []
        #: Called with the bytes of the log that an entry has, when the entry was damaged here and is mended.
        self.on_mended: Callable[[Block], Awaitable[None]] = _nothing_to_do
        # The last entry that was sent to each member without a check of its bytes.
        self._sent: dict[str, int] = {}
        # Whether it was logged that the leader's log begins after this one's end.
        self._lacks_deleted = False
        # Held while the log is cut, and while copying begins or ends.
        self._changing = trio.Lock()
        self._writing_state = trio.Lock()

    @property
    def index(self) -> EntryIndex:
        return self.entries.index

    @property
    def committed_position(self) -> int:
        """Where the commit log ends after the last entry that was known to be committed when the state was written.

        It is earlier where the slot of that entry is damaged, and names any place.
        """
        assert self._snapshot is not None
        return self.index.end(self.index.last_sound(self._snapshot.index))

    # --- the role

    async def follow(self, copying: CopyingTo) -> None:
        """Take entries of a leader from now on; returns when this log ends with its last entry."""
        async with self._changing:
            self._copying = copying
        if self._is_loaded:
            await self._align_when_possible()
        self.entries.writer = copying.replica
        self._opened.set()

    async def end_following(self, copying: CopyingTo) -> None:
        """Take no more entries of a leader; returns when the queues have all messages of the log."""
        self.entries.writer = None
        # A message may wait for an event that is not set, as when the log could not be cut.
        if self._opened.is_set():
            self._opened = trio.Event()
        async with self._changing:
            self._copying = None
            await copying.queues.finish()

    def build_queues(self) -> None:
        """Build queue entries of what a leader's entries have added to the log; call it when these are acknowledged."""
        copying = self._copying
        if copying is not None and copying.replica.behind and not copying.replica.refusal:
            copying.queues.grown()

    async def align(self) -> None:
        """Cut bytes after the last entry. Nothing may append to the log meanwhile. Repeatable after DiskFull."""
        async with self._changing:
            await self._cut_rest()

    async def _align_when_possible(self) -> None:
        while True:
            try:
                return await self.align()
            except DiskFull as error:
                logger.error("no entries of a leader are taken yet: %s", error)
                await trio.sleep(FULL_PAUSE_S)

    async def _align_copy(self) -> None:
        """As `align`, if this member still copies a leader's log: a new leader's own messages are no entries yet."""
        async with self._changing:
            if self._copying is not None:
                await self._cut_rest()

    async def _cut_rest(self) -> None:
        end = self.entries.position
        if self._log.raw_end <= end:
            return
        if self._copying is None:
            await self._group.cut(end)
            return
        async with self._copying.queues.complete():
            await self._group.cut(end)

    # --- Disk

    async def load(self) -> Loaded | None:
        """The stored state of the node; LostDisk when this member has fewer entries than it promised."""
        if not await trio.to_thread.run_sync(self._read_state):
            return None
        await trio.to_thread.run_sync(self._load_index)
        snapshot = self._snapshot
        assert snapshot is not None
        self._is_loaded = True
        # A killed process may have left entries that only the kernel has. With SYNC_FLUSH this node promises them on
        # disk from now on.
        if not self._has_mark or (self._group.sync_flush and self.index.last > self._mark.now.flushed):
            await self.flush()
        if not self._has_mark:
            # The mark is on disk, so the state may say that there must be one.
            self._has_mark = True
            await self._save_state()
        await self._opened.wait()
        await self._align_when_possible()
        if self._damaged_at_start:
            self.on_damaged_at_start(self._damaged_at_start)
        # A leader's entries may have come before its term was written: this node did not vote in it, and may not.
        state, last_term = self._hard_state, self.index.term(self.index.last) or 0
        if last_term > state.term:
            state = HardState(last_term)
        return Loaded(state, snapshot, self.entries)

    async def begin(self, node: str, snapshot: Snapshot) -> None:
        await trio.to_thread.run_sync(self._begin, node, snapshot)

    def _begin(self, node: str, snapshot: Snapshot) -> None:
        self._fs.mkdirs(self._directory)
        # Write the entries and the mark before the state, which says that they must exist.
        self.index.begin(snapshot.index, snapshot.term, self._log.end)
        self._mark.begin(Marked(snapshot.index, 0, snapshot.index, 0, self._boot))
        self.node, self._snapshot, self._has_mark = node, snapshot, True
        self._write_state()

    def write_now(self, persist: Persist) -> bool:
        """Write what ``persist`` says, if that needs no wait for the disk; returns whether it did.

        Without SYNC_FLUSH entries count when the kernel has them: they are in the log and the side file already.
        """
        if self._group.sync_flush or persist.hard_state is not None or persist.snapshot is not None:
            return False
        self._note_promised()
        return True

    async def write(self, persist: Persist) -> None:
        if persist.hard_state is not None or persist.snapshot is not None:
            self._hard_state = persist.hard_state or self._hard_state
            self._snapshot = persist.snapshot or self._snapshot
            await self._save_state()
        if persist.entries and self._group.sync_flush:
            await self._sync(with_mark=False)
        elif persist.entries:
            self._note_promised()

    async def compact(self, log: RaftLog, snapshot: Snapshot, keep: int) -> None:
        """Record up to where entries are committed. They stay as long as their files of the commit log."""
        await self.flush()
        self._snapshot = snapshot
        await self._save_state()

    def travelling_bytes(self, data: bytes) -> int:
        return travelling_bytes(data)

    def encode_now(self, messages: Sequence[RaftMessage]) -> bytes | None:
        """The encoded messages; None if they need bytes that are only on disk, damaged or sent again, or a snapshot."""
        whole: list[RaftMessage] = []
        for message in messages:
            if isinstance(message, AppendRequest) and message.entries:
                # The member may have refused these entries before: `encode` checks their bytes.
                if self._is_repeated(message) or not all(map(self._is_at_hand, message.entries)):
                    return None
                entries = tuple([self._with_bytes(entry, self._log.copy) for entry in message.entries])
                whole.append(replace(message, entries=entries))
            elif isinstance(message, InstallSnapshot):
                return None
            else:
                whole.append(message)
        return encode_messages(whole)

    def _is_repeated(self, request: AppendRequest) -> bool:
        sent = self._sent
        if len(sent) > MAX_RECEIVERS:
            sent.clear()
        is_repeated = request.entries[0].index <= sent.get(request.to, 0)
        sent[request.to] = request.entries[-1].index
        return is_repeated

    async def encode(self, messages: Sequence[RaftMessage]) -> bytes:
        """The encoded messages, without messages whose bytes are unreadable or damaged, as if these were lost.

        If the bytes were removed, the member needs a snapshot.
        """
        return await trio.to_thread.run_sync(encode_messages, await self._all_whole(messages))

    async def _all_whole(self, messages: Sequence[RaftMessage]) -> list[RaftMessage]:
        whole: list[RaftMessage] = []
        for message in messages:
            if isinstance(message, AppendRequest) and message.entries:
                # First the slots: a damaged one may name bytes that are not there, as if they were deleted.
                if not self._are_sound(message.entries, self._is_slot_sound):
                    continue
                try:
                    read = await trio.to_thread.run_sync(self._read_entries, message.entries)
                except OSError as error:
                    self._log_unread(error)
                except StoreError:
                    continue  # deleted
                else:
                    if self._are_sound(read, has_travelled_whole):
                        whole.append(replace(message, entries=read))
            elif isinstance(message, InstallSnapshot):
                whole.append(replace(message, snapshot=self._first_snapshot(message.snapshot.members)))
            else:
                whole.append(message)
        return whole

    def _are_sound(self, entries: Sequence[RaftEntry], is_sound: Callable[[RaftEntry], bool]) -> bool:
        """Whether all ``entries`` are sound, and still the ones here; tells ``on_damaged`` of a damaged one."""
        for entry in entries:
            if entry.index > self.index.last or self.index.entry(entry.index).term != entry.term:
                return False  # another leader replaced it
            if not is_sound(entry):
                self.on_damaged(entry.index)
                return False
        return True

    def _is_slot_sound(self, entry: RaftEntry) -> bool:
        """Whether what the side file has of ``entry`` is as it was written."""
        if not self.index.is_sound(entry.index):
            return False
        slot = self.index.entry(entry.index)
        return slot.place == IN_LOG or crc32(entry.data) == slot.crc

    def _first_snapshot(self, members: Members) -> Snapshot:
        """Stands for the entries that are gone here.

        What follows them travels as entries, so that the other log begins where this one does.
        """
        base = self.entries.base
        position = zlib.compress(_POSITION.pack(self.index.end(base)))
        return Snapshot(base, self.index.term(base) or 0, members, position)

    def _is_at_hand(self, entry: RaftEntry) -> bool:
        if entry.index > self.index.last or not self._is_slot_sound(entry):
            return False
        found = reference_of(entry.data) if entry.kind == APPLICATION else None
        return found is None or self._log.is_recent(found.start)

    def _read_entries(self, entries: Sequence[RaftEntry]) -> tuple[RaftEntry, ...]:
        """Blocks. StoreError when bytes are not there any more."""
        return tuple([self._with_bytes(entry, self._read_file) for entry in entries])

    def _log_unread(self, error: OSError) -> None:
        # The leader sends again and again.
        now = trio.current_time()
        if now >= self._unread_logged_at + UNREAD_LOG_S:
            self._unread_logged_at = now
            logger.error("entries that a member lacks cannot be read from the log: %s", error)

    def _read_file(self, start: int, size: int) -> bytes:
        try:
            payload = self._log.chain.read_file(start, size)
        except FileNotFoundError:
            payload = b""
        if len(payload) < size:
            raise StoreError(f"the bytes from {start} of the log were deleted")
        return payload

    def _with_bytes(self, entry: RaftEntry, read: Callable[[int, int], bytes]) -> RaftEntry:
        found = reference_of(entry.data) if entry.kind == APPLICATION else None
        return entry if found is None else entry._replace(data=entry.data + read(found.start, found.size))

    def decode(self, data: bytes) -> list[RaftMessage]:
        messages = decode_messages(data)
        check_snapshots(messages)
        for message in messages:
            if isinstance(message, AppendRequest):
                for entry in message.entries:
                    check_travelled(entry)
        return messages

    def is_ready(self, raft: Raft, message: RaftMessage) -> bool:
        if isinstance(message, InstallSnapshot):
            return not _replaces(raft, message.snapshot)
        assert isinstance(message, AppendRequest)
        new = _new_entries(raft, message)
        if not new:
            return True
        return self._takes_entries and new[0].index > raft.log.last and self._has_room(new)

    @property
    def _takes_entries(self) -> bool:
        """Whether this member copies a leader's log, which ends with the last entry, and its queues can follow."""
        copying = self._copying
        return (
            self.entries.writer is not None
            and self._log.raw_end == self.entries.position
            and copying is not None
            and not copying.replica.refusal
        )

    async def prepare(self, raft: Raft, message: RaftMessage) -> bool:
        try:
            if isinstance(message, InstallSnapshot):
                return await self._prepare_restart(raft, message.snapshot)
            assert isinstance(message, AppendRequest)
            await self._opened.wait()
            if (last := _conflict(raft, message)) is not None:
                if last >= self.index.first and not self.index.is_sound(last):
                    # Its slot says where the log is cut. The leader sends this message again.
                    self.on_damaged(last)
                    return False
                await self._forget_tail(raft, message)
            # Not only after a conflict: an earlier cut may have found no room.
            await self._align_copy()
            if (copying := self._copying) is not None and (reason := copying.replica.refusal):
                raise DiskFull(reason)
            new = _new_entries(raft, message)
            while self.entries.writer is not None and not self._has_room(new):
                await add_file(self._log)
            return self.entries.writer is not None
        except DiskFull as error:
            logger.error("entries of the leader are not taken: %s", error)
            await trio.sleep(FULL_PAUSE_S)
            return False

    async def _forget_tail(self, raft: Raft, message: AppendRequest) -> None:
        """Forget the entries that differ from the leader's. The mark goes back first, and durably.

        Otherwise a crash would leave fewer entries than the mark promises, as if the disk had lost them.
        """
        async with self._marking:
            last = _conflict(raft, message)
            if last is None:
                return
            now = self._mark.now
            if max(now.flushed, now.promised) > last:
                await trio.to_thread.run_sync(self._lower_mark, last)
            # The node may have taken another term meanwhile.
            if _conflict(raft, message) == last:
                raft.forget_after(last)
                # Else a power loss may bring some of these slots back among later ones, and they look damaged there.
                await trio.to_thread.run_sync(self.index.sync)

    async def _prepare_restart(self, raft: Raft, snapshot: Snapshot) -> bool:
        """Let the empty log begin where the leader's log begins."""
        await self._opened.wait()
        copying, log = self._copying, self._log
        if copying is None or not _replaces(raft, snapshot):
            return False
        if log.raw_end > log.start or self.index.last >= self.index.first:
            if not self._lacks_deleted:
                logger.error(
                    "the leader has deleted messages that this member lacks. Stop this broker, move its store away and"
                    " start it: it copies the log from where the leader's begins"
                )
            self._lacks_deleted = True
            await trio.sleep(FULL_PAUSE_S)
            return False
        (position,) = _POSITION.unpack(restored_state(snapshot))
        async with copying.guard:
            await trio.to_thread.run_sync(copying.replica.begin_at, position)
        self.entries.restart_position = position
        return True

    def _has_room(self, new: tuple[RaftEntry, ...]) -> bool:
        size = sum(len(entry.data) - REFERENCE.size for entry in new if _is_in_log(entry))
        return self._log.raw_end + size <= self._log.chain.end

    # --- files

    async def flush(self) -> None:
        """Make all entries survive power loss, and the mark that counts them."""
        await self._sync(with_mark=True)

    async def flush_often(self, interval_s: Callable[[], float]) -> None:
        """Flush new entries and the mark at this interval, until cancelled."""
        flushed = Marked()
        while True:
            await trio.sleep(interval_s())
            # With SYNC_FLUSH it is the mark only: a power loss may take the newest one, and then claims less.
            if self._is_loaded and (self._mark.now != flushed or self.index.last > self._mark.now.flushed):
                try:
                    await self.flush()
                except OutOfDescriptors as error:
                    logger.error("entries cannot be flushed, next try in %g s: %s", PAUSE_DESCRIPTORS_S, error)
                    await trio.sleep(PAUSE_DESCRIPTORS_S)
                else:
                    flushed = self._mark.now

    async def _sync(self, *, with_mark: bool) -> None:
        async with self._marking:
            last, chain = self.index.last, self.index.chain
            # The order matters. Flush the bytes first: an entry on disk without its bytes would be a promise that
            # cannot be kept. Write the mark last: it must never claim entries that are not on disk.
            await self._group.flush()
            await trio.to_thread.run_sync(self.index.sync)
            now = self._mark.now
            promised = max((now.promised, now.promised_chain), (last, chain))
            self._mark.write(Marked(last, chain, *promised, self._boot))
            if with_mark:
                await trio.to_thread.run_sync(self._mark.sync)

    def _note_promised(self) -> None:
        """Record that all entries are promised: the kernel has them, and a start in the same boot must find them."""
        index, now = self.index, self._mark.now
        if index.last != now.promised:
            self._mark.write(Marked(now.flushed, now.flushed_chain, index.last, index.chain, self._boot))

    async def clean(self) -> None:
        """Remove files of entries whose files of the commit log are gone."""
        if not self._is_loaded or self._snapshot is None:
            return
        # A start continues from the snapshot, so later entries stay.
        for path in self.index.forget_before(min(self.entries.base, self._snapshot.index)):
            with suppress(FileNotFoundError):  # somebody has removed the file, and no scrub has made it again
                await trio.to_thread.run_sync(self._fs.remove, path)

    async def finish(self) -> None:
        """Flush all, and close. If it cannot be flushed, the mark claims less than is there, as after a kill."""
        try:
            if self._is_loaded:
                await self.flush()
        except (OSError, StoreError) as error:
            logger.error("the entries of this member could not be flushed at its end: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        self.index.close()
        self._mark.close()

    def _lower_mark(self, last: int) -> None:
        chain = self.index.chain_at(last)
        self._mark.write(Marked(last, chain, last, chain, self._boot))
        self._mark.sync()

    def _load_index(self) -> None:
        """Find the entries that are whole, and compare them with the mark. LostDisk changes nothing."""
        index, snapshot = self.index, self._snapshot
        assert snapshot is not None
        marked, damage = self._mark.read(self._boot)
        if marked is None and (self._has_mark or damage != NO_MARK):
            raise LostDisk(self._mark.path, 0, f"it is not known how many entries there were: {damage}")
        if marked is not None and damage:
            logger.warning("%s: %s; the other one is sound, and replaces it", self._mark.path, damage)
        had = marked or Marked()
        most = max(had.flushed, had.promised, snapshot.index)
        # Entries that the state counts as committed were flushed before the state was written.
        flushed = max(had.flushed, snapshot.index)
        try:
            index.load(flushed)
        except StoreCorrupt as error:
            raise LostDisk(error.file, error.offset, error.reason) from None
        log = self._log
        if index.first - 1 > snapshot.index and index.end(index.first - 1) == log.start:
            # The member was stopped while it took the leader's snapshot: the log and the entries began anew, and the
            # state was not written yet. Nothing was promised meanwhile, so the leader can send that snapshot again.
            index.begin(snapshot.index, snapshot.term, log.start)
            most, flushed, had = snapshot.index, snapshot.index, Marked()
        last, torn = self._last_whole(flushed)
        if last < most:
            raise LostDisk(self._directory, 0, f"the log has {last} whole entries and had {most}")
        # In the same boot the mark counts all promised entries. After a power loss entries after the mark may be gone.
        # But where the disk has changed bytes, this member may have promised them, and what follows.
        damage = "" if had.promised else torn or index.damage
        if self._log.tail_damage and index.last > last:
            # The bytes are cut already. The mark lets later starts know what was there.
            damage = self._log.tail_damage
            self._mark.begin(Marked(index.last, index.chain, index.last, index.chain, self._boot))
            self._mark.close()
        if damage:
            raise LostDisk(self._directory, 0, f"{damage}, and it has at most {last} whole entries before that")
        if index.end(index.first - 1) > log.start:
            raise LostDisk(self._directory, 0, f"its first entry is {index.first}, and messages before it are here")
        for entry, chain in ((had.flushed, had.flushed_chain), (had.promised, had.promised_chain)):
            if index.first - 1 <= entry <= last and entry and index.chain_at(entry) != chain:
                raise LostDisk(self._directory, 0, f"entry {entry} is another one than the mark counted")
        self._damaged_at_start = self._changed_since_checkpoint(min(flushed, last))
        if (stray := index.stray) is not None:
            name = f"entries.{stray.path.rpartition('/')[2]}.{stray.at}.{crc32(stray.data):08x}"
            kept = keep_damaged(self._fs, self._root, name, stray.data)
            logger.warning(
                "%s: the %d bytes at offset %d, behind the last entry, are no entry, and none that this member has"
                " promised: they are cut. They are in: %s",
                stray.path, len(stray.data), stray.at, kept,
            )  # fmt: skip
        index.accept(last, flushed)
        # As in `_forget_tail`: what it has forgotten must not come back.
        index.sync()
        # The entries found here count from now on, as if this process had written them.
        self._mark.begin(Marked(had.flushed, had.flushed_chain, last, index.chain, self._boot))

    def _changed_since_checkpoint(self, flushed: int) -> list[int]:
        """The entries up to ``flushed`` whose bytes are not as they were, as far as the start of the log has not seen.

        `_last_whole` looks at later entries.
        """
        index = self.index
        found: list[int] = []
        for number in range(max(index.last_lost(self._log.bodies_only_from) + 1, index.first), flushed + 1):
            # First the slot, which `EntryIndex.load` need not have read: a damaged slot may name any bytes.
            is_right, entry = index.is_sound(number), index.entry(number)
            # Beside much damage `last_lost` may be too early: the bytes of the first entries may be gone from the log.
            if is_right and entry.place == IN_LOG and entry.end > self._log.bodies_only_from:
                try:
                    is_right = crc32(self._read_file(entry.start, entry.size)) == entry.crc
                except OSError:
                    is_right = False
            if not is_right:
                found.append(number)
        return found

    def _last_whole(self, flushed: int) -> tuple[int, str]:
        """The last entry whose bytes the log has, and why the next one is damaged; "" if it may be torn.

        After those that were ``flushed`` a power loss may leave holes.
        """
        index = self.index
        low = index.last_ending_by(self._log.raw_end)
        for number in range(max(flushed + 1, index.first), low + 1):
            entry = index.entry(number)
            if entry.place == IN_LOG and crc32(data := self._read_file(entry.start, entry.size)) != entry.crc:
                # Sectors are counted from the start of the file.
                before = entry.start % self._log.chain.segment_bytes % SECTOR_BYTES
                is_torn = may_lack_sectors(bytes(before) + data, before, before + len(data))
                return number - 1, "" if is_torn else f"the bytes of entry {number}, at {entry.start}, are damaged"
        return low, ""

    # --- damaged entries, see mending.py

    async def damage_of(self, index: int) -> str:
        """What is wrong with entry ``index`` of this log; "" if nothing is, or if it is not here any more."""
        if not self.entries.base < index <= self.index.last:
            return ""
        if not self.index.is_sound(index):
            return f"the slot of entry {index} is damaged"
        entry = self.index.entry(index)
        if entry.place != IN_LOG:
            is_sound = crc32(self.index.data(index, entry.size)) == entry.crc
        else:
            try:
                is_sound = crc32(await trio.to_thread.run_sync(self._read_file, entry.start, entry.size)) == entry.crc
            except StoreError:
                return ""  # deleted
            except OSError as error:
                return f"the bytes of entry {index} cannot be read: {error}"
        # Another leader may have replaced it meanwhile.
        if is_sound or index > self.index.last or self.index.entry(index) != entry:
            return ""
        return f"the bytes of entry {index}, at {entry.start}, do not match their CRC"

    async def whole(self, index: int) -> tuple[IndexedEntry, bytes] | None:
        """Entry ``index`` and its bytes; None if they are damaged, or not here.

        No bytes if the log was cleaned of them. Their slot still says where the log begins, and in which term.
        """
        if not self.index.first <= index <= self.index.last:
            return None
        if not self.index.is_sound(index) or await self.damage_of(index):
            return None
        entry = self.index.entry(index)
        if entry.place != IN_LOG:
            return entry, self.index.data(index, entry.size)
        if entry.end <= self._log.start:
            return entry, b""
        try:
            return entry, await trio.to_thread.run_sync(self._read_file, entry.start, entry.size)
        except (OSError, StoreError):
            return None

    async def mend(self, index: int, entry: IndexedEntry, data: bytes) -> bool:
        """Rewrite entry ``index`` as another member has it; returns whether it is the original entry, and whole now.

        The chain of entries proves that it is the original entry. OSError if the log cannot be written.
        """
        if not self.entries.base < index <= self.index.last:
            return False
        is_cleaned = entry.place == IN_LOG and entry.end <= self._log.start
        if not is_cleaned and (crc32(data) != entry.crc or len(data) != entry.size):
            return False
        run = SlotRun.of(index, self.index.chain_at(index - 1), [(entry, data)])
        if run is None or not self.index.mend(run):
            return False
        if entry.place == IN_LOG and not is_cleaned and (segment := self._log.chain.at(entry.start)) is not None:
            with suppress(FileClosed, FileNotFoundError):  # the file of the log was removed
                await trio.to_thread.run_sync(segment.file.pwrite, entry.start - segment.base, memoryview(data))
                await trio.to_thread.run_sync(sync_apart, self._fs, segment.path)
            self._log.blocks.repaired(self._log.sums.blocks(entry.start, entry.end))
            await self.on_mended(Block(entry.start, entry.size))
        return not await self.damage_of(index)

    async def mend_slots(self, first: int, found: Sequence[tuple[IndexedEntry, bytes]]) -> bool:
        """Rewrite the slots of the entries from ``first`` on, a lost sector of them, as `EntryIndex.mend`.

        There may be as many entries as a file has: a thread proves the slots.
        """
        if not self.entries.base < first <= self.index.last + 1:
            return False
        run = await trio.to_thread.run_sync(SlotRun.of, first, self.index.chain_at(first - 1), found)
        return run is not None and self.index.mend(run)

    async def sync_entries(self) -> str:
        """Make what was rewritten in the files of entries durable; returns why it may not be, "" if it is."""
        async with self._marking:
            try:
                await trio.to_thread.run_sync(self.index.sync)
                return await trio.to_thread.run_sync(self.index.sync_rewritten)
            except OutOfDescriptors as error:
                return f"what was written is not on disk yet: {error}"

    # --- what the scrub checks

    def as_small_files(self) -> list[SmallFile]:
        """The state and the mark, once this node has them."""
        if not self._state_written or not self._mark.is_open:
            return []

        async def restore_mark() -> None:
            async with self._marking:
                self._mark.use(await trio.to_thread.run_sync(self._mark.made_anew))
                await trio.to_thread.run_sync(self._mark.sync)

        def is_state(data: bytes) -> bool:
            return without_crc(data) == self._state_written

        return [
            SmallFile(self._state_path, is_state, self._save_state),
            SmallFile(self._mark.path, self._mark.is_whole, restore_mark),
        ]

    async def _save_state(self) -> None:
        async with self._writing_state:
            await trio.to_thread.run_sync(self._write_state)

    def _write_state(self) -> None:
        assert self._snapshot is not None
        data = _encoded_state(self.node, self._hard_state, self._snapshot)
        write_with_crc(self._fs, self._state_path, data)
        self._state_written = data

    def _read_state(self) -> bool:
        """Whether there is a state. LostDisk when it is damaged, or gone while entries are there."""
        if not self._fs.exists(self._state_path):
            # Without messages a new beginning loses nothing: the node joins an existing group as a new node.
            if self._log.raw_end > self._log.start and has_entries(self._fs, self._directory):
                raise LostDisk(self._state_path, 0, "the file is gone: it is not known what this member promised")
            return False
        data = read_with_crc(self._fs, self._state_path)
        if data is None:
            raise LostDisk(self._state_path, 0, "its CRC is wrong: it is not known what this member promised")
        version, *rest = cbor2.loads(data)
        if version not in (_VERSION, _VERSION_WITHOUT_MARK):
            raise NewerVersion(self._state_path, 0, f"version {version} of its format")
        self._state_written = data
        self.node, term, vote, fields = rest
        self._has_mark = version != _VERSION_WITHOUT_MARK
        self._hard_state, self._snapshot = HardState(term, vote), snapshot_of(fields)
        return True

    def check(self) -> None:
        """LostDisk when this member has less than it promised. Blocks; then `close` or `load` it."""
        if self._read_state():
            self._load_index()


def check_promises(fs: FileSystem, directory: str, log: CommitLog) -> None:
    """LostDisk when the member with the store in ``directory``, whose ``log`` is open, has less than it promised."""

    async def flush() -> None:
        raise AssertionError("nothing is written by a check")

    async def cut(offset: int) -> None:
        raise AssertionError("nothing is cut by a check")

    disk = LogDisk(fs, directory, GroupLog(log, flush, cut, False))
    try:
        disk.check()
    finally:
        disk.close()


def _encoded_state(node: str, state: HardState, snapshot: Snapshot) -> bytes:
    return cbor2.dumps([_VERSION, node, state.term, state.vote, snapshot_fields(snapshot)])


def open_index(fs: FileSystem, directory: str) -> EntryIndex:
    """The side file of the store in ``directory``; `EntryIndex.begin` or `EntryIndex.load` it."""
    return EntryIndex(fs, f"{directory}/{DIRECTORY}/entries")


def first_state(fs: FileSystem, directory: str, node: str, addr: str, term: int, index: EntryIndex) -> None:
    """Write down that ``node`` is the only member of its group, with the entries of ``index``, up to ``term``. Durable.

    ``index`` is on disk already.
    """
    mark = Mark(fs, f"{directory}/{DIRECTORY}/mark")
    mark.begin(Marked(index.last, index.chain, index.last, index.chain, boot_of(fs)))
    mark.close()
    first = Snapshot(0, 0, Members({node: addr}), b"")
    write_with_crc(fs, f"{directory}/{DIRECTORY}/state", _encoded_state(node, HardState(term), first))


def _new_entries(raft: Raft, request: AppendRequest) -> tuple[RaftEntry, ...]:
    """The entries of ``request`` that ``raft`` would append, as `RaftLog.accept` finds them."""
    log = raft.log
    if request.term < raft.term or request.prev_index < log.commit or log.term(request.prev_index) != request.prev_term:
        return ()
    for number, entry in enumerate(request.entries):
        if log.term(entry.index) != entry.term:
            return request.entries[number:]
    return ()


def _conflict(raft: Raft, request: AppendRequest) -> int | None:
    """The last entry before those that ``raft`` must forget for ``request``; None when it need not forget any."""
    new = _new_entries(raft, request)
    return new[0].index - 1 if new and raft.log.commit < new[0].index <= raft.log.last else None


def _replaces(raft: Raft, snapshot: Snapshot) -> bool:
    """Whether ``raft`` would replace its log by ``snapshot``."""
    return snapshot.index > raft.log.commit and raft.log.term(snapshot.index) != snapshot.term


def _ignored(found: object) -> None:
    """Does nothing: the default of `on_damaged` and `on_damaged_at_start` before the member runs."""


def _is_in_log(entry: RaftEntry) -> bool:
    return entry.kind == APPLICATION and reference_of(entry.data) is not None


async def _nothing_to_do(block: Block) -> None:
    """The default of `on_mended`, for a log without queues."""
