"""Runs of records give what reading them one by one gives."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.log.log_files import LogFiles
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from skylark.mqcommon.message.light import offsets_property
from skylark.spark_connector.store import scan as store_scan
from skylark.spark_connector.store.files import ReadOnlyFiles
from skylark.spark_connector.store.scan import Scanned, scan
from tests.broker.store.support import BORN_HOST, put
from tests.spark_connector.stores import copied, few_examples, opened, options_of

LIGHT = b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02" + offsets_property([7])
PROPERTIES = st.sampled_from([b"", b"TAGS\x01a\x02", b"a\x01\x00b\x02", LIGHT])
MESSAGE = st.tuples(
    st.sampled_from(["a", "b", "é" * 80]),
    st.integers(0, 1),
    st.binary(max_size=9),
    st.one_of(st.just(b"TAGS\x01a\x02"), PROPERTIES),
    st.sampled_from([0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_COMMIT]),
)


def scanned(directory: Path, keep_from: int) -> Scanned:
    log = LogFiles(ReadOnlyFiles(), str(directory / "commitlog"))
    try:
        return scan(log, 0, keep_from, {("b", 0)}, lambda file, at, record: "")
    finally:
        log.close()


@few_examples
@given(st.lists(MESSAGE, max_size=60), st.integers(0, 4000))
def test_runs_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, int, bytes, bytes, int]], keep_from: int
) -> None:
    home = tmp_path_factory.mktemp("runs")
    with opened(options_of(home / "store")) as store:
        for topic, queue_id, body, properties, sys_flag in messages:
            store.put(
                topic, queue_id, body, properties, sys_flag=sys_flag, born_timestamp=1, born_host=BORN_HOST
            )  # fmt: skip
        copy = copied(home / "store", home)
    fast = scanned(copy, keep_from)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_scan, "run_at", lambda data, at: None)
        assert scanned(copy, keep_from) == fast
    shutil.rmtree(home)


def test_what_a_broker_writes_during_the_scan_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is looked at before it is written, and the one behind it afterwards."""
    with opened(options_of(tmp_path / "store")) as store:
        starts: list[int] = []
        for number in range(6):
            starts.append(store.log.end)
            put(store, "a", 0, b"body %d" % number)
        copy = copied(tmp_path / "store", tmp_path)
    (path,) = (copy / "commitlog").iterdir()
    whole, expected = path.read_bytes(), scanned(copy, 0)
    missing = slice(starts[2], starts[3])
    path.write_bytes(whole[: missing.start] + bytes(missing.stop - missing.start) + whole[missing.stop :])
    assert scanned(copy, 0).holes

    def written(*given: Any) -> int | None:
        with path.open("r+b") as file:
            file.write(whole)
        return next_sound(*given)

    next_sound = store_scan._next_sound
    monkeypatch.setattr(store_scan, "_next_sound", written)
    found = scanned(copy, 0)
    assert not found.holes and found == expected
