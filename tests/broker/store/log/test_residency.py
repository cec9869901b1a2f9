"""Reads within `resident_only`: they name what is on disk only, and give the same as ever when it has been read."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from skylark.broker.store import reader
from skylark.broker.store.log.residency import NotResident, Span, resident_only, warm
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import open_store, put, put_batch
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

T = TypeVar("T")
LOG = "/store/commitlog/00000000000000000000"
QUEUE = "/store/consumequeue/t/0/00000000000000000000"


def reopened(fs: MemoryFiles, *, cold: bool = True) -> MessageStore:
    """A store that another process wrote; ``cold`` puts its files out of memory."""
    store = open_store(fs)
    if cold:
        for path in fs.paths():
            fs.cold.mark(path)
    fs.cold.reads.clear()
    return store


def filled(bodies: list[bytes], queues: int = 1) -> MemoryFiles:
    fs, clock = MemoryFiles(), ManualClock(1_000)
    store = open_store(fs, clock)
    for number, body in enumerate(bodies):
        clock.advance(10)
        put(store, "t", number % queues, body, b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d\x02" % (number, number % 3))
    store.build_index(1_000)
    store.close()
    return fs


def asked_again(read: Callable[[], T]) -> tuple[T, int]:
    """The result, and how often the disk was waited for."""
    got: dict[Span, bytes] = {}
    for times in range(100):
        try:
            with resident_only(got):
                return read(), times
        except NotResident as cold:
            got = warm(cold)
    raise AssertionError("never resident")


def pulled(store: MessageStore, offset: int, max_count: int = 32, max_bytes: int = 1 << 20) -> list[bytes]:
    queue = store.queues.find("t", 0)
    assert queue is not None
    result = read_queue(store.log, queue, offset, max_count, max_bytes)
    assert result.next_offset == offset + result.count
    return [decode_record(result.records, at).body for at in record_starts(result.records)]


def test_a_pull_of_cold_messages_reads_entries_and_messages_from_disk() -> None:
    fs = filled([b"%d" % n for n in range(10)])
    store = reopened(fs)
    bodies, waits = asked_again(lambda: pulled(store, 2, 5))
    assert (bodies, waits) == ([b"2", b"3", b"4", b"5", b"6"], 2)
    assert [path for path, _, _ in fs.cold.reads] == [QUEUE, LOG]
    _, at, size = fs.cold.reads[1]
    queue = store.queues.find("t", 0)
    assert queue is not None
    first, last = queue.entry(2), queue.entry(6)
    assert (at, at + size) == (first[0], last[0] + last[1]), "no more than what is asked for"
    assert asked_again(lambda: pulled(store, 2, 5)) == (bodies, 0)


def test_outside_nothing_is_looked_at() -> None:
    store = reopened(filled([b"a", b"b"]))
    assert pulled(store, 0) == [b"a", b"b"]


def test_what_this_process_wrote_lately_needs_no_look() -> None:
    fs = filled([b"old"])
    store = reopened(fs, cold=False)
    put(store, "t", 0, b"new")
    fs.cold.mark(LOG)
    with resident_only():
        assert pulled(store, 1) == [b"new"]
        with pytest.raises(NotResident):
            pulled(store, 0)


def test_messages_near_each_other_are_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = filled([b"%02d" % n + bytes(200) for n in range(12)], queues=3)
    store = reopened(fs)
    assert len(asked_again(lambda: pulled(store, 0))[0]) == 4
    assert len(fs.cold.reads) == 2, "the queue, and one piece of the log with the other queues' messages in it"
    monkeypatch.setattr(reader, "GAP_BYTES", 100)
    fs.cold.reads.clear()
    fs.cold.mark(LOG)
    assert len(asked_again(lambda: pulled(store, 0))[0]) == 4
    assert len(fs.cold.reads) == 4, "each message by itself"


def test_a_pull_whose_messages_lie_far_apart_gets_the_first_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COLD_BYTES", 1_500)
    fs = filled([b"%02d" % n + bytes(200) for n in range(12)], queues=3)
    store = reopened(fs)
    bodies, waits = asked_again(lambda: pulled(store, 0))
    assert [body[:2] for body in bodies] == [b"00", b"03"]
    assert waits == 2
    assert sum(size for path, _, size in fs.cold.reads if path == LOG) <= 1_500


def test_many_bytes_are_copied_by_a_thread_though_they_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "THREAD_BYTES", 1_000)
    fs = filled([b"%02d" % n + bytes(200) for n in range(12)], queues=3)
    store = reopened(fs, cold=False)
    with pytest.raises(NotResident) as raised, resident_only():
        pulled(store, 0)
    assert not raised.value.on_disk
    assert [body[:2] for body in asked_again(lambda: pulled(store, 0))[0]] == [b"00", b"03", b"06", b"09"]
    assert asked_again(lambda: pulled(store, 2))[1] == 0, "few bytes are copied at once"
    fs.cold.mark(LOG)
    with pytest.raises(NotResident) as raised, resident_only():
        pulled(store, 0)
    assert raised.value.on_disk


def test_a_pull_across_two_files_of_the_log() -> None:
    fs = filled([b"%02d" % n + bytes(1_500) for n in range(4)])
    store = reopened(fs)
    assert len(store.log.chain.segments) > 1
    assert [body[:2] for body in asked_again(lambda: pulled(store, 0))[0]] == [b"00", b"01", b"02", b"03"]
    assert len({path for path, _, _ in fs.cold.reads}) > 2


def test_a_file_that_is_removed_before_it_is_read_is_left_out() -> None:
    fs = filled([b"%02d" % n + bytes(1_500) for n in range(4)])
    store = reopened(fs)
    with pytest.raises(NotResident) as raised, resident_only():
        store.log.read(0, 10)
    segment = store.log.chain.segments[0]
    segment.close()
    fs.remove(segment.path)
    assert warm(raised.value) == {} and fs.cold.reads == []


def test_blank_entries_are_passed_over_and_never_read() -> None:
    fs = filled([b"a", b"b", b"c"])
    store = reopened(fs, cold=False)
    queue = store.queues.find("t", 0)
    assert queue is not None
    view = queue.chain.segments[0].file.view
    view[20:40] = (0).to_bytes(8, "big") + BLANK_SIZE.to_bytes(4, "big") + bytes(8)
    result = read_queue(store.log, queue, 0, 32, 1 << 20)
    assert (result.count, result.next_offset) == (2, 3)
    result = read_queue(store.log, queue, 1, 1, 1 << 20)
    assert (result.status, result.count, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0, 2)


def test_a_read_puts_no_more_pieces_together_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_RANGES", 3)
    fs, store = MemoryFiles(), None
    store = open_store(fs)
    for number in range(10):
        put(store, "t", 0, b"%d" % number)
        put(store, "other", 0, b"between")
    put_batch(store, "t", 0, [b"x", b"y", b"z"])
    assert pulled(store, 0) == [b"0", b"1", b"2"]
    assert pulled(store, 3) == [b"3", b"4", b"5"]
    assert pulled(store, 9) == [b"9", b"x", b"y", b"z"], "what lies side by side is one piece"


def test_searches_by_time_and_key_go_on_where_they_were_stopped() -> None:
    fs = filled([b"%d" % n for n in range(60)])
    hot = reopened(fs.killed(), cold=False)
    store = reopened(fs)
    by_time, waits = asked_again(lambda: store.offset_by_time("t", 0, 1_305))
    assert by_time == hot.offset_by_time("t", 0, 1_305) == 30
    assert waits >= 2
    found, waits = asked_again(lambda: store.query("t", "k1", 5, 0, 1 << 60).records)
    assert found == hot.query("t", "k1", 5, 0, 1 << 60).records
    assert (len(found), waits >= 2) == (5, True)
    for path in fs.paths():
        fs.cold.mark(path)
    earliest, waits = asked_again(store.earliest_store_time)
    assert (earliest, waits >= 1) == (1_010, True)


def test_the_index_is_built_and_asked_behind_cold_bytes() -> None:
    fs = filled([b"%d" % n for n in range(10)])
    clock = ManualClock(5_000)
    store = open_store(fs, clock)
    put(store, "t", 0, b"not indexed yet", b"UNIQ_KEY\x01Unew\x02")
    (index,) = [path for path in fs.paths() if "/index/" in path]
    fs = fs.killed()
    store = reopened(fs)
    built, waits = asked_again(lambda: store.build_index(1_000))
    assert (built, waits) == (1, 2)
    assert [path for path, _, _ in fs.cold.reads] == [LOG, index]
    assert fs.cold.reads[1][1:] == (0, 40 + 50 * 4), "header and slots, once"
    fs.cold.mark(index)
    file, key_hash = store.index.files[-1], store.index.key_hash("t", "Unew")
    found, waits = asked_again(lambda: file.walk(file.newest(key_hash), key_hash, 0, 1 << 60, 9)[0])
    assert (len(found), waits) == (1, 1)
    assert len(fs.cold.reads) == 3, "the block with the slot and the entry"
