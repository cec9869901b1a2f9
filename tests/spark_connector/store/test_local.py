"""A task that finds the broker's files reads them, and gets what pulls give; what does not fit is pulled."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import RocketMQBatchReader
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.store import local
from skylark.spark_connector.tasks import ReadTask
from tests.broker.store.support import put, put_inner
from tests.spark_connector.cluster import Pulled
from tests.spark_connector.stores import BROKER, SCHEMA, Rows, copied, opened, options_of

COUNT = 120
QUEUE = MessageQueue("a", BROKER, 0)


class Broker:
    """Answers pulls from a store, and counts the messages that it gave."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.given = 0
        self.error: BrokerError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def pull_bytes(self, mq: MessageQueue, offset: int, *, max_count: int, max_bytes: int, **_: Any) -> Pulled:
        if self.error is not None:
            raise self.error
        found = self._store.get(mq.topic, mq.queue_id, offset, min(max_count, 16), max_bytes)
        self.given += found.next_offset - offset
        return Pulled(bytes(found.records), found.next_offset, found.min_offset, found.max_offset)


@contextmanager
def broker_on(directory: Path) -> Iterator[Broker]:
    with opened(options_of(directory)) as store:
        yield Broker(store)


@pytest.fixture(autouse=True)
def _every_range_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LEAST", 2)
    local._not_logged.cache_clear()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of several files of the log, whose entries are in the files of its queue."""
    return filled(tmp_path / BROKER)


def filled(directory: Path, word: bytes = b"x") -> Path:
    with opened(options_of(directory)) as store:
        for number in range(COUNT):
            put(store, "a", 0, b"%s%d" % (word, number), b"TAGS\x01%s\x02" % (b"odd", b"even")[number % 2])
    return directory


def read(broker: Broker, path: Path | str, start: int = 0, end: int = COUNT, **given: str) -> Rows:
    options = ReadOptions.parse({"topic": "a", "localStorePath": str(path), "maxRecordsPerBatch": "10", **given})
    reader = RocketMQBatchReader(options, SCHEMA, lambda _: broker, local=local.local_rows)  # type: ignore[arg-type, return-value]  # of a consumer only what is used
    partition = InputPartition(ReadTask((OffsetRange(QUEUE, start, end),)))
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


def test_the_files_give_what_pulls_give(directory: Path) -> None:
    with broker_on(directory) as broker:
        pulled = read(broker, "")
        assert len(pulled) == COUNT and broker.given == COUNT
        for path, start, end in ((directory, 0, COUNT), (directory.parent / "{broker}", 7, 95)):
            broker.given = 0
            assert read(broker, path, start, end) == pulled[start:end]
            assert broker.given == 2, "the first message and the last"
        assert read(broker, directory, subExpression="odd") == pulled[::2]


def test_what_is_not_in_the_files_yet_is_pulled(directory: Path) -> None:
    with opened(options_of(directory)) as store:
        for number in range(COUNT, COUNT + 40):
            put(store, "a", 0, b"x%d" % number)
        broker = Broker(store)
        pulled, broker.given = read(broker, "", 0, COUNT + 40), 0
        assert read(broker, directory, 0, COUNT + 40) == pulled
        assert 40 <= broker.given < COUNT


def test_a_file_that_is_removed_meanwhile_is_pulled(directory: Path, tmp_path: Path) -> None:
    copy = copied(directory, tmp_path)
    logs = sorted((copy / "commitlog").iterdir())
    logs[len(logs) // 2].unlink()
    with broker_on(directory) as broker:
        pulled, broker.given = read(broker, ""), 0
        assert read(broker, copy) == pulled
        assert 2 < broker.given < COUNT


def test_a_blank_entry_is_pulled_and_told_once(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = copied(directory, tmp_path)
    (first, *_) = sorted((copy / "consumequeue" / "a" / "0").iterdir())
    with first.open("r+b") as file:
        file.seek(5 * ENTRY_BYTES)
        file.write(ENTRY.pack(0, BLANK_SIZE, 0))
    with broker_on(directory) as broker:
        pulled = read(broker, "")
        assert read(broker, copy) == pulled and read(broker, copy, 1) == pulled[1:]
    assert len([record for record in caplog.records if "a blank entry" in record.message]) == 1


def test_a_directory_that_is_not_the_brokers_is_not_read(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = filled(tmp_path / "other" / BROKER, b"y")
    old = copied(directory, tmp_path)
    with opened(options_of(directory)) as store:
        for number in range(COUNT, 3 * COUNT):
            put(store, "a", 0, b"x%d" % number)
    without = copied(directory, tmp_path)
    shutil.rmtree(without / "consumequeue" / "a")
    with broker_on(directory) as broker:
        pulled = read(broker, "", 0, 3 * COUNT)
        for path, reason in (
            (other, "the log there does not belong to broker broker-a"),
            (old, "the log there does not belong to broker broker-a, or ends earlier"),
            (without, "it has no files of queue 0 of topic a"),
            (tmp_path / "nowhere", "there is no such directory on this machine"),
        ):
            broker.given = 0
            assert read(broker, path, 0, 3 * COUNT) == pulled
            assert broker.given >= 3 * COUNT
            told = [record.message for record in caplog.records if str(path) in record.message]
            assert len(told) == 1 and reason in told[0]


def test_nothing_is_read_that_the_broker_does_not_give(directory: Path) -> None:
    with broker_on(directory) as broker:
        broker.error = BrokerError(16, "no permission", "h:1")
        with pytest.raises(Exception, match="no permission"):
            read(broker, directory, numRetries="0")


def test_batches_in_batch_queues_are_pulled(tmp_path: Path) -> None:
    directory = tmp_path / "batches"
    with opened(options_of(directory)) as store:
        store.queues.use_kinds(lambda topic: True)
        put_inner(store, "a", 0, [(0, b"%d" % number, b"") for number in range(30)])
    with opened(options_of(directory)) as store:
        store.queues.use_kinds(lambda topic: True)
        assert [row["body"] for row in read(Broker(store), directory, 0, 30)] == [b"%d" % each for each in range(30)]


def test_the_source_reads_local_files_when_it_is_told_to() -> None:
    for path, reads in (("", None), ("/store", local.local_rows)):
        reader = RocketMQDataSource({"topic": "a", "localStorePath": path}).reader(SCHEMA)
        assert isinstance(reader, RocketMQBatchReader) and reader._local is reads


def test_a_value_is_decoded_of_the_files(tmp_path: Path) -> None:
    directory = tmp_path / BROKER
    with opened(options_of(directory)) as store:
        for number in range(COUNT):
            put(store, "a", 0, b'{"id":%d}' % number)
    schema = StructType().add("value", StructType().add("id", LongType()))
    options = ReadOptions.parse({"topic": "a", "localStorePath": str(directory), "valueFormat": "json"})
    with broker_on(directory) as broker:
        reader = RocketMQBatchReader(options, schema, lambda _: broker, local=local.local_rows)  # type: ignore[arg-type, return-value]  # of a consumer only what is used
        batches = list(reader.read(InputPartition(ReadTask((OffsetRange(QUEUE, 0, COUNT),)))))
        assert broker.given == 2, "the first message and the last"
    assert [row["value"]["id"] for batch in batches for row in batch.to_pylist()] == list(range(COUNT))
