"""From what a stop or crash left to a store that can go on.

After a clean stop the checkpoint says where the log ends; nothing is read. After a crash the log is read from the
checkpoint on, once: each record is checked, and its queue gets it when it has it not. Where the sound records end:
- neither queues nor index know a record there, and no sound record follows: a torn tail, which is cut and reported;
- one of them does, and the process died on this very boot, so that the page cache is whole: rot, which is StoreCorrupt,
  as records are written one after another. After a power loss what was not flushed may be torn anywhere: it is cut.
Queues that lack what they had (or what the log has) are made anew from the whole log; the index catches up by itself.
Neighbours: scan.py (reading the log), rebuild.py (queues from the whole log), queue_ends.py (what there was).
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from broker.store.checkpoint import CheckpointState
from broker.store.index.index import Index
from broker.store.log.commitlog import CommitLog
from broker.store.log.log_files import LogFile
from broker.store.log.scan import IsTorn, scan_log
from broker.store.log.sound import sound_record, torn_reason
from broker.store.log.stored_time import HEAD_BYTES, stored_ms
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.ends import QueueEnds
from broker.store.queue.queues import Queues
from broker.store.queue.rebuild import find_incomplete, is_queued, rebuild_queues
from broker.store.queue.tags import TagCodes
from mqcommon.clock import Clock
from mqcommon.errors import ProtocolError, StoreCorrupt
from mqcommon.message.record import Record, decode_record

# A directory without queueEnds (RocketMQ's) is looked through whole up to this size; beyond it, queues are taken as
# they are.
FIRST_LOOK_BYTES = 4 << 30
PROGRESS_INTERVAL_MS = 1000
# How often the clock is looked at while queues are opened.
_PROGRESS_QUEUES = 1000
# Entries that are made of so many records (times PROGRESS_RECORDS) are written to the queues' files: some 5 MB.
_WRITE_AFTER = 64
# How far behind the end of the sound records others are looked for: more than a second's messages.
_LOOK_BEYOND_BYTES = 32 * 1024 * 1024
# RocketMQ's checkpoint may be ahead of its files by this much.
_ROCKETMQ_MARGIN_MS = 3000

Progress = Callable[[str], None]


class LastStop(Enum):
    """How the store was left."""

    CLEAN = "clean"
    KILLED = "killed"  # on this boot: what was written is in the page cache
    POWER_LOSS = "power loss"  # or not known


@dataclass
class RecoveryReport:
    """What recovery did, for the log of whoever opened the store."""

    last_stop: LastStop = LastStop.CLEAN
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    torn_file: str = ""
    torn_reason: str = ""
    rebuilt: tuple[str, ...] = ()
    # The directory is larger than `FIRST_LOOK_BYTES` and nobody noted its queues: they were not compared with the log.
    unchecked: bool = False
    # The newest message was stored so much later than it is now: the clock was set back.
    ahead_ms: int = 0

    @property
    def clean(self) -> bool:
        return self.last_stop is LastStop.CLEAN


def why_torn(state: CheckpointState, last_stop: LastStop, view: mmap.mmap, at: int, record: Record) -> str:
    """Why a sound record after the checkpoint is a torn copy, as far as can be told; "" when it is taken as whole."""
    if last_stop is LastStop.CLEAN:
        return ""
    if state.log_offset is None and record.store_timestamp <= state.flushed_timestamp - _ROCKETMQ_MARGIN_MS:
        # RocketMQ had it on disk by then.
        return ""
    return torn_reason(view, at, record, lost_sectors=last_stop is LastStop.POWER_LOSS)


class Recovery:
    """Recovers the parts of one store, once."""

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        index: Index,
        tag_codes: TagCodes,
        clock: Clock,
        progress: Progress,
        note_ends: Callable[[QueueEnds], None],
        write_queues: Callable[[], None],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._tag_codes = tag_codes
        self._clock = clock
        self._say = progress
        self._note_ends = note_ends
        self._write_queues = write_queues
        self._steps = 0
        self._next_progress_ms = clock.monotonic_ms() + PROGRESS_INTERVAL_MS
        self._broken: dict[ConsumeQueue, None] = {}
        # Queues that a clean stop did not leave as it said, and the end of the newest record that the others know.
        self._searched: list[ConsumeQueue] = []
        self._resumed_to = (0, 0)
        # Where the newest message lies that a queue knew before the scan.
        self._newest: dict[ConsumeQueue, int] = {}
        self._end_noted = False
        # The latest store time that is known of.
        self.last_timestamp = 0

    def run(self, state: CheckpointState, last_stop: LastStop, ends: QueueEnds | None) -> RecoveryReport:
        """Make the parts agree with the log, from where ``state`` says that they may not."""
        log = self._log
        report = RecoveryReport(last_stop)
        self.last_timestamp = state.log_timestamp
        self._end_noted = state.log_offset is not None
        # Until the true end is known, all that has a place on disk may be read.
        log.end = log.chain.end
        scan_from = self._scan_from(state, last_stop)
        self._load_queues(scan_from, last_stop, ends)
        furthest, known_end = self._furthest(last_stop)
        if last_stop is LastStop.CLEAN and state.log_offset is None:
            # RocketMQ's: its queues tell how far the log was whole.
            scan_from = max(scan_from, known_end)
        report.scanned_from = report.end = min(scan_from, log.chain.end)
        if last_stop is not LastStop.CLEAN or log.holds_something_at(scan_from):
            self._scan(
                report,
                max(known_end, scan_from) if last_stop is LastStop.CLEAN else scan_from,
                partial(self._torn_reason, state, last_stop, known_end),
            )
        went_on_to = known_end
        if last_stop is LastStop.KILLED:
            went_on_to = max(known_end, self._next_record(report.end), self._index.end_physical + 1)
        if went_on_to > report.end:
            self._judge_end(report, went_on_to)
        elif last_stop is LastStop.CLEAN and known_end == report.end > log.start:
            self._check_last(furthest)
        log.open_at(report.end, flushed=min(scan_from, report.end), clear=last_stop is not LastStop.CLEAN)
        self._note_last_time(furthest, known_end)
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
        """Physical offset before which all is on disk, and in the queues."""
        start = self._log.start if state.log_offset is None else max(state.log_offset, self._log.start)
        if state.log_offset is None and last_stop is not LastStop.CLEAN:
            # RocketMQ says until when its files are on disk, as a time: the newest file that begins before it.
            for segment in reversed(self._log.chain.segments):
                began_ms = stored_ms(segment.read_part(segment.base, HEAD_BYTES)) or 0
                if 0 < began_ms <= state.flushed_timestamp - _ROCKETMQ_MARGIN_MS:
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
                # What it says of the log can be true, or it must be made anew.
                if self._end_noted and sum(last) > scan_from:
                    self._broken[queue] = None
                elif last[0] < log.end:
                    self._resumed_to = max(self._resumed_to, (last[0], sum(last)))
                continue
            whole = queue.load()
            self._searched.append(queue)
            reached = high if ends else None
            is_sound = partial(self._is_sound, queue, scan_from, reached) if last_stop is LastStop.POWER_LOSS else None
            if queue.find_ends(log.start, (low, high), is_sound):
                self._queues.touch(queue)
            if not queue.chain.segments:
                # Removed, as far as is known; a power loss must not bring the files back.
                self._queues.clear(queue)
            lacks = queue.next_offset < high or (same_start and low < queue.min_offset)
            if lacks or (last_stop is not LastStop.POWER_LOSS and not self._is_right(queue, whole)):
                self._broken[queue] = None
        for topic, by_id in known.items():
            for queue_id in by_id:
                if self._queues.find(topic, queue_id) is None:
                    self._broken[self._queues.get(topic, queue_id)] = None
        for topic, queue_id in ends.unfinished if ends else ():
            self._broken[self._queues.get(topic, queue_id)] = None

    def _is_sound(
        self, queue: ConsumeQueue, scan_from: int, reached: int | None, offset: int, physical: int, size: int
    ) -> bool:
        """Whether an entry is true; ``reached``: the offset that the queue is known to have come to."""
        if physical < self._log.start:
            # Its message is gone, and before that the queue's end was noted. Where all of a queue is gone, this entry
            # tells where it goes on.
            return queue.is_behind_previous(offset, physical) if reached is None else offset < reached
        # What lies behind the checkpoint is made anew; before it, the log itself must agree.
        return physical < scan_from and self._points_to_record(queue, offset, physical, size)

    def _is_right(self, queue: ConsumeQueue, whole: bool) -> bool:
        offset, physical, size = queue.last_entry()
        return whole and (
            size == 0 or physical < self._log.start or self._points_to_record(queue, offset, physical, size)
        )

    def _points_to_record(self, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
        """Whether that message of ``queue`` is there: after a power loss entries may come back that were removed."""
        raw = self._log.record_at(physical)
        if raw is None or len(raw) != size:
            return False
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            return False
        return (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset)

    def _furthest(self, last_stop: LastStop) -> tuple[int, int]:
        """(physical offset, one past its end) of the furthest record that a queue knows.

        A process that was killed wrote no entry before its record: where the record is not, the log lost it.
        """
        killed = last_stop is LastStop.KILLED
        ends = [queue.last_entry()[1:] for queue in self._searched if killed or queue not in self._broken]
        within = [(physical, physical + size) for physical, size in ends if size and physical < self._log.end]
        return max([self._resumed_to, *within])

    # --- the scan

    def _scan(self, report: RecoveryReport, start: int, torn: IsTorn) -> None:
        report.scanned_from = start
        found = scan_log(self._log, start, self._redo, self._progress("read", start), torn=torn)
        report.end, report.records = found.end, found.records
        report.torn_file, report.torn_reason = found.file, found.reason

    def _torn_reason(
        self, state: CheckpointState, last_stop: LastStop, known_end: int, view: mmap.mmap, at: int, record: Record
    ) -> str:
        """As `why_torn`; "" also when a queue's file or the index has it: the record is written before them."""
        end = record.physical_offset + record.size
        known = end <= known_end or record.physical_offset <= self._index.end_physical
        if last_stop is LastStop.KILLED and known and end <= self._log.chain.loaded_end:
            return ""
        return why_torn(state, last_stop, view, at, record)

    def _redo(self, record: Record) -> None:
        """The queue gets a record that the log has; it is broken when it lacks messages before it."""
        self.last_timestamp = max(self.last_timestamp, record.store_timestamp)
        queue = self._queues.get(record.topic, record.queue_id)
        if queue in self._broken or not is_queued(record.sys_flag):
            return
        gap = record.queue_offset - queue.next_offset
        if queue not in self._newest:
            self._newest[queue] = queue.last_entry()[1]
        if gap >= 0 and record.physical_offset < self._newest[queue]:
            # Of a deleted topic: what the queue has was put later, though at lower offsets.
            return
        if gap > 0 and (queue.next_offset or record.physical_offset > self._log.start):
            self._broken[queue] = None
            return
        self._queues.touch(queue)
        if gap < 0:
            if self._has(queue, record):
                queue.take_back(record.queue_offset)
            else:
                self._judge_other(queue, record)
            return
        queue.put_at(record.queue_offset, record.physical_offset, record.size, self._tag_codes.of_record(record))

    def _judge_other(self, queue: ConsumeQueue, record: Record) -> None:
        """The queue has another message in this place. StoreCorrupt when no deletion of the topic explains that."""
        if self._is_of_a_deleted_topic(queue, record):
            return
        if record.queue_offset == 0:
            # Begun anew, but the removal of the old files was lost with the power.
            self._broken[queue] = None
            return
        raise StoreCorrupt(
            self._log.chain.directory,
            record.physical_offset,
            f"the record says it is message {record.queue_offset} of {queue.topic}/{queue.queue_id}, which is"
            " another one. Look with: broker verifyStore",
        )

    def _has(self, queue: ConsumeQueue, record: Record) -> bool:
        offset = record.queue_offset
        return offset >= queue.min_offset and queue.entry(offset)[:2] == (record.physical_offset, record.size)

    def _is_of_a_deleted_topic(self, queue: ConsumeQueue, record: Record) -> bool:
        """Whether the queue was begun anew since: what it has in this place came later."""
        offset = record.queue_offset
        return offset >= queue.min_offset and queue.entry(offset)[0] > record.physical_offset

    def _check_last(self, physical: int) -> None:
        """StoreCorrupt when the last record of a clean stop is not sound: the one record that such a start reads."""
        raw = self._log.record_at(physical)
        record, reason = sound_record(raw or b"", physical)
        if record is None:
            where = self._log.chain.at(physical)
            assert where is not None
            raise StoreCorrupt(where.path, physical - where.base, f"{reason}. Look with: broker verifyStore")

    def _next_record(self, offset: int) -> int:
        """Where the next sound record at or after ``offset`` begins; 0 when there is none near.

        A process that is killed writes one record in part, and nothing after it.
        """
        end = min(offset + _LOOK_BEYOND_BYTES, self._log.chain.end)
        for segment in self._log.chain.between(offset, end):
            found = LogFile(segment.path, segment.base, segment.file).next_sound(offset, end)
            if found is not None:
                return found
        return 0

    def _judge_end(self, report: RecoveryReport, known_end: int) -> None:
        """There was more than the sound records: rot, unless a power loss tore what was not flushed."""
        if report.last_stop is not LastStop.POWER_LOSS:
            where = self._log.chain.at(report.end)
            raise StoreCorrupt(
                where.path if where else self._log.chain.directory,
                report.end - where.base if where else report.end,
                f"{report.torn_reason or 'zeros where a record was'}; the log went on to offset {known_end}."
                " Look with: broker verifyStore",
            )
        for queue in self._queues:
            queue.drop_behind(report.end)

    def _note_last_time(self, furthest: int, known_end: int) -> None:
        """Store times go on from the log's last record. Where no queue has it, checkpoint and scan must do."""
        raw = self._log.record_at(furthest)
        record, _ = sound_record(raw or b"", furthest, check_crc=False)
        if record is not None:
            last_of_log = known_end == self._log.end
            self.last_timestamp = max(0 if last_of_log else self.last_timestamp, record.store_timestamp)

    # --- after the scan

    def _complete(self, report: RecoveryReport, ends: QueueEnds | None) -> None:
        """Make broken queues anew, from the whole log."""
        log = self._log
        if ends is None and log.end > log.start:
            report.unchecked = log.end - log.start > FIRST_LOOK_BYTES
            if not report.unchecked:
                found = find_incomplete(log, self._queues, self._progress("compared", log.start))
                self._broken.update(dict.fromkeys(found))
        if not self._broken:
            return
        if ends is not None or report.unchecked:
            # A start that finds them half made must not take them as they are.
            unfinished = tuple((queue.topic, queue.queue_id) for queue in self._broken)
            self._note_ends(replace(ends or QueueEnds(log.start), unfinished=unfinished))
        rebuild_queues(log, self._queues, self._broken, self._tag_codes, self._progress("queues made from", log.start))
        for queue in self._broken:
            known = ends.next_offset(queue.topic, queue.queue_id) if ends else 0
            if queue.is_empty and queue.next_offset < known:
                queue.continue_at(known)
        report.rebuilt = tuple(f"{queue.topic}/{queue.queue_id}" for queue in self._broken)

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
