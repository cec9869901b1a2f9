"""OsFiles on a real disk: maps, appends, locks, and what a full disk does."""

import errno
import fcntl
import mmap
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.descriptors import Descriptors
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.disk.libc import address_of, resident
from skylark.mqcommon.errors import DiskFull, FileClosed, OutOfDescriptors, StoreCorrupt, StoreLocked

PAGE = 4096


@pytest.fixture
def fs() -> OsFiles:
    return OsFiles()


def no_room(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_listdir_is_sorted_and_empty_for_nothing(fs: OsFiles, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert fs.listdir(str(tmp_path)) == ["a", "b", "c"]
    assert fs.listdir(str(tmp_path / "none")) == []


def test_directories_and_names(fs: OsFiles, tmp_path: Path) -> None:
    folder = str(tmp_path / "x" / "y")
    fs.mkdirs(folder)
    fs.mkdirs(folder)
    fs.fsync_dir(folder)
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"22")
    fs.rename(str(tmp_path / "one"), str(tmp_path / "two"))
    assert (fs.exists(str(tmp_path / "one")), fs.read(str(tmp_path / "two"))) == (False, b"1")
    fs.remove(str(tmp_path / "two"))
    assert fs.is_dir(folder)
    assert fs.listdir(str(tmp_path)) == ["x"] and fs.listdir(str(tmp_path / "x")) == ["y"]


def test_a_read_that_fails_names_the_file(fs: OsFiles) -> None:
    with pytest.raises(OSError) as caught:
        fs.read("/proc/self/mem")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/proc/self/mem")


def test_disk_usage(fs: OsFiles, tmp_path: Path) -> None:
    usage = fs.disk_usage(str(tmp_path))
    assert usage.total >= usage.used > 0
    assert 0.0 < fs.free_ratio(str(tmp_path)) < 1.0


def test_a_created_map_is_allocated_and_zero(fs: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    file = fs.open_map(str(path), 64 * PAGE, create=True)
    assert (file.size, len(file.view), path.stat().st_size) == (64 * PAGE, 64 * PAGE, 64 * PAGE)
    assert blocks(path) >= 64 * PAGE
    assert bytes(file.view[:]) == bytes(64 * PAGE)
    file.close()


def test_what_is_written_to_a_map_is_in_the_file(fs: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    file = fs.open_map(str(path), PAGE, create=True)
    file.view[5:8] = b"abc"
    file.sync()
    assert path.read_bytes()[5:8] == b"abc"
    file.close()
    file.close()
    again = fs.open_map(str(path), create=False)
    assert (again.size, bytes(again.view[5:8])) == (PAGE, b"abc")
    again.close()


def test_an_existing_file_is_mapped_as_it_lies(fs: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 256 * PAGE)
    before = blocks(path)
    file = fs.open_map(str(path), 256 * PAGE, create=False)
    assert blocks(path) == before
    file.close()
    fs.open_map(str(path), 256 * PAGE, create=True).close()
    assert blocks(path) >= 256 * PAGE


def test_a_short_file_grows_only_when_created(fs: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 10)
    with pytest.raises(StoreCorrupt, match=f"10 bytes where {PAGE} are expected"):
        fs.open_map(str(path), PAGE, create=False)
    assert path.stat().st_size == 10
    file = fs.open_map(str(path), PAGE, create=True)
    assert bytes(file.view[:]) == b"x" * 10 + bytes(PAGE - 10)
    file.close()


def test_missing_and_empty_files_are_not_mapped(fs: OsFiles, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.open_map(str(tmp_path / "none"), PAGE, create=False)
    (tmp_path / "empty").touch()
    with pytest.raises(StoreCorrupt, match="the file is empty"):
        fs.open_map(str(tmp_path / "empty"), create=False)


def test_a_full_disk_leaves_no_new_file(fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(DiskFull, match=r"segment: no room for 4,096 bytes, [\d,]+ are free: make room"):
        fs.open_map(str(tmp_path / "segment"), PAGE, create=True)
    assert fs.listdir(str(tmp_path)) == []


def test_a_full_disk_has_no_room_for_names_either(fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", no_room)
    monkeypatch.setattr(os, "mkdir", no_room)
    for make in (
        lambda: fs.mkdirs(str(tmp_path / "topic" / "0")),
        lambda: fs.open_append(str(tmp_path / "journal")),
        lambda: fs.open_map(str(tmp_path / "segment"), PAGE, create=True),
    ):
        with pytest.raises(DiskFull, match="no room for another name"):
            make()


def test_a_full_disk_leaves_an_old_file_as_it_was(fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fd: int, offset: int, length: int) -> None:
        os.truncate(fd, length // 2)
        no_room()

    path = tmp_path / "segment"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(DiskFull):
        fs.open_map(str(path), PAGE, create=True)
    assert path.read_bytes() == b"old"


def test_closing_a_map_keeps_held_bytes_readable(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "segment"), PAGE, create=True)
    file.view[0:3] = b"abc"
    held = memoryview(file.view)[0:3]
    file.close()
    assert bytes(held) == b"abc"


def test_failed_opens_leak_no_descriptor(fs: OsFiles, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(StoreCorrupt):
            fs.open_map(str(tmp_path / "empty"), create=False)
    lock = fs.lock(str(tmp_path / "lock"))
    for _ in range(10):
        with pytest.raises(StoreLocked):
            fs.lock(str(tmp_path / "lock"))
    lock.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_continues_at_the_end(fs: OsFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    file = fs.open_append(path)
    file.write(b"abc")
    file.sync()
    file.close()
    file = fs.open_append(path)
    file.write(b"def")
    assert (file.size(), fs.read(path), fs.size(path)) == (6, b"abcdef", 6)
    file.truncate(2)
    file.write(b"X")
    file.sync()
    assert fs.read(path) == b"abX"
    file.close()
    file.close()


def test_an_append_that_fails_halfway_is_taken_back(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "journal")
    file = fs.open_append(path)
    file.write(b"whole")
    real_write, room = os.write, [3]

    def write(fd: int, data: memoryview) -> int:
        if not room[0]:
            no_room()
        written = real_write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskFull, match="journal: no room for 10 bytes"):
        file.write(b"0123456789")
    monkeypatch.undo()
    assert fs.read(path) == b"whole"
    file.write(b"+")
    assert fs.read(path) == b"whole+"
    file.close()


def test_a_lock_is_held_within_one_process(fs: OsFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = fs.lock(path)
    with pytest.raises(StoreLocked, match=f"held by process {os.getpid()}: stop it, or give this broker another"):
        fs.lock(path)
    first.close()
    first.close()
    fs.lock(path).close()


@pytest.mark.parametrize("call", ["lockf", "flock"])
def test_a_lock_is_held_against_other_processes(fs: OsFiles, tmp_path: Path, call: str) -> None:
    """lockf is how a Java broker locks."""
    path = str(tmp_path / "lock")
    rival = f"import fcntl; fcntl.{call}(open({path!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    held = fs.lock(path)
    refused = subprocess.run([sys.executable, "-c", rival], capture_output=True, text=True)
    assert "BlockingIOError" in refused.stderr
    held.close()
    assert subprocess.run([sys.executable, "-c", rival]).returncode == 0


def sparse(path: Path, size: int) -> None:
    """A file of zeros that nobody has read: none of it is in memory."""
    with path.open("wb") as file:
        file.truncate(size)


def test_resident_tells_what_is_in_memory(fs: OsFiles, tmp_path: Path) -> None:
    # far larger than what a page fault reads ahead
    sparse(tmp_path / "log", 8192 * PAGE)
    file = fs.open_map(str(tmp_path / "log"), create=False)
    assert not file.resident(0, 8192 * PAGE)
    assert not file.resident(4000 * PAGE + 17, 1)
    file.view[4000 * PAGE] = file.view[4001 * PAGE] = 1
    assert file.resident(4000 * PAGE + 17, 100)
    assert file.resident(4001 * PAGE - 1, 2), "a range that touches two pages"
    assert not file.resident(0, 8192 * PAGE), "some pages in memory are not all"
    file.close()
    assert not file.resident(4000 * PAGE + 17, 100)


def test_pread_gives_what_the_map_holds(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "log"), 4 * PAGE, create=True)
    file.view[PAGE - 2 : PAGE + 2] = b"abcd"
    assert file.pread(PAGE - 3, 6) == b"\0abcd\0"
    assert file.pread(4 * PAGE - 1, 10) == b"\0", "no more at the end of the file"
    file.close()
    with pytest.raises(FileClosed, match="was closed, and perhaps removed"):
        file.pread(0, 1)


def test_what_is_written_beside_the_map_is_in_it(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "map"), 4 * PAGE, create=True)
    file.pwrite(PAGE - 2, memoryview(b"abcd"))
    assert file.view[PAGE - 2 : PAGE + 2] == b"abcd" and len(file.view) == file.size == 4 * PAGE
    file.close()
    with pytest.raises(FileClosed):
        file.pwrite(0, memoryview(b"x"))


def test_a_file_goes_into_a_socket_as_far_as_that_has_room(fs: OsFiles, tmp_path: Path) -> None:
    size = 1 << 23
    file = fs.open_map(str(tmp_path / "map"), size, create=True)
    file.view[PAGE : PAGE + 4] = b"abcd"
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        assert file.send(ours.fileno(), PAGE, 4) == 4
        assert theirs.recv(100) == b"abcd"
        sent = 0
        while taken := file.send(ours.fileno(), sent, size - sent):
            sent += taken
        assert 0 < sent < size
        file.close()
        with pytest.raises(FileClosed):
            file.send(ours.fileno(), 0, 1)


def test_a_file_that_is_closed_and_removed_is_read_to_the_end(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fs.open_map(str(tmp_path / "log"), PAGE, create=True)
    file.view[:4] = b"abcd"
    pread = os.pread
    others: list[int] = []

    def slow(fd: int, size: int, at: int) -> bytes:
        # what retention may do while a thread reads; a new file would get the number of a closed descriptor
        if not others:
            file.close()
            fs.remove(str(tmp_path / "log"))
            others.append(os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT))
            assert others[0] != fd
        return pread(fd, min(size, 2), at)

    monkeypatch.setattr(os, "pread", slow)
    assert file.pread(0, 4) == b"abcd"
    still_open = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in still_open if path.startswith(str(tmp_path / "log"))]
    os.close(others[0])


def test_a_write_for_which_there_is_surely_no_space_is_not_tried(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "there")
    fs.open_map(path, PAGE, create=True).close()
    tried: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, offset, length: tried.append(length))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=0, f_frsize=PAGE))
    with pytest.raises(DiskFull, match="no room for 4,096 bytes"):
        fs.open_map(str(tmp_path / "new"), PAGE, create=True)
    assert tried == []
    fs.open_map(path, PAGE, create=True).close()
    assert tried == [PAGE], "it has its blocks"


def test_populated_bytes_are_resident_and_as_they_were(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "log"), 8192 * PAGE, create=True)
    file.view[5:10] = b"hello"
    file.populate(3, 7000 * PAGE)
    assert file.resident(0, 7000 * PAGE)
    assert file.view[:12] == b"\0\0\0\0\0hello\0\0"
    file.close()
    with pytest.raises(FileClosed):
        file.populate(0, PAGE)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """All numbers below the limit are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.open(os.devnull, os.O_RDONLY)
    taken = [highest]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, before[1]))
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def test_without_a_reserve_it_says_so_and_is_both_kinds_of_error(tmp_path: Path) -> None:
    fs = OsFiles()
    with no_descriptor_left():
        for call in (
            lambda: fs.open_append(f"{tmp_path}/new"),
            lambda: fs.open_map(f"{tmp_path}/new", 10, create=True),
            lambda: fs.fsync_dir(str(tmp_path)),
            lambda: write_atomic(fs, f"{tmp_path}/new", b"x"),
        ):
            with pytest.raises(OutOfDescriptors, match="raise the limit of open files"):
                call()
    assert issubclass(OutOfDescriptors, DiskFull) and issubclass(OutOfDescriptors, OSError)


def test_a_reserve_that_was_given_back_is_not_filled_again(tmp_path: Path) -> None:
    def open_now() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_now()
    fs = OsFiles(spare_descriptors=8)
    assert open_now() == before + 8
    fs.close()
    write_atomic(fs, f"{tmp_path}/conf", b"x")
    assert open_now() == before


def test_the_reserve_serves_what_must_be_opened_and_is_filled_again(tmp_path: Path) -> None:
    fs = OsFiles(spare_descriptors=4)
    old = fs.open_append(f"{tmp_path}/old")
    old.write(b"x")
    with no_descriptor_left():
        old.sync()  # which opens the directory
        write_atomic(fs, f"{tmp_path}/conf", b"x")
        new = fs.open_map(f"{tmp_path}/new", 4096, create=True)
        new.sync()
        # Reads leave the reserve alone.
        with pytest.raises(OutOfDescriptors):
            fs.read_part(f"{tmp_path}/old", 0, 1)
        with pytest.raises(OutOfDescriptors):
            fs.open_map(f"{tmp_path}/old", create=False)
    assert fs.read(f"{tmp_path}/conf") == b"x"
    for file in (old, new):
        file.close()


def test_a_reserve_that_is_used_up_is_filled_when_there_are_descriptors_again(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    with no_descriptor_left():
        held = [descriptors.open(f"{tmp_path}/{n}", os.O_RDWR | os.O_CREAT) for n in range(2)]
        with pytest.raises(OutOfDescriptors):
            descriptors.open(f"{tmp_path}/3", os.O_RDWR | os.O_CREAT)
    held.append(descriptors.open(f"{tmp_path}/3", os.O_RDWR | os.O_CREAT))
    with no_descriptor_left():
        held += [descriptors.open(f"{tmp_path}/{n}", os.O_RDWR | os.O_CREAT) for n in (4, 5)]
    for fd in held:
        os.close(fd)


def test_other_errors_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Descriptors(1).open(f"{tmp_path}/none/file", os.O_RDWR | os.O_CREAT)


def test_the_pages_of_a_map_that_were_touched_are_resident(tmp_path: Path) -> None:
    # far larger than what a page fault reads ahead
    with (tmp_path / "f").open("w+b") as file:
        file.truncate(8192 * PAGE)
        view = mmap.mmap(file.fileno(), 8192 * PAGE)
    address = address_of(view)
    assert not resident(address + 100 * PAGE, 1)
    view[100 * PAGE] = 1
    assert resident(address + 100 * PAGE, 1)
    assert resident(address + 101 * PAGE - 1, 1)
    assert not resident(address, 8192 * PAGE)
    view.close()  # nothing keeps it open


def test_where_the_kernel_does_not_tell_bytes_count_as_resident() -> None:
    assert resident(PAGE, 1), "no map there"


def test_a_direct_read_has_the_bytes_of_the_medium(fs: OsFiles, tmp_path: Path) -> None:
    path, data = tmp_path / "segment", os.urandom(150 * PAGE + 7)
    path.write_bytes(data)
    for at, size in ((0, PAGE), (1, 3), (PAGE - 1, 2), (5, 140 * PAGE), (150 * PAGE, PAGE), (150 * PAGE + 7, 1)):
        assert fs.read_direct(str(path), at, size) == data[at : at + size]
    assert fs.read_direct(str(path), 200 * PAGE, 8) == fs.read_direct(str(path), 0, 0) == b""
    with pytest.raises(FileNotFoundError):
        fs.read_direct(str(tmp_path / "none"), 0, 1)


def test_a_direct_read_has_bytes_that_were_just_written_to_a_map(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "segment"), 4 * PAGE, create=True)
    file.view[PAGE : PAGE + 3] = b"abc"
    assert fs.read_direct(file.path, PAGE, 3) == b"abc"
    file.close()


def test_a_file_system_that_refuses_direct_reads_is_read_nevertheless(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, buffers: Any, at: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "segment").write_bytes(b"abcdef")
    monkeypatch.setattr(os, "preadv", refuse)
    assert fs.read_direct(str(tmp_path / "segment"), 2, 9) == b"cdef"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA, errno.EILSEQ])
def test_a_bad_sector_is_an_error_of_a_direct_read(
    code: int, fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, buffers: Any, at: int) -> int:
        raise OSError(code, os.strerror(code))

    (tmp_path / "segment").write_bytes(b"abcdef")
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output") as raised:
        fs.read_direct(str(tmp_path / "segment"), 2, 9)
    assert raised.value.errno == errno.EIO


def test_dropped_bytes_leave_memory_although_they_are_mapped(fs: OsFiles, tmp_path: Path) -> None:
    file = fs.open_map(str(tmp_path / "segment"), 64 * PAGE, create=True)
    file.view[:] = b"x" * (64 * PAGE)
    file.sync()
    assert file.resident(0, 64 * PAGE)
    file.drop(PAGE + 1, PAGE)
    assert [file.resident(page * PAGE, 1) for page in range(4)] == [True, False, False, True]
    assert file.view[PAGE + 5] == ord("x")
    file.close()


def test_a_directory_that_another_process_makes_meanwhile_is_taken(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def rival(path: str, mode: int) -> None:
        make(path, mode)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    monkeypatch.setattr(os, "mkdir", rival)
    fs.mkdirs(str(tmp_path / "x" / "y"))
    assert fs.is_dir(str(tmp_path / "x" / "y"))


def test_a_lock_on_a_file_that_its_holder_has_removed_is_none(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"

    def lock_late(fd: int, operation: int) -> None:
        path.unlink()

    with monkeypatch.context() as patch, pytest.raises(StoreLocked):
        patch.setattr(fcntl, "lockf", lock_late)
        fs.lock(str(path))
    fs.lock(str(path)).close()


def test_direct_reads_at_once_have_buffers_of_their_own(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data, read, real = tmp_path / "segment", os.urandom(20 * PAGE), list[bytes](), os.preadv

    def read_more_meanwhile(fd: int, buffers: Any, at: int) -> int:
        got = real(fd, buffers, at)
        if at < 19 * PAGE:
            read.append(fs.read_direct(str(path), at + PAGE, 8))
        return got

    path.write_bytes(data)
    monkeypatch.setattr(os, "preadv", read_more_meanwhile)
    assert fs.read_direct(str(path), 0, 8) == data[:8]
    assert read == [data[at : at + 8] for at in range(19 * PAGE, 0, -PAGE)]


def test_a_read_that_gets_less_than_it_asked_for_goes_on(
    fs: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, buffers: Any, at: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    real = os.pread
    (tmp_path / "segment").write_bytes(b"abcdefg")
    monkeypatch.setattr(os, "preadv", refuse)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 2), at))
    assert fs.read_direct(str(tmp_path / "segment"), 1, 5) == b"bcdef"
    assert fs.read_direct(str(tmp_path / "segment"), 1, 99) == b"bcdefg"
