"""Small files replaced whole."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqcommon.disk.atomic import read_or_backup, read_with_crc, write_atomic, write_with_crc
from mqcommon.disk.files import OsFiles
from mqcommon.errors import StoreCorrupt

FS = OsFiles()


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
    for damaged in (b"", FS.read(path)[:-1], FS.read(path) + b"\0"):
        write_atomic(FS, path, damaged)
        assert read_with_crc(FS, path) is None


def test_backup_is_the_content_before(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    for data in (b"one", b"two", b"three"):
        write_atomic(FS, path, data, keep_backup=True)
    assert names(tmp_path) == ["kv.json", "kv.json.bak"]
    assert FS.read(path + ".bak") == b"two"


def test_leftover_of_a_crash_is_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    (tmp_path / "kv.json.tmp").write_bytes(b"torn and longer than what comes")
    write_atomic(FS, path, b"new")
    assert read_or_backup(FS, path) == b"new"


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
