"""A store directory read without a broker gives what a broker that starts on it serves; also when its end is torn."""

import os
import pickle
import shutil
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StructType

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.mqcommon.message.compression import COMPRESSIONS, MissingPackage, compressed
from skylark.mqcommon.message.record import Record
from skylark.sdk.arrow import decode
from skylark.spark_connector.offsets import DataLost
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.read_columns import BadBody
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.store.files import ReadOnlyFiles
from skylark.spark_connector.store.reader import PushDownStoreReader, StoreReader
from tests.broker.store.support import put, put_batch, read_all
from tests.spark_connector.stores import (
    LOG_BYTES,
    SCHEMA,
    copied,
    few_examples,
    opened,
    options_of,
    read,
    reader,
    served,
)
from tests.support.golden_store import VERSIONS, rows, unpack

QUEUES = [("a", 0), ("a", 1), ("b", 0)]


def fill(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        topic, queue_id = QUEUES[number % 3]
        properties = b"TAGS\x01%s\x02KEYS\x01k%d\x02" % ((b"odd", b"even")[number % 2], number)
        put(store, topic, queue_id, b"%d" % number * (number % 40), properties)


def records(store: MessageStore) -> list[Record]:
    return [record for topic, queue_id in QUEUES for record in read_all(store, topic, queue_id)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store that was closed gracefully, of several files."""
    with opened(options_of(tmp_path / "store")) as store:
        fill(store, 100)
    return tmp_path / "store"


@pytest.fixture
def killed(directory: Path, tmp_path: Path) -> Path:
    """A store whose broker stored more messages, and was killed before it wrote any entry of a queue."""
    with opened(options_of(directory)) as store:
        fill(store, 61, 100)
        return copied(directory, tmp_path)


# --- what is read


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_store(version: str, tmp_path: Path) -> None:
    directory = unpack(version, tmp_path)
    found = read(directory)
    assert found == [row for row in served(directory, tmp_path, 262_144, 6_000) if row["topic"] in topics(found)]
    by_place = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in found}
    for told in rows(version, "ROW"):
        row = by_place[told["topic"], told["queueId"], told["queueOffset"]]
        assert (row["body"].decode(), row["offsetMsgId"], row["msgId"]) == (
            told["body"], told["offsetMsgId"], told["msgId"],
        )  # fmt: skip
    for told in rows(version, "BIG"):
        assert by_place["GoldenA", told["queueId"], told["queueOffset"]]["body"] == bytes(20_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_store_that_crashed_without_its_queues(version: str, tmp_path: Path) -> None:
    directory = unpack(version, tmp_path)
    expected = read(directory)
    (directory / "abort").touch()
    shutil.rmtree(directory / "consumequeue")
    assert read(directory) == expected


def topics(found: list[dict[str, str]]) -> set[str]:
    return {row["topic"] for row in found}


def test_compressed_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies of all compressions, in small batches, and a damaged body among them."""
    bodies = [b"%d" % number * 300 for number in range(9)]
    with opened(options_of(tmp_path / "store")) as store:
        for number, (body, name) in enumerate(zip(bodies, ["zlib", "lz4", "zstd"] * 3, strict=True)):
            packed = compressed(body, COMPRESSIONS[name])
            put(store, "a", 0, b"junk" if number == 4 else packed, sys_flag=COMPRESSIONS[name])
    monkeypatch.setattr(decode, "CONTENT_BYTES", 500)
    with pytest.raises(DataLost, match="the compressed body is cut short"):
        read(tmp_path / "store")
    found = read(tmp_path / "store", failOnDataLoss="false")
    assert [row["body"] for row in found] == [body for number, body in enumerate(bodies) if number != 4]
    # What cannot be read here only is not lost.
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingPackage, match="the compressed body needs Skylark's extra compression"):
        read(tmp_path / "store", failOnDataLoss="false")


def test_a_store_that_was_closed(directory: Path, tmp_path: Path) -> None:
    found = read(directory)
    assert len(found) == 100 and found == served(directory, tmp_path)


@pytest.mark.parametrize("tasks", [1, 2, 9])
def test_a_task_reads_several_queues(killed: Path, tasks: int) -> None:
    source = reader(killed, bytesPerTask="0", maxTasks=str(tasks))
    partitions = source.partitions()
    queues = {part.wanted.queue for partition in partitions for part in partition.value}
    assert len(partitions) == min(tasks, len(queues))
    assert read(killed, bytesPerTask="0", maxTasks=str(tasks)) == read(killed)
    # The sizes of messages are looked up in the files: many bytes are many tasks.
    assert len(reader(killed, bytesPerTask="1", maxTasks="2").partitions()) == 2
    assert len(reader(killed).partitions()) == 1


def test_small_parts_of_queues_are_decoded_together(killed: Path) -> None:
    """Parts are decoded in the order of the log, and one by one when a message is damaged, which is then named."""
    source = reader(killed, maxTasks="1")
    (task,) = source.partitions()
    found = [batch.to_pylist() for batch in source.read(task)]
    assert len(task.value) == 3
    places = [int(row["offsetMsgId"][-16:], 16) for rows in found for row in rows]
    assert places == sorted(places)
    assert len(found) == len({place // LOG_BYTES for place in places})
    at = [row["queueOffset"] for rows in found for row in rows if (row["topic"], row["queueId"]) == ("a", 1)]
    assert at == list(range(len(at)))
    tagged = reader(killed, maxTasks="1", subExpression="odd").read(task)
    assert {row["tags"] for batch in tagged for row in batch.to_pylist()} == {"odd"}
    damaged = found[1][1]
    file = killed / "commitlog" / f"{LOG_BYTES:020d}"
    data = bytearray(file.read_bytes())
    data[data.index(damaged["body"])] ^= 1
    file.write_bytes(bytes(data))
    left = read(killed, maxTasks="1", failOnDataLoss="false", checkCrc="true")
    assert len(left) == len(places) - 1 and damaged not in left


@pytest.mark.parametrize("data", [b"", b"x" * 5_000, bytes(100_000), b"x" + bytes(100_000)])
def test_zeros_at_the_end_of_a_file_need_not_be_read(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "queue"
    file.write_bytes(data)
    os.truncate(file, len(data) + 1_000_000)
    end = ReadOnlyFiles().data_end(str(file))
    assert len(data.rstrip(b"\0")) <= end <= len(data) + 1_000_000
    if not file.stat().st_blocks * 512 >= len(data) + 1_000_000:  # the file system has holes
        assert end < len(data) + 100_000


def test_messages_that_no_queue_has_are_read_from_the_log(killed: Path, tmp_path: Path) -> None:
    found = read(killed)
    assert len(found) == 161 and found == served(killed, tmp_path)


def test_a_queue_that_lost_a_file_is_read_from_the_log(directory: Path, tmp_path: Path) -> None:
    expected = served(directory, tmp_path)
    os.remove(sorted((directory / "consumequeue" / "a" / "0").iterdir())[0])
    os.remove(sorted((directory / "consumequeue" / "b" / "0").iterdir())[-1])
    assert read(directory) == expected


def test_a_topic_that_was_made_again(directory: Path, tmp_path: Path) -> None:
    with opened(options_of(directory)) as store:
        store.delete_topic("a")
        fill(store, 20)
        copy = copied(directory, tmp_path)
    found = read(copy)
    assert found == served(copy, tmp_path)
    assert len(found) == 33 + 20


@pytest.mark.parametrize("count", [0, 20, 100, 400])
def test_a_topic_that_is_made_again_after_the_plan_is_not_read(directory: Path, count: int) -> None:
    source, others = reader(directory, topic="a", minPartitions="5"), reader(directory, topic="b")
    partitions, expected = source.partitions(), read(directory, topic="b")
    with opened(options_of(directory)) as store:
        store.delete_topic("a")
        fill(store, count)
    for partition in partitions:
        with pytest.raises(DataLost, match="the topic was deleted and made again since this range was planned"):
            list(source.read(partition))
        assert list(reader(directory, topic="a", failOnDataLoss="false").read(partition)) == []
    (other, *_) = others.partitions()
    assert [row for batch in others.read(other) for row in batch.to_pylist()][: len(expected)] == expected


def test_no_file_stays_open(directory: Path) -> None:
    """Spark's workers read one part after the other, for as long as a query runs."""
    with opened(options_of(directory)) as store:
        put_batch(store, "c", 0, [b"1", b"2", b"3"])
    before = open_files(directory)
    assert read(directory)
    assert before == open_files(directory) == []


def open_files(directory: Path) -> list[str]:
    """The files below ``directory`` that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor by which the folder is listed
            found.append(os.readlink(descriptor))
    return [each for each in found if each.startswith(f"{directory}/")]


def test_batches(directory: Path, tmp_path: Path) -> None:
    with opened(options_of(directory)) as store:
        put_batch(store, "c", 0, [b"1", b"2", b"3"])
    assert [row["body"] for row in read(directory, topic="c")] == [b"1", b"2", b"3"]


def test_old_files_of_the_log_are_gone(directory: Path) -> None:
    """Queues then begin later, as retention leaves them."""
    whole = read(directory)
    first, second = sorted((directory / "commitlog").iterdir())[:2]
    first.unlink()
    kept = [row for row in whole if int(row["offsetMsgId"][16:], 16) >= int(second.name)]
    assert read(directory) == kept and 0 < len(kept) < len(whole)
    with pytest.raises(DataLost, match="deleted: the queue starts at"):
        read(directory, topic="b", startingOffsets='{"b":{"broker-a":{"0":0}}}')
    found = read(directory, topic="b", startingOffsets='{"b":{"broker-a":{"0":0}}}', failOnDataLoss="false")
    assert found == [row for row in kept if row["topic"] == "b"]


# --- what is chosen


def test_options_choose_as_with_brokers(killed: Path) -> None:
    whole = read(killed)
    assert read(killed, topic="b") == [row for row in whole if row["topic"] == "b"]
    assert read(killed, assign='{"a":{"broker-a":[1]}}') == [
        row for row in whole if (row["topic"], row["queueId"]) == ("a", 1)
    ]
    assert read(killed, subExpression="odd || x") == [row for row in whole if row["tags"] == "odd"]
    given = {"startingOffsets": '{"b":{"broker-a":{"0":7}}}', "endingOffsets": '{"b":{"broker-a":{"0":40}}}'}
    assert [row["queueOffset"] for row in read(killed, topic="b", **given)] == list(range(7, 40))
    with pytest.raises(DataLost, match="the queue ends at 53"):
        read(killed, topic="b", endingOffsets='{"b":{"broker-a":{"0":60}}}')


@pytest.mark.parametrize(("partitions", "batch"), [("1", "7"), ("20", "10000"), ("200", "1")])
def test_every_split_holds_every_message_once(killed: Path, partitions: str, batch: str) -> None:
    assert read(killed, minPartitions=partitions, maxRecordsPerBatch=batch) == read(killed)


def test_times(tmp_path: Path) -> None:
    with opened(options_of(tmp_path / "store")) as store:
        for number in range(50):
            store.follow_time(1_800_000_000_000 + 1000 * number)
            put(store, "t", 0, b"%d" % number)
    found = read(tmp_path / "store", topic="t", startingTimestamp="1800000010000", endingTimestamp="1800000019999")
    assert [row["body"] for row in found] == [b"%d" % number for number in range(10, 20)]


def test_a_part_travels_to_its_task(killed: Path) -> None:
    (partition,) = reader(killed, topic="b").partitions()
    source = pickle.loads(pickle.dumps(reader(killed, topic="b")))
    assert sum(batch.num_rows for batch in source.read(pickle.loads(pickle.dumps(partition)))) == 53


# --- damage


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, bytes]]]:
    """A killed store with one file, half of it before the checkpoint; (end of the record, body) of each message."""
    home = tmp_path_factory.mktemp("torn")
    options = options_of(home / "store", 32 * 1024, 20 * 200)
    with opened(options) as store:
        fill(store, 60)
    with opened(options) as store:
        fill(store, 40, 60)
        copy = copied(home / "store", home)
        ends = sorted((record.physical_offset + record.size, record.body) for record in records(store))
    return copy, ends


@few_examples
@given(st.integers(0, 1 << 30), st.booleans(), st.booleans())
def test_a_log_that_is_torn_anywhere(
    one_file: tuple[Path, list[tuple[int, bytes]]], anywhere: int, zeros: bool, queues: bool
) -> None:
    """All messages before the cut are read, and no others, however far queues and checkpoint say that the log went."""
    whole, ends = one_file
    cut = anywhere % (ends[-1][0] + 1)
    copy = copied(whole, whole.parent)
    try:
        (log,) = (copy / "commitlog").iterdir()
        size = log.stat().st_size
        os.truncate(log, cut)
        if zeros:
            os.truncate(log, size)
        if not queues:
            shutil.rmtree(copy / "consumequeue")
        expected = sorted(body for end, body in ends if end <= cut)
        if expected:
            assert sorted(row["body"] for row in read(copy)) == expected
        else:
            with pytest.raises(UserError, match="no topic"):
                read(copy)
    finally:
        shutil.rmtree(copy)


def test_a_torn_tail_is_told(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    last = sorted(path for path in (killed / "commitlog").iterdir() if any(path.read_bytes()))[-1]
    written = len(last.read_bytes().rstrip(b"\0"))
    with last.open("r+b") as file:
        file.seek(written - 3)
        file.write(bytes(3))
    assert len(read(killed)) == 160
    assert f"of {last}, in the middle of a record" in caplog.text


def spoil(directory: Path, physical: int, at: int) -> None:
    """Change a byte of the record at ``physical``."""
    path = sorted(path for path in (directory / "commitlog").iterdir() if int(path.name) <= physical)[-1]
    with path.open("r+b") as file:
        file.seek(physical - int(path.name) + at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


@pytest.mark.parametrize("at", [3, 7, 27, 34])
def test_a_hole_before_the_checkpoint(directory: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    whole = read(directory, topic="b")
    lost = whole[5]
    spoil(directory, int(lost["offsetMsgId"][16:], 16), at)
    with pytest.raises(DataLost, match=r"b +broker-a +0 +5 +5 +1 +damaged at byte \d+ of the log"):
        read(directory, topic="b")
    assert read(directory, topic="b", failOnDataLoss="false") == [row for row in whole if row != lost]
    assert "damaged at byte" in caplog.text


def test_a_body_that_does_not_match_its_crc(directory: Path) -> None:
    whole = read(directory, topic="b", checkCrc="true")
    lost = whole[5]
    spoil(directory, int(lost["offsetMsgId"][16:], 16), 90)
    assert len(read(directory, topic="b")) == len(whole)
    with pytest.raises(DataLost, match="the body does not match its CRC"):
        read(directory, topic="b", checkCrc="true")
    found = read(directory, topic="b", checkCrc="true", failOnDataLoss="false")
    assert found == [row for row in whole if row != lost]


def test_a_hole_after_the_checkpoint(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = read(killed)
    lost = next(row for row in whole if row["keys"] == "k120")
    spoil(killed, int(lost["offsetMsgId"][16:], 16), 90)
    with pytest.raises(StoreCorrupt, match=r"the next record begins at .* Set option failOnDataLoss"):
        read(killed)
    assert read(killed, failOnDataLoss="false") == [row for row in whole if row != lost]
    assert "is damaged at offset" in caplog.text


def test_a_file_of_the_log_that_goes_while_it_is_read(directory: Path) -> None:
    source = reader(directory, topic="b", failOnDataLoss="false")
    (partition,) = source.partitions()
    first, *_ = sorted((directory / "commitlog").iterdir())
    whole = read(directory, topic="b")
    first.unlink()
    found = [row for batch in source.read(partition) for row in batch.to_pylist()]
    assert found == whole[len(whole) - len(found) :] and 0 < len(found) < len(whole)


def test_nothing_is_written_and_read_permission_is_enough(killed: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(killed.rglob("*"))]

    for path in [killed, *killed.rglob("*")]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    before = state()
    assert len(read(killed)) == 161
    assert state() == before
    for path in [killed, *killed.rglob("*")]:
        path.chmod(0o700)


# --- mistakes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"nameserver": "h:1"}, "option nameserver is for brokers, .* leave out nameserver, or leave out storePath"),
        ({"namesrvAddr": "h:1", "numRetries": "2"}, "leave out nameserver and numRetries"),
        ({"group": "g"}, "option consumerGroup is for brokers"),
        ({"expressionType": "SQL92", "subExpression": "a > 1"}, "SQL92 conditions are evaluated by brokers"),
        ({"storePath": "hdfs://x/y"}, "'hdfs://x/y' is a URL"),
        ({"topic": "c"}, "has no messages of topic c; it has messages of a, b"),
        ({"topic": "%LMQ%x"}, "is a light queue"),
        ({"topicPattern": "x.*"}, "no topic"),
    ],
)
def test_options_that_do_not_fit(directory: Path, given: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        read(directory, **given)


def test_broker_name_is_for_directories_only() -> None:
    with pytest.raises(UserError, match="brokerName is for storePath only"):
        RocketMQDataSource({"topic": "t", "brokerName": "b"}).reader(SCHEMA)


def test_no_store_there(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no directory on this machine"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is no store directory, but .*/store is; give that one"):
        read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is empty; give a broker's storePathRootDir"):
        read(tmp_path / "empty")
    with pytest.raises(UserError, match="has no folder commitlog"):
        read(directory / "consumequeue")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied", "FILE"), "FILE cannot be read: Permission denied; give the user"),
        (FileNotFoundError(2, "No such file", "FILE"), "FILE was removed while it was read, .* run the query again"),
    ],
)
def test_a_file_that_cannot_be_opened(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("skylark.spark_connector.store.files.ReadOnlyMap", fail)
    with pytest.raises(UserError, match=expected):
        read(directory)


def test_which_reader(directory: Path) -> None:
    source = RocketMQDataSource({"storePath": str(directory), "topic": "a"})
    assert type(source.reader(SCHEMA)) is StoreReader
    pushing = RocketMQDataSource({"storePath": str(directory), "topic": "a", "pushdown": "true"})
    if hasattr(DataSourceReader, "pushFilters"):
        assert type(pushing.reader(SCHEMA)) is PushDownStoreReader
    stream = source.streamReader(SCHEMA)
    with pytest.raises(UserError, match=r"readStream cannot read a store directory; use spark\.read"):
        stream.initialOffset()


def test_a_value_is_decoded_of_messages_in_files(tmp_path: Path) -> None:
    with opened(options_of(tmp_path / "store")) as store:
        for number in range(9):
            put(store, "a", 0, b'{"id":%d}' % number if number % 4 else b"rubbish", b"TAGS\x01%d\x02" % (number % 4))
    schema = StructType().add("queueOffset", LongType()).add("value", StructType().add("id", LongType()))

    def found(**given: str) -> list[tuple[int, Any]]:
        options = {"storePath": str(tmp_path / "store"), "topic": "a", "valueFormat": "json", **given}
        source = StoreReader(ReadOptions.parse(options), schema)
        batches = [batch for one in source.partitions() for batch in source.read(one)]
        return [(row["queueOffset"], row["value"]) for batch in batches for row in batch.to_pylist()]

    assert found(badRows="null") == [(at, {"id": at} if at % 4 else None) for at in range(9)]
    assert found(subExpression="1") == [(1, {"id": 1}), (5, {"id": 5})], "bodies of other messages are not decoded"
    with pytest.raises(BadBody, match="topic a, broker store, queue 0: the body of the message at offset 0"):
        found()
