"""The log file: rotation, files that others rename, full disks."""

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.logs.rotated_file import HOUR_S, RotatedFile, Rotation

DAY_S = 24 * HOUR_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now_s


def opened(path: Path, rotation: Rotation, clock: Clock | None = None) -> RotatedFile:
    file = RotatedFile(str(path), rotation, clock or Clock())
    file.open()
    return file


def texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@given(st.integers(0, 5))
def test_each_name_is_free_when_it_is_taken(keep: int) -> None:
    renames = Rotation(keep=keep).renames("log")
    assert len(renames) == keep
    assert [new for _, new in renames] == [f"log.{number}" for number in range(keep, 0, -1)]
    assert all(old == later for (old, _), (_, later) in itertools.pairwise(renames))


@given(st.integers(1, 48), st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_file_is_rotated_when_its_period_is_over(hours: int, began: float, waited: float) -> None:
    due = Rotation(max_age_hours=hours).is_due(1, 1, began, began + waited)
    assert due is (int(began // (hours * HOUR_S)) < int((began + waited) // (hours * HOUR_S)))
    assert not Rotation(max_age_hours=hours).is_due(0, 1, began, began + waited)
    assert not Rotation().is_due(1, 10**12, began, began + waited)


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", Rotation(max_bytes=10, keep=2))
    for number in range(5):
        file.write(b"line %d\n" % number)
    assert texts(tmp_path) == {"log": "line 4\n", "log.1": "line 3\n", "log.2": "line 2\n"}
    file.close()


def test_no_rotated_file_is_kept_if_none_is_wanted(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", Rotation(max_bytes=10, keep=0))
    file.write(b"one line\n")
    file.write(b"two line\n")
    assert texts(tmp_path) == {"log": "two line\n"}
    file.close()


def test_files_are_rotated_by_age_also_those_of_an_earlier_process(tmp_path: Path) -> None:
    clock, rotation = Clock(), Rotation(max_age_hours=24)
    file = opened(tmp_path / "log", rotation, clock)
    file.write(b"today\n")
    file.write(b"today, too\n")
    file.close()
    os.utime(tmp_path / "log", (clock.now_s, clock.now_s))
    clock.now_s += DAY_S
    file = opened(tmp_path / "log", rotation, clock)
    file.write(b"tomorrow\n")
    file.write(b"tomorrow, too\n")
    assert texts(tmp_path) == {"log": "tomorrow\ntomorrow, too\n", "log.1": "today\ntoday, too\n"}
    file.close()


def test_a_file_that_somebody_renames_or_removes_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log"
    file = opened(path, Rotation())
    file.write(b"one\n")
    path.rename(tmp_path / "renamed")
    file.write(b"two\n")
    assert ((tmp_path / "renamed").read_text(), path.read_text()) == ("one\n", "two\n")
    path.unlink()
    path.parent.rmdir()
    file.write(b"three\n")
    assert path.read_text() == "three\n"
    file.reopen()
    file.write(b"four\n")
    assert path.read_text() == "three\nfour\n"
    file.close()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path / "log", Rotation())
    file.write(b"one\n")
    write, room = os.write, 2

    def until_full(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room, taken = 0, room
        return write(fd, bytes(data)[:taken])

    with monkeypatch.context() as full:
        full.setattr(os, "write", until_full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"two\n")
    file.write(b"three\n")
    assert (tmp_path / "log").read_text() == "one\nthree\n"
    file.close()


def test_a_file_that_cannot_be_renamed_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(old: str, new: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    file = opened(tmp_path / "log", Rotation(max_bytes=5))
    monkeypatch.setattr(os, "replace", refuse)
    file.write(b"one\n")
    file.write(b"two\n")
    assert texts(tmp_path) == {"log": "one\ntwo\n"}
    file.close()
