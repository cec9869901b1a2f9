import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import ProtocolError
from remoting.protocol.bodies import register
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.mapping import TopicQueueMappingInfo
from remoting.protocol.bodies.register import RegisterBrokerBody, decode_compressed, encode_compressed
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigTable

OLD, NEW = 409, 479


def registration() -> RegisterBrokerBody:
    table = TopicConfigTable(
        DataVersion(0, 1_000, 3),
        {"T": TopicConfig("T", 4, 8, 6), "U": TopicConfig("U", 1, 1, 4, attributes={"+a": "b c"})},
    )
    return RegisterBrokerBody(table, ["fs:1"])


@pytest.mark.parametrize("version", [OLD, NEW])
def test_compressed_comes_back(version: int) -> None:
    assert decode_compressed(encode_compressed(registration(), version), version) == registration()


def test_mapping_infos_travel_from_5_0_0_on() -> None:
    body = registration()
    info = TopicQueueMappingInfo("T", total_queues=2, bname="broker-a", curr_id_map={0: 0, 1: 1})
    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map["T"] = info
    assert decode_compressed(encode_compressed(body, NEW), NEW) == body
    assert decode_compressed(encode_compressed(body, OLD), OLD) == registration()


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
    assert decode_compressed(zlib.compress(plain), OLD) == registration()


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "MAX_INFLATED_BYTES", 1000)
    with pytest.raises(ProtocolError, match="inflates to more"):
        decode_compressed(zlib.compress(bytes(100_000)), NEW)


def test_a_cut_body_is_refused() -> None:
    whole = encode_compressed(registration(), NEW)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_compressed(whole[:length], NEW)


@given(st.binary(max_size=80), st.booleans())
def test_random_bytes(data: bytes, pack: bool) -> None:
    with contextlib.suppress(ProtocolError):
        decode_compressed(zlib.compress(data) if pack else data, NEW)


@given(st.integers(min_value=0), st.integers(0, 255))
def test_mutated_contents(place: int, value: int) -> None:
    plain = bytearray(zlib.decompress(encode_compressed(registration(), NEW)))
    plain[place % len(plain)] = value
    with contextlib.suppress(ProtocolError):
        decode_compressed(zlib.compress(bytes(plain)), NEW)
