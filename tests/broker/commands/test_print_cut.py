"""The command ``broker printCut``: what it prints of the messages that were cut."""

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from broker.cli import main
from broker.store.truncation.saved import DIRECTORY
from mqcommon.disk.files import OsFiles
from mqcommon.message.compression import COMPRESSIONS, compressed
from tests.broker.store.support import SMALL, bodies, open_store, put
from tests.broker.store.truncation.support import cut_at

ZLIB = COMPRESSIONS["zlib"]


def run(path: Path) -> tuple[int, str]:
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
    code, out = run(saved(tmp_path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 43
    assert rows[7]["body"].startswith("lost 7.") and rows[7]["properties"] == {"KEYS": "k7"}
    assert (rows[7]["topic"], rows[7]["queueId"], rows[7]["queueOffset"]) == ("t", 1, 3)
    assert rows[40]["bodyHex"] == "fffe" and rows[40]["queueOffset"] == 21
    assert rows[41]["body"] == "plain" * 9
    assert rows[42]["bodyHex"] == b"no zlib".hex() and "the compressed body is damaged" in rows[42]["bodyError"]


def test_other_files_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    code, out = run(tmp_path / "checkpoint")
    assert code == 1 and "they are in STORE_DIR/cut" in out
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    code, out = run(path)
    assert code == 1 and "no sound message at byte 0" in out
