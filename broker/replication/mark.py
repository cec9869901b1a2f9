"""A file that says how much a log had, so that a start notices lost bytes or entries. No thread, no loop.

In DLedger mode it counts entries (dledger/log_disk.py), in Controller mode bytes (autoswitch/promised_end.py).

    flushed 8 | chain there 4 | promised 8 | chain there 4 | boot 4 | CRC-32 4

``flushed`` is the last entry of the last completed flush. ``promised`` is the last acknowledged entry, which without
SYNC_FLUSH may only be in the kernel: it counts while ``boot`` is the machine's present boot. The file has the record
twice, 4096 bytes apart, so that one damaged page costs nothing. Both copies are written through a map, in order: a
killed process leaves the newest record in at least one copy, and a power loss leaves an older record, which claims
less. An earlier version had the first two fields and a CRC, once.
"""

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem, MappedFile

_RECORD = Struct(">QIQIII")
_OLD_RECORD = Struct(">QII")
_CRC_BYTES = 4
_COPIES_AT = (0, 4096)
_FILE_BYTES = _COPIES_AT[-1] + _RECORD.size
#: The only damage of a store that no version with a mark has opened.
NO_MARK = "there is no mark"


class Marked(NamedTuple):
    """The record in the file. ``boot``: see `boot_of`."""

    flushed: int = 0
    flushed_chain: int = 0
    promised: int = 0
    promised_chain: int = 0
    boot: int = 0


def boot_of(fs: FileSystem) -> int:
    """A number of this boot of the machine; 0 when it is unknown."""
    boot = fs.boot_id()
    return crc32(boot.encode()) or 1 if boot else 0


class Found(NamedTuple):
    """The result of `Mark.read`: None without a sound copy. ``damage``: the damage of the file, "" if there is none."""

    marked: Marked | None
    damage: str


class Mark:
    """A `Marked` in the file ``path``: `begin` it once; after that `write` and `sync`. All but `write` block."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._file: MappedFile | None = None
        self.now = Marked()

    def read(self, boot: int) -> Found:
        """Read the record of an earlier process. Promises from another boot than ``boot`` are left out."""
        if not self._fs.exists(self.path):
            return Found(None, NO_MARK)
        data = self._fs.read(self.path)
        if len(data) == _OLD_RECORD.size:
            return _old_record(data)
        copies = [_record_at(data, at) for at in _COPIES_AT]
        sound = [each for each in copies if each is not None]
        if not sound:
            return Found(None, "the CRCs of both copies are wrong")
        # They differ after a crash between the two: entries go only when both copies have been lowered.
        flushed = max(each[:2] for each in sound)
        promised = max([each[2:4] for each in sound if boot and each.boot == boot], default=(0, 0))
        damage = "" if len(sound) == len(copies) else "the CRC of one copy is wrong"
        return Found(Marked(*flushed, *promised, boot), damage)

    def begin(self, marked: Marked) -> None:
        """Replace the file, durably."""
        self.close()
        self._file = self._new_file(marked)
        self.now = marked

    def made_anew(self) -> MappedFile:
        """A new file in place of a damaged or missing one, to be given to `use`. For a thread, while others `write`."""
        return self._new_file(self.now)

    def use(self, file: MappedFile) -> None:
        """Write into ``file`` from now on, at first what was written since it was made."""
        self.close()
        self._file = file
        self.write(self.now)

    def _new_file(self, marked: Marked) -> MappedFile:
        record = _encoded(marked)
        write_atomic(self._fs, self.path, record.ljust(_COPIES_AT[-1], b"\0") + record)
        return self._fs.open_map(self.path, _FILE_BYTES, create=False)

    def write(self, marked: Marked) -> None:
        """Write the record for a start after a kill; `sync` makes it survive a power loss, too."""
        file = self._file
        assert file is not None
        record = _encoded(marked)
        for at in _COPIES_AT:
            file.view[at : at + _RECORD.size] = record
        self.now = marked

    def sync(self) -> None:
        assert self._file is not None
        self._file.sync()

    def is_whole(self, data: bytes) -> bool:
        """Whether both copies in ``data``, the bytes of the file, are sound."""
        return all(_record_at(data, at) is not None for at in _COPIES_AT)

    @property
    def is_open(self) -> bool:
        """Whether `begin` was called."""
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _encoded(marked: Marked) -> bytes:
    fields = _RECORD.pack(*marked, 0)[:-_CRC_BYTES]
    return fields + crc32(fields).to_bytes(_CRC_BYTES, "big")


def _old_record(data: bytes) -> Found:
    # That version made the file with zeros, and never synced it.
    if not any(data):
        return Found(None, NO_MARK)
    flushed, chain, crc = _OLD_RECORD.unpack(data)
    if crc != crc32(data[:-_CRC_BYTES]):
        return Found(None, "its CRC is wrong")
    return Found(Marked(flushed, chain), "")


def _record_at(data: bytes, at: int) -> Marked | None:
    record = data[at : at + _RECORD.size]
    if len(record) < _RECORD.size:
        return None
    *fields, crc = _RECORD.unpack(record)
    return Marked(*fields) if crc == crc32(record[:-_CRC_BYTES]) else None
