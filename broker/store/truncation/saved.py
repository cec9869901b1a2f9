"""Reads the end of a log that will be cut off, and keeps it in a file NUMBER-FROM-TO.log of the directory ``cut``.

FROM and TO are offsets of the log, and the file has exactly these bytes. The newest file has the highest NUMBER.
The start after a crash keeps here, too, what it cuts after a gap in the log.
The directory is bounded: after each truncation, old files go as long as there are more than KEEP_FILES, or KEEP_BYTES
beside the newest.
`Survey` also finds how many messages are cut, and which queues lose messages.
Neighbours: tasks/truncate.py; recovery.py; commands/diverged_slave.py (prints the messages of a file).
"""

from collections.abc import Callable, Iterator

from skylark.broker.store.clock_steps import BY_CLOCK
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.queue.entry import messages_in
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, HEAD_V4, MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record

# How much is read at once.
PIECE_BYTES = 1024 * 1024

_HEAD = HEAD_V4.reader("magic", "physical_offset")

ReadLog = Callable[[int, int], bytes]

DIRECTORY = "cut"
KEEP_FILES = 20
KEEP_BYTES = 1 << 30
_SUFFIX = ".log"


def begins_record(head: bytes, offset: int) -> bool:
    """Whether ``head``, the bytes of the log at ``offset``, may be the beginning of a record or filler.

    A slave's log may end within a record, so there may be few bytes, or none.
    """
    if len(head) < BLANK_BYTES:
        return True
    _, magic = SIZE_MAGIC.unpack_from(head)
    if magic == BLANK_MAGIC:
        return True
    if len(head) < HEAD_V4.size:
        return magic in (MAGIC_V1, MAGIC_V2)
    found, physical = _HEAD.unpack_from(head)
    return found in (MAGIC_V1, MAGIC_V2) and physical == offset


class Survey:
    """Bytes ``start`` to ``end`` of a log in files of ``file_bytes``: iterate over `pieces` to fill in the rest."""

    def __init__(self, read: ReadLog, start: int, end: int, log_start: int, file_bytes: int) -> None:
        self._read = read
        self._start = start
        self._end = end
        self._log_start = log_start
        self._file_bytes = file_bytes
        self.messages = 0
        self.queues: set[tuple[str, int]] = set()
        # When the first message of a plain queue was stored (ms); None if there is none.
        self.first_ms: int | None = None
        # Up to here all bytes are sound records and fillers. Later bytes are a part of a record, or damaged.
        self.read_to = start

    def pieces(self) -> Iterator[bytes]:
        """The bytes, in order. Blocks: reads files."""
        # Each byte is saved, whatever it is. While the bytes are whole records, these are counted. After the first
        # bytes that are not, it is unknown which queues lose messages; `read_to` is where they begin.
        rest, is_sound, at = b"", True, self._start
        while at < self._end:
            file_end = at + self._file_bytes - (at - self._log_start) % self._file_bytes
            piece = self._read(at, min(PIECE_BYTES, file_end - at, self._end - at))
            yield piece
            at += len(piece)
            if is_sound:
                data = rest + piece
                used, is_sound = self._read_records(data, at - len(data), file_end)
                rest = data[used:]

    def _read_records(self, data: bytes, base: int, file_end: int) -> tuple[int, bool]:
        """Read the whole records of ``data``: (how many bytes they have, False if unsound bytes follow)."""
        at = 0
        while True:
            if file_end - base - at < BLANK_BYTES:
                # Too short for a filler.
                return self._passed(base, len(data)), True
            if len(data) - at < BLANK_BYTES:
                return at, True
            size, magic = SIZE_MAGIC.unpack_from(data, at)
            if magic == BLANK_MAGIC and base + at + size == file_end:
                # The filler's own bytes mean nothing.
                if base + len(data) < file_end:
                    return at, True
                return self._passed(base, len(data)), True
            if magic not in (MAGIC_V1, MAGIC_V2) or not BLANK_BYTES < size <= file_end - base - at:
                return at, False
            if at + size > len(data):
                return at, True
            record, _ = valid_record(data[at : at + size], base + at, check_crc=False)
            if record is None:
                return at, False
            self._count(record)
            at = self._passed(base, at + size)

    def _passed(self, base: int, at: int) -> int:
        self.read_to = base + at
        return at

    def _count(self, record: Record) -> None:
        self.messages += messages_in(record)
        # Messages of `BY_CLOCK` have the clock's time, which may be earlier than the store times before them.
        if self.first_ms is None and record.topic not in BY_CLOCK:
            self.first_ms = record.store_timestamp
        in_each_queue(lambda each: self.queues.add((each.topic, each.queue_id)))(record)


def save(fs: FileSystem, directory: str, survey: Survey, start: int, end: int) -> str:
    """Write bytes ``start`` to ``end`` of the log durably to a new file; returns its path. Blocks.

    ``directory`` is the store's. DiskFull leaves no file.
    """
    kept = f"{directory}/{DIRECTORY}"
    number = max((_number(name) for name in _names(fs, kept)), default=0) + 1
    path = f"{kept}/{number:06d}-{start:020d}-{end:020d}{_SUFFIX}"
    try:
        fs.mkdirs(kept)
        fs.fsync_dir(directory)
        write_atomic(fs, path, survey.pieces())
    except DiskFull as error:
        raise DiskFull(
            f"the end of the log, bytes {start} to {end}, must be cut, but it cannot be saved first in {kept}: {error}."
            " Nothing is cut until there is room; remove old files there, or other ones"
        ) from error
    return path


def prune(fs: FileSystem, directory: str) -> list[str]:
    """Remove the oldest files beyond the bounds; returns their paths. Blocks."""
    kept = f"{directory}/{DIRECTORY}"
    newest_first = sorted(_names(fs, kept), key=_number, reverse=True)
    total, removed = 0, []
    for place, name in enumerate(newest_first):
        path = f"{kept}/{name}"
        total += fs.size(path) if place else 0
        if place >= KEEP_FILES or total > KEEP_BYTES:
            fs.remove(path)
            removed.append(path)
    return removed


def start_of(path: str) -> int | None:
    """The offset in the log of the first byte of such a file; None if its name is another."""
    parts = path.rpartition("/")[2].removesuffix(_SUFFIX).split("-")
    return int(parts[1]) if len(parts) == 3 and all(map(str.isdigit, parts)) else None


def _names(fs: FileSystem, kept: str) -> list[str]:
    return [name for name in fs.listdir(kept) if name.endswith(_SUFFIX) and _number(name)]


def _number(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 0
