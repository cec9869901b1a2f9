"""Small files replaced whole."""

import json
from pathlib import Path

import pytest

from mqcommon.atomic import read_or_backup, write_atomic
from mqcommon.errors import StoreCorrupt
from mqcommon.files import OsFiles

FS = OsFiles()


def names(folder: Path) -> list[str]:
    return FS.listdir(str(folder))


def test_content_is_replaced_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "kv.json")
    write_atomic(FS, path, b"one, long")
    write_atomic(FS, path, b"two")
    assert read_or_backup(FS, path) == b"two"
    assert names(tmp_path) == ["kv.json"]


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
