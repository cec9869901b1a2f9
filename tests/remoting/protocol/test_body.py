import contextlib
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.body import Body, DataVersion, members
from skylark.remoting.protocol.command import CBOR, JSON
from skylark.remoting.protocol.dialect import decode_body, encode_body
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    HeartbeatData,
    SubscriptionData,
    parse_subscription,
)
from skylark.remoting.protocol.requests.groups import ConsumeStats, GroupRetryPolicy, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.registrations import RegisterBrokerBody
from skylark.remoting.protocol.requests.routes import BrokerData, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicStatsTable

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def test_unknown_members_are_ignored_and_missing_ones_keep_their_default() -> None:
    assert decode_body(TopicConfig, b'{"topicName":"T","later":{"a":1},"perm":null}') == TopicConfig("T")


def test_what_is_none_is_not_written() -> None:
    assert encode_body(TopicRouteData()) == b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    route = TopicRouteData(order_topic_conf="broker-a:4")
    assert decode_body(TopicRouteData, encode_body(route)) == route


def test_members_are_in_alphabetical_order() -> None:
    assert encode_body(GroupRetryPolicy()) == b'{"type":"CUSTOMIZED"}'
    assert list(SubscriptionGroupConfig("g").to_wire()) == sorted(SubscriptionGroupConfig("g").to_wire())


def test_enums_come_by_name_or_ordinal() -> None:
    assert decode_body(Connection, b'{"language":1}').language == "CPP"
    assert decode_body(Connection, b'{"language":"GO"}').language == "GO"
    with pytest.raises(ProtocolError, match=r"Connection\.language"):
        decode_body(Connection, b'{"language":"COBOL"}')


def test_addresses_have_number_keys_however_they_came() -> None:
    for body in (b'{"brokerAddrs":{0:"a:1"}}', b'{"brokerAddrs":{"0":"a:1"}}'):
        assert decode_body(BrokerData, body).broker_addrs == {0: "a:1"}


@pytest.mark.parametrize(
    ("cls", "body", "what"),
    [
        (TopicConfig, b"[]", "not an object"),
        (TopicConfig, b'{"perm":"x"}', r"TopicConfig\.perm: not an integer"),
        (TopicConfig, b'{"perm":1.5}', r"TopicConfig\.perm: not an integer"),
        (TopicConfig, b'{"perm":4294967296}', "longer than 32 bits"),
        (TopicConfig, b'{"topicName":[]}', "not text"),
        (TopicConfig, b'{"attributes":{"a":{}}}', "not text"),
        (BrokerData, b'{"brokerAddrs":{"x":"a"}}', "not an integer"),
        (TopicRouteData, b'{"queueDatas":{}}', "not an array"),
        (TopicRouteData, b'{"queueDatas":[1]}', "QueueData is not an object"),
        (TopicStatsTable, b'{"offsetTable":{"a":{}}}', "not a message queue"),
        (TopicStatsTable, b'{"topicPutTps":"fast"}', "not a number"),
        (RegisterBrokerBody, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":[]}}}', "not an object"),
    ],
)
def test_wrong_types_name_the_member(cls: type[Body], body: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_body(cls, body)


BODIES: list[type[Body]] = [
    HeartbeatData,
    TopicRouteData,
    RegisterBrokerBody,
    ConsumeStats,
    ConsumerConnection,
    SubscriptionGroupConfig,
    TopicConfigTable,
    ConsumerRunningInfo,
]


@given(st.sampled_from(BODIES), st.data())
def test_members_of_any_type_give_a_body_or_that_one_error(cls: type[Body], data: st.DataObject) -> None:
    names = sorted(cls().to_wire())
    obj: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(names), junk, max_size=4))
    with contextlib.suppress(ProtocolError):
        cls.from_wire(obj).to_wire()


def read_by_members(cls: type[Body], obj: dict[str, Any]) -> Body:
    """The body, read member by member."""
    given = {each.attribute: (each, obj.get(each.wire)) for each in members(cls)}
    return cls(**{name: each.kind.read(value) for name, (each, value) in given.items() if value is not None})


@given(st.sampled_from(BODIES), st.data())
def test_a_body_is_read_and_written_member_by_member(cls: type[Body], data: st.DataObject) -> None:
    usual = cls().to_wire()
    obj = {name: value for name, value in usual.items() if data.draw(st.booleans())}
    obj |= data.draw(st.dictionaries(st.sampled_from([each.wire for each in members(cls)]), junk, max_size=1))
    try:
        wanted = read_by_members(cls, obj)
    except (ValueError, ProtocolError):
        with pytest.raises(ProtocolError):
            cls.from_wire(obj)
        return
    found = cls.from_wire(obj)
    written = found.to_wire()
    assert repr(found) == repr(wanted)
    values = [(each, getattr(found, each.attribute)) for each in members(cls)]
    assert written == {
        each.wire: each.kind.write(value) if each.kind.write else value for each, value in values if value is not None
    }
    assert [*written] == sorted(written)


@given(st.sampled_from(BODIES), st.binary(max_size=50), st.sampled_from([JSON, CBOR]))
def test_random_bytes(cls: type[Body], data: bytes, codec: int) -> None:
    with contextlib.suppress(ProtocolError):
        decode_body(cls, data, codec)


@given(junk)
def test_any_cbor_is_a_body_or_that_one_error(value: Any) -> None:
    with contextlib.suppress(ProtocolError):
        decode_body(HeartbeatData, cbor2.dumps(value), CBOR)


@pytest.mark.parametrize("body", [b"\x81" * 100_000, b"\xd8\x1c\xa1\x61a\xd8\x1d\x00", b"\xc0\x74" + b"x" * 20])
def test_cbor_that_we_do_not_speak(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="not valid CBOR"):
        decode_body(HeartbeatData, body, CBOR)


def test_data_version() -> None:
    first = DataVersion(0, 1_000, 5)
    second = first.next(2_000)
    assert second == DataVersion(0, 2_000, 6)


def test_the_version_after_the_largest_one_can_be_sent() -> None:
    after = DataVersion(1, 1_000, (1 << 63) - 1).next(2_000)
    assert after == DataVersion(1, 2_000, 1)
    assert decode_body(DataVersion, encode_body(after), JSON) == after


def test_parse_subscription() -> None:
    parsed = parse_subscription("T", "TagA || TagB|| TagA ||", sub_version=7)
    assert parsed == SubscriptionData("T", "TagA || TagB|| TagA ||", "TAG", ["TagA", "TagB"], [2598919, 2598920], 7)
    assert parse_subscription("T", "*") == parse_subscription("T", None) == parse_subscription("T", "")
    assert parse_subscription("T", "*").tags_set == []
    sql = parse_subscription("T", "a > 1 || b", "SQL92")
    assert (sql.sub_string, sql.tags_set, sql.is_tag) == ("a > 1 || b", [], False)
    with pytest.raises(ValueError, match="names no tag"):
        parse_subscription("T", " || ")
