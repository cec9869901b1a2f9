"""Timed messages are delivered at their time: once, in order, by the master only, over restarts and recalls."""

import logging
import math
from array import array

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.delivery import timed_delivery as part_module
from skylark.broker.delivery.timed_delivery import (
    CHECKPOINT_QUEUE,
    POLL_S,
    SLICE,
    History,
    TimerCheckpoint,
    read_origins,
    recall_names,
)
from skylark.broker.delivery.transaction.halves import committed
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.queue.entry import ENTRY_BYTES
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.writing.admission import Reason
from skylark.broker.writing.deferred import from_timer
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.flags import TRANSACTION_PREPARED
from skylark.mqcommon.message.ids import RecallHandle
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, SIZE_MAGIC
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqcommon.names import TIMER_TOPIC, TRANS_HALF_TOPIC
from tests.broker.delivery.later import MAX_DELAY_MS, Timers
from tests.broker.store.support import HOST, put
from tests.support.waiting import until

LATE_S = 1 + POLL_S + 0.01


async def test_when_it_is_due_and_not_before(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.running():
        timers.send(b"five", 5_000)
        timers.send(b"two", 1_500, queue_id=3)
        timers.send(b"now", 0)
        timers.send(b"past", -5)
        assert timers.bodies() == [b"now", b"past"]
        await trio.sleep(1.49)
        assert timers.bodies(queue_id=3) == []
        await trio.sleep(LATE_S)
        (two,) = timers.records(queue_id=3)
        assert two.body == b"two" and two.queue_offset == 0
        assert find_property(two.properties, b"REAL_TOPIC") is None
        assert find_property(two.properties, b"TAGS") == b"a"
        assert timers.bodies() == [b"now", b"past"]
        await trio.sleep(5)
        assert timers.bodies() == [b"now", b"past", b"five"]
        assert timers.turns >= 2, "those who wait for messages hear of them"
        queue = timers.store.queues.find("t", 0)
        assert queue is not None and queue.entry(2)[2] == java_hash("a")


@pytest.mark.parametrize("precision_ms", [100, 1_000])
async def test_it_is_never_early_and_at_most_the_precision_late(precision_ms: int, autojump_clock: MockClock) -> None:
    timers = Timers(precision_ms)
    async with timers.running():
        due = {}
        for delay_ms in (1, 99, 100, 101, 777, 1_000, 1_001, 2_345):
            due[b"%d" % delay_ms] = timers.clock.now_ms() + delay_ms
            timers.send(b"%d" % delay_ms, delay_ms)
            await trio.sleep(0.013)
        await trio.sleep(5)
        for record in timers.records():
            late_ms = record.store_timestamp - due.pop(record.body)
            assert 0 <= late_ms <= precision_ms + POLL_S * 1_000 + 1
        assert not due


async def test_a_slot_is_delivered_in_its_order_and_in_slices(autojump_clock: MockClock) -> None:
    timers = Timers()
    count = 3 * SLICE + 5
    async with timers.running():
        timers.send(b"first", 9_000, topic="other")
        await trio.sleep(1)  # what was there at the start does not count as new
        for number in range(count):
            timers.send(b"%d" % number, 2_000)
            if number % 3 == 0:
                timers.send(b"later", 9_000, topic="other")
        assert timers.part.rates() == (0, 0)
        await trio.sleep(2 + LATE_S)
        assert timers.bodies() == [b"%d" % number for number in range(count)]
        timers.part.tick()
        rates = timers.part.rates()
        assert rates.enqueued > rates.delivered > 0
        assert timers.part.waiting == count // 3 + 2
        assert timers.part.unread == timers.part.behind_ms == 0


async def test_sends_without_a_pause_do_not_hold_up_delivery(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "SLICE", 2)
    monkeypatch.setattr(part_module, "POLL_S", 0.0)
    timers = Timers()
    sent: list[bytes] = []
    handles: list[str] = []
    async with timers.running():
        # The clock is set, as there is never a moment without work in which it would jump.
        for number in range(120):
            for part in range(3):
                sent.append(b"%d.%d" % (number, part))
                timers.send(sent[-1], 1_000)
            handles.append(timers.send(b"recalled", 1_000))
            # As late as a recall may come.
            soon = timers.clock.now_ms() + 40
            while handles and RecallHandle.decode(handles[0]).slot_ms <= soon:
                timers.recall(handles.pop(0))
            timers.clock.set_by_ms += 40
            await trio.lowlevel.checkpoint()
        delivered = timers.bodies()
    assert delivered == sent[: len(delivered)]
    assert len(delivered) > 3 * (120 - 2_000 // 40 - 10), "what is younger is not due yet"


async def test_a_kill_within_a_slot(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "SLICE", 2)
    monkeypatch.setattr(part_module, "BETWEEN_SLICES_S", 0.1)
    timers = Timers()
    async with timers.killed():
        for number in range(9):
            timers.send(b"%d" % number, 1_000)
        await until(lambda: bool(timers.bodies()), "the first slice is delivered")
        assert 0 < len(timers.bodies()) < 9
    async with timers.running():
        await trio.sleep(LATE_S)
        assert timers.bodies() == [b"%d" % number for number in range(9)]


async def test_a_start_does_not_trust_the_entry_of_the_first_message(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.running():
        put(timers.store, "plain", 0, b"")
        timers.send(b"a", 1_000)
        await trio.sleep(3)
        assert timers.bodies() == [b"a"]
        timers.send(b"b", 1_000)
    # With this bit the entry names a place past the copy of the first message.
    timers.fs.flip(f"/store/consumequeue/{TIMER_TOPIC}/0/{0:020}", 6, 1)
    # A thread looks for the right entry: a clock that jumps would not wait for it.
    autojump_clock.autojump_threshold, autojump_clock.rate = math.inf, 20.0
    async with timers.running():
        await until(lambda: timers.part.read_to == 2 and not timers.part.waiting, "all is delivered")
        assert timers.bodies() == [b"a", b"b"]


async def test_a_recall_is_found_though_its_entry_is_damaged(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.running():
        timers.recall(timers.send(b"gone", 3_000))
        timers.send(b"kept", 3_000)
    timers.fs.flip(f"/store/consumequeue/{TIMER_TOPIC}/0/{0:020}", ENTRY_BYTES + 6, 1)
    autojump_clock.autojump_threshold, autojump_clock.rate = math.inf, 20.0  # a thread looks for the right entry
    async with timers.running():
        await until(lambda: timers.part.read_to == 3 and not timers.part.waiting, "its time is over")
        assert timers.bodies() == [b"kept"]


async def test_a_recalled_message_is_not_delivered(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.killed():
        timers.send(b"kept", 3_000)
        timers.recall(timers.send(b"gone", 3_000))
        timers.recall(timers.send(b"alone in its slot", 60_000))
        await trio.sleep(1)
    async with timers.killed():
        await trio.sleep(3)
    async with timers.running():
        timers.send(b"other", 3_000)
        await trio.sleep(100)
        assert timers.bodies() == [b"kept", b"other"]
        assert timers.part.waiting == 0


async def test_a_slave_delivers_nothing_and_a_promoted_one_goes_on(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.running():
        timers.send(b"a", 1_000)
        await trio.sleep(1 + LATE_S)
        timers.send(b"b", 1_000)
        timers.is_master = False
        await trio.sleep(10)
        assert timers.bodies() == [b"a"] and timers.part.waiting == 0
        timers.is_master = True
        await trio.sleep(LATE_S)
        assert timers.bodies() == [b"a", b"b"]


async def test_what_was_read_before_two_changes_of_the_role_is_not_used(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, read_log, origins = Timers(), part_module.copies_since, list[set[int]]()

    async def copies_since(log: CommitLog, start: int) -> set[int]:
        origins.append(await read_log(log, start))
        if len(origins) == 1:
            timers.part.forget()
            # As if the log had been cut, and a copy been stored by another master.
            timers.writer.put_again(from_timer(timers.records(TIMER_TOPIC)[0]))
        return origins[-1]

    monkeypatch.setattr(part_module, "copies_since", copies_since)
    async with timers.running():
        timers.send(b"a", 1_000)
        await trio.sleep(5)
        assert [len(found) for found in origins] == [0, 1]
        assert timers.bodies() == [b"a"]


async def test_a_checkpoint_shortens_the_next_start(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "CHECKPOINT_BYTES", 300)
    timers = Timers()
    async with timers.killed():
        for number in range(50):
            timers.send(b"%d" % number, 1_000 + number * 100)
        timers.send(b"late", 60_000)
        await trio.sleep(4)
        count = len(timers.bodies())
        assert 10 < count < 50
        checkpoint = TimerCheckpoint.decode(timers.records(TIMER_TOPIC, CHECKPOINT_QUEUE)[-1].body)
        assert checkpoint.read_to == 51 and checkpoint.done_slot > 0 and checkpoint.position > 10_000
    async with timers.running():
        await trio.sleep(0.1)
        assert timers.part.waiting <= 51 - count
        await trio.sleep(70)
        assert timers.bodies() == [b"%d" % number for number in range(50)] + [b"late"]
        before = timers.store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE)
        for _ in range(20):
            put(timers.store, "plain", 0, bytes(100))
            await trio.sleep(1)
        assert timers.store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE) <= before + 1, "none while nothing waits"


async def test_a_store_of_rocketmq_with_its_checkpoint(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.killed():
        now_ms = timers.clock.now_ms() // 1_000 * 1_000
        # RocketMQ's queues have hashes of tags.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TagCodes, "of_waiting", lambda self, topic, properties, now: self.of(properties))
            for number, slot in enumerate((now_ms - 9_000, now_ms - 9_000, now_ms + 2_000)):
                text = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02TAGS\x01x\x02" % slot
                put(timers.store, TIMER_TOPIC, 0, b"%d" % number, text)
            put(timers.store, TIMER_TOPIC, 0, b"no time")
        timers.store.flush()
    timers.java_checkpoint = b"".join(value.to_bytes(8, "big") for value in (now_ms - 5_000, 0, 1, 1))
    async with timers.running():
        await trio.sleep(0.5)
        assert timers.bodies() == [b"1"], "the first one was delivered, the second was not in the wheel yet"
        await trio.sleep(5)
        assert timers.bodies() == [b"1", b"2"]


async def test_what_can_never_be_delivered_is_skipped(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    timers = Timers()
    async with timers.running():
        slot = timers.clock.now_ms() + 100
        put(timers.store, TIMER_TOPIC, 0, b"no topic", b"TIMER_OUT_MS\x01%d\x02" % slot)
        timers.send(b"next", 1_000)
        with caplog.at_level(logging.ERROR):
            await trio.sleep(5)
        assert timers.bodies() == [b"next"]
        assert "cannot be delivered, it is skipped" in caplog.text


async def test_a_refusal_holds_messages_up(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    timers = Timers()
    async with timers.running():
        timers.send(b"a", 1_000)
        timers.writer.admission.refuse(Reason.NOT_MASTER)
        await trio.sleep(10)
        assert timers.bodies() == []
        assert timers.part.behind_ms > 5_000
        assert caplog.text.count("still trying") == 1
        timers.writer.admission.allow(Reason.NOT_MASTER)
        await trio.sleep(2)
        assert timers.bodies() == [b"a"]


async def test_a_transaction_waits_from_its_commit_on_and_is_delivered_once(autojump_clock: MockClock) -> None:
    timers = Timers()
    async with timers.killed():
        text = b"TRAN_MSG\x01true\x02PGROUP\x01g\x02TIMER_DELAY_MS\x01%d\x02"
        with pytest.raises(RequestRefused, match="max delay"):
            timers.writer.put("t", 0, b"too late", text % (MAX_DELAY_MS + 1), 0, TRANSACTION_PREPARED, 1, HOST)
        timers.writer.put("t", 0, b"half", text % 2_000, 0, TRANSACTION_PREPARED, 1, HOST)
        await trio.sleep(10)
        (half,) = timers.records(TRANS_HALF_TOPIC)
        message = committed(half)
        timers.writer.defer_if_asked(message)
        timers.writer.put_again(message, is_complete=True)
        await trio.sleep(1.9)
        assert timers.bodies() == []
        await trio.sleep(LATE_S)
        assert timers.bodies() == [b"half"]
    async with timers.running():
        await trio.sleep(10)
        (record,) = timers.records()
        assert not record.sys_flag & TRANSACTION_PREPARED and record.body == b"half"


# --- checkpoints and the search of the log


def test_a_checkpoint_is_read_back() -> None:
    checkpoint = TimerCheckpoint(1, 2, 1_700_000_000_000, 4)
    assert TimerCheckpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("body", [b"", b"2 1 2 3 4", b"1 2 3", b"1 a b c d"])
def test_what_is_no_checkpoint(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="checkpoint of timers"):
        TimerCheckpoint.decode(body)


def test_rocketmqs_file() -> None:
    data = b"".join(value.to_bytes(8, "big") for value in (9_000, 77, 5, 6, 0, 1, 2))
    assert TimerCheckpoint.of_rocketmq(data) == TimerCheckpoint(0, 5, 8_999, 0)
    with pytest.raises(ProtocolError, match="at least 32"):
        TimerCheckpoint.of_rocketmq(data[:31])


def test_which_messages_wait() -> None:
    history = History(TimerCheckpoint(0, read_to=10, done_slot=5_000, position=0), {101})
    assert not history.waits(3, 5_000, 50)
    assert history.waits(3, 6_000, 50)
    assert not history.waits(3, 7_000, 100), "its copy is in the log"
    assert history.done_slot == 7_000
    assert history.waits(10, 4_000, 60), "it came after the checkpoint"


def test_a_filler_is_skipped() -> None:
    assert read_origins(SIZE_MAGIC.pack(500, BLANK_MAGIC) + bytes(50), array("q"), 0) == 500


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("end", [0, 10, 200])
@pytest.mark.parametrize("place", [*HEAD_V4.places("size", "magic")])
def test_copies_after_a_damaged_record_are_found(place: int, bits: int, end: int) -> None:
    """In the log in two pieces, of which the first ends ``end`` bytes after the damaged record."""
    magic, topic = topic_field("t")
    start, size = 9_000, len(encode_record(magic, topic, 0, 0, 0, b"x" * 50, b"", 0, 0, 0, HOST, 0, HOST, 0, 0))
    data = bytearray()
    for number in range(8):
        data += encode_record(
            magic, topic, 0, 0, start + len(data), b"x" * 50, b"", 0, 0, 0, HOST, 0, HOST, 0, 100 + number
        )
    data[2 * size + place] ^= bits
    origins, cut = array("q"), 3 * size + end
    at = min(read_origins(bytes(data[:cut]), origins, start), len(data))
    read_origins(bytes(data[at:]), origins, start + at)
    # A record with a wrong size hides the records over which the wrong size goes.
    hidden = {102} if place in HEAD_V4.places("magic") else {102, 103, 104, 105, 106, 107}
    assert {*range(100, 108)} - hidden <= set(origins) <= {*range(100, 108)}


def test_recalls_name_a_message_by_its_topic_and_key_or_by_its_key() -> None:
    assert recall_names(b"UNIQ_KEY\x01k\x02REAL_TOPIC\x01t\x02") == (b"t+k", b"k")
    assert recall_names(b"REAL_TOPIC\x01t\x02") == ()
