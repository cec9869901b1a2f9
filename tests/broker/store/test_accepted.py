"""Whatever a send accepts stays: over a stop, a kill, a power loss, replication, verifyStore and its repair."""

import errno
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.broker.commands.verify_store import verify
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.replication.replica import Replica
from skylark.broker.store.log.valid_record import SECTOR_BYTES
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.record import Record
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from tests.broker.meta.support import MetadataDir, options
from tests.broker.replication.test_replica import feed, log_bytes
from tests.broker.running import send_request
from tests.broker.store.support import SMALL, new_store, open_store, put, read_all
from tests.broker.writing.support import make_sends
from tests.support.amounts import amount
from tests.support.caller import Caller
from tests.support.memory_files import MemoryFiles

OPTIONS = replace(SMALL, commitlog_segment_bytes=64 * 1024)


class Sender:
    """The send handlers of a broker, on a store in memory."""

    def __init__(self, remote: str = "127.0.0.1:50001") -> None:
        meta = MetadataDir(options())
        self.fs = meta.fs
        self.store = open_store(meta.fs, meta.clock, OPTIONS)
        self._channel = Caller(remote).channel
        stats = BrokerStats(meta.clock, now=lambda: 0.0)
        self._handlers = make_sends(self.store, meta.topics, meta.options, meta.clock, stats=stats).handlers.handlers()

    def send(self, request: Command) -> bool:
        """Whether the message, or the batch, was accepted."""
        try:
            answer = self._handlers[request.code](self._channel, request)
        except RequestRefused:
            return False
        assert answer is not None and answer.code == ResponseCode.SUCCESS
        return True


def messages_of(store: MessageStore) -> dict[tuple[str, int], list[Record]]:
    found = {(queue.topic, queue.queue_id): read_all(store, queue.topic, queue.queue_id) for queue in store.queues}
    return {queue: records for queue, records in found.items() if records}


def check_stays(fs: MemoryFiles, store: MessageStore, seed: int) -> None:
    """``store``, which is open on ``fs`` and wholly flushed, keeps its messages whatever comes."""
    sent = messages_of(store)
    if not sent:
        return
    killed, dark = fs.killed(), fs.crash(Random(seed))
    slave_fs = MemoryFiles()
    slave = open_store(slave_fs, options=OPTIONS)
    replica = Replica(slave)
    feed(replica, log_bytes(store, 0, store.log.end))
    while replica.build(1000):
        pass
    assert messages_of(slave) == sent
    slave_killed = slave_fs.killed()
    replica.finish()
    slave.close()
    store.build_index(1 << 30)
    store.close()
    for disk in (fs, slave_fs, killed, slave_killed, dark):
        looked_at, repaired = disk.killed(), disk.killed()
        repaired.boots = looked_at.boots = disk.boots
        for start in (disk, looked_at):
            opened = new_store(start, options=OPTIONS)
            report = opened.open()
            assert not report.torn_reason
            assert messages_of(opened) == sent
            opened.build_index(1 << 30)
            opened.close()
            said: list[str] = []
            assert verify(start, OPTIONS, repair=False, say=said.append), said
        verify(repaired, OPTIONS, repair=True, say=lambda line: None)
        assert messages_of(open_store(repaired, options=OPTIONS)) == sent


any_text = st.text(st.characters(exclude_categories=()), max_size=20)
zeros = st.integers(1, 2 * SECTOR_BYTES + 2).map(lambda count: "\0" * count)
values = st.one_of(any_text, zeros, st.sampled_from(["a\0b", "\0", "x\0", "é\0", "\x01", "\x02"]))
names = st.one_of(
    st.sampled_from(["device", "KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "WAIT", "PROPERTIES_CRC32"]), values
)
property_texts = st.one_of(
    values,
    st.lists(st.tuples(names, values), max_size=4).map(lambda pairs: "\x02".join(f"{n}\x01{v}" for n, v in pairs)),
)
numbers = st.one_of(st.integers(-2, 2), st.integers(-(2**65), 2**65), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1]))
topics = st.one_of(st.just("t"), st.sampled_from(["u", "%RETRY%g", "a\0b", "", ".", "..", "a/b", "é"]), any_text)
bodies_sent = st.one_of(st.binary(max_size=40), st.integers(0, 1200).map(bytes))
singles = st.builds(
    lambda topic, body, queue_id, properties, flag, sys_flag, born, again: send_request(
        topic, body, queue_id=queue_id, properties=properties, h=flag, f=sys_flag, g=born, j=again
    ),
    topics,
    bodies_sent,
    st.one_of(st.integers(-1, 5), numbers),
    property_texts,
    numbers,
    st.one_of(st.just(0), numbers),
    numbers,
    numbers,
)
rows = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    bodies_sent,
    st.one_of(
        st.binary(max_size=30),
        property_texts.map(lambda text: text.encode("utf-8", "replace")),
        st.binary(max_size=1300).map(lambda key: b"UNIQ_KEY\x01" + key + b"\x02"),
        zeros.map(lambda text: b"UNIQ_KEY\x01" + text.encode() + b"\x02"),
    ),
)
batches = st.lists(rows, min_size=1, max_size=5).map(lambda many: send_request("t", encode_batch(many), m=True))


@settings(max_examples=amount(6, 2_000))
@given(st.lists(st.one_of(singles, batches), max_size=6), st.integers(0, 1000))
@example([send_request("t", b"x", properties="device\x01a\0b")], 0)
@example([send_request("t", b"x", properties="KEYS\x01a\0b\x02TAGS\x01\0")], 0)
@example([send_request("t", b"x", properties="a\x01" + "\0" * 2000)] * 3, 1)
@example([send_request("t", encode_batch([(0, b"", b"UNIQ_KEY\x01" + bytes(1500) + b"\x02")]), m=True)], 1)
async def test_what_a_send_accepts_stays(requests: list[Command], seed: int) -> None:
    sender = Sender()
    accepted = [sender.send(request) for request in requests]
    assert any(accepted) == bool(messages_of(sender.store))
    sender.store.flush()
    check_stays(sender.fs, sender.store, seed)


@pytest.mark.parametrize("size", range(MAX_PROPERTIES - 104, MAX_PROPERTIES + 2, 3))
async def test_properties_of_any_length_are_refused_or_stay(size: int) -> None:
    sender = Sender()
    value = ("\0" * 600).ljust(size, "x")
    brokers_own = "MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02TRACE_ON\x01true\x02"
    assert sender.send(send_request("t", b"", properties=f"UNIQ_KEY\x01k\x02a\x01{value}"[:size])) == (
        size <= MAX_PROPERTIES - len(f"\x02{brokers_own}PROPERTIES_CRC32\x01????????\x02")
    )
    sender.store.flush()
    check_stays(sender.fs, sender.store, size)


@pytest.mark.parametrize("spare", range(-2, 3))
async def test_a_record_that_just_fits_into_a_file_stays_and_a_larger_one_is_refused(spare: int) -> None:
    sender = Sender("[::1]:50001")
    assert sender.send(send_request("t", b"first"))
    (first,) = messages_of(sender.store)["t", 0]
    body = bytes(sender.store.log.max_record_bytes - (first.size - 5) - spare)
    assert sender.send(send_request("t", body)) == (spare >= 0)
    sender.store.flush()
    check_stays(sender.fs, sender.store, spare + 9)


@pytest.mark.parametrize("topic", ["a\0b", "", " ", "a/b", ".", "..", "\ud800", "é", "x" * 128, "%RETRY%" + "x" * 250])
async def test_a_topic_that_cannot_be_stored_is_refused_and_leaves_nothing(topic: str) -> None:
    sender = Sender()
    assert not sender.send(send_request(topic, b"x"))
    # Whoever else puts messages is refused, too, where the topic could not be the name of a directory.
    if len(topic) != 128 and topic not in (" ", "é"):
        with pytest.raises(RequestRefused) as refused:
            put(sender.store, topic, 0, b"x")
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert sender.store.log.end == 0 and not list(sender.store.queues)


@pytest.mark.parametrize(
    "fields", [{"h": 2**31}, {"f": 2**33}, {"g": 2**63}, {"j": -(2**31) - 1}, {"g": float("inf")}, {"h": "x"}]
)
async def test_a_number_too_large_for_its_field_is_refused_by_name(fields: dict[str, Any]) -> None:
    sender = Sender()
    assert not sender.send(send_request("t", b"x", **fields))
    assert sender.store.log.end == 0


@pytest.mark.parametrize("fields", [{"f": 2**33}, {"g": 2**63}, {"j": -(2**31) - 1}, {"g": float("inf")}])
async def test_so_is_one_of_a_batch(fields: dict[str, Any]) -> None:
    sender = Sender()
    batch = send_request("t", encode_batch([(0, b"x", b"")]), m=True, **fields)
    assert not sender.send(batch)
    assert sender.store.log.end == 0


@pytest.mark.parametrize("nth", range(1, 4))
async def test_a_send_that_finds_no_descriptor_is_refused_and_the_next_one_stays(nth: int) -> None:
    sender = Sender()
    sender.fs.faults.fail("open", nth=nth, code=errno.EMFILE)
    # Each message needs a file of the log for itself.
    accepted = [sender.send(send_request(f"t{n}", b"%d" % n * 40_000)) for n in range(4)]
    assert accepted.count(False) == 1 and not sender.fs.faults.pending
    sender.store.flush()
    assert [queue[0] for queue in messages_of(sender.store)] == [f"t{n}" for n in range(4) if accepted[n]]
    check_stays(sender.fs, sender.store, nth)
