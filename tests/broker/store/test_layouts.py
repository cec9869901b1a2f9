"""What we write, read by code that knows the layouts only; and what Java wrote, written by us: the same bytes."""

import struct
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field
from tests.broker.store.support import open_store
from tests.support.clock import ManualClock
from tests.support.golden_store import VERSIONS, unpack
from tests.support.memory_files import MemoryFiles

V4 = encode_host("10.0.0.1", 4000)
V6 = encode_host("fe80::1", 4001)
TIMES_MS = 1_700_000_000_000
LONG_TOPIC = "t" * 200
PROPERTIES = b"KEYS\x01a b\x02UNIQ_KEY\x01id\x02TAGS\x01TagA\x02"


class Fields(NamedTuple):
    """A record, taken apart field by field after the layout."""

    magic: int
    queue_id: int
    flag: int
    queue_offset: int
    physical: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    stored_ms: int
    store_host: bytes
    reconsume_times: int
    prepared: int
    body: bytes
    topic: str
    properties: bytes


class Reader:
    """Big-endian fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def int(self, size: int) -> int:
        return int.from_bytes(self.bytes(size), "big", signed=True)

    def bytes(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        assert len(found) == size
        self.at += size
        return found


def take_apart(data: bytes, at: int) -> tuple[Fields, int]:
    """The record at ``at``, and where the next one is."""
    size = int.from_bytes(data[at : at + 4], "big")
    reader = Reader(data[at + 4 : at + size])
    magic = reader.int(4) & 0xFFFFFFFF
    body_crc, queue_id, flag = reader.int(4), reader.int(4), reader.int(4)
    queue_offset, physical, sys_flag, born_ms = reader.int(8), reader.int(8), reader.int(4), reader.int(8)
    born_host = reader.bytes(20 if sys_flag & 0x10 else 8)
    stored_ms = reader.int(8)
    store_host = reader.bytes(20 if sys_flag & 0x20 else 8)
    reconsume_times, prepared = reader.int(4), reader.int(8)
    body = reader.bytes(reader.int(4))
    topic = reader.bytes(reader.bytes(1)[0] if magic == 0xDAA320A7 else reader.int(2)).decode()
    properties = reader.bytes(reader.int(2))
    assert reader.at == size - 4
    assert body_crc == crc32(body) & 0x7FFFFFFF
    fields = Fields(
        magic, queue_id, flag, queue_offset, physical, sys_flag, born_ms, born_host, stored_ms, store_host,
        reconsume_times, prepared, body, topic, properties,
    )  # fmt: skip
    return fields, at + size


def new_store(fs: MemoryFiles, host: bytes) -> MessageStore:
    store = MessageStore(fs, StoreOptions("/store", 4096, 320, 50, 60), ManualClock(TIMES_MS), host)
    store.open()
    return store


@pytest.mark.parametrize(("store_host", "store_bit"), [(V4, 0), (V6, 0x20)])
@pytest.mark.parametrize(("born_host", "born_bit"), [(V4, 0), (V6, 0x10)])
@pytest.mark.parametrize(("topic", "magic"), [("t", 0xDAA320A7), ("t" * 127, 0xDAA320A7), (LONG_TOPIC, 0xDAA320AB)])
def test_records_of_sends_and_batches(
    topic: str, magic: int, born_host: bytes, born_bit: int, store_host: bytes, store_bit: int
) -> None:
    fs = MemoryFiles()
    store = new_store(fs, store_host)
    sys_flag = born_bit | store_bit
    common: dict[str, Any] = {"sys_flag": sys_flag, "born_timestamp": 5, "born_host": born_host, "reconsume_times": 3}
    store.put(topic, 7, b"body", PROPERTIES, flag=9, prepared_transaction_offset=6, **common)
    rows = RowBatch([(1, b"one", b"TAGS\x01a\x02"), (2, b"", b"")])
    store.put_batch(topic, 7, rows, suffix=b"WAIT\x01true\x02", **common)
    data = fs.read("/store/commitlog/00000000000000000000")
    at, found = 0, []
    for _ in range(3):
        fields, at = take_apart(data, at)
        found.append(fields)
    starts = [0, *(found[n].physical for n in (1, 2))]
    rest = (sys_flag, 5, born_host, TIMES_MS, store_host, 3)
    assert found == [
        Fields(magic, 7, 9, 0, starts[0], *rest, 6, b"body", topic, PROPERTIES),
        Fields(magic, 7, 1, 1, starts[1], *rest, 0, b"one", topic, b"TAGS\x01a\x02WAIT\x01true\x02"),
        Fields(magic, 7, 2, 2, starts[2], *rest, 0, b"", topic, b"WAIT\x01true\x02"),
    ]
    assert data[at:] == bytes(4096 - at)
    store.checkpoint()
    queue = fs.read(f"/store/consumequeue/{topic}/7/00000000000000000000")
    sizes = [starts[1], starts[2] - starts[1], at - starts[2]]
    hashes = [java_hash("TagA"), java_hash("a"), 0]
    assert queue[:60] == b"".join(struct.pack(">qiq", *row) for row in zip(starts, sizes, hashes, strict=True))
    assert queue[60:] == bytes(260)


def test_the_rest_of_a_file_is_a_filler() -> None:
    fs = MemoryFiles()
    store = new_store(fs, V4)
    for _ in range(2):
        store.put("t", 0, bytes(2500), b"", born_timestamp=5, born_host=V4)
    data = fs.read("/store/commitlog/00000000000000000000")
    _, at = take_apart(data, 0)
    assert data[at : at + 8] == struct.pack(">II", 4096 - at, 0xCBD43194)
    fields, _ = take_apart(fs.read("/store/commitlog/00000000000000004096"), 0)
    assert (fields.physical, fields.queue_offset) == (4096, 1)


def test_a_queue_that_begins_late_has_blanks_before_it() -> None:
    """RocketMQ fills the places before a queue's first message when that is not the first of a file."""
    fs = MemoryFiles()
    store = new_store(fs, V4)
    queue = store.queues.get("t", 0)
    queue.put_record(Record(100, 0, 0, 0, 0, 18, 4096, 0, 0, b"", 0, b"", 0, 0, b"", "t", b""), 7)
    store.queues.touch(queue)
    store.checkpoint()
    data = fs.read("/store/consumequeue/t/0/00000000000000000320")
    blank = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    assert data[:60] == blank * 2 + struct.pack(">qiq", 4096, 100, 7)


def test_the_index() -> None:
    fs = MemoryFiles()
    clock = ManualClock(TIMES_MS)
    store = open_store(fs, clock)
    for later_ms in (5, 3000):
        clock.advance(later_ms)
        store.put("t", 0, b"body", PROPERTIES, born_timestamp=5, born_host=V4)
    store.build_index(10)
    (path,) = [path for path in fs.paths() if path.startswith("/store/index/")]
    data = fs.read(path)
    size = store.log.end // 2
    assert len(data) == 40 + 50 * 4 + 60 * 20
    hashes = [java_hash(key) & 0x7FFFFFFF if java_hash(key) >= 0 else -java_hash(key) for key in ("t#id", "t#a", "t#b")]
    assert len({key_hash % 50 for key_hash in hashes}) == 3
    # begin and end: time, physical offset; slots in use; one more than there are entries.
    assert struct.unpack_from(">qqqqii", data) == (TIMES_MS + 5, TIMES_MS + 3005, 0, size, 3, 7)
    entries = [struct.unpack_from(">iqii", data, 40 + 200 + 20 * number) for number in range(7)]
    assert entries[0] == (0, 0, 0, 0)
    assert sorted(entries[1:]) == sorted(
        [(h, 0, 0, 0) for h in hashes] + [(h, size, 3, entries.index((h, 0, 0, 0))) for h in hashes]
    )
    for key_hash in hashes:
        (newest,) = struct.unpack_from(">i", data, 40 + key_hash % 50 * 4)
        assert entries[newest][:2] == (key_hash, size)


def test_the_checkpoint_begins_with_rocketmqs_times() -> None:
    fs = MemoryFiles()
    store = new_store(fs, V4)
    store.put("t", 0, b"body", b"", born_timestamp=5, born_host=V4)
    store.close()
    data = fs.read("/store/checkpoint")
    assert len(data) == 4096
    assert struct.unpack_from(">qqqqq", data) == (TIMES_MS, TIMES_MS, TIMES_MS, 0, 0)
    assert "/store/abort" not in fs.paths()


# --- Java's files


def log_of(directory: Path) -> bytes:
    return (directory / "commitlog" / ("0" * 20)).read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_java_decode_and_encode_to_the_same_bytes(version: str, tmp_path: Path) -> None:
    data = log_of(unpack(version, tmp_path))
    at, count = 0, 0
    while data[at : at + 4] != bytes(4):
        fields, end = take_apart(data, at)
        record = decode_record(data, at)
        assert (record.topic, record.body, record.properties) == (fields.topic, fields.body, fields.properties)
        assert record.physical_offset == at
        magic, topic_part = topic_field(record.topic)
        again = encode_record(
            magic, topic_part, record.queue_id, record.queue_offset, record.physical_offset, record.body,
            record.properties, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
            record.store_timestamp, record.store_host, record.reconsume_times, record.prepared_transaction_offset,
        )  # fmt: skip
        assert again == data[at:end]
        at, count = end, count + 1
    assert count == 131


def opened(directory: Path) -> MessageStore:
    store = MessageStore(OsFiles(), StoreOptions(str(directory), 262_144, 6_000, 500, 2_000), ManualClock(TIMES_MS), V4)
    store.open()
    return store


@pytest.mark.parametrize("version", VERSIONS)
def test_queues_made_from_javas_log_are_javas(version: str, tmp_path: Path) -> None:
    directory = unpack(version, tmp_path)
    files = {path: path.read_bytes() for path in (directory / "consumequeue").rglob("0" * 20)}
    for path in files:
        path.unlink()
    opened(directory).close()
    assert {path: path.read_bytes() for path in (directory / "consumequeue").rglob("0" * 20)} == files


def index_content(data: bytes) -> tuple[tuple[int, ...], list[tuple[int, ...]], dict[int, list[tuple[int, ...]]]]:
    """Header; the entries but for their chains, sorted; and the chains of each slot, as the entries in them."""
    header = struct.unpack_from(">qqqqii", data)
    entries = [struct.unpack_from(">iqii", data, 40 + 500 * 4 + 20 * number) for number in range(header[5])]
    chains: dict[int, list[tuple[int, ...]]] = {}
    for slot in range(500):
        (at,) = struct.unpack_from(">i", data, 40 + slot * 4)
        while at:
            chains.setdefault(slot, []).append(entries[at][:3])
            at = entries[at][3]
    return header, sorted(entry[:3] for entry in entries[1:]), chains


@pytest.mark.parametrize("version", VERSIONS)
def test_an_index_made_from_javas_log_is_javas(version: str, tmp_path: Path) -> None:
    directory = unpack(version, tmp_path)
    (path,) = (directory / "index").iterdir()
    before = index_content(path.read_bytes())
    path.unlink()
    store = opened(directory)
    store.build_index(1_000)
    store.close()
    (path,) = (directory / "index").iterdir()
    assert index_content(path.read_bytes()) == before
