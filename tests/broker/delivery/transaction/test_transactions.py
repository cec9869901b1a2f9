"""Halves wait, end once, and are checked as RocketMQ does."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.delivery.transaction import ledger
from skylark.broker.delivery.transaction.halves import checks_of
from skylark.broker.store.queue.entry import ENTRY_BYTES
from skylark.broker.writing.admission import Reason
from skylark.broker.writing.deferred import CHECK_BYTES, from_level
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.layout import HEAD_V4, MAX_PROPERTIES
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import decode_properties, find_property
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field
from skylark.mqcommon.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from skylark.remoting.net.server import RunInTask
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    RESUME_CHECK_HALF_MESSAGE,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from tests.broker.delivery.later import TrioClock
from tests.broker.delivery.transaction import support
from tests.broker.delivery.transaction.support import GROUP, INTERVAL_MS, TIMEOUT_MS, Broker, timed_broker
from tests.broker.store.support import HOST, SMALL


def ready(**changes: Any) -> Broker:
    broker = Broker(**changes)
    broker.recover()
    return broker


async def test_a_half_is_stored_in_rocketmqs_form_and_seen_after_its_commit_only() -> None:
    broker = ready()
    half = broker.send(b"one", b"TAGS\x01a\x02UNIQ_KEY\x01K\x02")
    assert broker.bodies() == []
    (record,) = broker.records(TRANS_HALF_TOPIC)
    assert record.sys_flag & 0xC == 0 and record.queue_id == 0
    properties = decode_properties(record.properties.decode())
    assert properties["REAL_TOPIC"] == "t" and properties["REAL_QID"] == "0"
    assert properties["__transactionId__"] == "K" and properties["TRAN_MSG"] == "true"
    broker.end(half, commit=True)
    broker.part.after_turn()
    (message,) = broker.records()
    assert (message.body, message.sys_flag & 0xC) == (b"one", TRANSACTION_COMMIT)
    assert message.prepared_transaction_offset == half.physical_offset
    left = decode_properties(message.properties.decode())
    assert left["PGROUP"] == "g" and left["TAGS"] == "a"
    assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & left.keys()


async def test_the_progress_is_saved_when_the_log_before_it_is_confirmed() -> None:
    broker = ready()
    half = broker.send(b"one")
    broker.end(half, commit=True)
    broker.part.after_turn()
    end = broker.store.log.end
    broker.store.confirmed = lambda: end - 1
    for _ in range(3):
        broker.save()
        assert not broker.ledger.is_saved(broker.ledger.progress())
    broker.store.confirmed = lambda: end
    broker.save()
    assert broker.ledger.is_saved(broker.ledger.progress())


async def test_the_ends_of_one_turn_are_one_op_message() -> None:
    broker = ready()
    halves = [broker.send(b"%d" % number) for number in range(5)]
    for number, half in enumerate(halves):
        broker.end(half, commit=number % 2 == 0)
    broker.part.after_turn()
    broker.part.after_turn()
    (op,) = broker.records(TRANS_OP_TOPIC)
    assert op.body == b"0,1,2,3,4," and find_property(op.properties, b"TAGS") == b"d"
    assert broker.bodies() == [b"0", b"2", b"4"]


async def test_ends_are_counted_by_topic_and_open_halves_in_all() -> None:
    broker = ready()
    halves = [broker.send(b"%d" % number) for number in range(5)]
    assert broker.part.open_halves == 5
    broker.clock.advance(700)
    for number, half in enumerate(halves[:3]):
        broker.end(half, commit=number > 0)
    with pytest.raises(RequestRefused):
        broker.end(halves[0], commit=True)
    counts = broker.counts
    assert (counts.commits, counts.rollbacks, broker.part.open_halves) == ({"t": 2}, {"t": 1}, 2)
    assert counts.finish_ms["t"].total == 1_400
    counts.drop_topic("t")
    assert not counts.commits and not counts.rollbacks and not counts.finish_ms


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"producer_group": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commit_or_rollback": 4}, ResponseCode.INVALID_PARAMETER, "commitOrRollback is 4"),
    ],
)
async def test_a_wrong_end_is_refused_and_changes_nothing(changes: dict[str, Any], code: int, text: str) -> None:
    broker = ready()
    half = broker.send(b"one")
    with pytest.raises(RequestRefused) as refused:
        broker.end(half, commit=True, **changes)
    assert refused.value.code == code and text in refused.value.remark
    assert broker.bodies() == [] and broker.open_halves() == [0]


async def test_an_end_must_name_a_half_and_not_another_message() -> None:
    broker = ready()
    plain = broker.writer.put("t", 0, b"plain", b"PGROUP\x01g\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02", 0, 0, 1, HOST)
    with pytest.raises(RequestRefused, match="Find prepared"):
        broker.end(plain, commit=True)
    assert broker.bodies() == [b"plain"]


async def test_bytes_within_a_message_are_no_half() -> None:
    broker = ready()
    half = broker.send(b"one")
    # A producer knows where the log ends, as the answer to each send says where the message is.
    end = broker.writer.put("mine", 0, b"", b"UNIQ_KEY\x01K\x02", 0, 0, 1, HOST).end
    place = end + HEAD_V4.size
    properties = b"TRAN_MSG\x01true\x02PGROUP\x01other\x02REAL_TOPIC\x01mine\x02REAL_QID\x010\x02"
    forged = encode_record(
        *topic_field(TRANS_HALF_TOPIC), 0, half.queue_offset, place, b"", properties, 0, 0, 1, HOST,
        broker.clock.now_ms(), HOST, 0, 0,
    )  # fmt: skip
    assert broker.writer.put("mine", 0, forged, b"UNIQ_KEY\x01L\x02", 0, 0, 1, HOST).physical_offset == end
    assert broker.store.record_at(place) == forged
    with pytest.raises(RequestRefused, match="Find prepared transaction message failed"):
        broker.ask(half.queue_offset, place, commit=False, producer_group="other")
    broker.end(half, commit=True)
    assert broker.bodies() == [b"one"]


async def test_a_second_end_is_refused() -> None:
    broker = ready()
    half = broker.send(b"one")
    broker.end(half, commit=True)
    for commit in (True, False):
        with pytest.raises(RequestRefused, match="ended already"):
            broker.end(half, commit=commit)
    assert broker.bodies() == [b"one"]


async def test_unknown_leaves_it_open_and_is_answered() -> None:
    broker = ready()
    half = broker.send(b"one")
    answer = broker.end(half, commit=True, commit_or_rollback=0)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert broker.open_halves() == [0]


async def test_a_delay_begins_with_the_commit() -> None:
    broker = ready()
    half = broker.send(b"one", b"DELAY\x011\x02")
    assert [broker.store.max_offset(SCHEDULE_TOPIC, 0), len(broker.bodies(TRANS_HALF_TOPIC))] == [0, 1]
    broker.end(half, commit=True)
    assert broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1 and broker.bodies() == []


async def test_transactions_can_be_forbidden_and_are_not_for_batches() -> None:
    broker = ready(reject_transaction_message=True)
    with pytest.raises(RequestRefused, match="sending transaction message is forbidden"):
        broker.send(b"one")
    with pytest.raises(RequestRefused, match="in a transaction"):
        broker.writer.stamped([(0, b"", b"TRAN_MSG\x01true\x02")])


async def test_a_check_asks_about_a_copy_and_any_of_its_offsets_ends_it() -> None:
    broker = ready()
    half = broker.send(b"one", b"UNIQ_KEY\x01K\x02")
    assert broker.check() == 0, "it is too young"
    broker.clock.advance(TIMEOUT_MS)
    assert broker.check() == 1
    ((header, body),) = broker.producer.asked
    copy = broker.records(TRANS_HALF_TOPIC)[1]
    assert (header.tran_state_table_offset, header.commit_log_offset) == (1, copy.physical_offset)
    assert (header.msg_id, header.transaction_id, header.topic) == ("K", "K", "t")
    assert header.offset_msg_id == offset_msg_id(HOST, copy.physical_offset)
    message = MessageExt(body, 0, "")
    assert (message.topic, message.body, message.queue_offset) == ("t", b"one", 1)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert message.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    broker.end(half, commit=True)
    with pytest.raises(RequestRefused, match="ended already"):
        broker.ask(header.tran_state_table_offset, header.commit_log_offset, commit=True, from_transaction_check=True)
    assert broker.bodies() == [b"one"] and broker.open_halves() == []
    broker.kill()
    broker.recover()
    assert broker.open_halves() == []


@pytest.mark.parametrize(
    ("immunity", "immune_ms"), [(b"", TIMEOUT_MS), (b"CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", 60_000)]
)
async def test_only_the_first_question_waits_for_the_immunity(immunity: bytes, immune_ms: int) -> None:
    broker = ready()
    broker.send(b"first", immunity)
    broker.clock.advance(immune_ms)
    assert broker.check() == 1
    for count in range(2, 5):
        # A younger half before the copy of the first one keeps no question away.
        broker.send(b"young", immunity)
        broker.clock.advance(immune_ms // 4)
        assert broker.check() == 1
        assert len(broker.producer.asked) == count
    assert {MessageExt(body, 0, "").body for _, body in broker.producer.asked} == {b"first"}


async def test_immunity_keeps_checks_away_and_then_only_a_check_ends_it() -> None:
    broker = ready()
    immune = broker.send(b"immune", b"CHECK_IMMUNITY_TIME_IN_SECONDS\x013\x02")
    broker.send(b"other")
    broker.clock.advance(2_000)
    assert broker.check() == 1
    broker.clock.advance(1_001)
    with pytest.raises(RequestRefused) as refused:
        broker.end(immune, commit=True)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    assert broker.check() == 2
    broker.end(immune, commit=True, from_transaction_check=True)
    assert broker.bodies() == [b"immune"]


async def test_too_many_checks_give_it_up_and_323_brings_it_back(caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(transaction_check_max=3)
    broker.send(b"one")
    for _ in range(4):
        broker.clock.advance(TIMEOUT_MS)
        broker.check()
    assert len(broker.producer.asked) == 3 and broker.open_halves() == []
    assert "was checked 3 times" in caplog.text
    (record,) = broker.records(TRANS_CHECK_MAX_TIME_TOPIC)
    header = ResumeCheckHalfMessageRequestHeader(offset_msg_id(HOST, record.physical_offset), "t")
    answer = broker.part.resume(None, RESUME_CHECK_HALF_MESSAGE.command(header))  # type: ignore[arg-type]
    assert answer.code == ResponseCode.SUCCESS
    broker.clock.advance(TIMEOUT_MS)
    assert broker.check() == 1
    asked, _ = broker.producer.asked[-1]
    broker.ask(asked.tran_state_table_offset, asked.commit_log_offset, commit=True, from_transaction_check=True)
    assert broker.bodies() == [b"one"]


@pytest.mark.parametrize("msg_id", ["", "x", offset_msg_id(HOST, 99_999), offset_msg_id(HOST, 0)])
async def test_323_takes_only_what_was_given_up(msg_id: str) -> None:
    broker = ready()
    broker.writer.put("t", 0, b"plain", b"", 0, 0, 1, HOST)
    with pytest.raises(RequestRefused, match="Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed"):
        broker.part.resume(
            None,
            RESUME_CHECK_HALF_MESSAGE.command(ResumeCheckHalfMessageRequestHeader(msg_id)),  # type: ignore[arg-type]
        )


async def test_without_a_producer_it_is_counted_and_asked_later() -> None:
    broker = ready()
    broker.producer.closed_reason = "gone"
    broker.send(b"one")
    for _ in range(2):
        broker.clock.advance(TIMEOUT_MS)
        assert broker.check() == 1
    broker.producer.closed_reason = None
    broker.clock.advance(TIMEOUT_MS)
    broker.check()
    ((_, body),) = broker.producer.asked
    assert MessageExt(body, 0, "").properties["TRANSACTION_CHECK_TIMES"] == "3"


async def test_a_half_without_room_for_what_checks_add_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "SMALL", replace(SMALL, commitlog_segment_bytes=128 << 10))
    broker = ready()
    broker.send(b"small", b"UNIQ_KEY\x01K\x02a\x01v\x02")
    (small,) = broker.records(TRANS_HALF_TOPIC)
    most = MAX_PROPERTIES - CHECK_BYTES - len(small.properties) + 1
    broker.send(b"large", b"UNIQ_KEY\x01K\x02a\x01%s\x02" % (b"v" * most))
    with pytest.raises(RequestRefused, match="its checks add some") as refused:
        broker.send(b"too large", b"UNIQ_KEY\x01K\x02a\x01%s\x02" % (b"v" * (most + 1)))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    broker.clock.advance(TIMEOUT_MS)
    assert broker.check() == 2
    assert [checks_of(record.properties) for record in broker.records(TRANS_HALF_TOPIC)] == [0, 0, 1, 1]


@pytest.mark.parametrize("most", [1_000, 0])
async def test_a_half_that_cannot_be_copied_stops_no_others(most: int, caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(transaction_check_max=most)
    first = broker.send(b"")
    room = broker.store.log.max_record_bytes - (first.end - first.physical_offset)
    large = broker.send(bytes(room))
    broker.send(b"last")
    broker.clock.advance(TIMEOUT_MS)
    with caplog.at_level(logging.WARNING):
        broker.check()
    assert "half message 1 stays open, as no copy can be stored" in caplog.text
    given_up = broker.bodies(TRANS_CHECK_MAX_TIME_TOPIC)
    if most:
        asked = [(header.tran_state_table_offset, header.commit_log_offset) for header, _ in broker.producer.asked]
        assert len(asked) == 3 and asked[1] == (1, large.physical_offset), "the half itself"
        assert given_up == []
    else:
        assert given_up == [b"", b"last"]
    broker.end(large, commit=True)
    assert broker.bodies() == [bytes(room)]


async def test_halves_and_op_messages_of_a_java_broker_go_on() -> None:
    broker = Broker()
    common = b"TRAN_MSG\x01true\x02PGROUP\x01g\x02REAL_QID\x010\x02REAL_TOPIC\x01t\x02"
    for number in range(4):
        broker.store.put(TRANS_HALF_TOPIC, 0, b"%d" % number, common, born_timestamp=1, born_host=HOST)
    broker.store.put(TRANS_HALF_TOPIC, 0, b"nowhere", b"PGROUP\x01g\x02", born_timestamp=1, born_host=HOST)
    broker.store.put(TRANS_OP_TOPIC, 0, b"0", b"TAGS\x01d\x02", born_timestamp=1, born_host=HOST)
    broker.store.put(TRANS_OP_TOPIC, 0, b"2,", b"TAGS\x01d\x02", born_timestamp=1, born_host=HOST)
    broker.recover()
    assert broker.open_halves() == [1, 3, 4]
    broker.clock.advance(TIMEOUT_MS)
    assert broker.check() == 2
    for header, body in broker.producer.asked:
        commit = decode_record(body).body == b"3"
        broker.ask(header.tran_state_table_offset, header.commit_log_offset, commit=commit)
    assert broker.bodies() == [b"3"] and broker.open_halves() == []


async def test_the_task_checks_and_saves_and_yields_to_the_role(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = timed_broker()
    async with broker.running():
        half = broker.send(b"one")
        await trio.sleep((TIMEOUT_MS + 2 * INTERVAL_MS) / 1000)
        assert broker.producer.asked
        asked = len(broker.producer.asked)
        broker.is_master = False
        await trio.sleep(1)
        with pytest.raises(RequestRefused) as refused:
            broker.end(half, commit=True)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        await trio.sleep(10)
        assert len(broker.producer.asked) == asked
        broker.is_master = True
        await trio.sleep(1)
        broker.end(half, commit=True)
        broker.part.after_turn()
        await trio.sleep(20)
        assert broker.meta.offsets.query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0) == len(
            broker.records(TRANS_HALF_TOPIC)
        )
    assert broker.bodies() == [b"one"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_was_read_before_two_changes_of_the_role_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ready()
    half = broker.send(b"one")
    broker.end(broker.send(b"two"), commit=True)
    broker.part.after_turn()
    steps = broker.ledger.recover()
    next(steps)
    broker.part.forget()
    finish(steps)
    assert not broker.ledger.is_ready and not broker.ledger.has_ops_to_write
    broker.recover()
    assert broker.open_halves() == [0]

    monkeypatch.setattr(broker.store.log, "is_recent", lambda physical: False)
    command = END_TRANSACTION.command(
        EndTransactionRequestHeader(GROUP, half.queue_offset, half.physical_offset, TRANSACTION_COMMIT)
    )
    channel: Any = None
    with pytest.raises(RunInTask):
        broker.part.end(channel, command)
    reading = broker.part._end_old(channel, command)
    read_half = broker.ledger.read_half

    def read_slowly(offset: int) -> Record | None:
        monkeypatch.setattr(broker.ledger, "read_half", read_half)
        found = read_half(offset)
        broker.part.forget()
        broker.recover()
        return found

    monkeypatch.setattr(broker.ledger, "read_half", read_slowly)
    with pytest.raises(RequestRefused, match="the role of this broker has changed"):
        finish(reading)


async def test_a_full_disk_stops_checks_and_op_messages_and_they_go_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = timed_broker()
    async with broker.running():
        halves = [broker.send(b"one"), broker.send(b"two")]
        broker.end(halves[0], commit=True)
        broker.writer.admission.refuse(Reason.DISK_FULL, "no room")
        broker.part.after_turn()
        with pytest.raises(RequestRefused, match="no room"):
            broker.end(halves[1], commit=True)
        await trio.sleep(10)
        assert broker.records(TRANS_OP_TOPIC) == [] and broker.producer.asked == []
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 2
        broker.writer.admission.allow(Reason.DISK_FULL)
        await trio.sleep(INTERVAL_MS / 1000 + 1)
        assert broker.records(TRANS_OP_TOPIC)[0].body == b"0," and broker.producer.asked
    broker.kill()
    broker.recover()
    assert broker.bodies() == [b"one"] and len(broker.open_halves()) == 1


async def test_a_clock_that_was_ahead_once_keeps_no_transaction_from_being_checked(autojump_clock: MockClock) -> None:
    clock = TrioClock()
    clock.set_by_ms = 86_400_000
    broker = Broker(clock)
    async with broker.running():
        broker.send(b"before the clock went back")
        clock.set_by_ms = 0
        broker.send(b"after")
        await trio.sleep((TIMEOUT_MS + 2 * INTERVAL_MS) / 1000)
        assert _asked_about(broker) == {b"before the clock went back", b"after"}
    broker.kill()
    clock.set_by_ms = -86_400_000
    broker.producer.asked.clear()
    async with broker.running():
        broker.send(b"after the start")
        await trio.sleep((TIMEOUT_MS + 2 * INTERVAL_MS) / 1000)
        assert _asked_about(broker) == {b"before the clock went back", b"after", b"after the start"}


def _asked_about(broker: Broker) -> set[bytes]:
    return {decode_record(half).body for _, half in broker.producer.asked}


async def test_a_clock_that_is_set_forward_ends_no_immunity(autojump_clock: MockClock) -> None:
    clock = TrioClock()
    broker = Broker(clock)
    async with broker.running():
        half = broker.send(b"one", b"CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
        clock.set_by_ms = 3_600_000
        await trio.sleep(3 * INTERVAL_MS / 1000)
        assert broker.producer.asked == []
        broker.end(half, commit=True)
        assert broker.bodies() == [b"one"]


async def test_a_property_that_is_not_true_makes_no_half() -> None:
    broker = ready()
    broker.writer.put("t", 0, b"plain", b"TRAN_MSG\x01false\x02", 0, 0, 1, HOST)
    with pytest.raises(RequestRefused, match="TRAN_MSG is not true"):
        broker.writer.put("t", 0, b"plain", b"TRAN_MSG\x01false\x02", 0, 4, 1, HOST)
    assert broker.bodies() == [b"plain"]


async def test_the_tail_of_a_long_log_is_searched_for_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the log from a half near its end on, and finds the commit whose op message was not written."""
    monkeypatch.setattr(ledger, "TAIL_BYTES", 2_000)
    broker = ready()
    broker.send(b"old")
    halves = [broker.send(b"%d" % number) for number in range(20)]
    for half in halves[:-1]:
        broker.end(half, commit=True)
    broker.part.after_turn()
    broker.end(halves[-1], commit=True)
    broker.kill()
    broker.recover()
    assert broker.open_halves() == [0]
    assert broker.bodies() == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("byte", [3, 6, 7, 11])  # of the offset in the log, and of the size
async def test_a_damaged_entry_ends_no_half(byte: int) -> None:
    broker = ready()
    halves = [broker.send(b"%d" % number) for number in range(3)]
    broker.stop()
    broker.fs.flip(f"/store/consumequeue/{TRANS_HALF_TOPIC}/0/{0:020}", ENTRY_BYTES + byte, 1)
    broker.start()
    broker.recover()
    assert broker.open_halves() == [0, 1, 2]
    broker.end(halves[1], commit=True)
    assert broker.bodies() == [b"1"]


@pytest.mark.parametrize("entry", range(16, 21))
@pytest.mark.parametrize("byte", [3, 6])
async def test_a_damaged_entry_hides_no_commit(entry: int, byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the tail of the log compares entries that may be wrong."""
    monkeypatch.setattr(ledger, "TAIL_BYTES", 700)
    broker = ready()
    halves = [broker.send(b"%d" % number) for number in range(21)]
    broker.end(halves[-1], commit=True)
    broker.stop()
    first = SMALL.consumequeue_segment_bytes
    path = f"/store/consumequeue/{TRANS_HALF_TOPIC}/0/{first:020}"
    broker.fs.flip(path, entry * ENTRY_BYTES - first + byte, 1)
    broker.start()
    broker.recover()
    assert broker.open_halves() == list(range(20))


async def test_an_idle_broker_flushes_nothing(autojump_clock: MockClock) -> None:
    broker = timed_broker()
    async with broker.running():
        broker.end(broker.send(b"one"), commit=True)
        broker.part.after_turn()
        await trio.sleep(30)
        flushed = broker.flushes
        assert 0 < flushed < 4
        await trio.sleep(300)
        assert broker.flushes == flushed


async def test_saved_offsets_past_the_end_hide_no_later_halves_after_a_kill() -> None:
    """As on a slave that lacked the end of its master's log, and became the master."""
    broker = ready()
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_TOPIC):
        broker.meta.offsets.commit_now(ledger.GROUP, topic, 0, 3)
    broker.kill()
    broker.recover()
    for number in range(4):
        broker.send(b"%d" % number)
    for _ in range(4):
        broker.end(broker.send(b"ended"), commit=False)
        broker.part.after_turn()
    broker.kill()
    broker.recover()
    assert broker.open_halves() == [0, 1, 2, 3]


async def test_halves_that_were_removed_with_the_old_log_are_over() -> None:
    broker = Broker()
    for number in range(60):
        broker.send(b"%d" % number)
    queue = broker.store.queues.find(TRANS_HALF_TOPIC, 0)
    assert queue is not None
    queue.start_at(50)
    broker.recover()
    assert broker.open_halves() == list(range(50, 60))


async def test_a_producer_that_does_not_read_is_asked_later_and_that_counts_as_no_check() -> None:
    broker = ready(transaction_check_max=1)
    broker.send(b"one")
    broker.producer.buffered_bytes = 1 << 30
    for _ in range(3):
        broker.clock.advance(TIMEOUT_MS)
        assert broker.check() == 0
    broker.producer.buffered_bytes = 0
    assert broker.check() == 1 and broker.open_halves() == [1]


async def test_another_delivery_of_a_committed_message_ends_no_half() -> None:
    broker = ready()
    first = broker.send(b"open")
    assert first.physical_offset == 0
    half = broker.send(b"one", b"DELAY\x011\x02")
    broker.end(half, commit=True)
    broker.part.after_turn()
    (waiting,) = broker.records(SCHEDULE_TOPIC)
    broker.writer.put_again(from_level(waiting))
    assert broker.bodies() == [b"one"]
    broker.kill()
    broker.recover()
    assert broker.open_halves() == [0]
