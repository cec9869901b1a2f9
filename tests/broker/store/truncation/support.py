"""Slaves whose log is cut, and the slaves that they must be like afterwards."""

from random import Random

from skylark.broker.replication.replica import Replica
from skylark.broker.store.log.commitlog import scan_log
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.truncate import Truncation
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record
from tests.broker.replication.test_replica import build_all, entries, feed, log_bytes
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

KEYS = (("A", "k"), ("B", "k"), ("A", "n3"), ("B", "n7"), ("A", "later"))
_ALWAYS = 1 << 60


def cut_at(fs: FileSystem, store: MessageStore, offset: int) -> Truncation:
    """All steps of a cut at once."""
    store.flush()
    store.checkpoint(with_ends=True)
    cut = Truncation(fs, store.options.directory, store, offset)
    cut.save()
    cut.begin(cut.searches())
    cut.forget()
    cut.cut_files()
    cut.finish(*cut.mark())
    return cut


def slave_of(its_master: MessageStore, end: int, fs: MemoryFiles | None = None) -> tuple[MessageStore, Replica]:
    """A slave that has its master's log up to ``end`` and has built nothing."""
    slave = open_store(fs or MemoryFiles())
    replica = Replica(slave)
    replica.begin_at(0)
    feed(replica, log_bytes(its_master, 0, end))
    return slave, replica


def records_of(store: MessageStore) -> list[Record]:
    found: list[Record] = []
    scan_log(store.log, store.log.start, found.append, lambda at: None)
    return found


def boundaries(its_master: MessageStore) -> list[int]:
    """All places where a record or filler begins, and the end."""
    records = records_of(its_master)
    places = {0, its_master.log.end}
    for record in records:
        places |= {record.physical_offset, record.physical_offset + record.size}
    return sorted(places)


def write_more(store: MessageStore, random: Random, count: int = 30) -> None:
    """Write the next master's messages."""
    for number in range(count):
        keys = random.choice([b"KEYS\x01later\x02", b"KEYS\x01k\x02TAGS\x01one\x02", b""])
        put(store, random.choice("ABN"), random.randrange(3), b"new %d" % number + bytes(random.randrange(300)), keys)


def assert_alike(found: MessageStore, expected: MessageStore, *, but: frozenset[tuple[str, int]] = frozenset()) -> None:
    """The same log, queues and index; ``but`` these queues."""
    assert (found.log.start, found.log.end) == (expected.log.start, expected.log.end)
    end = expected.log.end
    assert log_bytes(found, found.log.start, end) == log_bytes(expected, expected.log.start, end)
    assert _but(entries(found), but) == _but(entries(expected), but)
    places = {(queue.topic, queue.queue_id) for store in (found, expected) for queue in store.queues}
    for topic, queue_id in places - but:
        assert found.max_offset(topic, queue_id) == expected.max_offset(topic, queue_id)
        if expected.max_offset(topic, queue_id):
            assert found.min_offset(topic, queue_id) == expected.min_offset(topic, queue_id)
        for time_ms in (0, expected.last_timestamp - 20, expected.last_timestamp, _ALWAYS):
            for boundary in ("LOWER", "UPPER"):
                place = topic, queue_id, time_ms, boundary
                assert found.offset_by_time(*place) == expected.offset_by_time(*place)
    for topic, key in KEYS:
        sought = topic, key, 10_000, 0, _ALWAYS
        assert found.query(*sought).records == expected.query(*sought).records


def _but(by_queue: dict[tuple[str, int], list[tuple[int, int, int]]], but: frozenset[tuple[str, int]]) -> object:
    return {place: rows for place, rows in by_queue.items() if place not in but}


def begun_again(its_master: MessageStore, start: int) -> frozenset[tuple[str, int]]:
    """Queues of topics that were deleted after ``start`` and made again: their older messages are gone for good."""
    seen: set[tuple[str, int]] = set()
    again: set[tuple[str, int]] = set()

    def look(record: Record) -> None:
        place = record.topic, record.queue_id
        if record.queue_offset == 0 and record.physical_offset >= start and place in seen:
            again.add(place)
        if is_queued(record.sys_flag):
            seen.add(place)

    for record in records_of(its_master):
        in_each_queue(look)(record)
    return frozenset(again)


def whole(its_master: MessageStore, end: int) -> MessageStore:
    """A slave that only ever got the bytes before ``end``."""
    store, replica = slave_of(its_master, end)
    build_all(replica)
    return store
