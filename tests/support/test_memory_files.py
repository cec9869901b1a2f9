"""The fake disk forgets, tears, fails and rots as it is told to, and only then."""

import errno
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from skylark.mqcommon.disk.write_again import write_again
from skylark.mqcommon.errors import DiskFull
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles

PATH = "/d/file"
SIZE = 4 * SECTOR_BYTES


def disk() -> MemoryFiles:
    fs = MemoryFiles()
    fs.mkdirs("/d")
    return fs


def sectors(fs: MemoryFiles, path: str = PATH) -> bytes:
    """The first byte of each sector; a missing file has none."""
    return fs.read(path)[::SECTOR_BYTES] if fs.exists(path) else b""


def test_power_loss_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    file.view[:] = b"1" * SIZE
    file.sync()
    file.view[SECTOR_BYTES:] = b"2" * (SIZE - SECTOR_BYTES)
    found = {sectors(fs.crash(Random(seed))) for seed in range(200)}
    assert found == {b"1" + bytes(rest) for rest in _each_of(b"12", 3)}


def _each_of(values: bytes, count: int) -> list[list[int]]:
    if not count:
        return [[]]
    return [[value, *rest] for value in values for rest in _each_of(values, count - 1)]


def test_power_loss_may_lose_a_name_until_the_first_sync() -> None:
    fs = disk()
    fs.open_append(PATH).write(b"x")
    assert {fs.crash(Random(seed)).exists(PATH) for seed in range(50)} == {True, False}
    fs.open_append(PATH).sync()
    assert {sectors(fs.crash(Random(seed))) for seed in range(50)} == {b"x"}


def test_power_loss_may_bring_a_removed_file_back_until_the_directory_is_synced() -> None:
    fs = disk()
    fs.overwrite(PATH, b"x")
    fs.remove(PATH)
    assert {fs.crash(Random(seed)).exists(PATH) for seed in range(50)} == {True, False}
    fs.fsync_dir("/d")
    assert {fs.crash(Random(seed)).exists(PATH) for seed in range(50)} == {False}


def test_a_kill_keeps_all_and_makes_nothing_durable() -> None:
    fs = disk()
    fs.open_map(PATH, SIZE, create=True).view[:] = b"2" * SIZE
    killed = fs.killed()
    assert sectors(killed) == b"2222"
    assert len({sectors(killed.crash(Random(seed))) for seed in range(200)}) > 4


def test_a_dead_process_writes_no_more() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    killed = fs.killed()
    file.view[:] = b"2" * SIZE
    assert sectors(killed) == bytes(4)


def test_the_boot_id_tells_power_loss_from_a_kill() -> None:
    fs = disk()
    assert fs.killed().boot_id() == fs.boot_id()
    assert fs.crash(Random(0)).boot_id() != fs.boot_id()


def test_the_nth_call_of_an_operation_fails_and_the_next_do_not() -> None:
    fs = disk()
    file = fs.open_append(PATH)
    fs.faults.fail("write", nth=2, times=2)
    file.write(b"a")
    for _ in range(2):
        with pytest.raises(OSError, match="injected") as raised:
            file.write(b"b")
        assert (raised.value.errno, raised.value.filename) == (errno.EIO, PATH)
    file.write(b"c")
    assert fs.read(PATH) == b"ac"


def test_failures_of_one_path_leave_others_alone() -> None:
    fs = disk()
    fs.overwrite(PATH, b"x")
    fs.faults.fail("read", path_part="other")
    assert fs.read(PATH) == b"x"
    fs.faults.fail("read", path_part="file")
    fs.faults.fail("open", path_part="file")
    with pytest.raises(OSError, match="read"):
        fs.read(PATH)
    with pytest.raises(OSError, match="open"):
        fs.open_append(PATH)
    fs.faults.fail("read")
    fs.faults.clear()
    assert fs.read(PATH) == b"x"


def test_no_room_at_the_nth_allocation_leaves_no_trace() -> None:
    fs = disk()
    fs.open_map(PATH, SECTOR_BYTES, create=True)
    fs.faults.fail("allocate", nth=2, code=errno.ENOSPC)
    fs.open_map("/d/second", SECTOR_BYTES, create=True)
    with pytest.raises(DiskFull):
        fs.open_map("/d/third", SECTOR_BYTES, create=True)
    with pytest.raises(DiskFull):
        fs.capacity = fs.used() + 10
        fs.open_append(PATH).write(bytes(11))
    assert fs.listdir("/d") == ["file", "second"] and fs.size(PATH) == SECTOR_BYTES


def test_what_a_failed_sync_did_not_write_no_later_sync_writes() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    file.sync()
    file.view[:] = b"2" * SIZE
    fs.faults.fail("sync")
    with pytest.raises(OSError, match="sync"):
        file.sync()
    file.view[:SECTOR_BYTES] = b"3" * SECTOR_BYTES
    file.sync()
    survivors = [sectors(fs.crash(Random(seed))) for seed in range(200)]
    assert {found[:1] for found in survivors} == {b"3"}, "what was written since is on disk"
    assert b"3\0\0\0" in survivors, "the rest may not be"


def test_what_a_failed_sync_did_not_write_is_on_disk_when_the_next_process_has_written_it_again() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    file.view[:] = b"2" * SIZE
    fs.faults.fail("sync")
    with pytest.raises(OSError, match="sync"):
        file.sync()
    fs = fs.killed()
    file = fs.open_map(PATH, create=False)
    write_again(file, SECTOR_BYTES, 3 * SECTOR_BYTES)
    file.sync()
    survivors = {sectors(fs.crash(Random(seed))) for seed in range(200)}
    assert survivors == {b"\x0022\0", b"222\0", b"\x00222", b"2222"}


def test_a_flipped_bit_stays_flipped() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    file.sync()
    fs.flip(PATH, 700, bit=3)
    assert file.view[700] == 8
    assert {fs.crash(Random(seed)).read(PATH)[700] for seed in range(20)} == {8}
    fs.overwrite("/d/other", b"abc")
    fs.flip("/d/other", 1)
    assert fs.read("/d/other") == b"acc"


def test_a_crash_while_threads_change_files_sees_whole_changes_only() -> None:
    fs = disk()
    stopped = threading.Event()

    def change(name: str) -> None:
        while not stopped.is_set():
            file = fs.open_map(f"/d/{name}", SIZE, create=True)
            file.pwrite(0, memoryview(b"x"))
            file.sync()
            file.close()
            fs.rename(f"/d/{name}", f"/d/{name}.old")
            fs.remove(f"/d/{name}.old")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            changing = [threads.submit(change, name) for name in ("a", "b")]
            try:
                for seed in range(1500):
                    fs.crash(Random(seed))
                    killed = fs.killed()
                    assert {killed.size(path) for path in killed.paths()} <= {0, SIZE}
            finally:
                stopped.set()
            for one in changing:
                one.result()
    finally:
        sys.setswitchinterval(interval)


def test_memory_and_medium_may_differ_until_the_bytes_are_dropped_or_written() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    file.view[:] = b"1" * SIZE
    file.sync()
    fs.damage(PATH, 3, b"xx", in_memory=False)
    assert (fs.read(PATH)[:6], fs.read_direct(PATH, 0, 6)) == (b"111111", b"111xx1")
    file.sync()  # the page is clean, so no sync writes it
    assert fs.crash(Random(1)).read(PATH)[:6] == b"111xx1"
    file.pwrite(3, memoryview(b"11"))
    assert fs.read_direct(PATH, 0, 6) == b"111111"
    fs.damage(PATH, 3, b"yy", on_disk=False)
    assert (fs.read(PATH)[:6], fs.read_direct(PATH, 0, 6)) == (b"111yy1", b"111111")
    file.drop(0, SIZE)
    assert fs.read(PATH)[:6] == file.pread(0, 6) == b"111111"
    fs.damage(PATH, 3, b"zz", in_memory=False)
    fs.cold.mark(PATH)
    assert file.pread(0, 6) == b"111zz1"


def test_an_unstable_range_and_a_bad_sector_last_until_they_are_written() -> None:
    fs = disk()
    file = fs.open_map(PATH, SIZE, create=True)
    fs.make_unstable(PATH, 0, 4)
    assert len({fs.read_direct(PATH, 0, 8) for _ in range(3)}) == 3
    fs.make_unreadable(PATH, SECTOR_BYTES, 1)
    file.sync()
    for read in (fs.read_direct, fs.crash(Random(1)).read_direct):
        with pytest.raises(OSError, match="Input/output"):
            read(PATH, 0, SIZE)
    assert file.pread(SECTOR_BYTES, 1) == b"\0", "the page is in memory"
    fs.cold.mark(PATH)
    with pytest.raises(OSError, match="Input/output"):
        file.pread(SECTOR_BYTES, 1)
    file.pwrite(0, memoryview(bytes(SIZE)))
    assert fs.read_direct(PATH, 0, SIZE) == file.pread(0, SIZE) == bytes(SIZE)
    fs.make_unreadable(PATH, 0, 1, stuck=True)
    with pytest.raises(OSError, match="Input/output"):
        file.pwrite(0, memoryview(bytes(SIZE)))
