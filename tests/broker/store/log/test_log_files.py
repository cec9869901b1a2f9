"""A search for records in a file of the commit log."""

import mmap
from dataclasses import dataclass
from pathlib import Path

from skylark.broker.store.log.log_files import LogFile
from skylark.mqcommon.message.layout import MAGIC_V1


class NeverToTheEnd(mmap.mmap):
    """A map in which a search that reaches the last byte fails, as it could kill a process of Python 3.11.2."""

    def find(self, sub: bytes, start: int = 0, stop: int = mmap.PAGESIZE) -> int:  # type: ignore[override]
        assert stop < len(self)
        return super().find(sub, start, stop)


@dataclass
class Mapped:
    """A file in memory."""

    path: str
    size: int
    view: mmap.mmap

    def pread(self, at: int, size: int) -> bytes:
        return self.view[at : at + size]

    def close(self) -> None:
        self.view.close()


def test_a_search_never_looks_beyond_the_map(tmp_path: Path) -> None:
    path = tmp_path / "0"
    # A magic at the very end, and a magic that no record follows.
    magic = MAGIC_V1.to_bytes(4, "big")
    path.write_bytes((b"\0" * 100 + magic).ljust(mmap.PAGESIZE - 4, b"\0") + magic)
    with path.open("r+b") as file, NeverToTheEnd(file.fileno(), 0) as view:
        log = LogFile(str(path), 0, Mapped(str(path), mmap.PAGESIZE, view))
        for end in (None, mmap.PAGESIZE, 2 * mmap.PAGESIZE):
            assert log.next_sound(0, end) is None
