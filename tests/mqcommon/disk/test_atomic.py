"""Small files replaced whole."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from skylark.mqcommon.disk import atomic
from skylark.mqcommon.disk.atomic import (
    exclusive,
    read_or_backup,
    read_with_crc,
    remove_all_leftovers,
    remove_leftovers,
    write_atomic,
    write_with_crc,
)
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import StoreCorrupt, StoreLocked
from tests.support.memory_files import MemoryFiles

FS = OsFiles()
PATH = "/conf/broker.conf"


def names(folder: Path) -> list[str]:
    return FS.listdir(str(folder))


def test_content_is_replaced_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    write_atomic(FS, path, b"one, long")
    write_atomic(FS, path, b"two")
    assert read_or_backup(FS, path) == b"two"
    assert names(tmp_path) == ["kv.json"]


def test_content_with_a_crc_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "ends")
    assert read_with_crc(FS, path) is None
    write_with_crc(FS, path, b"data")
    assert read_with_crc(FS, path) == b"data"
    for damaged in (b"", bytes(4), bytes(40), FS.read(path)[:-1], FS.read(path) + b"\0"):
        write_atomic(FS, path, damaged)
        assert read_with_crc(FS, path) is None


def test_backup_is_the_content_before(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    for data in (b"one", b"two", b"three"):
        write_atomic(FS, path, data, keep_backup=True)
    assert names(tmp_path) == ["kv.json", "kv.json.bak"]
    assert FS.read(path + ".bak") == b"two"


def test_at_every_call_to_the_disk_there_is_a_file_and_after_an_error_no_other() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/conf")
    write_atomic(fs, PATH, b"old", keep_backup=True)

    def look(operation: str, path: str) -> None:
        assert fs.exists(PATH), f"no file before {operation} {path}"

    fs.before_call = look
    for operation in ("create", "write", "sync", "rename"):
        for nth in (1, 2):  # of the new content, of the backup
            fs.faults.fail(operation, nth=nth)
            with pytest.raises(OSError):
                write_atomic(fs, PATH, b"new", keep_backup=True)
            assert fs.read(PATH) == b"old"
            assert set(fs.listdir("/conf")) <= {"broker.conf", "broker.conf.bak"}
    write_atomic(fs, PATH, b"new", keep_backup=True)
    assert (fs.read(PATH), fs.read(PATH + ".bak")) == (b"new", b"old")


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_leaves_the_old_content_or_the_new(seed: int) -> None:
    random = Random(seed)
    fs = MemoryFiles()
    fs.mkdirs("/conf")
    write_atomic(fs, PATH, b"old" * 400)
    images: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: images.append(fs.crash(random))
    write_atomic(fs, PATH, b"new" * 500, keep_backup=True)
    for image in images:
        assert image.read(PATH) in (b"old" * 400, b"new" * 500)
    assert fs.crash(random).read(PATH) == b"new" * 500


def test_writers_of_one_file_do_not_write_into_one_temporary_file(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")

    def slow_and_fast() -> Iterator[bytes]:
        yield b"slow, "
        write_atomic(FS, path, b"fast")
        yield b"and all of it"

    write_atomic(FS, path, slow_and_fast())
    assert FS.read(path) == b"slow, and all of it"
    assert names(tmp_path) == ["kv.json"]


def leave(folder: Path) -> None:
    """Leave files of dead writers of this version and of an older version, and other files."""
    for name in ("kv.json.tmp", "kv.json.0123456789abcdef.tmp", "kv.json", "kv.json.old", "notes.tmp"):
        (folder / name).write_bytes(b"torn")


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    leave(tmp_path)
    path = str(tmp_path / "kv.json")
    with exclusive(FS, path):
        leave(tmp_path)
        assert remove_leftovers(FS, path) == ""  # another process is at work
        assert "kv.json.tmp" in names(tmp_path)
    assert remove_leftovers(FS, path) == ""
    assert names(tmp_path) == ["kv.json", "kv.json.old", "notes.tmp"]
    leave(tmp_path)
    with exclusive(FS, path):
        assert names(tmp_path) == ["kv.json", "kv.json.lock", "kv.json.old", "notes.tmp"]
    leave(tmp_path)
    remove_all_leftovers(FS, str(tmp_path))
    assert names(tmp_path) == ["kv.json", "kv.json.old", "kv.json.tmp", "notes.tmp"]


def test_who_waits_too_long_for_another_process_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(atomic, "LOCK_TIMEOUT_S", 0.01)
    path = str(tmp_path / "broker.conf")
    with exclusive(FS, path), pytest.raises(StoreLocked, match=r"broker\.conf is not changed"), exclusive(FS, path):
        raise AssertionError("two at once")
    with exclusive(FS, path):
        pass


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert read_or_backup(FS, str(tmp_path / "kv.json")) is None


@pytest.mark.parametrize("content", [None, b"", b"{torn"])
def test_backup_stands_in(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kv.json"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "kv.json.bak").write_bytes(b"{}")
    assert read_or_backup(FS, str(path), json.loads) == b"{}"


def test_damage_without_a_backup_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(b"{torn")
    with pytest.raises(StoreCorrupt, match=r"kv\.json is damaged"):
        read_or_backup(FS, str(path), json.loads)
    (tmp_path / "kv.json.bak").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"kv\.json is damaged"):
        read_or_backup(FS, str(path), json.loads)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The modes that are asked for are those that files get."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("keep_backup", [True, False])
@pytest.mark.parametrize("bits", [0o600, 0o640, 0o644])
def test_a_file_that_is_replaced_keeps_its_mode(bits: int, keep_backup: bool, tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a=1")
    path.chmod(bits)
    for _ in range(3):
        write_atomic(FS, str(path), b"a=2", keep_backup=keep_backup)
        assert mode(path) == bits
    if keep_backup:
        path.unlink()  # a crash between the two renames
        write_atomic(FS, str(path), b"a=3", keep_backup=True)
        assert mode(path) == mode(tmp_path / "broker.conf.bak") == bits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a=1")
    os.chown(path, 12345, 54321)
    write_atomic(FS, str(path), b"a=2", keep_backup=True)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_new_files_and_directories_are_for_their_owner_only(tmp_path: Path, open_umask: None) -> None:
    store = tmp_path / "a" / "store"
    FS.mkdirs(str(store))
    write_atomic(FS, str(store / "atomic"), b"x")
    files = [FS.open_append(str(store / "journal")), FS.open_map(str(store / "log"), 100, create=True)]
    lock = FS.lock(str(store / "lock"))
    assert {name: mode(store / name) for name in FS.listdir(str(store))} == dict.fromkeys(
        ["atomic", "journal", "lock", "log"], 0o600
    )
    assert mode(store) == mode(store.parent) == 0o700
    for file in (*files, lock):
        file.close()


def test_leftovers_that_cannot_be_removed_are_told(tmp_path: Path) -> None:
    leave(tmp_path)
    path = tmp_path / "kv.json"
    (tmp_path / "kv.json.lock").mkdir()
    assert remove_leftovers(FS, str(path)).startswith(f"temporary files of {path} stay: ")
    assert "kv.json.tmp" in names(tmp_path)
