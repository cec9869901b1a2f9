"""Batches, properties, ids, hashes, and what users may put into a Message."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import decode_batch, decode_offsets, encode_batch, encode_offsets
from skylark.mqcommon.message.ids import (
    UniqueKey,
    UniqueKeys,
    encode_host,
    offset_msg_id,
    parse_offset_msg_id,
    parse_unique_key,
)
from skylark.mqcommon.message.javahash import KeyHasher, java_hash
from skylark.mqcommon.message.message import Message, wire_properties
from skylark.mqcommon.message.properties import decode_properties, encode_properties, find_property

VECTORS = json.loads((Path(__file__).parents[2] / "golden/vectors.json").read_text())
rows = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)), max_size=9)
plain = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=9)


def java_hash_by_the_book(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for at in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


@pytest.mark.parametrize(("text", "code"), VECTORS["java_hash"].items())
def test_hashes_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text(max_size=700))
def test_the_hash_is_javas(text: str) -> None:
    assert java_hash(text) == java_hash_by_the_book(text)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_index_hashes_do_not_depend_on_what_was_hashed_before(keys: list[str]) -> None:
    hasher = KeyHasher()
    for key in keys * 2:
        code = java_hash_by_the_book(key)
        assert hasher.index_hash(key.encode()) == (0 if code == -(2**31) else abs(code))


@given(rows, st.integers(1, 5))
def test_a_batch_survives(messages: list[tuple[int, bytes, bytes]], at_once: int) -> None:
    data = encode_batch(messages)
    assert decode_batch(data) == (messages, len(data))
    found, at = [], 0
    while at < len(data):
        part, at = decode_batch(data, at, at_once)
        assert 0 < len(part) <= at_once
        found += part
    assert found == messages


@given(st.binary(max_size=100))
def test_what_is_no_batch_is_one_error(data: bytes) -> None:
    try:
        messages, end = decode_batch(data)
    except ProtocolError:
        return
    assert len(encode_batch(messages)) == end == len(data)


@given(st.lists(st.integers(0, 2**62), max_size=20))
def test_offsets_survive(offsets: list[int]) -> None:
    assert list(decode_offsets(encode_offsets(offsets))) == offsets


def test_half_an_offset_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        decode_offsets(b"1234")


@given(st.dictionaries(plain, plain, max_size=6))
def test_properties_survive_and_are_found(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text[:-1]) == properties, "the last separator may be missing"
    for name, value in properties.items():
        assert find_property(text.encode(), name.encode()) == value.encode()
    assert find_property(text.encode(), b"\x03none") is None


def test_a_name_is_found_only_as_a_whole() -> None:
    raw = encode_properties({"MYKEYS": "a", "KEYS": "b"}).encode()
    assert find_property(raw, b"KEYS") == b"b"


def test_of_a_name_that_stands_twice_the_last_value_counts() -> None:
    # Java clients of 5.x give each message of a batch its own unique key, and the batch's behind it.
    text = "UNIQ_KEY\x01own\x02TAGS\x01a\x02UNIQ_KEY\x01batch\x02XUNIQ_KEY\x01no\x02"
    assert find_property(text.encode(), b"UNIQ_KEY") == decode_properties(text)["UNIQ_KEY"].encode() == b"batch"


def test_ids() -> None:
    for ip in ("127.0.0.1", "::1"):
        text = offset_msg_id(encode_host(ip, 10911), 123_456_789)
        assert parse_offset_msg_id(text) == (ip, 10911, 123_456_789)
    with pytest.raises(ValueError, match="32 or 56"):
        parse_offset_msg_id("7F")


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("ip", ["10.1.2.3", "2001:db8::7"])
def test_a_unique_key_tells_its_maker_and_its_time(time_zone: str, ip: str) -> None:
    # November's key is read in November, and in December before the month is as old as the key.
    november = int(datetime(2025, 11, 30, 23, 59).timestamp() * 1000)
    key = UniqueKeys(ip, 4711, 1).next(november)
    assert key[-12:-4] == f"{november - int(datetime(2025, 11, 1).timestamp() * 1000):08X}", "months are local"
    for later_ms in (1, 3_600_000):
        assert parse_unique_key(key, november + later_ms) == UniqueKey(ip, 4711, november)


@pytest.mark.parametrize("text", ["", "7F000001", "x" * 32, "7F 0" * 8, "0" * 56 + "00"])
def test_other_texts_are_no_unique_keys(text: str) -> None:
    with pytest.raises(ValueError):
        parse_unique_key(text, 0)


def test_unique_keys_are_unique_and_know_the_month() -> None:
    keys = UniqueKeys("127.0.0.1", 4711, 1)
    october_end = int(datetime(2025, 11, 1).timestamp() * 1000) - 1
    made = [keys.next(october_end + n // 1000) for n in range(5_000)]
    made += [key[9:-1].decode() for key in keys.many(october_end + 9, 5_000)]
    assert len(set(made)) == 10_000 and {len(key) for key in made} == {32}
    assert made[-1][20:28] == "00000008", "time starts anew with the month"


def test_a_message_takes_keys_as_text_or_list_and_refuses_reserved_names() -> None:
    message = Message("t", b"", tags="a", keys=["x", "y"], properties={"own": "1"}, delay_level=3, sharding_key="s")
    assert (message.tags, message.keys, message.sharding_key) == ("a", "x y", "s")
    assert wire_properties(message, "U").decode().endswith("UNIQ_KEY\x01U\x02")
    for bad in ({"KEYS": "x"}, {"": "x"}, {"a": ""}, {"a": "\x01"}, {"b\x02": "x"}):
        with pytest.raises(ValueError, match=r"reserved|needs|holds"):
            Message("t", properties=bad)
