"""A slave's store: whatever pieces its master's log comes in, and whatever happens meanwhile, it is the same store."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.replication import whole_records
from skylark.broker.replication.replica import Replica
from skylark.broker.store.queue.entry import shared_tag
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.light import LightQueues
from skylark.mqcommon.errors import DiskFull, ProtocolError, StoreCorrupt
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.names import SCHEDULE_TOPIC
from tests.broker.store.support import BORN_HOST, SMALL, bodies, new_store, open_store, put, put_batch, put_inner
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

BORN_HOST_V6 = bytes(range(16)) + BORN_HOST[4:]
LONG_TOPIC = "L" * 130


def master(random: Random, count: int = 120) -> MessageStore:
    """A store with all kinds of messages."""
    clock = ManualClock()
    store = open_store(MemoryFiles(), clock)
    with_batches = {"Q"}
    store.queues.use_kinds(with_batches.__contains__)
    for number in range(count):
        clock.advance(random.randrange(3))
        topic = random.choice(["A", "B", LONG_TOPIC])
        kind = random.random()
        body = b"%d:" % number + bytes(random.randrange(300))
        if kind < 0.1:
            put_batch(store, topic, 0, [body[:100]] * random.randrange(1, 8))
        elif kind < 0.2:
            # committed messages, IPv6 clients
            flag = random.choice([0x8, 0x10])
            host = BORN_HOST_V6 if flag == 0x10 else BORN_HOST
            store.put("X", 1, body, b"TAGS\x01t\x02", sys_flag=flag, born_timestamp=1, born_host=host)
        elif kind < 0.3:
            burst(store, topic, random)
        elif kind < 0.33:
            store.delete_topic(random.choice([topic, "%LMQ%a"]))
        elif kind < 0.35:
            put_light(store, topic, random)
        elif kind < 0.42:
            put_in_batch_queues(store, random, with_batches)
        elif kind < 0.44:
            # delayed messages, alike but for the time when they are due
            for _ in range(random.randrange(1, 20)):
                clock.advance(random.randrange(3))
                put(store, SCHEDULE_TOPIC, 2, b"later", b"DELAY\x013\x02TAGS\x01one\x02")
        else:
            properties = random.choice([b"", b"TAGS\x01one\x02", b"KEYS\x01k\x02TAGS\x01two"])
            put(store, topic, random.randrange(3), body, properties)
    return store


def burst(store: MessageStore, topic: str, random: Random) -> None:
    """Messages that look alike, but for one thing now and then."""
    size = random.randrange(60)
    properties = random.choice([b"", b"TAGS\x01one\x02", b"KEYS\x01%02d\x02TAGS\x01two", b"TAGS\x01%02d"])
    for number in range(random.randrange(5, 40)):
        mine = properties % number if b"%" in properties else properties
        body = bytes(size)
        if random.random() < 0.03:
            body, mine = random.choice([(b"TAGS\x01x"[:size], mine), (body + b"longer", mine), (body, b"KEYS\x01TAGS")])
        put(store, topic, number % 3 if random.random() < 0.9 else 0, body, mine)


def put_in_batch_queues(store: MessageStore, random: Random, with_batches: set[str]) -> None:
    """Batches and single messages; topic R is now and then made again with queues of the other kind."""
    if random.random() < 0.1:
        store.delete_topic("R")
        with_batches ^= {"R"}
    for _ in range(random.randrange(1, 12)):
        topic, queue_id = random.choice("QR"), random.randrange(2)
        rows = [
            (0, b"%d" % each + bytes(random.randrange(60)), random.choice([b"", b"TAGS\x01one\x02"]))
            for each in range(random.choice([1, 1, 3, 20]))
        ]
        if len(rows) == 1 or not store.queues.keeps_batches(topic, queue_id):
            for _, body, properties in rows:
                put(store, topic, queue_id, body, properties)
        else:
            put_inner(store, topic, queue_id, rows, shared_tag(rows))


def put_light(store: MessageStore, topic: str, random: Random) -> None:
    """Messages of one size, some of which are in light queues."""
    light = LightQueues(store, 100)
    for _ in range(random.randrange(1, 30)):
        names = random.choice([b"%LMQ%a", b"%LMQ%b,%LMQ%a", b""])
        properties = b"TAGS\x01one\x02INNER_MULTI_DISPATCH\x01%s\x02" % names if names else b"TAGS\x01one\x02"
        light.put(topic, random.randrange(2), b"light", properties, born_timestamp=1, born_host=BORN_HOST)
    for number in range(20):
        # Of one size, as long as the offset has one digit, but one of them is in a light queue.
        name = b"INNER_MULTI_DISPATCH\x01%LMQ%c\x02" if number == 9 else b"x\x01%s\x02" % (b"y" * 52)
        light.put(topic, 0, b"light", b"TAGS\x01one\x02" + name, born_timestamp=1, born_host=BORN_HOST)


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    data = b""
    while start < end:
        segment = store.log.chain.at(start)
        assert segment is not None
        size = min(end, segment.end) - start
        data += store.log.copy(start, size)
        start += size
    return data


def feed(replica: Replica, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        if replica.log.needs_file:
            replica.log.add_file()
        view = view[replica.append(view) :]


def copy_of(its_master: MessageStore, start: int = 0, end: int | None = None) -> tuple[MessageStore, Replica]:
    """A slave's store that has ``start`` to ``end`` of its master's log, not yet built."""
    slave = open_store(MemoryFiles())
    replica = Replica(slave)
    replica.begin_at(start)
    feed(replica, log_bytes(its_master, start, its_master.log.end if end is None else end))
    return slave, replica


def entries(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """The entries of the queues that have any."""
    return {
        (queue.topic, queue.queue_id): [queue.entry(offset) for offset in range(queue.min_offset, queue.next_offset)]
        for queue in store.queues
        if not queue.is_empty
    }


def build_all(replica: Replica) -> None:
    while replica.build(1000, guarded=True):
        pass


def assert_same(slave: MessageStore, its_master: MessageStore) -> None:
    assert slave.log.end == slave.log.raw_end == its_master.log.end
    end = its_master.log.end
    assert log_bytes(slave, slave.log.start, end) == log_bytes(its_master, slave.log.start, end)
    expected = entries(its_master)
    found = entries(slave)
    # A topic that was deleted and not used since: a slave learns of that otherwise.
    assert {place: found[place] for place in expected} == expected


def test_a_run_ends_at_the_first_record_that_differs_in_anything() -> None:
    """A record with another tag, before one with another sysFlag, is no part of the run."""
    its_master = open_store(MemoryFiles())
    for number in range(32):
        tag = b"TAGS\x01TagB\x02" if number == 5 else b"TAGS\x01TagA\x02"
        flag = COMPRESSED if number == 20 else 0
        its_master.put("A", 0, b"body", tag, sys_flag=flag, born_timestamp=1, born_host=BORN_HOST)
    slave, replica = copy_of(its_master)
    build_all(replica)
    assert_same(slave, its_master)


def restart(store: MessageStore, how: str, random: Random) -> MessageStore:
    """The slave's store, opened again after some kind of end."""
    fs = store._fs
    assert isinstance(fs, MemoryFiles)
    if how == "clean":
        Replica(store).finish()
        store.close()
        left = fs
    else:
        left = fs.killed() if how == "killed" else fs.crash(random)
    again = new_store(left)
    report = again.open()
    assert again.log.raw_end == again.log.end == report.end
    return again


@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(["", "", "", "clean", "killed", "power loss", "reconnected"]), max_size=25),
    st.sampled_from([whole_records.MOST_HELD_BYTES, 0]),
)
# A power loss where bytes of a part of a record were on disk already.
@example(
    1966535298,
    [*("", "", "", "killed", "", "", "", "power loss", "killed", "", "killed", "")] + ["power loss"] * 2,
    whole_records.MOST_HELD_BYTES,
)
def test_a_slave_is_its_master_whatever_happens(seed: int, ends: list[str], most_held: int) -> None:
    """With ``most_held`` of 0 all records are written in pieces, as very large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_records, "MOST_HELD_BYTES", most_held)
        patch.setattr(whole_records, "PAGE_BYTES", SECTOR_BYTES)
        copy_and_compare(seed, ends)


def copy_and_compare(seed: int, ends: list[str]) -> None:
    random = Random(seed)
    its_master = master(random)
    slave = open_store(MemoryFiles())
    replica = Replica(slave)
    replica.begin_at(0)
    records, received = replica.whole_records(), 0
    for how in ends:
        upto = min(received + random.randrange(1500), its_master.log.end)
        feed(replica, records.add(memoryview(log_bytes(its_master, received, upto))))
        received = upto
        replica.build(random.randrange(12), guarded=True)
        if random.random() < 0.3:
            slave.flush()
        if random.random() < 0.2:
            with_ends = random.random() < 0.5
            slave.checkpoint(with_ends=with_ends, as_flushed=not with_ends)
        if how == "reconnected":
            records, received = replica.whole_records(), replica.raw_end
        elif how:
            slave = restart(slave, how, random)
            replica = Replica(slave)
            if replica.is_empty:
                replica.begin_at(0)
            records, received = replica.whole_records(), replica.raw_end
    feed(replica, log_bytes(its_master, replica.raw_end, its_master.log.end))
    build_all(replica)
    assert_same(slave, its_master)
    again = restart(slave, "clean", random)
    assert_same(again, its_master)
    put(again, "A", 0, b"as a master")
    assert bodies(again, "A", 0)[-1] == b"as a master"


@given(st.integers(0, 2**32), st.lists(st.integers(1, 700), min_size=1))
def test_any_splitting_gives_the_same_store(seed: int, sizes: list[int]) -> None:
    its_master = master(Random(seed), 60)
    slave = open_store(MemoryFiles())
    replica = Replica(slave)
    replica.begin_at(0)
    data = log_bytes(its_master, 0, its_master.log.end)
    at = number = 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        feed(replica, data[at : at + size])
        at += size
        number += 1
        build_all(replica)
        assert slave.log.end <= replica.raw_end
    assert_same(slave, its_master)


def test_a_slave_may_begin_at_any_file_of_its_master() -> None:
    its_master = master(Random(3))
    start = its_master.log.chain.segments[2].base
    slave, replica = copy_of(its_master, start)
    build_all(replica)
    assert slave.log.start == start
    found = entries(slave)
    for place, known in entries(its_master).items():
        newer = [entry for entry in known if entry[0] >= start]
        assert found.get(place, []) == newer
        assert slave.max_offset(*place) in (its_master.max_offset(*place), 0)
    while slave.build_index(1000):
        pass
    assert slave.index_behind == 0
    fs = slave._fs
    assert isinstance(fs, MemoryFiles)
    again = open_store(fs.killed())
    assert entries(again) == found


def test_a_log_cannot_begin_within_a_file() -> None:
    replica = Replica(open_store(MemoryFiles()))
    with pytest.raises(ProtocolError, match="mappedFileSizeCommitLog"):
        replica.begin_at(SMALL.commitlog_segment_bytes // 2)


def test_nobody_sees_a_record_before_it_is_whole() -> None:
    its_master = open_store(MemoryFiles())
    put(its_master, "A", 0, b"one")
    data = log_bytes(its_master, 0, its_master.log.end)
    slave, replica = copy_of(its_master, end=len(data) - 1)
    assert replica.build(10) == 0
    assert (slave.log.end, replica.raw_end, slave.max_offset("A", 0)) == (0, len(data) - 1, 0)
    assert slave.flush() == 0 and slave.log.raw_flushed == len(data) - 1
    feed(replica, data[-1:])
    assert replica.build(10) == 1
    assert bodies(slave, "A", 0) == [b"one"] and slave.log.end == len(data)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda raw: raw[:4] + b"\0\0\0\1" + raw[8:], "magic 0x00000001"),
        (lambda raw: b"\0\0\xff\xff" + raw[4:], "size 65535"),
        (lambda raw: raw[:28] + bytes(7) + b"\5" + raw[36:], "at 5"),
        (lambda raw: raw[:-2] + b"\0\1", "where the record does"),
        (lambda raw: raw.replace(b"\1A", b"\1/"), "is not a topic"),
        (lambda raw: raw[:20] + bytes(4) + b"\0\1\0\0" + raw[28:], "is expected"),
        (lambda raw: SIZE_MAGIC.pack(64, BLANK_MAGIC) + raw[8:], "does not end with the file"),
        (lambda raw: bytes(len(raw)), "size 0"),
    ],
)
def test_bytes_that_are_no_record_stop_the_slave(spoil: Callable[[bytes], bytes], reason: str) -> None:
    its_master = open_store(MemoryFiles())
    put(its_master, "A", 0, b"one")
    middle = its_master.log.end
    put(its_master, "A", 0, b"two")
    slave, replica = copy_of(its_master, end=middle)
    feed(replica, spoil(log_bytes(its_master, middle, its_master.log.end)))
    with pytest.raises(StoreCorrupt, match=reason):
        build_all(replica)
    assert bodies(slave, "A", 0) == [b"one"] and slave.log.end == middle


@pytest.mark.parametrize("kind", ["one by one", "IPv6", "a run"])
def test_a_body_that_does_not_match_its_crc_stops_the_slave_there(kind: str) -> None:
    its_master = open_store(MemoryFiles())
    count = 40 if kind == "a run" else 3
    ends = [0]
    for number in range(count):
        host, flag = (BORN_HOST_V6, 0x10) if kind == "IPv6" else (BORN_HOST, 0)
        its_master.put("A", 0, b"body %03d" % number, b"", sys_flag=flag, born_timestamp=1, born_host=host)
        ends.append(its_master.log.end)
    bad = count // 2
    data = bytearray(log_bytes(its_master, 0, its_master.log.end))
    data[data.index(b"body %03d" % bad)] ^= 1
    slave, replica = copy_of(its_master, end=0)
    feed(replica, bytes(data))
    with pytest.raises(
        StoreCorrupt, match=f"in bytes {ends[bad]} to {ends[bad + 1]} of the log does not match its CRC"
    ):
        build_all(replica)
    assert bodies(slave, "A", 0) == [b"body %03d" % number for number in range(bad)]
    assert slave.log.end == ends[bad]


def test_a_full_disk_stops_at_a_record_and_goes_on_later() -> None:
    its_master = master(Random(1))
    fs = MemoryFiles()
    slave = open_store(fs)
    unwritten = ""
    replica = Replica(slave, lambda: unwritten)
    replica.begin_at(0)
    room, fs.capacity = fs.capacity, fs.used() + 3 * SMALL.commitlog_segment_bytes
    with pytest.raises(DiskFull):
        feed(replica, log_bytes(its_master, 0, its_master.log.end))
    fs.capacity = fs.used()
    build_all(replica)
    with pytest.raises(DiskFull) as full:
        slave.checkpoint()
    unwritten = str(full.value)
    with pytest.raises(DiskFull):
        replica.build(1)
    fs.capacity, unwritten = room, ""
    feed(replica, log_bytes(its_master, replica.raw_end, its_master.log.end))
    build_all(replica)
    assert_same(slave, its_master)


def test_a_slave_whose_entries_cannot_be_written_is_finished_with_them_in_memory() -> None:
    its_master = master(Random(1))
    slave, replica = copy_of(its_master)
    feed(replica, b"\0\0\1")
    stuck = Replica(slave, lambda: "no room")
    with pytest.raises(DiskFull, match="no room"):
        stuck.build(1)
    stuck.finish()
    assert_same(slave, its_master)
    assert put(slave, "A", 0, b"later") == put(its_master, "A", 0, b"later")


def test_held_pulls_hear_of_messages() -> None:
    its_master = open_store(MemoryFiles())
    put(its_master, "A", 0, b"one")
    slave, replica = copy_of(its_master)
    build_all(replica)
    assert slave.arrived == {slave.queues.find("A", 0)}


def test_a_replica_waits_when_too_many_entries_are_in_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.replication.replica.MAX_ENTRIES_WAITING", 100)
    its_master = open_store(MemoryFiles())
    for number in range(150):
        put(its_master, "t", number % 2, b"x")
    slave, replica = copy_of(its_master)
    while not replica.must_wait:
        assert replica.build(10)
    assert 100 < slave.entries_waiting <= 110
    slave.checkpoint()
    assert not replica.must_wait and slave.entries_waiting == 0
    build_all(replica)
    assert_same(slave, its_master)
