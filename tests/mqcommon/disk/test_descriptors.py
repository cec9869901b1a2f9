"""Opening files when none can be opened any more; the limit of this process is lowered for that."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqcommon.disk.atomic import write_atomic
from mqcommon.disk.descriptors import Descriptors
from mqcommon.disk.files import OsFiles
from mqcommon.errors import DiskFull, OutOfDescriptors


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
