"""The one way into the store: what it checks, what interceptors do, and what the role means for it."""

from collections.abc import Iterator

import pytest

from broker.observe.stats import BrokerStats
from broker.store.store import PutResult
from broker.writing.writer import BatchFields, Incoming, Interceptor
from mqcommon.errors import RequestRefused
from mqcommon.message.flags import BORN_HOST_V6
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record, decode_record
from remoting.protocol.codes import ResponseCode
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, open_store
from tests.broker.writing.support import make_sends

V6_HOST = bytes(15) + b"\x01" + (50001).to_bytes(4, "big")


class Desk:
    def __init__(self, *interceptors: Interceptor, **changes: object) -> None:
        meta = MetadataDir(options(**changes))
        self.store = open_store(meta.fs, meta.clock)
        self.sends = make_sends(
            self.store, meta.topics, meta.options, meta.clock,
            stats=BrokerStats(meta.clock, now=lambda: 0.0), interceptors=interceptors,
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


@pytest.mark.parametrize("told", [0, BORN_HOST_V6])
@pytest.mark.parametrize("host", [HOST, V6_HOST])
def test_the_flags_of_hosts_are_those_of_the_hosts(desk: Desk, told: int, host: bytes) -> None:
    record = desk.record(desk.put(sys_flag=told, born_host=host))
    assert bool(record.sys_flag & BORN_HOST_V6) is (host == V6_HOST)


@pytest.mark.parametrize(
    ("body", "properties", "sys_flag"), [(b"x", b"DELAY\x013\x02", 0), (b"x", b"", 4), (b"x" * 5_000_000, b"", 0)]
)
def test_what_is_not_taken_is_not_stored(desk: Desk, body: bytes, properties: bytes, sys_flag: int) -> None:
    with pytest.raises(RequestRefused) as refusal:
        desk.put(body, properties, sys_flag=sys_flag)
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert desk.store.log.end == 0


def test_a_broker_that_takes_no_messages_says_why_and_takes_them_again(desk: Desk) -> None:
    desk.writer.refuse(14, "not the master")
    fields = BatchFields("t", 0, 0, 1, HOST, 0)
    for put in (desk.put, lambda: desk.writer.put_batch(fields, [(0, b"x", b"")])):
        with pytest.raises(RequestRefused, match="not the master"):
            put()
    assert desk.store.log.end == 0
    desk.writer.accept()
    desk.put()
    desk.writer.put_batch(fields, [(0, b"x", b"")])
    assert desk.store.max_offset("t", 0) == 2


def test_who_waits_for_slaves_is_told_when_this_broker_is_no_master_any_more() -> None:
    desk = Desk(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2)
    acks = desk.sends.durability._acks
    acks.connected("s:1", 0.0)
    acks.acked("s:1", 0)
    codes: list[int] = []
    put = desk.put()
    desk.sends.durability.when_safe(put.end, 0.0, codes.append)
    assert codes == []
    desk.writer.refuse(14, "not the master")
    assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert not desk.sends.durability.waits
    desk.writer.accept()
    assert desk.sends.durability.needs_slaves
    desk.store.close()


def test_interceptors_change_a_delayed_message_or_refuse_it_in_their_order() -> None:
    def elsewhere(message: Incoming) -> Incoming:
        if message.properties.startswith(b"DELAY"):
            message.topic, message.queue_id, message.properties = "later", 2, b"REAL\x01t\x02"
        return message

    def shouting(message: Incoming) -> Incoming:
        if message.body == b"no":
            raise RequestRefused(13, "no")
        message.body = message.body.upper() + message.topic.encode()
        return message

    desk = Desk(elsewhere, shouting)
    assert desk.record(desk.put(b"a")).body == b"a"  # a plain message is not looked at
    delayed = desk.record(desk.put(b"b", b"DELAY\x013\x02"))
    assert (delayed.topic, delayed.queue_id, delayed.body) == ("later", 2, b"Blater")
    with pytest.raises(RequestRefused):
        desk.put(b"no", b"DELAY\x013\x02")
    assert desk.record(desk.put(b"no", b"DELAY\x010\x02")).topic == "t"
    desk.store.close()


@pytest.mark.parametrize("level", [b"x", b"3s", b"1.5"])
def test_a_level_that_is_no_number_is_refused(desk: Desk, level: bytes) -> None:
    with pytest.raises(RequestRefused, match="not the number of a delay level"):
        desk.put(properties=b"DELAY\x01%s\x02" % level)


def test_a_batch_has_no_delay() -> None:
    desk = Desk(lambda message: message)
    with pytest.raises(RequestRefused, match="one by one"):
        desk.writer.stamped([(0, b"a", b""), (0, b"b", b"DELAY\x012\x02")])
    with pytest.raises(RequestRefused, match="one by one"):
        desk.writer.put_batch(BatchFields("t", 0, 0, 1, HOST, 0), [(0, b"a", b"")], b"DELAY\x012\x02")
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
    desk.writer.refuse(14, "not the master")
    with pytest.raises(RequestRefused, match="not the master"):
        desk.writer.put_again(message)
    desk.store.close()
