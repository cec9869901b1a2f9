import contextlib
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.dialect import decode_body, dumps, encode_body, loads
from skylark.remoting.protocol.requests import registrations
from skylark.remoting.protocol.requests.auth import AclInfos, UserInfos
from skylark.remoting.protocol.requests.registrations import (
    PIECE_BYTES,
    STEP_TOPICS,
    RegisterBrokerBody,
    decode_compressed,
    decode_json,
    encode_compressed,
    read_registration,
)
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicQueueMappingInfo

OLD, NEW = 409, 479


def read_compressed(data: bytes, version: int) -> RegisterBrokerBody:
    return finish(decode_compressed(data, version))


def registration() -> RegisterBrokerBody:
    table = TopicConfigTable(
        DataVersion(0, 1_000, 3),
        {"T": TopicConfig("T", 4, 8, 6), "U": TopicConfig("U", 1, 1, 4, attributes={"+a": "b c"})},
    )
    return RegisterBrokerBody(table, ["fs:1"])


@pytest.mark.parametrize("version", [OLD, NEW])
def test_compressed_comes_back(version: int) -> None:
    assert read_compressed(encode_compressed(registration(), version), version) == registration()


def with_mapping() -> RegisterBrokerBody:
    body = registration()
    info = TopicQueueMappingInfo("T", total_queues=2, bname="broker-a", epoch=7, curr_id_map={0: 0, 1: 1})
    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map["T"] = info
    return body


def test_mappings_of_static_topics_are_read_in_each_form() -> None:
    body = with_mapping()
    assert read_compressed(encode_compressed(body, NEW), NEW) == body
    assert finish(read_registration(loads(encode_body(body)))) == body
    assert finish(decode_json(encode_body(body))) == body
    # RocketMQ's, whose ids are not quoted.
    assert finish(decode_json(encode_body(body).replace(b'"0":0,"1":1', b"0:0,1:1"))) == body


def test_peers_before_5_0_0_send_no_mappings() -> None:
    assert read_compressed(encode_compressed(with_mapping(), OLD), OLD) == registration()


@pytest.mark.parametrize("compressed", [True, False])
def test_mappings_are_bounded(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MAX_MAPPED", 2)
    with pytest.raises(ProtocolError, match="3 static topics and queues of these, at most 2 are taken"):
        if compressed:
            read_compressed(encode_compressed(with_mapping(), NEW), NEW)
        else:
            finish(decode_json(encode_body(with_mapping())))


def test_the_layout() -> None:
    def part(text: bytes) -> bytes:
        return struct.pack(">i", len(text)) + text

    plain = (
        part(b'{"counter":3,"timestamp":1000}')
        + struct.pack(">i", 2)
        + part(b"T 4 8 6 SINGLE_TAG")
        + part(b'U 1 1 4 SINGLE_TAG {"+a":"b c"}')
        + part(b'["fs:1"]')
    )
    assert read_compressed(zlib.compress(plain), OLD) == registration()


MIB = 1 << 20
VERSION_PART = struct.pack(">i", 2) + b"{}"
SERVERS_PART = struct.pack(">i", 2) + b"[]"


def topics_of(texts: Iterable[bytes], count: int) -> bytes:
    """A compressed registration, made piece by piece."""
    deflate = zlib.compressobj(1)
    pieces = [deflate.compress(VERSION_PART + struct.pack(">i", count))]
    pieces += [deflate.compress(struct.pack(">i", len(text)) + text) for text in texts]
    return b"".join([*pieces, deflate.compress(SERVERS_PART + bytes(4)), deflate.flush()])


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: topics_of([b"x" * MIB] * 60, 60), "a part of 1048576 bytes, at most 131072"),
        (lambda: topics_of([], 10_000_000), "10000000 topics in one registration, at most 250000"),
        (
            lambda: topics_of([b"T" * 100_000 + b" 1 1 6 SINGLE_TAG"] * 700, 700),
            "inflates to more than 67108864 bytes",
        ),
        (
            lambda: zlib.compress(VERSION_PART + bytes(4) + SERVERS_PART + bytes(4 + 65 * MIB), 1),
            "inflates to more",
        ),
    ],
)
def test_a_bomb_is_refused_before_it_is_held(make: Callable[[], bytes], fault: str) -> None:
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=fault):
            finish(decode_compressed(data, NEW, len))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_no_more_than_a_step_of_a_compressed_registration_is_held() -> None:
    attributes = dumps({f"+{number}": "x" for number in range(2_000)})
    data = topics_of((b"T%d 1 1 6 SINGLE_TAG %s" % (number, attributes) for number in range(100)), 100)
    taken: list[int] = []
    tracemalloc.start()
    try:
        finish(decode_compressed(data, NEW, lambda topics: taken.append(len(topics))))
        # All attributes together need more than 30 MiB.
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert sum(taken) == 100


def test_a_cut_body_is_refused() -> None:
    whole = encode_compressed(registration(), NEW)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            read_compressed(whole[:length], NEW)


@given(st.binary(max_size=80), st.booleans())
def test_random_bytes(data: bytes, pack: bool) -> None:
    with contextlib.suppress(ProtocolError):
        read_compressed(zlib.compress(data) if pack else data, NEW)


@given(st.integers(min_value=0), st.integers(0, 255))
def test_mutated_contents(place: int, value: int) -> None:
    plain = bytearray(zlib.decompress(encode_compressed(registration(), NEW)))
    plain[place % len(plain)] = value
    with contextlib.suppress(ProtocolError):
        read_compressed(zlib.compress(bytes(plain)), NEW)


def many(count: int) -> RegisterBrokerBody:
    names = [f"t{number}" for number in range(count)]
    return RegisterBrokerBody(TopicConfigTable(topic_config_table={name: TopicConfig(name) for name in names}))


@pytest.mark.parametrize("is_compressed", [False, True])
def test_many_topics_are_read_in_steps(is_compressed: bool) -> None:
    body = many(10 * STEP_TOPICS)
    data = encode_compressed(body, NEW) if is_compressed else encode_body(body)
    reading = decode_compressed(data, NEW) if is_compressed else decode_json(data)
    count = 0
    try:
        while True:
            next(reading)
            count += 1
    except StopIteration as end:
        assert end.value == body
    assert count >= 10


def test_no_large_json_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(data: bytes, **limits: int) -> object:
        sizes.append(len(data))
        return loads(data, **limits)

    monkeypatch.setattr(registrations, "loads", noted)
    data = encode_body(many(10_000))
    assert finish(decode_json(data)) == many(10_000)
    assert max(sizes) < 2 * PIECE_BYTES < sum(sizes)


def test_what_is_not_topics_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="besides topics"):
        finish(decode_json(dumps({"filterServerList": ["f:1"] * 30_000})))
    mappings = {f"t{number}": {"hostedQueues": {"0": []}} for number in range(10_000)}
    data = dumps({"topicConfigSerializeWrapper": {"topicQueueMappingDetailMap": mappings}})
    assert finish(decode_json(data)) == RegisterBrokerBody()


@pytest.mark.parametrize(
    "wire",
    [
        [], {"topicConfigSerializeWrapper": 1}, {"topicConfigSerializeWrapper": {"topicConfigTable": []}},
        {"topicConfigSerializeWrapper": {"topicConfigTable": {"t": 5}}}, {"filterServerList": {}},
    ],
)  # fmt: skip
def test_what_is_no_registration_is_refused(wire: object) -> None:
    with pytest.raises(ProtocolError):
        finish(decode_json(dumps(wire)))
    with pytest.raises(ProtocolError):
        finish(read_registration(wire))


@pytest.mark.parametrize("wire", [{}, {"topicConfigSerializeWrapper": None}, {"filterServerList": ["f:1"]}])
def test_absent_members_are_read_as_everywhere(wire: dict[str, object]) -> None:
    data = dumps(wire)
    assert finish(read_registration(loads(data))) == decode_body(RegisterBrokerBody, data)
    assert finish(decode_json(data)) == decode_body(RegisterBrokerBody, data)


@pytest.mark.parametrize("text", [b"\xff 1 1 6 SINGLE_TAG", b"T one 1 6 SINGLE_TAG", b"T 1 1 6 MANY_TAGS"])
def test_a_topic_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_compressed(topics_of([b"U 1 1 6 SINGLE_TAG", text], 2), NEW)


@pytest.mark.parametrize("kind", [UserInfos, AclInfos])
@pytest.mark.parametrize("wire", [{}, None, 1, "x"])
def test_lists_of_users_and_policies_are_arrays(kind: type[UserInfos | AclInfos], wire: object) -> None:
    assert kind.from_wire([]) == kind([])
    with pytest.raises(ProtocolError, match="it is not an array"):
        kind.from_wire(wire)
