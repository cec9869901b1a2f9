"""The one way into the store: what it checks, and what the role means for it."""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.observe.stats import BrokerStats
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import PutResult, StoreOptions
from skylark.broker.writing.admission import Reason
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import BatchFields
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.flags import BORN_HOST_V6
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import SCHEDULE_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, SMALL, open_store, read_all
from tests.broker.writing.support import Answers, make_sends

V6_HOST = bytes(15) + b"\x01" + (50001).to_bytes(4, "big")


class Desk:
    def __init__(self, store_options: StoreOptions = SMALL, **changes: object) -> None:
        meta = MetadataDir(options(**changes))
        self.store = open_store(meta.fs, meta.clock, store_options)
        self.sends = make_sends(
            self.store, meta.topics, meta.options, meta.clock,
            stats=BrokerStats(meta.clock, now=lambda: 0.0),
        )  # fmt: skip
        self.writer = self.sends.writer

    def put(self, body: bytes = b"x", properties: bytes = b"", **fields: object) -> PutResult:
        values = {"flag": 0, "sys_flag": 0, "born_timestamp": 1, "born_host": HOST, **fields}
        return self.writer.put("t", 0, body, properties, **values)  # type: ignore[arg-type]  # of a dict

    def record(self, put: PutResult) -> Record:
        raw = self.store.record_at(put.physical_offset)
        assert raw is not None
        return decode_record(raw)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.store.close()


def test_a_message_gets_the_brokers_own_properties(desk: Desk) -> None:
    record = desk.record(desk.put(properties=b"TAGS\x01a\x02"))
    assert find_property(record.properties, b"TAGS") == b"a"
    assert find_property(record.properties, b"CLUSTER") == b"DefaultCluster"
    assert find_property(record.properties, b"UNIQ_KEY")


@pytest.mark.parametrize("is_batch", [False, True])
def test_the_handle_of_a_popped_message_that_is_sent_again_is_dropped(desk: Desk, is_batch: bool) -> None:
    sent = b"TAGS\x01a\x02POP_CK\x010 1 2 0 0 broker-a 3 4\x02XPOP_CK\x01x\x02UNIQ_KEY\x01k\x02POP_CK\x01odd"
    if is_batch:
        rows = desk.writer.stamped([(0, b"x", sent), (0, b"y", b"UNIQ_KEY\x01l\x02")])
        desk.writer.put_batch(BatchFields("t", 0, 0, 1, HOST, 0), RowBatch(rows))
        (stored, _) = read_all(desk.store, "t", 0)
    else:
        stored = desk.record(desk.put(properties=sent))
    assert stored.properties.startswith(b"TAGS\x01a\x02XPOP_CK\x01x\x02UNIQ_KEY\x01k\x02MSG_REGION")


@pytest.mark.parametrize("told", [0, BORN_HOST_V6])
@pytest.mark.parametrize("host", [HOST, V6_HOST])
def test_the_flags_of_hosts_are_those_of_the_hosts(desk: Desk, told: int, host: bytes) -> None:
    record = desk.record(desk.put(sys_flag=told, born_host=host))
    assert bool(record.sys_flag & BORN_HOST_V6) is (host == V6_HOST)


@pytest.mark.parametrize(("body", "sys_flag"), [(b"x", 4), (b"x" * 5_000_000, 0)])
def test_a_message_that_is_refused_is_not_stored(desk: Desk, body: bytes, sys_flag: int) -> None:
    with pytest.raises(RequestRefused) as refusal:
        desk.put(body, sys_flag=sys_flag)
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert desk.store.log.end == 0


def test_a_broker_that_takes_no_messages_says_why_and_takes_them_again(desk: Desk) -> None:
    desk.writer.admission.refuse(Reason.NOT_MASTER)
    fields = BatchFields("t", 0, 0, 1, HOST, 0)
    for put in (desk.put, lambda: desk.writer.put_batch(fields, RowBatch([(0, b"x", b"")]))):
        with pytest.raises(RequestRefused, match="messages are put to the slave"):
            put()
    assert desk.store.log.end == 0
    desk.writer.admission.allow(Reason.NOT_MASTER)
    desk.put()
    desk.writer.put_batch(fields, RowBatch([(0, b"x", b"")]))
    assert desk.store.max_offset("t", 0) == 2


def test_an_answer_that_waits_for_slaves_is_sent_when_this_broker_is_no_master_any_more() -> None:
    desk, answers = Desk(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2), Answers()
    acks = desk.sends.durability._acks
    acks.connected("s:1", 0.0)
    acks.acked("s:1", 0)
    answers.wait(desk.sends.durability, desk.put().end)
    assert answers.codes == []
    desk.sends.durability.lead(False)
    assert answers.codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert not desk.sends.durability.waits
    desk.sends.durability.lead(True)
    assert desk.sends.durability.needs_slaves
    desk.store.close()


def test_a_deferred_message_waits_in_a_system_topic() -> None:
    desk = Desk()
    assert desk.record(desk.put(b"a", b"DELAY\x010\x02")).topic == "t"
    delayed = desk.record(desk.put(b"b", b"DELAY\x013\x02"))
    assert (delayed.topic, delayed.queue_id, delayed.body) == (SCHEDULE_TOPIC, 2, b"b")
    assert desk.put(b"c", b"TIMER_DELAY_SEC\x013\x02").recall_handle
    desk.store.close()


@pytest.mark.parametrize("level", [b"x", b"3s", b"1.5"])
def test_a_level_that_is_no_number_is_refused(desk: Desk, level: bytes) -> None:
    with pytest.raises(RequestRefused, match="not the number of a delay level"):
        desk.put(properties=b"DELAY\x01%s\x02" % level)


def test_a_batch_has_no_delay() -> None:
    desk = Desk()
    with pytest.raises(RequestRefused, match="one by one"):
        desk.writer.stamped([(0, b"a", b""), (0, b"b", b"DELAY\x012\x02")])
    with pytest.raises(RequestRefused, match="one by one"):
        desk.writer.put_batch(BatchFields("t", 0, 0, 1, HOST, 0), RowBatch([(0, b"a", b"")]), b"DELAY\x012\x02")
    assert desk.store.log.end == 0
    desk.store.close()


AT = b"TIMER_DELIVER_MS\x01170000%07d\x02"
TIMES = [
    *(b"", b"DELAY\x013\x02", b"DELAY\x01x\x02", b"TIMER_DELAY_MS\x01%d\x02", AT, AT[:-1], b"X" + AT, b"K\x01v" + AT),
    *(b"DELAY\x012\x02" + AT, AT + AT, b"TIMER_DELAY_SEC\x013\x02" + AT, b"TIMER_OUT_MS\x015\x02" + AT),
    *(b"__START" + AT[6:], b"__STARTDELIVERTIME\x011700002999999\x02X" + AT),
]
KEYS = [b"UNIQ_KEY\x01%s\x02" % key for key in (b"K%d", b"DELAY%d", b"a-%d", b"")] + [b"UNIQ_KEY\x01K%d"]
OTHERS = [b"", b"TAGS\x01a\x02", b"KEYS\x01k%d\x02", b"UNIQ_KEY\x01a\x02", b"REAL_TOPIC\x01x\x02CLUSTER\x01c\x02", b"K"]
_parts = st.tuples(st.sampled_from(OTHERS), st.sampled_from(TIMES), st.sampled_from(KEYS), st.sampled_from(OTHERS))


def stored_at(desk: Desk, physical: int) -> tuple[Record, int]:
    """The record without its place, and the code in the entry of its queue."""
    raw = desk.store.record_at(physical)
    assert raw is not None
    record = decode_record(raw)
    found, size, code = desk.store.queues.get(record.topic, record.queue_id).entry(record.queue_offset)
    assert (found, size) == (physical, len(raw))
    return record._replace(physical_offset=0), code


PLAIN_KEY = (b"", AT, KEYS[0], b"")


@given(st.lists(st.tuples(_parts, st.sampled_from([0, 1, 1, 2, 50_000])), min_size=1, max_size=6), st.integers(1, 5))
@example([(PLAIN_KEY, 1), (PLAIN_KEY, 50_000)], 2)  # the second time is too far away
@example([(PLAIN_KEY, 1), (PLAIN_KEY, 0)], 2)  # and here over
@example([((b"", AT + AT, KEYS[0], b""), 1)], 3)
@example([((b"", b"TIMER_DELAY_SEC\x013\x02" + AT, KEYS[0], b""), 1)], 3)
def test_the_rows_of_a_batch_are_placed_as_single_messages_are(parts: list[tuple[Any, int]], copies: int) -> None:
    rows = []
    for texts, kind in parts:
        for number in range(copies):
            properties = b"".join(texts).replace(b"%07d", b"%07d" % (kind * 100 + number))
            rows.append((number, b"body %d" % number, properties.replace(b"%d", b"%d" % number)))
    fields = BatchFields("t", 0, 0, 1, HOST, 0)
    # A batch must fit into a file of the log as a whole, a message only on its own.
    roomy = replace(SMALL, commitlog_segment_bytes=65_536)
    together, alone = (Desk(roomy, timer_max_delay_sec=3_600) for _ in range(2))
    try:
        singles = [alone.put(body, properties, flag=flag) for flag, body, properties in rows]
    except RequestRefused as refused:
        with pytest.raises(RequestRefused, match=re.escape(refused.remark)):
            together.writer.place_rows(fields, rows)
        assert not together.store.log.end
    else:
        placed = together.writer.place_rows(fields, rows)
        for put, physical, queue_offset, slot_ms in zip(singles, *placed[:3], strict=True):
            assert stored_at(together, physical) == stored_at(alone, put.physical_offset)
            assert queue_offset == put.queue_offset
            # A handle with an empty key cannot be decoded.
            handle = urlsafe_b64decode(put.recall_handle).decode().split(" ")
            assert slot_ms == int(handle[3] if put.recall_handle else 0)
        assert placed.end == together.store.log.end
    for desk in (together, alone):
        desk.store.close()


@pytest.mark.parametrize(
    ("body", "filler"), [(b"x" * 4096, b""), (b"x", b"K\x01%s\x02" % (b"v" * 32_760))], ids=["body", "properties"]
)
def test_no_row_is_placed_when_a_later_row_is_too_large(body: bytes, filler: bytes) -> None:
    desk = Desk(timer_max_delay_sec=3_600)
    rows = [(0, b"x", b""), (0, body, b"TIMER_DELAY_SEC\x013\x02" + filler)]
    with pytest.raises(RequestRefused, match="properties length not matched"):
        desk.writer.place_rows(BatchFields("t", 0, 0, 1, HOST, 0), rows)
    assert desk.store.log.end == 0
    desk.store.close()


def test_what_was_stored_before_is_stored_again_although_it_would_be_refused_today() -> None:
    desk = Desk(
        broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2, min_in_sync_replicas=2, max_message_size=100
    )
    message = Incoming("t", 1, b"x" * 500, b"UNIQ_KEY\x01K\x02", 0, 0, 1, HOST, 3)
    record = desk.record(desk.writer.put_again(message))
    assert (record.topic, record.queue_id, record.reconsume_times) == ("t", 1, 3)
    assert find_property(record.properties, b"UNIQ_KEY") == b"K"
    desk.writer.admission.refuse(Reason.NOT_MASTER)
    with pytest.raises(RequestRefused, match="messages are put to the slave"):
        desk.writer.put_again(message)
    desk.store.close()
