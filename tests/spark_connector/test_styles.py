"""The columns of other sources against a plain loop over messages."""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.sdk.arrow.decode import has_tag
from skylark.sdk.arrow.records import Records
from skylark.sdk.arrow.schema import microseconds
from skylark.spark_connector.schema import EXTERNALS, KAFKA, arrow_schema, partition_number, spark_schema
from skylark.spark_connector.styles import decode
from tests.sdk.arrow.records import BUFFERS, Stored


def rows(data: bytes, style: str) -> list[dict[str, Any]]:
    schema = arrow_schema(spark_schema(include_properties=True, style=style), style)
    batch = decode(Records(data), "broker-a", schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns[field.name] = column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
    return pa.table(columns).to_pylist()


def kafka(message: MessageExt) -> dict[str, Any]:
    return {
        "key": None if message.keys is None else message.keys.encode(),
        "value": message.body,
        "topic": message.topic,
        "partition": partition_number("broker-a", message.queue_id),
        "offset": message.queue_offset,
        "timestamp": microseconds(message.store_timestamp),
        "timestampType": 1,
        "headers": [{"key": name, "value": value.encode()} for name, value in message.properties.items()],
    }


def externals(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "flag": message.flag,
        "body": message.body,
        "properties": json.dumps(message.properties, ensure_ascii=False, separators=(",", ":")),
        "brokerName": "broker-a",
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "bornTimestamp": microseconds(message.born_timestamp),
        "storeTimestamp": microseconds(message.store_timestamp),
    }


@pytest.mark.parametrize(("style", "plain"), [(KAFKA, kafka), (EXTERNALS, externals)])
@given(buffer=BUFFERS)
@example(buffer=[Stored(properties='a\x01"\\\n\x02é\x01\x7f\x02'.encode()), Stored(), Stored(properties=b"b\x01c\x02")])
def test_styles_decode_to_what_a_plain_loop_does(style: str, plain: Any, buffer: list[Stored]) -> None:
    # Queue ids as brokers give them; others have no partition number.
    data = b"".join(replace(stored, queue_id=abs(stored.queue_id) % 4096).encode() for stored in buffer)
    assert rows(data, style) == [plain(message) for message in decode_messages(data, "broker-a")]


@given(BUFFERS, st.sets(st.sampled_from(["TagA", "v", ""])))
def test_tags_are_found_as_a_plain_loop_finds_them(buffer: list[Stored], tags: set[str]) -> None:
    data = b"".join(stored.encode() for stored in buffer)
    expected = [message.tags in tags for message in decode_messages(data, "broker-a")]
    assert has_tag(Records(data), frozenset(tags)).tolist() == expected
