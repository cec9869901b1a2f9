"""The command ``broker resyncSlave``: what it moves, and what it says."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli import main
from broker.commands.resync_slave import PARTS, resync
from mqcommon.disk.files import OsFiles
from tests.broker.store.support import SMALL, bodies, open_store, put
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
