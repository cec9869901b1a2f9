"""The record batch of message objects is that of their records, as these messages show them now."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import InvalidArgument
from mqcommon.message.message import decode_messages
from sdk.arrow.decode import decode
from sdk.arrow.messages import record_batch
from sdk.arrow.records import Records
from sdk.arrow.schema import COLUMNS, USUAL, schema_of
from tests.sdk.arrow.records import BUFFERS, Stored
from tests.support.inner import inner_batch, rows_of

ALL = schema_of(tuple(COLUMNS))


@given(BUFFERS, st.data())
def test_some_messages_of_a_pull(buffer: list[Stored], data: st.DataObject) -> None:
    raw = b"".join(stored.encode() for stored in buffer)
    low = data.draw(st.integers(0, len(buffer) - 1))
    high = data.draw(st.integers(low + 1, len(buffer)))
    found = record_batch(decode_messages(raw, "b")[low:high], ALL)
    found.validate(full=True)
    assert found.equals(decode(Records(raw).part(low, high), "b", ALL))


def test_messages_of_several_pulls() -> None:
    parts = [b"".join(Stored(body=body).encode() for body in bodies) for bodies in ((b"a", b"b"), (b"c",))]
    found = record_batch([message for part in parts for message in decode_messages(part, "b")], ALL)
    assert found.column("body").to_pylist() == [b"a", b"b", b"c"]


def test_what_messages_say_now() -> None:
    first, second = decode_messages(Stored().encode() + Stored(reconsume_times=2).encode(), "b")
    first.show_topic("other")
    second.count_failure()
    found = record_batch([first, second], schema_of(["reconsumeTimes", "topic", "body"]))
    assert found.to_pylist() == [
        {"reconsumeTimes": 0, "topic": "other", "body": b"hello"},
        {"reconsumeTimes": 3, "topic": "bench", "body": b"hello"},
    ]


def test_messages_of_inner_batches() -> None:
    data = inner_batch(rows_of(3), 4, topic="bench") + Stored(queue_offset=7, body=b"plain").encode()
    messages = decode_messages(data, "b")
    messages[1].show_topic("other")
    found = record_batch(messages[1:], schema_of(["topic", "queueOffset", "body", "msgId", "sysFlag"])).to_pylist()
    assert [(row["topic"], row["queueOffset"], row["body"], row["sysFlag"]) for row in found] == [
        ("other", 5, b"1", 0), ("bench", 6, b"2", 0), ("bench", 7, b"plain", 0),
    ]  # fmt: skip
    assert [row["msgId"] for row in found] == [message.msg_id for message in messages[1:]]


def test_a_body_that_was_decompressed_is_not_again() -> None:
    (message,) = decode_messages(Stored(compressed=0, body=b"x" * 100).encode(), "b")
    message._content = b"kept"
    assert record_batch([message], schema_of(["body"])).column("body").to_pylist() == [b"kept"]


def test_columns() -> None:
    assert schema_of(None).names == list(USUAL)
    assert "properties" not in USUAL and len(USUAL) == 15
    wanted: list[tuple[list[Any], str]] = [
        (["body", "text"], r"columns\[1\] is 'text'; a message has topic, brokerName"),
        (["body", "body"], r"columns\[1\] is 'body', which is in columns before"),
    ]
    for columns, said in wanted:
        with pytest.raises(InvalidArgument, match=said):
            schema_of(columns)
    assert schema_of(["body"]) == pa.schema([("body", pa.binary())])
