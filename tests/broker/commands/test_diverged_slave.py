"""``broker resyncSlave``: what it moves, and what it says; ``broker printCut``: the messages that were cut."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark.broker.cli import main
from skylark.broker.commands.diverged_slave import resync
from skylark.broker.store.aside import PARTS
from skylark.broker.store.truncation.saved import DIRECTORY
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed
from tests.broker.store.support import SMALL, bodies, open_store, put
from tests.broker.store.truncation.support import cut_at
from tests.support.clock import ManualClock


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["resyncSlave", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def make(directory: Path) -> None:
    store = open_store(OsFiles(), options=replace(SMALL, directory=str(directory)))
    for n in range(60):
        put(store, "t", 0, b"%02d" % n * 10, b"KEYS\x01k%d\x02" % n)
    store.build_index(100)
    store.close()
    (directory / "config").mkdir()
    (directory / "config" / "metadata.journal.0").write_bytes(b"kept")


def test_messages_go_aside_and_the_store_is_empty(tmp_path: Path) -> None:
    make(tmp_path)
    code, out = run(str(tmp_path))
    (aside,) = tmp_path.glob("diverged-*")
    assert code == 0 and f"messages moved to {aside}" in out and "copies all messages of the master" in out
    assert {path.name for path in tmp_path.iterdir()} == {"config", "lock", aside.name}
    assert (tmp_path / "config" / "metadata.journal.0").read_bytes() == b"kept"
    empty = open_store(OsFiles(), options=replace(SMALL, directory=str(tmp_path)))
    assert empty.log.end == 0 and empty.max_offset("t", 0) == 0
    empty.close()
    old = open_store(OsFiles(), options=replace(SMALL, directory=str(aside)))
    assert len(bodies(old, "t", 0)) == 60
    old.close()


@pytest.mark.parametrize("last", range(len(PARTS)))
def test_broken_off_anywhere_it_leaves_a_store_that_starts(tmp_path: Path, last: int) -> None:
    make(tmp_path)

    class Broken(OsFiles):
        left = last

        def rename(self, old: str, new: str) -> None:
            if not self.left:
                raise OSError(5, "broken off")
            self.left -= 1
            super().rename(old, new)

    try:
        resync(Broken(), ManualClock(), str(tmp_path))
    except OSError:
        store = open_store(OsFiles(), options=replace(SMALL, directory=str(tmp_path)))
        assert len(bodies(store, "t", 0)) == 60
        store.close()
        resync(OsFiles(), ManualClock(1_800_000_000_000), str(tmp_path))
    store = open_store(OsFiles(), options=replace(SMALL, directory=str(tmp_path)))
    assert store.log.end == 0
    store.close()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    code, out = run(str(tmp_path / "nowhere"))
    assert code == 1 and out.count("\n") == 1 and "holds no commit log" in out
    make(tmp_path)
    lock = OsFiles().lock(str(tmp_path / "lock"))
    code, out = run(str(tmp_path))
    lock.close()
    assert code == 1 and out.count("\n") == 1 and "stop it first" in out


ZLIB = COMPRESSIONS["zlib"]


def print_cut(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["printCut", str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def saved(directory: Path) -> Path:
    fs = OsFiles()
    store = open_store(fs, options=replace(SMALL, directory=str(directory)))
    put(store, "t", 0, b"kept")
    start = store.log.end
    for number in range(40):
        put(store, "t", number % 2, b"lost %d" % number + b"." * 100, b"KEYS\x01k%d\x02" % number)
    put(store, "t", 0, b"\xff\xfe")
    put(store, "t", 0, compressed(b"plain" * 9, ZLIB), sys_flag=ZLIB)
    put(store, "t", 0, b"no zlib", sys_flag=ZLIB)
    cut_at(fs, store, start)
    assert bodies(store, "t", 0) == [b"kept"]
    store.close()
    (found,) = (directory / DIRECTORY).iterdir()
    return found


def test_all_messages_of_all_files_of_the_log_are_printed(tmp_path: Path) -> None:
    code, out = print_cut(saved(tmp_path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 43
    assert rows[7]["body"].startswith("lost 7.") and rows[7]["properties"] == {"KEYS": "k7"}
    assert (rows[7]["topic"], rows[7]["queueId"], rows[7]["queueOffset"]) == ("t", 1, 3)
    assert rows[40]["bodyHex"] == "fffe" and rows[40]["queueOffset"] == 21
    assert rows[41]["body"] == "plain" * 9
    assert rows[42]["bodyHex"] == b"no zlib".hex() and "the compressed body is damaged" in rows[42]["bodyError"]


def test_other_files_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    code, out = print_cut(tmp_path / "checkpoint")
    assert code == 1 and "they are in STORE_DIR/cut" in out
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    code, out = print_cut(path)
    assert code == 1 and "no sound message at byte 0" in out
