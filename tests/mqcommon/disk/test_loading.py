"""Bytes that the disk cannot read are an error with their place, before somebody looks at the map."""

import errno

import pytest

from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.disk.loading import PIECE_BYTES, SECTOR_BYTES, Loader, load, used_size
from skylark.mqcommon.errors import Unreadable
from tests.support.memory_files import MemoryFiles

SIZE = 3 * PIECE_BYTES


def mapped(fs: MemoryFiles) -> MappedFile:
    file = fs.open_map("/file", SIZE, create=True)
    fs.cold.mark("/file")
    return file


def test_the_sector_that_cannot_be_read_is_named() -> None:
    fs = MemoryFiles()
    file = mapped(fs)
    at = PIECE_BYTES + 5 * SECTOR_BYTES
    fs.make_unreadable("/file", at, 1)
    with pytest.raises(Unreadable, match="resyncSlave") as error:
        load(file, 0, SIZE)
    assert (error.value.file, error.value.offset) == ("/file", at)
    load(file, at + SECTOR_BYTES, SIZE - at - SECTOR_BYTES)
    assert file.resident(at + SECTOR_BYTES, SIZE - at - SECTOR_BYTES)


def test_another_error_stays_what_it_is() -> None:
    fs = MemoryFiles()
    file = mapped(fs)

    def fail(path: str) -> None:
        raise OSError(errno.ENOMEM, "no memory", path)

    fs.cold.before_read = fail
    with pytest.raises(OSError, match="no memory"):
        load(file, 0, 10)


def test_a_loader_reads_each_byte_once_and_some_ahead() -> None:
    fs = MemoryFiles()
    file = mapped(fs)
    loader = Loader(file, 100, SIZE)
    for end in (50, 101, 200, PIECE_BYTES, PIECE_BYTES + 101, 3 * PIECE_BYTES):
        loader.load_to(end)
        assert end <= 100 or file.resident(100, end - 100)
    assert [(at, size) for _, at, size in fs.cold.reads] == [
        (100, PIECE_BYTES),
        (PIECE_BYTES + 100, PIECE_BYTES),
        (2 * PIECE_BYTES + 100, PIECE_BYTES - 100),
    ]


@pytest.mark.parametrize(
    ("data", "used"), [(b"", 0), (b"\0", 0), (bytes(4096), 0), (b"a", 1), (b"\0a\0\0", 2), (bytes(4095) + b"a", 4096)]
)
def test_what_is_used_ends_at_the_last_byte_that_is_no_zero(data: bytes, used: int) -> None:
    assert used_size(data) == used
