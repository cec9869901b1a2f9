"""Recorded JSON bodies of known codes are read, and written to the same bytes where Java 5.3.3 wrote them."""

from typing import Any

import pytest

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies import Body, Dialect, decode_body, encode_body, loads
from remoting.protocol.bodies.cluster import ClusterInfo
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.group import ConsumerIdList, SubscriptionGroupConfig, SubscriptionGroupTable
from remoting.protocol.bodies.ha import HARuntimeInfo
from remoting.protocol.bodies.heartbeat import HeartbeatData
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from remoting.protocol.bodies.register import RegisterBrokerBody, body_crc32
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.slave_tables import MessageRequestModes
from remoting.protocol.bodies.stats import BrokerStatsData, ConsumeStats
from remoting.protocol.bodies.topic import GroupList, TopicConfig, TopicConfigTable, TopicList, TopicStatsTable
from remoting.protocol.command import CBOR
from tests.remoting.protocol.golden import Recorded, recorded

#: (request code, whether the body is the request's) to its class.
CLASSES: dict[tuple[int, bool], type[Body]] = {
    (21, False): TopicConfigTable,
    (28, False): KVTable,
    (34, True): HeartbeatData,
    (38, False): ConsumerIdList,
    (43, False): ConsumerOffsetTable,
    (45, False): DelayOffsetTable,
    (103, True): RegisterBrokerBody,
    (103, False): KVTable,
    (105, False): TopicRouteData,
    (106, False): ClusterInfo,
    (200, True): SubscriptionGroupConfig,
    (201, False): SubscriptionGroupTable,
    (202, False): TopicStatsTable,
    (206, False): TopicList,
    (208, False): ConsumeStats,
    (217, True): TopicRouteData,
    (219, False): KVTable,
    (224, False): TopicList,
    (300, False): GroupList,
    (304, False): TopicList,
    (315, False): BrokerStatsData,
    (322, True): DataVersion,
    (322, False): DataVersion,
    (351, False): TopicConfig,
    (402, False): MessageRequestModes,
    (907, False): HARuntimeInfo,
}
NEW = ["java_5.3.3", "admin_5.3.3"]
OLD = ["java_json", "java_rocketmq", "cpp", "broker_namesrv", "admin_4.9.8"]
#: Bodies of codes that no daemon of ours handles yet, or that are not JSON objects.
OTHER_CODES = {10, 11, 12, 17, 25, 26, 36, 41, 42, 222, 310, 317, 319, 320}


def typed(names: list[str]) -> list[tuple[Recorded, type[Body], bytes]]:
    return [
        (each, CLASSES[each.request_code, each.is_request], each.command.body)
        for each in recorded(*names)
        if each.command.body and (each.request_code, each.is_request) in CLASSES
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
    """What Java wrote it in: only routes for clients from 4.9.4 on have quoted numbers."""
    quoted = each.request_code == 105 and not each.where.startswith("cpp:")
    return Dialect.STANDARD if quoted else Dialect.FASTJSON


def test_every_recorded_body_has_a_class_or_a_reason() -> None:
    unknown = {
        each.request_code
        for each in recorded(*NEW, *OLD)
        if each.command.body and (each.request_code, each.is_request) not in CLASSES
    }
    assert unknown <= OTHER_CODES


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
