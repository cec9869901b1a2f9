"""Handles and lists of offsets of pop consumption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.pop_info import (
    PopHandle,
    message_key,
    offset_info,
    parse_handle,
    parse_offset_info,
    pop_retry_topic,
    read_topic,
    retry_flag,
)
from skylark.remoting.protocol.requests.pops import BatchAck, BatchAckMessageRequestBody

NUMBERS, QUEUES = st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, QUEUES, st.sampled_from("012"), QUEUES, st.none() | NUMBERS)
def test_a_handle_is_read_back(
    start: int, pop_time: int, invisible: int, revive: int, retry: str, queue_id: int, offset: int | None
) -> None:
    handle = PopHandle(start, pop_time, invisible, revive, retry, "broker-a", queue_id, offset)
    assert parse_handle(str(handle)) == handle


def test_a_handle_as_java_writes_it() -> None:
    text = "100 1700000000000 60000 3 1 broker-a 2 105"
    assert parse_handle(text) == PopHandle(100, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 105)
    assert str(parse_handle(text)) == text


@pytest.mark.parametrize(
    ("part", "most"), [(0, 2**63 - 1), (1, 2**63 - 1), (2, 2**63 - 1), (3, 2**31 - 1), (6, 2**31 - 1)]
)
def test_a_number_that_has_no_room_in_the_field_of_a_request_is_refused(part: int, most: int) -> None:
    parts = ["100", "1700000000000", "60000", "3", "1", "broker-a", "2", "105"]
    parts[part] = str(most)
    parse_handle(" ".join(parts))
    parts[part] = str(most + 1)
    with pytest.raises(ValueError, match=f"not a number up to {most}"):
        parse_handle(" ".join(parts))


@given(st.text(max_size=60))
def test_other_texts_are_refused(text: str) -> None:
    try:
        handle = parse_handle(text)
    except ValueError as error:
        assert str(error).startswith("it")
    else:
        assert handle.retry in "012"


def test_lists_of_offsets() -> None:
    text = offset_info([("0", 3, 100), ("1", 0, "5,6"), ("0", message_key(3, 7), 1)])
    assert text == "0 3 100;1 0 5,6;0 qo3%7 1"
    assert parse_offset_info(text) == {("0", "3"): "100", ("1", "0"): "5,6", ("0", "qo3%7"): "1"}
    assert parse_offset_info("") == {}
    with pytest.raises(ValueError, match="2 parts, not 3"):
        parse_offset_info("0 3")


def test_names_of_retry_topics() -> None:
    assert [read_topic("T", "g", flag) for flag in "012"] == ["T", "%RETRY%g_T", "%RETRY%g+T"]
    assert [retry_flag(topic) for topic in ("T", "%RETRY%g_T", "%RETRY%g+T")] == ["0", "1", "2"]
    assert pop_retry_topic("T", "g") == "%RETRY%g_T"


def test_acknowledgements_as_java_writes_them() -> None:
    # BitSet {0, 2, 9}: bytes 05 02.
    data = (
        b'{"acks":[{"b":"BQI=","c":"g","it":60000,"pt":1700000000000,"q":2,"r":"1","rq":3,"so":100,"t":"T"}],'
        b'"brokerName":"broker-a"}'
    )
    ack = BatchAck(0b1000000101, "g", 60_000, 1_700_000_000_000, 2, "1", 3, 100, "T")
    body = BatchAckMessageRequestBody([ack], "broker-a")
    assert decode_body(BatchAckMessageRequestBody, data, 0) == body
    assert encode_body(body, Dialect.STANDARD) == data
    with pytest.raises(ProtocolError, match="base64"):
        decode_body(BatchAckMessageRequestBody, data.replace(b"BQI=", b"?"), 0)
