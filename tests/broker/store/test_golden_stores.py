"""Stores that Java brokers wrote: every message is found in every way, and the stores go on with ours."""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.store.checkpoint import LastStop
from skylark.broker.store.filter import Filter
from skylark.broker.store.recovery import RecoveryReport
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import ConfigError, StoreCorrupt
from skylark.mqcommon.message.ids import encode_host, split_offset_msg_id
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.message import MessageExt
from tests.broker.store.support import BORN_HOST, bodies, read_all
from tests.support.amounts import share_of
from tests.support.clock import ManualClock
from tests.support.golden_store import VERSIONS, rows, unpack
from tests.support.java_recovery import start_java

LATER_MS = 1_795_300_000_000
HOST = encode_host("127.0.0.1", 10911)


class Golden:
    """One of the stores, as its broker left it, and then as ours does."""

    def __init__(self, version: str, directory: Path) -> None:
        self.version = version
        self.directory = directory

    def options(self) -> StoreOptions:
        return StoreOptions(str(self.directory), 262_144, 6_000, 500, 2_000)

    def open(self) -> tuple[MessageStore, RecoveryReport]:
        store = MessageStore(OsFiles(), self.options(), ManualClock(LATER_MS), HOST)
        return store, store.open()

    def killed(self, home: Path) -> "Golden":
        """The files that kill -9 leaves, unchanged."""
        return Golden(self.version, shutil.copytree(self.directory, home / f"killed{len(list(home.iterdir()))}"))

    def told(self) -> dict[tuple[str, int], list[str]]:
        """Bodies by topic and queue, as the producer was told; "" where it is the large one."""
        found: dict[tuple[str, int], dict[int, str]] = {}
        for row in rows(self.version, "ROW"):
            found.setdefault((row["topic"], row["queueId"]), {})[row["queueOffset"]] = row["body"]
        for row in rows(self.version, "BATCH"):
            first = row["queueOffset"]
            batch = found.setdefault((row["topic"], row["queueId"]), {})
            batch.update({first + n: f"batch {n}" for n in range(10)})
        for row in rows(self.version, "BIG"):
            found["GoldenA", row["queueId"]][row["queueOffset"]] = ""
        return {key: [by_offset[n] for n in range(len(by_offset))] for key, by_offset in found.items()}


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, unpack(request.param, tmp_path))


@pytest.fixture
def store(golden: Golden) -> Iterator[MessageStore]:
    opened, _ = golden.open()
    yield opened
    opened.close()


def record_at(store: MessageStore, msg_id: str) -> MessageExt:
    raw = store.record_at(split_offset_msg_id(msg_id)[1])
    assert raw is not None
    return MessageExt(raw, 0, "")


def found_by(store: MessageStore, topic: str, key: str) -> list[MessageExt]:
    return [MessageExt(raw, 0, "") for raw in store.query(topic, key, 32, 0, 1 << 60).records]


def check_everything(golden: Golden, store: MessageStore, more: dict[tuple[str, int], list[bytes]]) -> None:
    """All that the Java broker had, and ``more`` behind it."""
    told = {key: [text.encode() or bytes(20_000) for text in texts] for key, texts in golden.told().items()}
    for (topic, queue_id), expected in told.items():
        found = read_all(store, topic, queue_id)
        content = [MessageExt(bytes(_raw(store, each.physical_offset)), 0, "").body for each in found]
        assert content == expected + more.get((topic, queue_id), [])
        assert [each.queue_offset for each in found] == list(range(len(found)))


def _raw(store: MessageStore, physical: int) -> bytes:
    raw = store.record_at(physical)
    assert raw is not None
    return raw


def send(store: MessageStore, topic: str, queue_id: int, body: bytes, key: str = "k") -> int:
    properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01u-{key}\x02TAGS\x01TagN\x02".encode()
    return store.put(topic, queue_id, body, properties, born_timestamp=1, born_host=BORN_HOST).queue_offset


# --- as it was left


def test_a_java_brokers_store_opens_as_after_a_clean_stop(golden: Golden) -> None:
    store, report = golden.open()
    assert report.last_stop is LastStop.CLEAN
    assert (report.torn_file, report.rebuilt, report.unchecked) == ("", (), False)
    check_everything(golden, store, {})
    store.close()


def test_every_message_is_at_its_queue_and_offset_and_under_its_id(golden: Golden, store: MessageStore) -> None:
    for row in rows(golden.version, "ROW"):
        result = store.get(row["topic"], row["queueId"], row["queueOffset"], 1, 1 << 20)
        by_place = MessageExt(result.records, 0, "")
        for message in (by_place, record_at(store, row["offsetMsgId"])):
            assert message.body == row["body"].encode()
            assert (message.topic, message.queue_id, message.queue_offset) == (
                row["topic"], row["queueId"], row["queueOffset"],
            )  # fmt: skip
            assert (message.tags, message.keys, message.msg_id) == (row["tags"], row["keys"], row["msgId"])
            assert message.offset_msg_id == row["offsetMsgId"]


def test_every_message_is_found_by_key_and_unique_key(golden: Golden, store: MessageStore) -> None:
    for row in rows(golden.version, "ROW"):
        for key in (row["keys"], row["msgId"]):
            assert row["offsetMsgId"] in [message.offset_msg_id for message in found_by(store, row["topic"], key)]
    (batch,) = rows(golden.version, "BATCH")
    for number, msg_id in enumerate(batch["msgIds"].split(",")):
        (message,) = found_by(store, "GoldenBatch", f"bkey-{number}")
        assert (message.body, message.queue_offset, message.tags) == (b"batch %d" % number, number, "TagB")
        found = found_by(store, "GoldenBatch", message.msg_id)
        if golden.version == "4.9.8":
            assert message.msg_id == msg_id
            assert [each.queue_offset for each in found] == [number]
        else:
            # A client of 5.x puts the batch's own unique key behind each message's, and readers take that one.
            assert [each.queue_offset for each in found] == list(range(9, -1, -1))
    (big,) = rows(golden.version, "BIG")
    (message,) = found_by(store, "GoldenA", big["msgId"])
    assert (message.queue_id, message.queue_offset) == (big["queueId"], big["queueOffset"])
    assert message.body == bytes(big["zeros"])
    assert message.store_size < 1000


def test_every_message_is_found_by_its_time(golden: Golden, store: MessageStore) -> None:
    for topic, queue_id in golden.told():
        times = [record.store_timestamp for record in read_all(store, topic, queue_id)]
        for offset, at_ms in enumerate(times):
            assert store.offset_by_time(topic, queue_id, at_ms) == times.index(at_ms)
            assert store.offset_by_time(topic, queue_id, at_ms + 1) == sum(each <= at_ms for each in times)
            assert store.store_time(topic, queue_id, offset) == at_ms
        assert store.offset_by_time(topic, queue_id, 0) == 0


def test_tags_of_a_java_broker_are_filtered(golden: Golden, store: MessageStore) -> None:
    wanted = [row for row in rows(golden.version, "ROW") if (row["topic"], row["queueId"]) == ("GoldenB", 0)]
    result = store.get("GoldenB", 0, 0, 32, 1 << 20, Filter(frozenset({java_hash("TagA")})))
    assert result.count == sum(row["tags"] == "TagA" for row in wanted)


def test_the_queues_end_where_the_producer_was_told(golden: Golden, store: MessageStore) -> None:
    for row in rows(golden.version, "OFFSET"):
        assert store.max_offset(row["topic"], row["queueId"]) == row["max"]
        assert store.min_offset(row["topic"], row["queueId"]) == 0


# --- and with what we write


def test_sends_go_on_and_all_is_there_after_stops_and_kills(golden: Golden, tmp_path: Path) -> None:
    told = golden.told()
    more: dict[tuple[str, int], list[bytes]] = {key: [] for key in told}

    def send_some(store: MessageStore, count: int) -> None:
        for number in range(count):
            for (topic, queue_id), before in told.items():
                body = b"more %d" % len(more[topic, queue_id]) * (number % 7 * 20)
                offset = send(store, topic, queue_id, body, f"more-{len(more[topic, queue_id])}-{queue_id}")
                assert offset == len(before) + len(more[topic, queue_id])
                more[topic, queue_id].append(body)

    store, _ = golden.open()
    send_some(store, 5)
    store.close()
    store, report = golden.open()
    assert report.clean
    check_everything(golden, store, more)
    send_some(store, 200)  # into the next files of log, queues and index
    killed = golden.killed(tmp_path)
    store.close()
    store, report = killed.open()
    assert report.last_stop is LastStop.KILLED
    check_everything(golden, store, more)
    assert len(found_by(store, "GoldenB", "more-150-2")) == 1
    for row in rows(golden.version, "ROW"):
        assert found_by(store, row["topic"], row["msgId"])
    store.close()
    store, report = killed.open()
    assert report.clean
    check_everything(golden, store, more)
    assert len(store.log.chain.segments) > 1
    assert len(store.index.files) > 1
    store.close()


# --- as a Java broker's crash, or a disk, left it


def queue_files(golden: Golden) -> list[Path]:
    return sorted((golden.directory / "consumequeue").rglob("0" * 20))


def index_file(golden: Golden) -> Path:
    return next((golden.directory / "index").iterdir())


DAMAGES: dict[str, Callable[[Golden], Any]] = {
    "none": lambda golden: None,
    "no queues": lambda golden: shutil.rmtree(golden.directory / "consumequeue"),
    "no index": lambda golden: shutil.rmtree(golden.directory / "index"),
    "no checkpoint": lambda golden: (golden.directory / "checkpoint").unlink(),
    # apache/rocketmq#9728: with this a Java broker does not start.
    "an empty queue file": lambda golden: queue_files(golden)[3].write_bytes(b""),
    "a short queue file": lambda golden: os.truncate(queue_files(golden)[0], 100),
    "a queue file of zeros": lambda golden: queue_files(golden)[1].write_bytes(bytes(6_000)),
    "an empty index file": lambda golden: index_file(golden).write_bytes(b""),
    "a short index file": lambda golden: os.truncate(index_file(golden), 20_000),
    "an index file of zeros": lambda golden: index_file(golden).write_bytes(bytes(42_040)),
}


@pytest.mark.parametrize(("damage", "killed"), tuple(share_of(product(DAMAGES, [False, True]), 2)))
def test_queues_and_index_are_made_again_from_the_log(golden: Golden, damage: str, killed: bool) -> None:
    DAMAGES[damage](golden)
    if killed:
        (golden.directory / "abort").touch()
    store, report = golden.open()
    assert report.clean is not killed
    assert report.torn_file == ""
    check_everything(golden, store, {})
    for row in rows(golden.version, "ROW")[::7]:
        assert row["offsetMsgId"] in [m.offset_msg_id for m in found_by(store, row["topic"], row["keys"])]
    assert send(store, "GoldenA", 0, b"more") == 15 + (rows(golden.version, "BIG")[0]["queueId"] == 0)
    store.close()


@pytest.mark.parametrize("lost", [1, 60, 200])
def test_a_torn_tail_of_a_java_brokers_crash_is_cut_and_the_queue_goes_on(golden: Golden, lost: int) -> None:
    log = golden.directory / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    end = len(data.rstrip(b"\0"))
    log.write_bytes(data[: end - lost] + bytes(len(data) - end + lost))
    (golden.directory / "abort").touch()
    (big,) = rows(golden.version, "BIG")
    store, report = golden.open()
    assert report.torn_file == str(log)
    assert store.max_offset("GoldenA", big["queueId"]) == big["queueOffset"]
    assert found_by(store, "GoldenA", "big") == []
    for row in rows(golden.version, "ROW"):
        assert row["offsetMsgId"] in [m.offset_msg_id for m in found_by(store, row["topic"], row["keys"])]
    assert send(store, "GoldenA", big["queueId"], b"in its place") == big["queueOffset"]
    store.close()
    store, report = golden.open()
    assert report.clean
    assert bodies(store, "GoldenA", big["queueId"])[-1] == b"in its place"
    store.close()


def test_a_java_broker_that_ran_in_between_is_taken_in(golden: Golden, tmp_path: Path) -> None:
    """Its part is played by a store of ours on a copy that does not keep what only ours keeps."""
    store, _ = golden.open()
    send(store, "GoldenA", 0, b"ours")
    store.close()
    ours = {name: (golden.directory / name).read_bytes() for name in ("checkpoint", "queueEnds")}
    store, _ = golden.open()
    send(store, "GoldenA", 0, b"theirs")
    send(store, "GoldenNew", 7, b"theirs, too", "new")
    store.build_index(1000)
    store.close()
    for name, data in ours.items():
        (golden.directory / name).write_bytes(data)
    store, report = golden.open()
    assert report.clean
    assert bodies(store, "GoldenA", 0)[-2:] == [b"ours", b"theirs"]
    assert bodies(store, "GoldenNew", 7) == [b"theirs, too"]
    assert len(found_by(store, "GoldenNew", "new")) == 1
    store.close()


def test_a_java_broker_that_deleted_old_files_in_between_is_taken_in(golden: Golden) -> None:
    store, _ = golden.open()
    sent = [b"%04d" % number + bytes(200) for number in range(2_000)]
    for number, body in enumerate(sent):
        send(store, "GoldenA", 0, body, f"{number}")
    first = store.log.chain.segments[0]
    store.close()
    Path(first.path).unlink()
    with pytest.raises(StoreCorrupt, match=r"remove .*/inventory"):
        golden.open()
    # RocketMQ writes the times of its messages into the checkpoint.
    checkpoint = golden.directory / "checkpoint"
    raw = bytearray(checkpoint.read_bytes())
    struct.pack_into(">qq", raw, 0, LATER_MS + 1, LATER_MS + 1)
    checkpoint.write_bytes(raw)
    store, report = golden.open()
    assert report.clean and report.torn_file == ""
    left = bodies(store, "GoldenA", 0)
    assert sent[-len(left) :] == left and 500 < len(left) < 1_500
    assert bodies(store, "GoldenB", 0) == []
    assert store.max_offset("GoldenB", 0) == 15
    assert send(store, "GoldenB", 0, b"more") == 15
    assert len(found_by(store, "GoldenA", "1999")) == 1
    assert found_by(store, "GoldenA", "1") == []
    store.close()


@pytest.mark.parametrize(("configured", "files"), [(1 << 30, 1), (131_072, 2)])
def test_another_size_of_commit_log_files_is_refused_with_the_remedy(
    golden: Golden, configured: int, files: int
) -> None:
    if files > 1:
        store, _ = golden.open()
        for number in range(2_000):
            send(store, "GoldenA", 0, bytes(100), f"{number}")
        store.close()
    first = golden.directory / "commitlog" / ("0" * 20)
    store = MessageStore(OsFiles(), StoreOptions(str(golden.directory), configured), ManualClock(LATER_MS), HOST)
    with pytest.raises(ConfigError) as caught:
        store.open()
    assert str(caught.value) == (
        f"{first} has 262144 bytes, but mappedFileSizeCommitLog is {configured}: set mappedFileSizeCommitLog=262144 "
        "in the conf file; the size cannot change for a store that has messages"
    )
    assert first.stat().st_size == 262_144
    store, report = golden.open()
    assert report.clean
    store.close()


@pytest.mark.parametrize(("built", "killed"), [(0, True), (150, False), (400, True)])
def test_a_java_broker_that_gets_its_store_back_misses_no_key(
    built: int, killed: bool, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.store.store.CLOSE_CATCH_UP", 0)
    clock = ManualClock(LATER_MS)
    store = MessageStore(OsFiles(), golden.options(), clock, HOST)
    store.open()
    store.build_index(1 << 20)
    ours = []
    for number in range(400):
        clock.advance(100)
        put = store.put("GoldenA", 0, bytes(2000), b"UNIQ_KEY\x01ours%d\x02" % number, born_timestamp=1, born_host=HOST)
        ours.append(put.physical_offset)
    store.build_index(built)
    store.checkpoint(with_ends=True)
    left = golden
    if killed:
        (tmp_path / "killed").mkdir()
        left = golden.killed(tmp_path / "killed")
    store.close()
    java = start_java(OsFiles(), str(left.directory), 500, 2_000)
    assert not set(ours) - java.indexed
