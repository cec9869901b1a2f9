from pathlib import Path

import orjson
import pytest
import trio

from skylark.mqcommon.disk.descriptors import Descriptors
from skylark.mqcommon.disk.files import OsAppendFile, OsFiles
from skylark.mqcommon.errors import DiskFull, UserError
from skylark.namesrv.kvconfig import PIECE_BYTES, KvConfig


class Died(Exception):
    """The process was killed here."""


class DyingFiles(OsFiles):
    """A disk whose owner is killed at its ``steps``-th change; a write that is cut off leaves half its bytes."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def _step(self) -> None:
        if self._steps == 0:
            raise Died
        self._steps -= 1

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def fsync_dir(self, path: str) -> None:
        self._step()
        super().fsync_dir(path)

    def open_append(self, path: str) -> OsAppendFile:
        self._step()
        return DyingAppendFile(path, self)


class DyingAppendFile(OsAppendFile):
    def __init__(self, path: str, owner: DyingFiles) -> None:
        super().__init__(path, Descriptors())
        self._owner = owner

    def write(self, data: bytes) -> None:
        try:
            self._owner._step()
        except Died:
            super().write(data[: len(data) // 2])
            raise
        super().write(data)

    def sync(self) -> None:
        self._owner._step()
        super().sync()


class FullFiles(OsFiles):
    def open_append(self, path: str) -> OsAppendFile:
        raise DiskFull(f"{path}: no room")


def kv_config(path: Path) -> KvConfig:
    return KvConfig.load(OsFiles(), str(path))


async def test_values_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "made" / "kvConfig.json"
    kv = kv_config(path)
    await kv.put("ns", "k", "v")
    await kv.put("ns", "k2", "ö=1;b:4")
    await kv.put("other", "k", "x")
    await kv.delete("other", "k")
    again = kv_config(path)
    assert (again.get("ns", "k"), again.get("ns", "k2"), again.get("other", "k")) == ("v", "ö=1;b:4", None)
    assert again.namespace("ns") == {"k": "v", "k2": "ö=1;b:4"}
    assert again.namespace("absent") is None


async def test_an_equal_value_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = kv_config(path)
    await kv.delete("ns", "k")
    assert not path.exists()
    await kv.put("ns", "k", "v")
    path.unlink()
    await kv.put("ns", "k", "v")
    assert not path.exists()


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = kv_config(path)
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(kv.put, "ns", f"k{n}", str(n))
    assert kv_config(path).namespace("ns") == {f"k{n}": str(n) for n in range(20)}


async def test_killed_at_any_step_the_file_has_the_old_values_or_the_new(tmp_path: Path) -> None:
    outcomes = []
    for steps in range(20):
        path = tmp_path / str(steps) / "kvConfig.json"
        await kv_config(path).put("ns", "k", "old")
        await kv_config(path).put("ns", "gone", "x")
        try:
            await KvConfig.load(DyingFiles(steps), str(path)).put("ns", "k", "new")
            died = False
        except Died:
            died = True
        found = kv_config(path)
        assert found.get("ns", "gone") == "x"
        outcomes.append((died, found.get("ns", "k")))
        await kv_config(path).put("ns", "k", "next")  # what the kill left behind is in nobody's way
        assert kv_config(path).get("ns", "k") == "next"
    assert (True, "old") in outcomes
    assert (True, "new") in outcomes
    assert outcomes[-1] == (False, "new")
    assert (False, "old") not in outcomes


async def test_a_change_that_cannot_be_written_did_not_happen(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    await kv_config(path).put("ns", "k", "old")
    kv = KvConfig.load(FullFiles(), str(path))
    with pytest.raises(DiskFull):
        await kv.put("ns", "k", "new")
    assert kv.get("ns", "k") == "old"
    assert kv_config(path).get("ns", "k") == "old"


@pytest.mark.parametrize(
    "content", ["{", '"text"', "{}", '{"configTable":[]}', '{"configTable":{"ns":{"k":1}}}', "\x00"]
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        kv_config(path)
    assert str(path) in str(caught.value)
    assert "repair the file, or remove it" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_damaged_file_gives_way_to_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = kv_config(path)
    await kv.put("ns", "k", "1")
    await kv.put("ns", "k", "2")
    path.write_text("{")
    assert kv_config(path).get("ns", "k") == "1"


def test_an_unreadable_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        kv_config(path)


async def test_many_values_are_written_in_pieces_and_read_again(tmp_path: Path) -> None:
    config = kv_config(tmp_path / "kv.json")
    tables = {"large": {f"k{n}": "é" * 500 for n in range(2 * PIECE_BYTES // 1000)}, "empty": {}, "one": {"k": '"'}}
    for namespace, values in tables.items():
        await config._replace(namespace, values)
    data = (tmp_path / "kv.json").read_bytes()
    assert data == orjson.dumps({"configTable": tables})
    again = kv_config(tmp_path / "kv.json")
    assert {name: again.namespace(name) for name in tables} == tables
