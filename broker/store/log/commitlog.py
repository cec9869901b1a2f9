"""All messages of the broker in one log, whatever their topic.

An append is a copy into the mapped file. `flush` makes it durable; it may run in a thread while appends go on.
On a slave, the master's bytes are written into `room` and may end within a record; replica.py then moves ``end``.
"""

import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skylark.broker.store.log.compared import ComparedBlocks, ComparedFile
from skylark.broker.store.log.residency import NotResident, Span, bytes_got, check_resident
from skylark.broker.store.log.segment import Segment, SegmentChain, file_names
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.older import OlderMessages
from skylark.broker.store.sums.block_sums import BlockSums
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.disk.loading import Loader, read
from skylark.mqcommon.disk.write_again import write_again
from skylark.mqcommon.errors import ConfigError, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, SIZE_MAGIC, UNFINISHED_MAGIC
from skylark.mqcommon.message.record import Record

# The last bytes written are almost certainly in the page cache: the kernel evicts the oldest pages first, and some of
# the last bytes are not on disk yet. At worst one read waits for the disk.
RECENT_BYTES = 32 * 1024 * 1024
# How many bytes of pages are made ready ahead of the end, in all and at once. The first write to a page costs 5 µs, and
# sometimes many ms, when the kernel reads ahead or its journal is busy.
AHEAD_BYTES = 4 * 1024 * 1024
POPULATE_BYTES = 1024 * 1024

KEY = "mappedFileSizeCommitLog"


class FilePlace(NamedTuple):
    """Bytes of a mapped file: for writes, and for reads without a comparison with sums."""

    file: MappedFile
    at: int
    size: int


class CommitLog:
    """The log from ``start`` to ``end`` (physical offsets, bytes); durable up to ``flushed``.

    ``raw_end`` and ``raw_flushed`` also count a slave's bytes past ``end``, which may end within a record.
    """

    def __init__(self, fs: FileSystem, directory: str, segment_bytes: int) -> None:
        self.chain = SegmentChain(fs, directory, segment_bytes, durable_files=True)
        #: The sums of the log's blocks. A cut drops the sums of the blocks that lose bytes.
        self.sums = BlockSums(segment_bytes)
        #: The log's blocks as reads see them, compared with their sums.
        self.blocks = ComparedBlocks(self.chain, self.sums)
        # The largest record (or batch) that fits into one segment.
        self.max_record_bytes = segment_bytes - BLANK_BYTES
        self.end = 0
        self.flushed = 0
        self.raw_flushed = 0
        self._copied = 0
        # How many times `flush` has synced a file.
        self.syncs = 0
        # The number of wrong queue entries that were made again, and of damaged messages that are skipped.
        self.entries_mended = self.messages_skipped = 0
        #: Why bytes that the start after a power loss has cut were damaged, and not lost by it; "" if they were not.
        self.tail_damage = ""
        #: From here on the start has compared the bodies of messages, and no other bytes of them.
        self.bodies_only_from = 0
        #: How many times bytes were cut from the end of the open log.
        self.cuts = 0
        #: The messages before `start`; None if there is no bucket for them.
        self.older: OlderMessages | None = None
        # Where the damaged batches are that were logged.
        self.damaged_batches: set[int] = set()
        self._view: mmap.mmap | None = None
        self._base = 0
        self._limit = 0
        self._opened_at = 0
        self._opened_start = 0
        # Where the log ended at the last call of `age` but one, and at the last.
        self._aged_to = self._aging_to = 0
        # All pages before this offset are ready for writes, or a thread is preparing them.
        self._populated = 0
        #: `take_unpopulated` has nothing to do until the log has grown past this.
        self.populate_at = 0

    @property
    def start(self) -> int:
        return self.chain.start

    @property
    def raw_end(self) -> int:
        return max(self.end, self._copied)

    def open_at(self, end: int, *, flushed: int, clear: bool) -> None:
        """Go on appending at ``end``; all before ``flushed`` is on disk.

        ``clear`` zeroes the bytes that a crash left after the end, so that no later start can take them for records.
        """
        if clear:
            self.chain.clear_from(end)
        else:
            self.chain.cut_after(end)
        self.end = self._opened_at = self.populate_at = end
        self._opened_start = self.start
        self.flushed = self.raw_flushed = flushed
        self._copied = 0
        self.sums.drop_from(end)
        self._use_segment()

    def write_again(self, start: int) -> None:
        """Rewrite all bytes from ``start`` on in place: an earlier process may have failed to sync them. Blocks."""
        for segment in self.chain.between(start, self.end):
            write_again(segment.file, max(start - segment.base, 0), min(self.end - segment.base, segment.size))

    @property
    def wants_file(self) -> bool:
        """Whether the current file is nearly full and the next one is not made yet."""
        left = self._limit - self.end
        # A slave adds files itself, as the bytes of its master come.
        return (
            self._view is not None
            and not self._copied
            and left < self.chain.segment_bytes // 4
            and not self.chain.is_prepared
        )

    def make_file(self, after: int) -> None:
        """Make the file after the file that ends at ``after``, so that a roll need not wait for the disk.

        For any thread; DiskFull.
        """
        self.chain.prepare(after)

    def reserve(self, size: int) -> int:
        """The physical offset for the next ``size`` bytes; rolls to the next file if they do not fit.

        DiskFull if the next file cannot be allocated; the log is then unchanged.
        """
        end = self.end
        if end + size + BLANK_BYTES > self._limit:
            return self._roll(size)
        return end

    def write(self, offset: int, data: bytes) -> None:
        """Append ``data`` at ``offset``, which `reserve` gave for its size."""
        view = self._view
        assert view is not None
        at = offset - self._base
        size = len(data)
        view[at : at + size] = data
        self.end = offset + size

    def write_batch(self, offset: int, records: bytes) -> None:
        """As `write`, for several records.

        A memory copy need not begin with the first byte, so a killed process may leave whole records after a torn one.
        This would look like damage. So until the whole batch is written, it begins with its size and UNFINISHED_MAGIC,
        which are then replaced by the first 8 bytes of the first record in a single store.
        """
        view = self._view
        assert view is not None
        at = offset - self._base
        size = len(records)
        view[at : at + BLANK_BYTES] = SIZE_MAGIC.pack(size, UNFINISHED_MAGIC)
        view[at + BLANK_BYTES : at + size] = memoryview(records)[BLANK_BYTES:]
        view[at : at + BLANK_BYTES] = records[:BLANK_BYTES]
        self.end = offset + size

    @property
    def needs_file(self) -> bool:
        """Whether `room` needs a call of `add_file` first."""
        return self.chain.at(self.raw_end) is None

    def add_file(self) -> None:
        """Add the next file. Blocks. Raises DiskFull."""
        self.chain.extend(self.raw_end)

    def room(self, size: int) -> FilePlace:
        """Where to write the next ``size`` bytes from a master, or as many of them as fit into the file."""
        at = self.raw_end
        segment = self.chain.at(at)
        assert segment is not None
        return FilePlace(segment.file, at - segment.base, min(size, segment.end - at))

    def copied(self, size: int) -> None:
        """Record that ``size`` bytes were written at the place that `room` returned."""
        self._copied = self.raw_end + size

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``, which must lie in one segment, compared with the sums of their blocks.

        Outside of `resident_only` it may wait for the disk, and raises Damaged.
        """
        file, at, _ = self._compared(offset, offset + size)
        got = bytes_got()
        if got is not None:
            if (data := got.get(Span(file, at, size))) is not None:
                return data
            if not file.resident(at, size):
                raise NotResident([Span(file, at, size)], on_disk=not file.file.resident(at, size))
        else:
            check_resident(file, at, size)
        return file.copy(at, size)

    def at_hand(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        """The bytes of ``ranges``, compared with the sums of their blocks. All must lie in one segment, in their order.

        b"" unless all bytes from the first range to the last are in memory: this never waits.
        """
        first, last = ranges[0][0], ranges[-1][1]
        file, at, size = self._compared(first, last)
        if len(ranges) == 1:
            return file.copy_at_hand(at, size) or b""
        # One look for all: where bytes have no sums, each look is a system call.
        if not file.resident(at, size):
            return b""
        return b"".join([file.copy(at + start - first, end - start) for start, end in ranges])

    def glance(self, offset: int, size: int) -> bytes:
        """As `read`, without a comparison: for figures, which must be there when the log is damaged."""
        file, at, _ = self.span(offset, offset + size)
        check_resident(file, at, size)
        return self.copy(offset, size)

    def copy(self, offset: int, size: int) -> bytes:
        """As `read`, without a comparison: for bytes that this process wrote lately, or that others compare."""
        segment = self.chain.at(offset)
        if segment is None:
            raise self._absent(offset)
        at = offset - segment.base
        return segment.file.view[at : at + size]

    def span(self, start: int, end: int) -> FilePlace:
        """Where the bytes from ``start`` to ``end`` lie, which must be in one segment."""
        segment = self.chain.at(start)
        if segment is None:
            raise self._absent(start)
        return FilePlace(segment.file, start - segment.base, end - start)

    def compared(self, start: int, end: int) -> Span:
        """As `span`, for reads: a thread compares the bytes with the sums of their blocks."""
        return Span(*self._compared(start, end))

    def _compared(self, start: int, end: int) -> tuple[ComparedFile, int, int]:
        segment = self.chain.at(start)
        if segment is None:
            raise self._absent(start)
        return ComparedFile(self.blocks, segment.file, segment.base), start - segment.base, end - start

    def is_recent(self, offset: int) -> bool:
        """Whether all from ``offset`` on is as this process wrote it lately, and almost certainly in the page cache.

        Sealed blocks do not count: reads compare them.
        """
        recent = max(self._opened_at, self._aged_to, self.end - RECENT_BYTES)
        return offset >= recent and not self.blocks.is_sealed(offset)

    def age(self) -> None:
        """Call it every few seconds: what was there at the call before is not recent any more."""
        self.blocks.keep_tail(self._opened_at, self.end)
        self._aged_to, self._aging_to = self._aging_to, self.end

    @property
    def was_cleaned(self) -> bool:
        """Whether files were removed from the front of the log since it was opened."""
        return self.start > self._opened_start

    def take_unpopulated(self) -> FilePlace | None:
        """Bytes ahead of the end whose pages should be made ready to be written to; None if enough are."""
        start = max(self._populated, self.end)
        stop = min(start + POPULATE_BYTES, self._limit)
        if start >= stop or start >= self.end + AHEAD_BYTES:
            self.populate_at = min(self.end + AHEAD_BYTES // 2, self._limit)
            return None
        self._populated = stop
        return self.span(start, stop)

    def record_at(self, offset: int) -> bytes | None:
        """The record that starts at ``offset``; None if there is none."""
        if not self.start <= offset < self.end or offset + BLANK_BYTES > self.end:
            return None
        size, magic = SIZE_MAGIC.unpack(self.read(offset, BLANK_BYTES))
        if magic not in (MAGIC_V1, MAGIC_V2) or offset + size > self.end:
            return None
        record = self.read(offset, size)
        return record if len(record) == size and not self.blocks.may_be_wrong(offset, offset + size) else None

    def holds_something_at(self, offset: int) -> bool:
        """Whether there are bytes other than zeros at ``offset``, which may be past the log's end."""
        segment = self.chain.at(offset)
        return segment is not None and any(read(segment.file, offset - segment.base, BLANK_BYTES))

    def flush(self) -> int:
        """Make all bytes written so far durable; returns the end of the log. Runs in any thread, one at a time."""
        # Both ends are read before the sync: bytes that are appended during the sync count for the next one.
        end, raw_end = self.end, self.raw_end
        if raw_end > self.raw_flushed:
            for segment in self.chain.segments[:]:
                if segment.end > self.raw_flushed and segment.base < raw_end:
                    segment.sync()
                    self.syncs += 1
            self.raw_flushed = raw_end
        # A checkpoint must end with a record, so this is `end` and not `raw_end`.
        self.flushed = end
        return end

    def end_at(self, offset: int) -> list[Segment]:
        """Forget all bytes from ``offset`` on, also a slave's past the end; returns segments that are left over.

        The caller removes the bytes and the segments from disk. No flush may run meanwhile.
        """
        left = self.chain.leave_after(offset)
        self.chain.map_last_anew()
        self.cuts += 1
        self.end, self._copied = min(self.end, offset), min(self._copied, offset)
        self.flushed, self.raw_flushed = min(self.flushed, offset), min(self.raw_flushed, offset)
        self._opened_at = min(self._opened_at, offset)
        self._aged_to, self._aging_to = min(self._aged_to, offset), min(self._aging_to, offset)
        self.sums.drop_from(offset)
        self.blocks.cut_at(offset)
        self._populated = self.populate_at = min(self._populated, offset)
        self._use_segment()
        return left

    def close(self) -> None:
        self._view = None
        self.chain.close()

    def _absent(self, offset: int) -> StoreError:
        return StoreError(f"offset {offset} is not in the commit log ({self.start} to {self.end})")

    def _roll(self, size: int) -> int:
        if size > self.max_record_bytes:
            raise StoreError(f"{size} bytes do not fit into a commit log file of {self.chain.segment_bytes} bytes")
        # Add the next file first, which may raise DiskFull. Only then write the filler, after which this file is full.
        segment = self.chain.extend()
        left = self._limit - self.end
        if self._view is not None and left >= BLANK_BYTES:
            SIZE_MAGIC.pack_into(self._view, self.end - self._base, left, BLANK_MAGIC)
        self.end = segment.base
        self._use_segment()
        return self.end

    def _use_segment(self) -> None:
        segment = self.chain.at(self.end)
        if segment is None:
            self._view, self._base, self._limit = None, self.end, self.end
        else:
            self._view, self._base, self._limit = segment.file.view, segment.base, segment.end


def refuse_other_size(fs: FileSystem, directory: str, configured: int, *, ours: bool) -> None:
    """ConfigError if the files in ``directory`` were made with another size.

    ``ours``: Skylark has used the store. A single short file then means that a crash came before it was allocated.
    """
    names = file_names(fs, directory)
    if not names:
        return
    path = f"{directory}/{names[0]}"
    found = fs.size(path)
    if found in (0, configured) or (found < configured and ours and len(names) == 1):
        return
    if int(names[0]) % found or (len(names) > 1 and int(names[1]) - int(names[0]) != found):
        return  # not a possible file size: a damaged file, which the load of the files reports
    raise ConfigError(
        f"{path} has {found} bytes, but {KEY} is {configured}: set {KEY}={found} in the conf file; "
        "the size cannot change for a store that has messages"
    )


# How many records are read between two calls of ``on_progress``.
PROGRESS_RECORDS = 4096

OnRecord = Callable[[Record], None]
OnProgress = Callable[[int], None]
# Says why a sound record, at some byte of a mapped file, is a torn copy; "" if it is not.
IsTorn = Callable[[mmap.mmap, int, Record], str]


@lazy_dataclass
class ScanResult:
    """``end``: the end of the last sound record; ``reason``: the damage there in ``file``, "" if nothing follows."""

    end: int
    records: int = 0
    file: str = ""
    reason: str = ""


def scan_log(
    log: CommitLog,
    start: int,
    on_record: OnRecord,
    on_progress: OnProgress,
    *,
    check_crc: bool = True,
    torn: IsTorn = lambda view, at, record: "",
) -> ScanResult:
    """Read the log record by record from ``start``, where one must begin, to the first that is not sound.

    ``on_record`` gets each sound record.
    """
    found = ScanResult(start)
    segment = log.chain.at(start)
    at = start
    while segment is not None:
        view, base, end = segment.file.view, segment.base, segment.end
        loader = Loader(segment.file, at - base, segment.size)
        while at + BLANK_BYTES <= end:
            loader.load_to(at - base + BLANK_BYTES)
            size, magic = SIZE_MAGIC.unpack_from(view, at - base)
            if magic == BLANK_MAGIC and at + size == end:
                break
            if size == 0 and magic == 0:
                found.end = at
                return found
            loader.load_to(min(at + size + BLANK_BYTES, end) - base)
            record, reason = valid_record(view[at - base : min(at + size, end) - base], at, check_crc=check_crc)
            if record is not None:
                reason = torn(view, at - base, record)
            if record is None or reason:
                found.end, found.file, found.reason = at, segment.path, reason
                return found
            on_record(record)
            found.records += 1
            at += size
            if not found.records % PROGRESS_RECORDS:
                on_progress(at)
        found.end = at = end
        segment = log.chain.at(at)
    return found
