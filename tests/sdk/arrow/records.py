"""Stored records for tests: hypothesis strategies, and the bytes of them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from skylark.mqcommon.message.compression import compressed
from skylark.mqcommon.message.flags import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    STORE_HOST_V6,
)
from skylark.mqcommon.message.record import encode_record, topic_field

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOST = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
TOPIC = st.one_of(
    st.sampled_from(["bench", "TopicTest", "日本", "t" * 127, "u" * 128, "é" * 100]), st.text(max_size=20)
)

_NAME = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "KEYS2", "TAG", "a", "é", "UNIQ_KEX", "KEYSKEYS", "x" * 20])
_VALUE = st.one_of(st.sampled_from(["", "v", "TagA", "KEYS\x01", "7F0000012A9918B4"]), st.text(max_size=9))
_PAIR = st.builds(lambda name, value: f"{name}\x01{value.replace(chr(2), '')}\x02".encode(), _NAME, _VALUE)
_SOUND = st.lists(_PAIR, max_size=4).map(b"".join)
_UNIQUE = st.integers(0, 2**32 - 1).map(lambda n: b"UNIQ_KEY\x01%032X\x02" % n)
_ODD = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"KEYS", b"TAGS", b"a", b"v", b"UNIQ_KEY", b"\xc3", b"\xa9", b"\xff"]),
    max_size=8,
).map(b"".join)
PROPERTIES = st.one_of(_UNIQUE, _SOUND, _ODD)


@dataclass(frozen=True)
class Stored:
    """The fields of a stored record; ``body`` as the user sent it."""

    topic: str = "bench"
    queue_id: int = 1
    queue_offset: int = 0
    physical_offset: int = 0
    body: bytes = b"hello"
    properties: bytes = b""
    flag: int = 0
    compressed: int | None = None
    born_timestamp: int = 1_700_000_000_000
    born_host: bytes = bytes([127, 0, 0, 1, 0, 0, 42, 153])
    store_timestamp: int = 1_700_000_000_001
    store_host: bytes = bytes([127, 0, 0, 1, 0, 0, 42, 159])
    reconsume_times: int = 0

    def encode(self) -> bytes:
        sys_flag = (BORN_HOST_V6 if len(self.born_host) == 20 else 0) | (
            STORE_HOST_V6 if len(self.store_host) == 20 else 0
        )
        body = self.body
        if self.compressed is not None:
            sys_flag |= COMPRESSED | self.compressed
            body = compressed(body, sys_flag)
        magic, topic_part = topic_field(self.topic)
        return encode_record(
            magic,
            topic_part,
            self.queue_id,
            self.queue_offset,
            self.physical_offset,
            body,
            self.properties,
            self.flag,
            sys_flag,
            self.born_timestamp,
            self.born_host,
            self.store_timestamp,
            self.store_host,
            self.reconsume_times,
            0,
        )


STORED = st.builds(
    Stored,
    topic=TOPIC,
    queue_id=INT32,
    queue_offset=INT64,
    physical_offset=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=40),
    properties=PROPERTIES,
    flag=INT32,
    compressed=st.sampled_from([None] * 5 + [0, COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD]),
    born_timestamp=st.integers(-(2**53), 2**53),
    born_host=HOST,
    store_timestamp=st.integers(-(2**53), 2**53),
    store_host=HOST,
    reconsume_times=INT32,
)
# what one producer sends in a row: same hosts, topic and kinds of properties, so that the quick paths are taken
ALIKE = st.builds(
    lambda first, bodies, properties: [
        Stored(topic=first.topic, body=body, properties=properties, queue_offset=at, born_host=first.born_host)
        for at, body in enumerate(bodies)
    ],
    STORED,
    st.one_of(
        st.lists(st.binary(min_size=7, max_size=7), min_size=1, max_size=9),
        st.lists(st.binary(max_size=9), min_size=1, max_size=9),
    ),
    PROPERTIES,
)
BUFFERS = st.one_of(st.lists(STORED, min_size=1, max_size=8), ALIKE)
