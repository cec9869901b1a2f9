"""Puts and gets on small files: places, rolls, limits, reopening."""

import pytest

from skylark.broker.store.filter import Filter
from skylark.broker.store.reader import GetStatus
from skylark.mqcommon.errors import DiskFull, RequestRefused, StoreLocked
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.message import MessageExt
from tests.broker.store.support import bodies, new_store, open_store, put, put_batch, read_all
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def test_messages_come_back_in_order_over_many_files() -> None:
    store = open_store(MemoryFiles())
    sent = {queue_id: [b"%d-%d" % (queue_id, n) * 7 for n in range(100)] for queue_id in (0, 1)}
    for n in range(100):
        for queue_id in (0, 1):
            assert put(store, "t", queue_id, sent[queue_id][n]) == n
    assert bodies(store, "t", 0) == sent[0]
    assert bodies(store, "t", 1) == sent[1]
    assert len(store.log.chain.segments) > 3


def test_a_record_says_where_it_is() -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 2, b"x")
    result = store.put("t", 2, b"body", b"TAGS\x01a\x02", flag=9, born_timestamp=5, born_host=bytes(8))
    raw = store.record_at(result.physical_offset)
    assert raw is not None
    message = MessageExt(raw, 0, "b")
    assert (message.topic, message.queue_id, message.queue_offset, message.flag) == ("t", 2, 1, 9)
    assert message.physical_offset == result.physical_offset
    assert message.store_host == "127.0.0.1:10911"
    assert result.end == result.physical_offset + len(raw)


def test_a_batch_is_messages_of_their_own() -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"before")
    assert put_batch(store, "t", 0, [b"a", b"b", b"c"]) == 1
    put(store, "t", 0, b"after")
    assert bodies(store, "t", 0) == [b"before", b"a", b"b", b"c", b"after"]
    assert [record.queue_offset for record in read_all(store, "t", 0)] == [0, 1, 2, 3, 4]


def test_a_batch_may_be_longer_than_a_consume_queue_file() -> None:
    store = open_store(MemoryFiles())
    sent = [b"%d" % n for n in range(37)]
    put_batch(store, "t", 0, sent)
    assert bodies(store, "t", 0) == sent


def test_python_needs_no_dict_for_the_attributes_of_a_store_and_its_log() -> None:
    """CPython 3.11 to 3.13 keep up to 29 in the object. With one more a put costs some 1,000 instructions more."""
    store = open_store(MemoryFiles())
    assert max(len(vars(store)), len(vars(store.log))) <= 29


def test_what_fits_no_file_is_refused_and_changes_nothing() -> None:
    store = open_store(MemoryFiles())
    with pytest.raises(RequestRefused, match="at most"):
        put(store, "t", 0, bytes(5000))
    with pytest.raises(RequestRefused, match="properties"):
        put(store, "t", 0, b"", bytes(40_000))
    with pytest.raises(RequestRefused):
        put_batch(store, "t", 0, [bytes(3000), bytes(3000)])
    assert store.max_offset("t", 0) == 0
    put(store, "t", 0, b"ok")
    assert bodies(store, "t", 0) == [b"ok"]


def test_a_full_disk_refuses_puts_and_nothing_else() -> None:
    fs = MemoryFiles(capacity=40_000)
    store = open_store(fs)
    stored = 0
    with pytest.raises(DiskFull):
        for stored in range(1000):
            put(store, "t", 0, b"%04d" % stored * 20)
    assert len(bodies(store, "t", 0)) == stored
    fs.capacity = 1 << 30
    put(store, "t", 0, b"again")
    assert bodies(store, "t", 0)[-1] == b"again"
    assert len(bodies(store, "t", 0)) == stored + 1


def test_statuses_of_reads() -> None:
    store = open_store(MemoryFiles())

    def status(offset: int) -> GetStatus:
        return store.get("t", 0, offset, 10, 1000).status

    assert status(0) is GetStatus.NO_MESSAGE_IN_QUEUE
    put(store, "t", 0, b"a")
    assert status(0) is GetStatus.FOUND
    assert status(1) is GetStatus.OFFSET_OVERFLOW_ONE
    assert status(2) is GetStatus.OFFSET_OVERFLOW_BADLY
    assert status(-1) is GetStatus.OFFSET_TOO_SMALL


def test_limits_of_a_read() -> None:
    store = open_store(MemoryFiles())
    for _ in range(10):
        put(store, "t", 0, bytes(100))
    size = len(store.get("t", 0, 0, 1, 1).records)
    assert size > 1, "one message is given, however large"
    assert store.get("t", 0, 0, 3, 1 << 20).count == 3
    assert store.get("t", 0, 0, 10, 4 * size).count == 4
    assert store.get("t", 0, 0, 10, 4 * size + 1).count == 4


def test_tags_are_filtered_by_hash() -> None:
    store = open_store(MemoryFiles())
    for n in range(40):
        put(store, "t", 0, b"%d" % n, b"TAGS\x01%s\x02" % (b"odd" if n % 2 else b"even"))
    store.checkpoint()
    wanted = Filter(frozenset({java_hash("odd")}))
    first = store.get("t", 0, 0, 5, 1 << 20, wanted)
    assert (first.status, first.count) == (GetStatus.FOUND, 5)
    assert first.next_offset == 11, "what follows and does not match need not be looked at again"
    none = store.get("t", 0, 0, 5, 1 << 20, Filter(frozenset({7})))
    assert none.status is GetStatus.NO_MATCHED_MESSAGE
    assert none.next_offset == 16, "a scan ends with the file"


def test_reopened_after_a_stop_it_goes_on() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%03d" % n * 9 for n in range(50)]
    for body in sent:
        put(store, "t", 0, body)
    store.close()
    store = new_store(fs)
    report = store.open()
    assert report.clean and report.records == 0, "a clean stop needs no scan"
    assert put(store, "t", 0, b"more") == 50
    assert bodies(store, "t", 0) == [*sent, b"more"]


def test_two_brokers_cannot_share_a_store() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    with pytest.raises(StoreLocked, match="another broker"):
        new_store(fs).open()
    store.close()
    new_store(fs).open()


def test_store_times_never_go_back() -> None:
    clock = ManualClock()
    store = open_store(MemoryFiles(), clock)
    put(store, "t", 0, b"a")
    clock.advance(-5_000)
    put(store, "t", 0, b"b")
    first, second = read_all(store, "t", 0)
    assert second.store_timestamp >= first.store_timestamp


def test_offsets_by_time() -> None:
    clock = ManualClock(1_000_000)
    store = open_store(MemoryFiles(), clock)
    for _ in range(10):
        put(store, "t", 0, b"x")
        clock.advance(1_000)
    assert store.offset_by_time("t", 0, 0) == 0
    assert store.offset_by_time("t", 0, 1_003_000) == 3
    assert store.offset_by_time("t", 0, 1_003_001) == 4
    assert store.offset_by_time("t", 0, 1_003_500, "UPPER") == 3
    assert store.offset_by_time("t", 0, 9_000_000) == 10
    assert store.store_time("t", 0, 3) == 1_003_000
    assert store.store_time("t", 0, 10) == -1
    assert store.earliest_store_time() == 1_000_000


def test_messages_are_found_by_key_even_when_hashes_collide() -> None:
    # Java's hash of "Aa" and "BB" is the same.
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"1", b"KEYS\x01Aa other\x02UNIQ_KEY\x01id1\x02")
    put(store, "t", 0, b"2", b"KEYS\x01BB\x02UNIQ_KEY\x01id2\x02")
    put(store, "u", 0, b"3", b"KEYS\x01Aa\x02UNIQ_KEY\x01id3\x02")

    def found(topic: str, key: str, begin: int = 0, end: int = 1 << 60) -> list[bytes]:
        return [MessageExt(raw, 0, "").body for raw in store.query(topic, key, 32, begin, end).records]

    assert found("t", "Aa") == [b"1"]
    assert found("t", "BB") == [b"2"]
    assert found("t", "other") == [b"1"]
    assert found("t", "id2") == [b"2"]
    assert found("u", "Aa") == [b"3"]
    assert found("t", "none") == []
    assert found("t", "Aa", begin=1 << 50) == []


def test_the_index_goes_over_many_files_newest_first() -> None:
    store = open_store(MemoryFiles())
    for n in range(200):
        put(store, "t", 0, b"%d" % n, b"KEYS\x01k%d\x02" % (n % 2))
    store.build_index(1000)
    assert len(store.index.files) > 2
    newest = store.query("t", "k1", 3, 0, 1 << 60)
    assert [MessageExt(raw, 0, "").body for raw in newest.records] == [b"199", b"197", b"195"]
    assert newest.last_update_physical_offset == read_all(store, "t", 0)[-1].physical_offset


def test_a_deleted_topic_starts_again_and_does_not_come_back() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(20):
        put(store, "t", 0, b"old %d" % n)
        put(store, "u", 0, b"other %d" % n)
    store.delete_topic("t")
    store.build_index(1000)
    store.checkpoint()
    assert store.max_offset("t", 0) == 0
    put(store, "t", 0, b"new")
    store = open_store(fs.killed())
    assert bodies(store, "t", 0) == [b"new"]
    assert len(bodies(store, "u", 0)) == 20
