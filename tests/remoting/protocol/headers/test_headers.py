"""Headers keep what recorded frames carry, read leniently, and refuse in RocketMQ's words."""

import contextlib
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import RequestRefused
from remoting.protocol.command import Command, text_ext
from remoting.protocol.headers import admin, client, groups, members, namesrv, offsets, pull, query, send, topics
from remoting.protocol.headers.header import Header, header_fields
from tests.remoting.protocol.golden import recorded

FILES = ["java_json", "java_rocketmq", "java_5.3.3", "cpp", "broker_namesrv", "admin_4.9.8", "admin_5.3.3"]

REQUESTS: dict[int, type[Header]] = {
    10: send.SendMessageRequestHeader,
    11: pull.PullMessageRequestHeader,
    12: query.QueryMessageRequestHeader,
    14: offsets.QueryConsumerOffsetRequestHeader,
    15: offsets.UpdateConsumerOffsetRequestHeader,
    17: topics.CreateTopicRequestHeader,
    21: topics.GetAllTopicConfigRequestHeader,
    29: offsets.SearchOffsetRequestHeader,
    30: offsets.GetMaxOffsetRequestHeader,
    31: offsets.QueueRequestHeader,
    32: offsets.QueueRequestHeader,
    33: query.ViewMessageRequestHeader,
    35: client.UnregisterClientRequestHeader,
    38: groups.ConsumerGroupRequestHeader,
    40: groups.ConsumerGroupRequestHeader,
    100: namesrv.PutKVConfigRequestHeader,
    101: namesrv.KVConfigRequestHeader,
    102: namesrv.KVConfigRequestHeader,
    103: namesrv.RegisterBrokerRequestHeader,
    104: namesrv.BrokerRequestHeader,
    105: namesrv.GetRouteInfoRequestHeader,
    201: groups.GetAllSubscriptionGroupRequestHeader,
    202: topics.TopicRequestHeader,
    203: groups.ConsumerGroupRequestHeader,
    204: groups.ProducerGroupRequestHeader,
    205: namesrv.BrokerNameRequestHeader,
    207: groups.DeleteSubscriptionGroupRequestHeader,
    208: groups.GetConsumeStatsRequestHeader,
    215: topics.TopicRequestHeader,
    216: namesrv.DeleteTopicFromNamesrvRequestHeader,
    217: topics.TopicRequestHeader,
    219: namesrv.NamespaceRequestHeader,
    224: namesrv.ClusterRequestHeader,
    300: topics.TopicRequestHeader,
    307: client.GetConsumerRunningInfoRequestHeader,
    315: admin.ViewBrokerStatsDataRequestHeader,
    322: namesrv.BrokerRequestHeader,
    327: namesrv.BrokerNameRequestHeader,
    361: pull.PullMessageRequestHeader,
}
RESPONSES: dict[int, type[Header]] = {
    10: send.SendMessageResponseHeader,
    11: pull.PullMessageResponseHeader,
    12: query.QueryMessageResponseHeader,
    14: offsets.OffsetResponseHeader,
    26: admin.GetBrokerConfigResponseHeader,
    29: offsets.OffsetResponseHeader,
    30: offsets.OffsetResponseHeader,
    31: offsets.OffsetResponseHeader,
    34: client.HeartbeatResponseHeader,
    205: namesrv.WipeWritePermResponseHeader,
    310: send.SendMessageResponseHeader,
    320: send.SendMessageResponseHeader,
    322: namesrv.QueryDataVersionResponseHeader,
    327: namesrv.AddWritePermResponseHeader,
}
#: Ext fields that any request may carry.
INHERITED = {"bname", "ReqT", "ns", "nsd", "oway", "lo", "AccessKey", "Signature", "SecurityToken", "OnsChannel"}
#: Of which there are no recorded frames.
UNRECORDED: set[type[Header]] = {
    admin.ResetMasterFlushOffsetHeader,
    members.BrokerHeartbeatRequestHeader,
    members.ExchangeHAInfoHeader,
    members.GetBrokerMemberGroupRequestHeader,
    members.NotifyMinBrokerIdChangeRequestHeader,
}
ALL = sorted({*REQUESTS.values(), *RESPONSES.values(), *UNRECORDED}, key=lambda each: each.__name__)


def kept(cls: type[Header], command: Command, short: bool, where: str) -> None:
    names = {each.wire for each in header_fields(cls, short)}
    ext = command.ext or {}
    if short:
        out = send.SendMessageRequestHeader.from_short_ext(ext).to_short_ext()
    else:
        out = cls.from_ext(ext).to_ext()
    expected = {name: value for name, value in ext.items() if name in names}
    if command.language != "CPP":
        assert text_ext(out) == expected, where
        assert not set(ext) - names - INHERITED, where
    else:
        assert set(out) == set(expected), where


def test_recorded_ext_is_kept() -> None:
    seen = set()
    for each in recorded(*FILES):
        command = each.command
        if each.is_request and each.request_code in (310, 320):
            kept(send.SendMessageRequestHeader, command, True, each.where)
        elif each.is_request and each.request_code in REQUESTS:
            kept(REQUESTS[each.request_code], command, False, each.where)
        elif each.is_request or not command.ext or each.request_code not in RESPONSES:
            continue
        else:
            kept(RESPONSES[each.request_code], command, False, each.where)
        seen.add((each.request_code, each.is_request))
    assert len(seen) > 30


@pytest.mark.parametrize("cls", ALL)
def test_every_required_field_is_refused_when_absent(cls: type[Header]) -> None:
    for each in header_fields(cls, False):
        if each.default is MISSING:
            ext = {other.wire: "0" for other in header_fields(cls, False) if other is not each}
            with pytest.raises(RequestRefused) as refused:
                cls.from_ext(ext)
            assert refused.value.code == 1
            assert refused.value.remark == (
                "org.apache.rocketmq.remoting.exception.RemotingCommandException: "
                f"the custom field <{each.wire}> is null"
            )


@pytest.mark.parametrize("cls", ALL)
def test_headers_come_back(cls: type[Header]) -> None:
    ext = {each.wire: "1" for each in header_fields(cls, False)}
    header = cls.from_ext(ext)
    assert cls.from_ext(header.to_ext()) == header
    assert all(getattr(header, each.name) is not None for each in fields(cls))  # type: ignore[arg-type]


def test_no_ext_at_all() -> None:
    assert topics.GetAllTopicConfigRequestHeader.from_ext(None).to_ext() == {}
    with pytest.raises(RequestRefused, match="<topic> is null"):
        topics.TopicRequestHeader.from_ext(None)


@pytest.mark.parametrize("value", ["x", "", " 1", "1.5", "1_0", "٣", 1.5, True, [1], {}, b"1", "9" * 5000, 2**31])
def test_unreadable_integers(value: Any) -> None:
    with pytest.raises(RequestRefused, match=r"the custom field <queueId> is (not an integer|longer than 32 bits)"):
        offsets.QueueRequestHeader.from_ext({"topic": "T", "queueId": value})


@pytest.mark.parametrize(
    ("value", "flag"),
    [("true", True), ("TRUE", True), ("1", True), (True, True), (1, True), ("false", False), ("0", False), (0, False)],
)
def test_flags(value: Any, flag: bool) -> None:
    ext = {"topic": "T", "queueId": 0, "committed": value}
    assert offsets.GetMaxOffsetRequestHeader.from_ext(ext).committed is flag


def test_short_names() -> None:
    header = send.SendMessageRequestHeader("g", "T", "TBW102", 4, 1, 0, 5, 0, "p", batch=True)
    assert header.to_short_ext() == {
        "a": "g", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 5, "h": 0, "i": "p", "m": True,
    }  # fmt: skip
    assert send.SendMessageRequestHeader.from_short_ext(header.to_short_ext()) == header
    assert send.SendMessageRequestHeader.from_ext(header.to_ext()) == header


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=1)


@given(st.sampled_from(ALL), st.data())
def test_any_values_give_a_header_or_a_refusal(cls: type[Header], data: st.DataObject) -> None:
    names = [each.wire for each in header_fields(cls, False)]
    ext = data.draw(st.fixed_dictionaries({name: junk for name in names}))
    with contextlib.suppress(RequestRefused):
        cls.from_ext(ext).to_ext()
