"""The reader of journal bytes: never raises, and tells a torn tail from rot."""

import struct
from zlib import crc32

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.meta.journal_format import (
    HEADER_BYTES,
    MARK,
    MAX_RECORD_BYTES,
    RECORD_HEAD_BYTES,
    encode_header,
    encode_record,
    scan,
)

RECORDS = [("topic", {"topicName": "T", "perm": 6}), ("offsets", {"T@g": {0: 7}}), ("topic-delete", "T")]


def journal(*durables: int) -> bytes:
    data = encode_header(3, 99)
    for (kind, payload), durable in zip(RECORDS, durables, strict=False):
        data += encode_record(kind, payload, durable)
    return data


def test_records_are_read_as_they_were_written() -> None:
    found = scan(journal(0, 0, HEADER_BYTES), 3)
    assert [record[1:] for record in found.records] == RECORDS
    assert found.previous_bytes == 99
    assert found.durable_bytes == HEADER_BYTES
    assert not found.damage


def test_an_empty_file_and_a_file_of_zeros_hold_nothing() -> None:
    assert not scan(b"", 0).damage
    zeros = scan(bytes(2000), 0)
    assert zeros.damage
    assert not zeros.rotten
    assert zeros.good_bytes == 0


def test_a_file_of_another_program_is_rot() -> None:
    assert scan(b"#!/bin/sh\n" * 10, 0).rotten


def test_a_journal_under_another_number_is_rot() -> None:
    assert scan(journal(0), 4).rotten


@given(st.integers(0, 200))
def test_a_file_cut_anywhere_is_a_torn_tail(length: int) -> None:
    data = journal(0, 0, 0)
    whole = scan(data, 3)
    found = scan(data[:length], 3)
    assert not found.rotten
    assert found.records == whole.records[: len(found.records)]
    ends = [*(record.offset for record in whole.records), len(data)]
    assert bool(found.damage) == (length not in ends and 0 < length < len(data))


@given(st.integers(HEADER_BYTES, 200), st.integers(1, 255))
def test_damage_before_the_known_durable_length_is_rot(place: int, change: int) -> None:
    data = bytearray(journal(0, 0, 0))
    place = HEADER_BYTES + place % (len(data) - HEADER_BYTES)
    data += encode_record("mark", None, len(data))
    data[place] ^= change
    found = scan(bytes(data), 3)
    assert found.damage
    assert found.rotten


@given(st.integers(HEADER_BYTES, 200), st.integers(1, 255))
def test_damage_behind_the_known_durable_length_is_a_torn_tail(place: int, change: int) -> None:
    data = bytearray(journal(0, HEADER_BYTES, HEADER_BYTES))
    place = HEADER_BYTES + place % (len(data) - HEADER_BYTES)
    data[place] ^= change
    found = scan(bytes(data), 3)
    assert found.damage
    assert not found.rotten
    assert HEADER_BYTES <= found.good_bytes <= place


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_without_an_error(data: bytes, with_header: bool) -> None:
    found = scan(encode_header(0, 0) + data if with_header else data, 0)
    assert found.good_bytes <= len(data) + HEADER_BYTES


def record(body: bytes, *, length: int | None = None) -> bytes:
    """A record whose checksum is right."""
    head = struct.pack(">4sII", MARK, len(body) if length is None else length, crc32(body, crc32(bytes(8))))
    return head + bytes(8) + body


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (record(b"x", length=MAX_RECORD_BYTES + 1), f"a record of {MAX_RECORD_BYTES + 1} bytes"),
        (record(b"\xff"), "the content is not what Skylark writes"),
        (record(cbor2.dumps([1])), "the content is not what Skylark writes"),
        (record(cbor2.dumps(7)), "the content is not what Skylark writes"),
        (record(cbor2.dumps([1, "payload"])), "the content is not what Skylark writes"),
        (record(b"x", length=2), "the file ends inside a record"),
        (b"x" * RECORD_HEAD_BYTES, "no record starts here"),
    ],
)
def test_a_record_that_cannot_be_read_ends_the_reading_and_says_why(damaged: bytes, reason: str) -> None:
    whole = journal(0, 0, 0)
    found = scan(whole + damaged, 3)
    assert [one[1:] for one in found.records] == RECORDS
    assert (found.good_bytes, found.damage) == (len(whole), reason)
    assert [one[1:] for one in scan(whole + record(cbor2.dumps(["kind", 1])), 3).records[3:]] == [("kind", 1)]
