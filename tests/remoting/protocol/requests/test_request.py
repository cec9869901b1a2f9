"""Descriptions of requests: each reads what it writes, on both sides; and all have the names of their codes."""

import pytest

from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, FLAG_ONEWAY, Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.header import header_fields
from skylark.remoting.protocol.request import NOTHING, Answer
from skylark.remoting.protocol.requests.clients import (
    HEART_BEAT,
    NOTIFY_CONSUMER_IDS_CHANGED,
    HeartbeatData,
    ProducerData,
)
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET, GetMaxOffsetRequestHeader, OffsetResponseHeader
from skylark.remoting.protocol.requests.query import VIEW_MESSAGE_BY_ID
from skylark.remoting.protocol.requests.routes import GET_TOPICS_BY_CLUSTER
from skylark.remoting.protocol.requests.table import BY_CODE, BY_NAME, AnyRequest
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader, TopicList


def test_each_code_has_one_description() -> None:
    assert len(BY_CODE) == len(BY_NAME) > 70


@pytest.mark.parametrize("entry", BY_NAME.values(), ids=BY_NAME.keys())
def test_what_is_written_is_read(entry: AnyRequest) -> None:
    if entry.header_type is not NOTHING:
        asked = entry.header_type(*["1" for _ in header_fields(entry.header_type, False)])
        assert entry.header(entry.command(asked)) == entry.header_type.from_ext(asked.to_ext())
    else:
        assert entry.command(None).ext is None
    if entry.body_type not in (NOTHING, bytes):
        body = entry.body_type()
        assert entry.body(Command(entry.code, body=encode_body(body))) == body
    request = Command(entry.code, opaque=5, codec=CBOR)
    if entry.answer_header_type is not NOTHING:
        told = entry.answer_header_type(*["1" for _ in header_fields(entry.answer_header_type, False)])
        answer = entry.answer(request, told)
        assert (answer.code, answer.opaque, answer.codec) == (0, 5, CBOR)
        assert Answer(entry, answer).header() == entry.answer_header_type.from_ext(told.to_ext())
    if entry.answer_body_type not in (NOTHING, bytes):
        body = entry.answer_body_type()
        assert Answer(entry, Command(0, body=encode_body(body))).body() == body


def test_a_body_without_structure_is_its_bytes() -> None:
    assert Answer(VIEW_MESSAGE_BY_ID, Command(0, body=b"stored")).body() == b"stored"


def test_an_answer_with_another_code() -> None:
    request = Command(GET_MAX_OFFSET.code, opaque=7)
    answer = GET_MAX_OFFSET.answer(request, OffsetResponseHeader(3), code=21, remark="why", body=b"x")
    assert (answer.code, answer.remark, answer.ext, answer.body) == (21, "why", {"offset": 3}, b"x")


def test_a_request_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RequestRefused, match="<topic> is null"):
        GET_MAX_OFFSET.header(Command(GET_MAX_OFFSET.code, {"queueId": "1"}))
    long = encode_body(HeartbeatData("id", [ProducerData(f"g{number}") for number in range(9)]))
    for body in (b"", b"x", long):
        with pytest.raises(RequestRefused, match="the body cannot be read: ") as refused:
            HEART_BEAT.body(Command(HEART_BEAT.code, body=body), BodyLimits(max_entries=5))
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_an_answer_that_cannot_be_read_is_an_error_when_it_is_asked_for() -> None:
    answer = Answer(GET_MAX_OFFSET, Command(0, {"offset": "many"}))
    with pytest.raises(ProtocolError, match="<offset> is not an integer"):
        answer.header()
    topics = Answer(GET_TOPICS_BY_CLUSTER, Command(0, body=b'{"topicList":{}}'))
    with pytest.raises(ProtocolError, match="topicList: not an array"):
        topics.body()


def test_json_that_is_not_standard_has_a_bound() -> None:
    data = b'{"topicList":["t"],1:2}'
    answer = Answer(GET_TOPICS_BY_CLUSTER, Command(0, body=data))
    assert answer.body() == answer.body(relaxed_bytes=len(data)) == TopicList(["t"])
    with pytest.raises(ProtocolError, match="too long"):
        answer.body(relaxed_bytes=len(data) - 1)


def test_requests_without_a_header() -> None:
    assert GET_ALL_TOPIC_CONFIG.bare.command(None).ext is None
    assert GET_ALL_TOPIC_CONFIG.command(GetAllTopicConfigRequestHeader()).ext == {}


def test_only_some_requests_are_oneway() -> None:
    header = NOTIFY_CONSUMER_IDS_CHANGED.header_type("g")
    assert NOTIFY_CONSUMER_IDS_CHANGED.oneway(header) == Command(40, {"consumerGroup": "g"}, flag=FLAG_ONEWAY)
    with pytest.raises(ValueError, match="request 30 is never oneway"):
        GET_MAX_OFFSET.oneway(GetMaxOffsetRequestHeader("T", 0))
