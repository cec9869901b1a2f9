"""Pops of a Java broker, by RocketMQ's published rules: how it stores them, and what it makes of a store at a start.

`JavaBroker` stores check points and acknowledgements as PopBufferMergeService, AckMessageProcessor and
TimerMessageStore do. `pops_of_java` is a model of TimerMessageStore.recover and enqueue, and of PopReviveService.
"""

import json
import struct
from typing import Any, NamedTuple

from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.properties import decode_properties
from skylark.mqcommon.message.record import Record
from skylark.remoting.protocol.dialect import loads
from tests.broker.store.support import HOST, put
from tests.support.java_recovery import records_of_log

CLUSTER, WHEEL, GROUP = "DefaultCluster", "rmq_sys_wheel_timer", "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE = f"rmq_sys_REVIVE_LOG_{CLUSTER}"
PRECISION_MS, ACK_INTERVAL_MS, SECOND_MS = 1_000, 1_000, 1_000


class HashesOfTags(TagCodes):
    """RocketMQ's queues of timed messages have hashes of tags."""

    def of_timed(self, properties: bytes) -> int:
        return self.of(properties)


class JavaBroker:
    """A store that a Java broker has open; it pops for group ``g`` from topic ``T``."""

    def __init__(self, fs: FileSystem, clock: Clock, options: StoreOptions, broker_name: str = "broker-a") -> None:
        self.fs = fs
        self.clock = clock
        self.broker_name = broker_name
        self.store = MessageStore(fs, options, clock, HOST)
        self.store.open()
        self.store.tag_codes = HashesOfTags()
        #: Offsets as in consumerOffset.json.
        self.offsets: dict[str, dict[int, int]] = {}

    def send(self, body: bytes, queue_id: int = 0) -> None:
        put(self.store, "T", queue_id, body)

    def pop(
        self, offsets: list[int], pop_ms: int, invisible_ms: int, queue_id: int = 0, revive_queue: int = 0, **more: Any
    ) -> dict[str, Any]:
        """Store a check point; returns its body, by which `ack` knows it."""
        start = offsets[0]
        fields = {
            "bm": 0, "bn": self.broker_name, "c": "g", "d": [each - start for each in offsets], "it": invisible_ms,
            "n": len(offsets), "pt": pop_ms, "q": queue_id, "ro": 0, "so": start, "t": "T", **more,
        }  # fmt: skip
        self._put(fields, "ck", pop_ms + invisible_ms - ACK_INTERVAL_MS, revive_queue)
        self.offsets.setdefault("T@g", {})[queue_id] = offsets[-1] + 1
        return fields

    def ack(self, popped: dict[str, Any], *offsets: int, revive_queue: int = 0) -> None:
        """Store one acknowledgement, or a batch of them."""
        fields = {name: popped[name] for name in ("c", "pt", "q", "so", "t")}
        due_ms = popped["pt"] + popped["it"]
        if len(offsets) == 1:
            self._put({**fields, "ao": offsets[0], "bn": self.broker_name}, "ack", due_ms, revive_queue)
        else:
            self._put({**fields, "ao": 0, "aol": offsets}, "bAck", due_ms, revive_queue)

    def move(self) -> None:
        """Let all that waits come into the revive queues, as if its time had come."""
        for record in records_of_log(self.fs, "/store/commitlog"):
            if record.topic == WHEEL:
                topic, queue_id, properties = moved(record)
                put(self.store, topic, queue_id, record.body, properties)

    def killed(self) -> None:
        """Write the files of metadata; the store stays as it is, without a clean end."""
        self.store.flush()
        system = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
        topics = {"T": {"topicName": "T", **system}, REVIVE: {"topicName": REVIVE, **system}}
        tables = {
            "topics.json": {"topicConfigTable": topics},
            "subscriptionGroup.json": {"subscriptionGroupTable": {"g": {"groupName": "g"}}},
            "consumerOffset.json": {"offsetTable": self.offsets},
        }
        self.fs.mkdirs("/store/config")
        for name, table in tables.items():
            self.fs.overwrite(f"/store/config/{name}", json.dumps(table).encode())

    def _put(self, fields: dict[str, Any], tag: str, due_ms: int, revive_queue: int) -> None:
        properties = {"TAGS": tag, "TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{fields['so']}@{tag}"}
        topic, queue_id = REVIVE, revive_queue
        if due_ms > self.clock.now_ms():
            slot = (due_ms - 1) // PRECISION_MS * PRECISION_MS
            properties |= {"TIMER_OUT_MS": str(slot), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
            topic, queue_id = WHEEL, 0
        put(self.store, topic, queue_id, json.dumps(fields).encode(), _encoded(properties))


def _encoded(properties: dict[str, str]) -> bytes:
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def moved(record: Record) -> tuple[str, int, bytes]:
    """Where a timed message goes, and its properties there."""
    properties = decode_properties(record.properties.decode())
    topic, queue_id = properties.pop("REAL_TOPIC"), int(properties.pop("REAL_QID"))
    return topic, queue_id, _encoded(properties)


class JavaPops(NamedTuple):
    """The messages that a Java broker gives to the group again, and where new pops begin in each queue."""

    revived: list[bytes]
    offsets: dict[str, dict[int, int]]


def pops_of_java(fs: FileSystem, now_ms: int, broker_name: str = "broker-a") -> JavaPops:
    """After a Java broker has run on the store up to ``now_ms``, with nobody who pops."""
    by_queue: dict[tuple[str, int], list[Record]] = {}
    for record in records_of_log(fs, "/store/commitlog"):
        by_queue.setdefault((record.topic, record.queue_id), []).append(record)
    offsets = _offsets(fs)
    revive: dict[int, list[tuple[bytes, dict[str, str]]]] = {}
    for (topic, queue_id), records in by_queue.items():
        if topic == REVIVE:
            revive[queue_id] = [(record.body, decode_properties(record.properties.decode())) for record in records]
    for record in _timed(fs, by_queue.get((WHEEL, 0), []), now_ms):
        properties = decode_properties(record.properties.decode())
        if properties["REAL_TOPIC"] == REVIVE:
            revive.setdefault(int(properties["REAL_QID"]), []).append((record.body, properties))
    topics = loads(fs.read("/store/config/topics.json"), relaxed_bytes=1 << 20)["topicConfigTable"]
    groups = loads(fs.read("/store/config/subscriptionGroup.json"), relaxed_bytes=1 << 20)["subscriptionGroupTable"]
    revived: list[bytes] = []
    for queue_id, rows in sorted(revive.items()):
        done = offsets.get(f"{REVIVE}@{GROUP}", {}).get(queue_id, -1)
        for fields, offset in _revive(rows[done + 1 :], now_ms, broker_name):
            if fields["t"] in topics and fields["c"] in groups:
                revived.append(by_queue[fields["t"], fields["q"]][offset].body)
    return JavaPops(revived, offsets)


def _offsets(fs: FileSystem) -> dict[str, dict[int, int]]:
    table = loads(fs.read("/store/config/consumerOffset.json"), relaxed_bytes=1 << 20)["offsetTable"]
    return {key: {int(queue_id): offset for queue_id, offset in queues.items()} for key, queues in table.items()}


def _timed(fs: FileSystem, wheel: list[Record], now_ms: int) -> list[Record]:
    """The timed messages that come, in their order: messages read anew, and messages of later slots from the wheel."""
    path = "/store/config/timercheck"
    read_ms, _, queue_offset, master_offset = struct.unpack(">4q", fs.read(path)[:32] if fs.exists(path) else bytes(32))
    slots = [(int(decode_properties(each.properties.decode())["TIMER_OUT_MS"]), each) for each in wheel]
    first = min(queue_offset, master_offset)
    come = [row for at, row in enumerate(slots) if (at >= first or row[0] >= read_ms) and row[0] < now_ms]
    return [record for _, record in sorted(come, key=lambda row: row[0])]


def _revive(
    rows: list[tuple[bytes, dict[str, str]]], now_ms: int, broker_name: str
) -> list[tuple[dict[str, Any], int]]:
    """consumeReviveMessage and mergeAndRevive of one queue: the check point and the offset of each message."""
    points: dict[str, dict[str, Any]] = {}
    end_ms = 0
    for body, properties in rows:
        fields, tag = loads(body, relaxed_bytes=1 << 20), properties.get("TAGS")
        name = fields.get("bn") or broker_name
        key = f"{fields['t']}{fields['c']}{fields['q']}{fields['so']}{fields['pt']}"
        if tag == "ck":
            assert -(1 << 31) <= fields["bm"] < 1 << 31, "an int of Java"
            points[key + fields["bn"]] = {**fields}
        elif (point := points.get(key + name)) is not None:
            for offset in fields.get("aol") or [fields["ao"]]:
                point["bm"] |= 1 << point["d"].index(offset - point["so"])
        end_ms = max(end_ms, int(properties.get("TIMER_DELIVER_MS", "0")))
    if end_ms and now_ms - end_ms > 3 * SECOND_MS:
        end_ms = now_ms
    found: list[tuple[dict[str, Any], int]] = []
    for point in points.values():
        if end_ms - (point["pt"] + point["it"]) <= ACK_INTERVAL_MS + SECOND_MS:
            break
        differences = point.get("d") or range(point["n"])
        found += [(point, point["so"] + differences[n]) for n in range(point["n"]) if not point["bm"] >> n & 1]
    return found
