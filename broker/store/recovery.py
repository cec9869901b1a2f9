"""Recovery: makes log, queues and index agree again after a stop or a crash.

The log is the truth. Invariant: the entries of a queue are exactly its records in the log, in order, and all end at the
last sound record. Only bytes that cannot have been acknowledged may be cut; any other loss raises StoreCorrupt.
After a clean stop only the last record is read. After a crash the log is read once, from the checkpoint on: each record
is checked, and added to its queue if it is missing there. The end of the sound records depends on the last stop:
- killed: the page cache is whole, and records are written one after another, so only the last one can be torn. It is
  cut and reported. If a queue or the index knows a record there, or a sound record follows, the log was damaged.
- power loss: anything unsynced may be missing, in any order. The log is cut at the first gap, and so are the queues.
What was flushed, by the checkpoint's flush mark, is never cut. A gap after the mark in the log of a killed broker shows
that the page cache was lost, as when a disk is mounted anew: it is recovered as after a power loss (`PagesLost`).
Queues are loaded before the scan, as they tell how far the log once went. Broken queues are rebuilt after it, when the
end of the log is known. The index comes last; it catches up later, while the broker serves.
Neighbours: scan.py (reads the log), rebuild.py (queues from the whole log), ends.py (the queues' ends as last noted).
"""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from skylark.broker.store.checkpoint import CheckpointState, LastStop
from skylark.broker.store.clock_steps import BY_CLOCK
from skylark.broker.store.index.index import Index
from skylark.broker.store.log.commitlog import CommitLog, IsTorn, scan_log
from skylark.broker.store.log.log_files import HEAD_BYTES, LogFile, stored_ms
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.log.valid_record import SECTOR_BYTES, may_lack_sectors, torn_reason, valid_record
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.ends import QueueEnds
from skylark.broker.store.queue.entry import messages_in
from skylark.broker.store.queue.queues import Queues
from skylark.broker.store.queue.rebuild import find_incomplete, is_queued, rebuild_queues
from skylark.broker.store.queue.tags import TagCodes
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.loading import load
from skylark.mqcommon.errors import DiskFull, ProtocolError, StoreCorrupt
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
    UNFINISHED_MAGIC,
)
from skylark.mqcommon.message.light import in_each_queue, is_in
from skylark.mqcommon.message.record import Record, decode_record

# A directory without queueEnds (RocketMQ's) is compared with its whole log up to this size. Of a larger one, the queues
# are trusted.
FIRST_LOOK_BYTES = 4 << 30
PROGRESS_INTERVAL_MS = 1000
ZEROS = "zeros where a record was"
# The clock is read once per this many queues that are opened.
_PROGRESS_QUEUES = 1000
# The entries of this many records (times PROGRESS_RECORDS) are written to the queues' files at once: some 5 MB.
_WRITE_AFTER = 64
# How far past the end of the sound records to look for another one: more than a second's messages.
LOOK_BEYOND_BYTES = 32 * 1024 * 1024
# RocketMQ's checkpoint may be ahead of its files by up to this much.
ROCKETMQ_MARGIN_MS = 3000

Progress = Callable[[str], None]


class PagesLost(Exception):
    """A killed broker's files lack bytes that it had written. No file was changed; see `Recovery.run`."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason


@lazy_dataclass
class RecoveryReport:
    """The result of a recovery; the broker logs it."""

    last_stop: LastStop = LastStop.CLEAN
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    torn_file: str = ""
    torn_reason: str = ""
    # How many bytes were cut after the last sound record; the file that keeps them, or why they could not be kept. The
    # part of one record that a kill may leave is not kept.
    cut_bytes: int = 0
    # How many whole messages were among these bytes.
    cut_messages: int = 0
    kept_in: str = ""
    not_kept: str = ""
    rebuilt: tuple[str, ...] = ()
    # The queues were not compared with the log: there is no queueEnds, and the log is larger than `FIRST_LOOK_BYTES`.
    unchecked: bool = False
    # How far the newest message's store time is in the future: the clock was set back.
    ahead_ms: int = 0
    # Why the checkpoint after the recovery could not write queue entries, which stay in memory; "" if it could.
    unwritten: str = ""
    # Why sums of the log's blocks were dropped, which may have been stale; "" if none were.
    sums_dropped: str = ""
    # The log files, by their first offsets, whose files of sums something has removed since the last run.
    sums_lost: Sequence[int] = ()

    @property
    def clean(self) -> bool:
        return self.last_stop is LastStop.CLEAN


def why_torn(state: CheckpointState, last_stop: LastStop, view: mmap.mmap, at: int, record: Record) -> str:
    """Why a record after the checkpoint is torn although its CRC, of the body alone, fits; "" if it is whole."""
    if last_stop is LastStop.CLEAN or record.physical_offset < state.log_durable_to:
        return ""
    if state.log_offset is None and record.store_timestamp <= state.flushed_timestamp - ROCKETMQ_MARGIN_MS:
        return ""  # RocketMQ's checkpoint says that the record was on disk
    return torn_reason(view, at, record, lost_sectors=last_stop is LastStop.POWER_LOSS)


def _damage_at(segment: Segment, start: int) -> str:
    """Why the unsound bytes at ``start`` are not what a power loss leaves; "" if they may be."""
    view, at = segment.file.view, start - segment.base
    load(segment.file, at, min(SECTOR_BYTES, segment.size - at))
    size, magic = SIZE_MAGIC.unpack(view[at : at + BLANK_BYTES].ljust(BLANK_BYTES, b"\0"))
    if magic == UNFINISHED_MAGIC:
        return ""
    end = at + size
    if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= segment.size - at:
        # Where the record ends is not known: its first sector is looked at.
        end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, segment.size)
    load(segment.file, at, end - at)
    if may_lack_sectors(view, at, end):
        return ""
    return f"the record at byte {at} of {segment.path} is damaged"


@lazy_dataclass(frozen=True, slots=True)
class StoreFiles:
    """The files that recovery makes agree: the log, its queues with their tags codes, and the index."""

    log: CommitLog
    queues: Queues
    tag_codes: TagCodes
    index: Index


class Recovery:
    """Recovers one store, once. ``progress`` gets lines for the user.

    ``note_ends`` writes queueEnds, ``write_queues`` the entries of queues that are in memory. ``keep`` saves bytes of
    the log (from, to), and returns the path. ``remedy`` tells the user what to do about damage.
    """

    def __init__(
        self,
        files: StoreFiles,
        clock: Clock,
        progress: Progress,
        note_ends: Callable[[QueueEnds], None],
        write_queues: Callable[[], None],
        keep: Callable[[int, int], str],
        remedy: str,
    ) -> None:
        self._log = files.log
        self._queues = files.queues
        self._index = files.index
        self._tag_codes = files.tag_codes
        self._clock = clock
        self._say = progress
        self._note_ends = note_ends
        self._write_queues = write_queues
        self._keep = keep
        self._remedy = remedy
        self._steps = 0
        self._next_progress_ms = clock.monotonic_ms() + PROGRESS_INTERVAL_MS
        self._broken: dict[ConsumeQueue, None] = {}
        # Queue -> the next offset that it must reach again, for queues whose entries the scan rebuilds.
        self._to_reach: dict[ConsumeQueue, int] = {}
        # Queues whose ends had to be searched for in their files, as queueEnds could not be used for them.
        self._searched: list[ConsumeQueue] = []
        # Queues whose last entry names no record of theirs -> (offset, end of the record). If the scan finds that
        # message at another place, only the entry was damaged; else the log was.
        self._doubtful: dict[ConsumeQueue, tuple[int, int]] = {}
        # (start, end) of the newest record to which an entry of a queue points; doubtful queues are left out.
        self._resumed_to = (0, 0)
        # Physical offset of the newest message that a queue had before the scan.
        self._newest: dict[ConsumeQueue, int] = {}
        self._end_noted = False
        # The latest store time found so far.
        self.last_timestamp = 0

    def run(self, state: CheckpointState, last_stop: LastStop, ends: QueueEnds | None) -> RecoveryReport:
        """Make queues and index agree with the log, from the offset up to which ``state`` says that they do.

        PagesLost when a killed broker's log has a gap where nothing was flushed: what this object has loaded cannot be
        used, and the store is to be recovered as after a power loss.
        """
        log = self._log
        report = RecoveryReport(last_stop)
        self.last_timestamp = state.log_timestamp
        self._end_noted = state.log_offset is not None
        # Until the true end is known, reads may go as far as the files do.
        log.end = log.chain.end
        scan_from = self._scan_from(state, last_stop)
        # Queues first: their last entries are the only proof of how far the log went. A log alone cannot tell a torn
        # tail, which was never acknowledged and may be cut, from damage in acknowledged bytes.
        self._load_queues(scan_from, last_stop, ends)
        furthest, known_end = self._furthest(last_stop)
        if last_stop is LastStop.CLEAN and state.log_offset is None:
            # RocketMQ's store: the queues tell how far the log was whole.
            scan_from = max(scan_from, known_end)
        report.scanned_from = report.end = min(scan_from, log.chain.end)
        if last_stop is not LastStop.CLEAN or log.holds_something_at(scan_from):
            self._scan(
                report,
                max(known_end, scan_from) if last_stop is LastStop.CLEAN else scan_from,
                partial(self._torn_reason, state, last_stop, known_end),
            )
        known_to = known_end
        if last_stop is LastStop.KILLED:
            # The page cache is whole. So any proof that the log continued past the last sound record proves damage: a
            # queue's entry, a sound record further on, the index (built from the log), an entry without its record.
            doubtful = [end for _, end in self._doubtful.values()]
            known_to = max(known_end, self._next_record(report.end), self._index.end_physical + 1, *doubtful)
        known_to = max(known_to, state.log_durable_to)
        if known_to > report.end:
            self._judge_end(report, known_to, state)
        elif last_stop is LastStop.CLEAN and known_end == report.end > log.start:
            self._check_last(furthest)
        # From here on the end of the log is decided. Later bytes are zeroed before anything else is written: a later
        # start must not find old records after new ones.
        if last_stop is not LastStop.CLEAN:
            self._keep_tail(report)
        log.open_at(report.end, flushed=min(scan_from, report.end), clear=last_stop is not LastStop.CLEAN)
        if last_stop is LastStop.KILLED:
            # The process may have ended because a sync failed. The entries of queues are written again from the tails.
            log.write_again(scan_from)
        self._set_last_time(furthest, known_end)
        # Queues are rebuilt from the whole log, so only now that its end is known. The index comes last: it is judged
        # by the log's end, and follows the log later by itself.
        self._complete(report, ends)
        self._index.open_at(
            log,
            ends,
            synced_to=scan_from if last_stop is LastStop.POWER_LOSS else None,
            used_by_rocketmq=state.used_by_rocketmq,
        )
        return report

    # --- before the scan

    def _scan_from(self, state: CheckpointState, last_stop: LastStop) -> int:
        """The physical offset before which everything is on disk and in the queues."""
        start = self._log.start if state.log_offset is None else max(state.log_offset, self._log.start)
        if state.log_offset is None and last_stop is not LastStop.CLEAN:
            # RocketMQ's checkpoint holds a time instead of an offset: take the newest file that begins before it.
            for segment in reversed(self._log.chain.segments):
                began_ms = stored_ms(segment.read_part(segment.base, HEAD_BYTES)) or 0
                if 0 < began_ms <= state.flushed_timestamp - ROCKETMQ_MARGIN_MS:
                    return max(start, segment.base)
        return start

    def _load_queues(self, scan_from: int, last_stop: LastStop, ends: QueueEnds | None) -> None:
        log = self._log
        known = ends.queues if ends else {}
        same_start = ends is not None and ends.log_start == log.start
        total = sum(map(len, known.values()))
        for number, queue in enumerate(self._queues.load()):
            if not number % _PROGRESS_QUEUES and self._is_progress_due():
                self._say(f"opened {number:,} of {max(total, number):,} consume queues")
            low, high = known.get(queue.topic, {}).get(queue.queue_id, (0, 0))
            if last_stop is LastStop.CLEAN and same_start and high and (last := queue.resume(low, high)) is not None:
                # An entry that points past the end of the log cannot be true: the queue is rebuilt.
                if self._end_noted and sum(last) > scan_from:
                    self._broken[queue] = None
                elif last[0] < log.end:
                    self._resumed_to = max(self._resumed_to, (last[0], sum(last)))
                continue
            # Otherwise the ends are searched for in the files. Noted ends are then lower bounds: a queue with fewer
            # entries than noted has lost some, and a queue with more got them after the note.
            whole = queue.load()
            self._searched.append(queue)
            # After a power loss any page of a queue's file may be missing, so entries are dropped until one is proved
            # by the log; the scan makes them again. After a kill, too, a batch queue drops entries that it will
            # rebuild.
            drops = last_stop is LastStop.POWER_LOSS or (queue.is_batch and last_stop is LastStop.KILLED)
            is_sound = partial(self._is_sound, queue, scan_from, high if ends else None) if drops else None
            if drops:
                # The scan makes entries again, and then tells whether others are missing.
                self._to_reach[queue] = high
            if queue.find_ends(log.start, (low, high), is_sound):
                self._queues.touch(queue)
            if not queue.chain.segments:
                # The queue was probably removed. Remove it for good: a power loss must not bring its files back.
                self._queues.clear(queue)
            lacks = (queue.next_offset < high and not drops) or (same_start and low < queue.min_offset)
            if lacks or (last_stop is not LastStop.POWER_LOSS and not self._is_right(queue, whole)):
                self._broken[queue] = None
                offset, physical, size = queue.last_entry()
                if last_stop is LastStop.KILLED and not self._points_to_record(queue, offset, physical, size):
                    self._doubtful[queue] = offset, physical + size if size and physical < log.end else 0
        # Noted, and without a directory: all files of the queue are gone.
        for topic, by_id in known.items():
            for queue_id in by_id:
                if self._queues.find(topic, queue_id) is None:
                    self._broken[self._queues.get(topic, queue_id)] = None
        for topic, queue_id in ends.unfinished if ends else ():
            self._broken[self._queues.get(topic, queue_id)] = None

    def _is_sound(
        self, queue: ConsumeQueue, scan_from: int, reached: int | None, offset: int, physical: int, size: int
    ) -> bool:
        """Whether an entry can be trusted; ``reached``: the queue's next offset as last noted, None if it was not."""
        if physical < self._log.start:
            # The message was removed, and the queue's end was noted before that. An empty queue continues after it.
            return queue.is_after_previous(offset, physical) if reached is None else offset < reached
        # Entries past the checkpoint are made again by the scan; those before it must agree with the log.
        return physical < scan_from and self._points_to_record(queue, offset, physical, size)

    def _is_right(self, queue: ConsumeQueue, whole: bool) -> bool:
        offset, physical, size = queue.last_entry()
        return whole and (
            size == 0 or physical < self._log.start or self._points_to_record(queue, offset, physical, size)
        )

    def _points_to_record(self, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
        """Whether the log has that message of ``queue``: a power loss may bring back entries that were removed."""
        raw = self._log.record_at(physical)
        if raw is None or len(raw) != size:
            return False
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            return False
        return is_in(record, queue.topic, queue.queue_id, offset)

    def _furthest(self, last_stop: LastStop) -> tuple[int, int]:
        """(start, end) of the furthest record that a queue points to.

        A record is written before its entry. So after a kill, an entry without a record means damage to the log.
        """
        killed = last_stop is LastStop.KILLED
        ends = [
            queue.last_entry()[1:]
            for queue in self._searched
            if (killed or queue not in self._broken) and queue not in self._doubtful
        ]
        return max([self._resumed_to, *((at, at + size) for at, size in ends if size and at < self._log.end)])

    # --- the scan

    def _scan(self, report: RecoveryReport, start: int, torn: IsTorn) -> None:
        report.scanned_from = start
        found = scan_log(self._log, start, in_each_queue(self._redo), self._progress("read", start), torn=torn)
        report.end, report.records = found.end, found.records
        report.torn_file, report.torn_reason = found.file, found.reason

    def _torn_reason(
        self, state: CheckpointState, last_stop: LastStop, known_end: int, view: mmap.mmap, at: int, record: Record
    ) -> str:
        """As `why_torn`; also "" if a queue's file or the index has the record: it is written before them."""
        end = record.physical_offset + record.size
        known = end <= known_end or record.physical_offset <= self._index.end_physical
        if last_stop is LastStop.KILLED and known and end <= self._log.chain.loaded_end:
            return ""
        return why_torn(state, last_stop, view, at, record)

    def _redo(self, record: Record) -> None:
        """Add a record of the log to its queue. The queue counts as broken if it lacks messages before this one."""
        self.last_timestamp = max(self.last_timestamp, record.store_timestamp)
        if not is_queued(record.sys_flag):
            return
        queue = self._queues.of_record(record.topic, record.queue_id, record.sys_flag, record.queue_offset)
        if queue in self._broken:
            if self._doubtful.get(queue, (-1, 0))[0] == record.queue_offset:
                del self._doubtful[queue]
            return
        # The record's offset against the queue's next one: 0 it is the next, below it is there already (or the topic
        # was made again), above it the queue lacks messages that come before the checkpoint.
        gap = record.queue_offset - queue.next_offset
        if queue not in self._newest:
            self._newest[queue] = queue.last_entry()[1]
        if gap >= 0 and record.physical_offset < self._newest[queue]:
            # The record is of a deleted topic: the queue was begun again since, with later messages at lower offsets.
            return
        if gap > 0 and (queue.next_offset or record.physical_offset > self._log.start):
            self._broken[queue] = None
            return
        self._queues.touch(queue)
        if gap < 0:
            if self._has(queue, record):
                # A killed process may have written the entry without a sync, or without its tags code: into memory, for
                # the next checkpoint.
                queue.take_back(record.queue_offset, self._tag_codes.of_record(record))
            else:
                self._judge_conflict(queue, record)
            return
        queue.put_record(record, self._tag_codes.of_record(record))

    def _judge_conflict(self, queue: ConsumeQueue, record: Record) -> None:
        """StoreCorrupt unless damage to an entry, or a deletion, explains why the queue has not ``record`` there."""
        offset = record.queue_offset
        if offset >= queue.min_offset and not self._points_to_record(queue, offset, *queue.entry(offset)[:2]):
            # The entry is damaged; the log is not.
            self._broken[queue] = None
            return
        if self._is_of_a_deleted_topic(queue, record):
            return
        if record.queue_offset == 0:
            # The queue was begun again, but the power loss undid the removal of its old files.
            self._broken[queue] = None
            return
        raise StoreCorrupt(
            self._log.chain.directory,
            record.physical_offset,
            f"the record says it is message {record.queue_offset} of {queue.topic}/{queue.queue_id}, but the queue has"
            f" another message there. {self._remedy}",
        )

    def _has(self, queue: ConsumeQueue, record: Record) -> bool:
        offset = record.queue_offset
        return offset >= queue.min_offset and queue.entry(offset)[:2] == (record.physical_offset, record.size)

    def _is_of_a_deleted_topic(self, queue: ConsumeQueue, record: Record) -> bool:
        """Whether the queue was begun again after this record: its message at this offset is then a later one."""
        offset = record.queue_offset
        return offset >= queue.min_offset and queue.entry(offset)[0] > record.physical_offset

    def _check_last(self, physical: int) -> None:
        """StoreCorrupt if the last record is damaged. It is the only record that a start after a clean stop reads."""
        record, reason = valid_record(self._log.record_at(physical) or b"", physical)
        if record is None:
            where = self._log.chain.at(physical)
            assert where is not None
            raise StoreCorrupt(
                where.path, physical - where.base, f"{reason}. To examine the store, run: broker verifyStore"
            )

    def _next_record(self, offset: int) -> int:
        """Where the next sound record at or after ``offset`` begins; 0 if there is none nearby.

        A killed process leaves at most one torn record or batch, with nothing after it.
        """
        end = min(offset + LOOK_BEYOND_BYTES, self._log.chain.end)
        for segment in self._log.chain.between(offset, end):
            found = LogFile(segment.path, segment.base, segment.file).next_sound(offset, end, torn=offset)
            if found is not None:
                return found
        return 0

    def _judge_end(self, report: RecoveryReport, known_end: int, state: CheckpointState) -> None:
        """Decide why the log, known to have gone up to ``known_end``, has no sound record from ``report.end`` on.

        StoreCorrupt for damage, PagesLost after a kill; otherwise the report gets the bytes that were not flushed.
        """
        where = self._log.chain.at(report.end)
        file = where.path if where else self._log.chain.directory
        reason = f"{report.torn_reason or ZEROS}; the log went on to offset {known_end}"
        was_flushed = report.last_stop is LastStop.CLEAN or report.end < state.log_durable_to
        # Without a mark it is not known what a killed broker had flushed, and acknowledged for that.
        if was_flushed or (report.last_stop is LastStop.KILLED and state.flushed_to is None):
            offset = report.end - where.base if where else report.end
            raise StoreCorrupt(file, offset, f"{reason}. {self._remedy}")
        if report.last_stop is LastStop.KILLED:
            raise PagesLost(file, reason)
        # The log lost its end, which nobody had acknowledged as durable; entries of it may have got to disk earlier.
        report.torn_file, report.torn_reason = file, reason
        for queue in self._queues:
            queue.drop_past(report.end)

    def _keep_tail(self, report: RecoveryReport) -> None:
        """Save the bytes after the last sound record before they are zeroed: they may have messages after a gap."""
        start, chain = report.end, self._log.chain
        end = written = chain.last_written(start, LOOK_BEYOND_BYTES)
        if written == start:
            return
        for segment in chain.between(start, written):
            for record in LogFile(segment.path, segment.base, segment.file).sound_after(start + 1, written):
                report.cut_messages += messages_in(record)
                end = max(end, record.physical_offset + record.size)  # it may end in zeros
        where = chain.at(start)
        if not report.torn_reason and where is not None:
            report.torn_file, report.torn_reason = where.path, ZEROS
        report.cut_bytes = end - start
        if report.last_stop is LastStop.POWER_LOSS and where is not None:
            self._log.tail_damage = _damage_at(where, start)
        if report.cut_messages or report.last_stop is LastStop.POWER_LOSS:
            try:
                report.kept_in = self._keep(start, end)
            except (DiskFull, OSError) as error:
                report.not_kept = str(error.__cause__ or error)  # a full disk must not stop a start

    def _set_last_time(self, furthest: int, known_end: int) -> None:
        """Let store times continue from the time of the log's last record.

        If no queue has that record, or its topic is in BY_CLOCK: from the latest of three times, of the record at
        ``furthest``, of the checkpoint, of the scan.
        """
        record, _ = valid_record(self._log.record_at(furthest) or b"", furthest, check_crc=False)
        if record is not None:
            # A message of these topics has the clock's time, which may be earlier than store times of plain queues.
            last_of_log = known_end == self._log.end and record.topic not in BY_CLOCK
            self.last_timestamp = max(0 if last_of_log else self.last_timestamp, record.store_timestamp)

    # --- after the scan

    def _complete(self, report: RecoveryReport, ends: QueueEnds | None) -> None:
        """Rebuild broken queues. queueEnds names them first: half-made ones look whole, and a kill may come now."""
        log = self._log
        if ends is None and log.end > log.start:
            report.unchecked = log.end - log.start > FIRST_LOOK_BYTES
            if not report.unchecked:
                found = find_incomplete(log, self._queues, self._progress("compared", log.start))
                self._broken.update(dict.fromkeys(found))
        for queue, high in self._to_reach.items():
            if queue.next_offset < high and self._queues.find(queue.topic, queue.queue_id) is queue:
                self._broken[queue] = None
        if not self._broken:
            return
        if ends is not None or report.unchecked:
            unfinished = tuple((queue.topic, queue.queue_id) for queue in self._broken)
            self._note_ends(replace(ends or QueueEnds(log.start), unfinished=unfinished))
        progress = self._progress("queues rebuilt from", log.start)
        rebuilt = rebuild_queues(log, self._queues, self._broken, self._tag_codes, progress)
        for queue in rebuilt:
            known = ends.next_offset(queue.topic, queue.queue_id) if ends else 0
            if queue.is_empty and queue.next_offset < known:
                queue.continue_at(known)
        report.rebuilt = tuple(f"{queue.topic}/{queue.queue_id}" for queue in rebuilt)

    def _progress(self, what: str, start: int) -> Callable[[int], None]:
        def at(offset: int) -> None:
            self._steps += 1
            if self._steps % _WRITE_AFTER == 0:
                self._write_queues()
            if self._is_progress_due():
                total = max(self._log.end - start, 1)
                self._say(f"{what} {(offset - start) >> 20:,} MiB of at most {total >> 20:,} MiB of the commit log")

        return at

    def _is_progress_due(self) -> bool:
        now = self._clock.monotonic_ms()
        if now < self._next_progress_ms:
            return False
        self._next_progress_ms = now + PROGRESS_INTERVAL_MS
        return True
