"""The command ``broker verifyStore``: what it prints and how it ends."""

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from skylark.broker.cli import main
from skylark.mqcommon.disk.files import OsFiles
from tests.broker.store.support import SMALL, open_store, put

CONF = f"maxHashSlotNum={SMALL.index_slots}\nmaxIndexNum={SMALL.index_capacity}\n"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["verifyStore", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def make(directory: Path) -> Path:
    """A store of two commit log files, stopped; returns the first of them."""
    store = open_store(OsFiles(), options=replace(SMALL, directory=str(directory)))
    for n in range(60):
        put(store, "t", 0, b"%02d" % n * 10, b"KEYS\x01k%d\x02" % n)
    store.build_index(100)
    store.close()
    return directory / "commitlog" / f"{0:020d}"


def test_a_store_is_looked_at_repaired_and_looked_at_again(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    path = make(tmp_path / "store")
    arguments = (str(tmp_path / "store"), "-c", str(conf))
    code, out = run(*arguments)
    assert code == 0 and "60 records" in out and "no damage" in out
    spoilt = bytearray(path.read_bytes())
    spoilt[335] ^= 1
    path.write_bytes(spoilt)
    code, out = run(*arguments)
    assert code == 1 and f"commit log: {path}: offset " in out and "1 damaged place\n" in out
    code, out = run(*arguments, "--repair")
    assert code == 0 and ".damaged-" in out and out.rstrip().endswith("no damage")
    assert run(*arguments)[0] == 0
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    code, out = run(str(tmp_path / "nowhere"))
    assert code == 1 and out.count("\n") == 1 and "holds no store" in out
    make(tmp_path / "store")
    code, out = run(str(tmp_path / "store"), "-c", str(tmp_path / "no.conf"))
    assert code == 1 and out.count("\n") == 1 and "no.conf" in out
    lock = OsFiles().lock(str(tmp_path / "store" / "lock"))
    code, out = run(str(tmp_path / "store"))
    lock.close()
    assert code == 1 and "stop it first" in out
