"""A small store for tests: files of a few KiB, so that rolls come often."""

from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import BatchPutResult, MessageStore, StoreOptions
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record, decode_record
from tests.support.clock import ManualClock

HOST = encode_host("127.0.0.1", 10911)
BORN_HOST = encode_host("127.0.0.1", 50001)
SMALL = StoreOptions(
    directory="/store",
    commitlog_segment_bytes=4096,
    consumequeue_segment_bytes=20 * 16,
    batchqueue_segment_bytes=46 * 4,
    index_slots=50,
    index_capacity=60,
)


def new_store(fs: FileSystem, clock: ManualClock | None = None, options: StoreOptions = SMALL) -> MessageStore:
    """A store that is not open yet."""
    return MessageStore(fs, options, clock or ManualClock(), HOST)


def open_store(fs: FileSystem, clock: ManualClock | None = None, options: StoreOptions = SMALL) -> MessageStore:
    store = new_store(fs, clock, options)
    store.open()
    return store


def put(store: MessageStore, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0) -> int:
    """The queue offset that the message got."""
    return store.put(
        topic, queue_id, body, properties, sys_flag=sys_flag, born_timestamp=1_700_000_000_000, born_host=BORN_HOST
    ).queue_offset


def put_batch(store: MessageStore, topic: str, queue_id: int, bodies: list[bytes]) -> int:
    """The queue offset of the first one."""
    rows = [(0, body, b"") for body in bodies]
    return store.put_batch(topic, queue_id, RowBatch(rows), born_timestamp=1, born_host=BORN_HOST).queue_offset


def put_inner(
    store: MessageStore, topic: str, queue_id: int, rows: list[tuple[int, bytes, bytes]], tag: bytes | None = None
) -> BatchPutResult:
    """Stores (flag, body, properties) rows as one record of a batch queue."""
    properties = b"INNER_NUM\x01%d\x02" % len(rows) + (b"TAGS\x01%s\x02" % tag if tag else b"")
    batch = encode_batch(rows)
    return store.put_inner(topic, queue_id, batch, len(rows), properties, born_timestamp=1, born_host=BORN_HOST)


def as_in_queue(record: Record, topic: str, queue_id: int) -> Record:
    """The record; if the queue is one of its light queues, as it is there."""
    found: list[Record] = []
    in_each_queue(found.append)(record)
    return next((each for each in found if (each.topic, each.queue_id) == (topic, queue_id)), record)


def read_all(store: MessageStore, topic: str, queue_id: int, max_count: int = 5) -> list[Record]:
    """Every message of a queue, pulled a few at a time."""
    found: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, max_count, 1 << 20)
        assert result.next_offset > offset, result
        records = [decode_record(result.records, at) for at in record_starts(result.records)]
        found += [as_in_queue(record, topic, queue_id) for record in records]
        offset = result.next_offset
    return found


def bodies(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    return [record.body for record in read_all(store, topic, queue_id)]
