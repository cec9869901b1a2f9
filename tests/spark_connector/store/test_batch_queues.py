"""Batch queues in a store directory, as RocketMQ's brokers write them: one row for each message."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, NOT_COMPACTED
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, SIZE_MAGIC
from skylark.mqcommon.message.message import decode_messages
from skylark.spark_connector.offsets import DataLost
from tests.broker.store.support import put, put_inner
from tests.sdk.arrow.test_decode import plain
from tests.spark_connector.stores import Rows, copied, few_examples, opened, options_of, read, reader, served
from tests.support.inner import inner_batch, rows_of

LOG_BYTES = 4096
FIRST_MS = 1_800_000_000_000
# How many messages each record has. 0: one message, without a batch around it.
COUNTS = [3, 1, 0, 20, 7, 7, 0, 0, 30, 2, 25, 25, 4, 1, 9]
TOTAL = sum(max(count, 1) for count in COUNTS)
PLACE = HEAD_V4.places("sys_flag")[-1]


def made(directory: Path, *, queued: int = len(COUNTS), clean: bool = True, mark: int = INNER_BATCH) -> list[bytes]:
    """A store with queue c/1, of which the first ``queued`` records have entries; the records.

    ``mark``: the sysFlag of single messages, by which Skylark's brokers tell that they are in a batch queue.
    """
    log, entries, stored, offset = bytearray(), bytearray(), [], 0
    for number, count in enumerate(COUNTS):
        rows = rows_of(max(count, 1), offset, tag="odd" if number % 2 else "even")
        for _ in range(2):
            raw = inner_batch(
                rows, offset, topic="c", queue_id=1, physical=len(log), stored_ms=FIRST_MS + 1000 * number,
                compression="zlib" if count == 25 else None,
            )  # fmt: skip
            left = LOG_BYTES - len(log) % LOG_BYTES
            if len(raw) + SIZE_MAGIC.size <= left:
                break
            log += SIZE_MAGIC.pack(left, BLANK_MAGIC) + bytes(left - SIZE_MAGIC.size)
        if count == 0:
            raw = raw[:PLACE] + bytes([mark]) + raw[PLACE + 1 :]
        if number < queued:
            entries += BATCH_ENTRY.pack(
                len(log), len(raw), 0, FIRST_MS + 1000 * number, offset, len(rows), NOT_COMPACTED, 0
            )
        log += raw
        stored.append(raw)
        offset += len(rows)
    log += bytes(-len(log) % LOG_BYTES)
    (directory / "commitlog").mkdir(parents=True)
    for base in range(0, len(log), LOG_BYTES):
        (directory / "commitlog" / f"{base:020d}").write_bytes(log[base : base + LOG_BYTES])
    # Files of four entries; the last one is allocated and not full.
    queue, file_bytes = directory / "batchconsumequeue" / "c" / "1", 4 * BATCH_ENTRY_BYTES
    queue.mkdir(parents=True)
    entries += bytes(file_bytes - len(entries) % file_bytes)
    for base in range(0, len(entries), file_bytes):
        (queue / f"{base:020d}").write_bytes(entries[base : base + file_bytes])
    if not clean:
        (directory / "abort").touch()
    return stored


def in_rows(stored: list[bytes]) -> Rows:
    """The rows as the SDK's messages have them; times as numbers are compared elsewhere."""
    messages = decode_messages(b"".join(stored), "broker-a")
    return [comparable(plain(message)) for message in messages]


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith("Timestamp")}


def found_in(directory: Path, **given: str) -> Rows:
    return [comparable(row) for row in read(directory, topic="c", checkCrc="true", **given)]


def offsets(rows: Rows) -> list[int]:
    return [row["queueOffset"] for row in rows]


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, Rows]:
    directory = tmp_path / "store"
    return directory, in_rows(made(directory))


def test_a_store_that_was_closed(store: tuple[Path, Rows]) -> None:
    directory, expected = store
    assert offsets(expected) == list(range(TOTAL))
    assert found_in(directory) == expected
    assert found_in(directory, subExpression="odd") == [row for row in expected if row["tags"] == "odd"]


@pytest.mark.parametrize("mark", [0, INNER_BATCH])
@pytest.mark.parametrize("queued", [0, 1, 4, 9, len(COUNTS)])
def test_what_no_queue_has_is_read_from_the_log(tmp_path: Path, queued: int, mark: int) -> None:
    expected = in_rows(made(tmp_path / "store", queued=queued, clean=False, mark=mark))
    assert found_in(tmp_path / "store") == expected
    assert found_in(tmp_path / "store", minPartitions="11", maxRecordsPerBatch="3") == expected
    shutil.rmtree(tmp_path / "store" / "batchconsumequeue")
    assert found_in(tmp_path / "store") == expected


@pytest.mark.parametrize(("partitions", "batch"), [("1", "7"), ("20", "10000"), ("200", "1")])
def test_every_split_holds_every_message_once(store: tuple[Path, Rows], partitions: str, batch: str) -> None:
    directory, expected = store
    assert found_in(directory, minPartitions=partitions, maxRecordsPerBatch=batch) == expected
    source = reader(directory, topic="c", maxRecordsPerBatch=batch)
    sizes = [each.num_rows for one in source.partitions() for each in source.read(one)]
    assert max(sizes) <= int(batch) and sum(sizes) == TOTAL


def ranges() -> Iterator[tuple[int, int]]:
    """Which begin and end at and next to the ends of batches, and within them."""
    places = sorted({0, 1, 2, 3, 4, 5, 6, 24, 25, 26, 40, 41, 45, TOTAL - 1, TOTAL})
    yield from ((low, high) for low in places for high in places if low < high and (low + high) % 3 == 0)


@pytest.mark.parametrize("queued", [5, len(COUNTS)])
def test_ranges_may_begin_and_end_within_a_batch(tmp_path: Path, queued: int) -> None:
    expected = in_rows(made(tmp_path / "store", queued=queued, clean=False))
    for low, high in ranges():
        given = {"startingOffsets": low, "endingOffsets": high}
        chosen = {name: f'{{"c":{{"broker-a":{{"1":{value}}}}}}}' for name, value in given.items()}
        assert found_in(tmp_path / "store", **chosen) == expected[low:high], (low, high)


@pytest.mark.parametrize("queued", [0, 4, len(COUNTS)])
def test_times_are_those_of_batches(tmp_path: Path, queued: int) -> None:
    made(tmp_path / "store", queued=queued, clean=False)
    given = {"startingTimestamp": f"{FIRST_MS + 2500}", "endingTimestamp": f"{FIRST_MS + 4999}"}
    assert offsets(found_in(tmp_path / "store", **given)) == list(range(3 + 1 + 1, 3 + 1 + 1 + 20 + 7))


def test_a_damaged_batch_is_lost_as_a_whole_and_nothing_else(store: tuple[Path, Rows]) -> None:
    directory, expected = store
    lost = range(5, 25)
    (row,) = [each for each in expected if each["queueOffset"] == lost.start]
    physical = int(row["offsetMsgId"][16:], 16)
    path = directory / "commitlog" / f"{physical // LOG_BYTES * LOG_BYTES:020d}"
    raw = bytearray(path.read_bytes())
    raw[physical % LOG_BYTES + HEAD_V4.size + 30] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(DataLost, match=r"c +broker-a +1 +5 +24 +20 +damaged at byte \d+ of the log: the body does not"):
        found_in(directory)
    assert found_in(directory, failOnDataLoss="false") == [
        each for each in expected if each["queueOffset"] not in lost
    ]  # fmt: skip
    with pytest.raises(DataLost, match=r"c +broker-a +1 +9 +11 +3 +damaged"):
        found_in(
            directory, startingOffsets='{"c":{"broker-a":{"1":9}}}', endingOffsets='{"c":{"broker-a":{"1":12}}}'
        )  # fmt: skip


def test_old_files_of_the_log_are_gone(store: tuple[Path, Rows]) -> None:
    directory, expected = store
    first, second = sorted((directory / "commitlog").iterdir())[:2]
    first.unlink()
    kept = [row for row in expected if int(row["offsetMsgId"][16:], 16) >= int(second.name)]
    assert found_in(directory) == kept and 0 < len(kept) < TOTAL


@few_examples
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_a_store_of_ours_is_read_as_its_broker_serves_it(seed: int, killed: bool, without_queues: bool) -> None:
    """Batches, single messages and a plain queue, with checkpoints in between."""
    random, sent = Random(seed), 0
    with tempfile.TemporaryDirectory() as made_at:
        home = Path(made_at)
        with opened(options_of(home / "store")) as store:
            store.queues.use_kinds(lambda topic: topic == "c")
            for number in range(random.randrange(1, 30)):
                count = random.choice([1, 1, 2, 5, 40])
                if count == 1:
                    put(store, random.choice("ac"), 0, b"%d" % number, b"TAGS\x01odd\x02")
                else:
                    put_inner(store, "c", random.randrange(2), rows_of(count, number * 100))
                sent += count
                if random.random() < 0.1:
                    store.checkpoint(with_ends=random.random() < 0.5)
            copy = copied(home / "store", home) if killed else home / "store"
        expected = served(copy, home)
        assert len(expected) == sent
        if without_queues:
            for folder in ("consumequeue", "batchconsumequeue"):
                shutil.rmtree(copy / folder, ignore_errors=True)
        assert read(copy) == expected
        assert read(copy, minPartitions="7", maxRecordsPerBatch="9") == expected
