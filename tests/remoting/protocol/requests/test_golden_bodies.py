"""Recorded JSON bodies of known codes are read, and written to the same bytes where Java 5.3.3 wrote them."""

from typing import Any

import pytest

from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body, loads
from skylark.remoting.protocol.request import NOTHING
from skylark.remoting.protocol.requests.clients import HeartbeatData
from skylark.remoting.protocol.requests.groups import ConsumeStats
from skylark.remoting.protocol.requests.registrations import body_crc32
from skylark.remoting.protocol.requests.table import BY_CODE
from tests.remoting.protocol.golden import Recorded, recorded

NEW = ["java_5.3.3", "admin_5.3.3"]
OLD = ["java_json", "java_rocketmq", "cpp", "broker_namesrv", "admin_4.9.8"]
#: Codes that no daemon of ours handles yet.
OTHER_CODES = {222, 317}


def body_type(each: Recorded) -> Any:
    """What the description says of a body: a class, or bytes for one without structure; None for a code of others."""
    entry = BY_CODE.get(each.request_code)
    if entry is None:
        return None
    return entry.body_type if each.is_request else entry.answer_body_type


def typed(names: list[str]) -> list[tuple[Recorded, type[Body], bytes]]:
    return [
        (each, kind, each.command.body)
        for each in recorded(*names)
        if each.command.body and (kind := body_type(each)) not in (None, bytes)
    ]


def contains(ours: Any, theirs: Any) -> bool:
    """Whether ours has all that theirs has; members that came later may be more."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(
            key in ours and contains(ours[key], value) for key, value in theirs.items()
        )
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(contains, ours, theirs))
    return bool(ours == theirs)


def dialect_of(each: Recorded) -> Dialect:
    """The dialect of Java's body: only routes for clients from 4.9.4 on have quoted numbers."""
    quoted = each.request_code == 105 and not each.where.startswith("cpp:")
    return Dialect.STANDARD if quoted else Dialect.FASTJSON


def test_every_recorded_body_is_described() -> None:
    with_body = [each for each in recorded(*NEW, *OLD) if each.command.body]
    assert {each.request_code for each in with_body if body_type(each) is None} <= OTHER_CODES
    assert [each.where for each in with_body if body_type(each) is NOTHING] == []


def test_bodies_of_5_3_3_come_out_as_they_went_in() -> None:
    cases = typed(NEW)
    assert len({cls for _, cls, _ in cases}) >= 14
    for each, cls, body in cases:
        assert encode_body(decode_body(cls, body), dialect_of(each)) == body, each.where


def test_bodies_of_older_peers_lose_nothing() -> None:
    cases = typed(OLD)
    assert len({cls for _, cls, _ in cases}) >= 10
    for each, cls, body in cases:
        ours = decode_body(cls, body)
        if each.command.language != "CPP":  # it writes enums as numbers and numbers as text
            assert contains(loads(encode_body(ours, dialect_of(each))), loads(body)), each.where
        assert decode_body(cls, encode_body(ours, Dialect.STANDARD)) == ours, each.where


def test_every_typed_body_travels_in_every_dialect() -> None:
    for each, cls, body in typed(NEW + OLD):
        ours = decode_body(cls, body)
        for dialect, codec in ((Dialect.FASTJSON, 0), (Dialect.STANDARD, 0), (Dialect.CBOR, CBOR)):
            assert decode_body(cls, encode_body(ours, dialect), codec) == ours, each.where


def test_the_cpp_heartbeat() -> None:
    body = next(each.command.body for each in recorded("cpp") if each.request_code == 34 and each.is_request)
    heartbeat = decode_body(HeartbeatData, body)
    (consumer,) = heartbeat.consumer_data_set
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert [each.topic for each in consumer.subscription_data_set] == ["%RETRY%py_push_cg", "PyWire"]
    assert consumer.subscription_data_set[0].sub_version == 1795227046007


def test_queues_are_keys() -> None:
    body = next(each.command.body for each in recorded("admin_5.3.3") if each.request_code == 208 and each.command.body)
    stats = decode_body(ConsumeStats, body)
    assert stats.offset_table[MessageQueue("WireTopic", "broker-a", 2)].broker_offset == 4


@pytest.mark.parametrize("name", ["broker_namesrv", "admin_4.9.8", "admin_5.3.3"])
def test_crc32_of_registrations(name: str) -> None:
    checked = 0
    for each in recorded(name):
        if each.request_code == 103 and each.is_request:
            command = each.command
            assert command.ext is not None
            assert command.ext["bodyCrc32"] == str(body_crc32(command.body))
            checked += 1
    assert checked
