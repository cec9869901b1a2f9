"""What a server takes of a body is bounded before it is decoded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import ProtocolError
from remoting.protocol.body import KVTable
from remoting.protocol.bounded_body import BodyLimits, _has_at_most, decode_limited
from remoting.protocol.command import CBOR, JSON
from remoting.protocol.dialect import Dialect, encode_body
from remoting.protocol.requests.clients import ConsumerData, HeartbeatData

LIMITS = BodyLimits(max_bytes=1_000, max_entries=20, relaxed_bytes=100)


@pytest.mark.parametrize("codec", [JSON, CBOR])
def test_a_body_within_its_limits_is_read(codec: int) -> None:
    body = KVTable({f"{n}": "v" for n in range(19)})
    data = encode_body(body, Dialect.CBOR if codec == CBOR else Dialect.STANDARD)
    assert decode_limited(KVTable, data, codec, LIMITS) == body


@pytest.mark.parametrize("codec", [JSON, CBOR])
def test_too_many_entries_are_not_made_objects_of(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(ConsumerData, "from_wire", lambda obj: made.append(obj))
    body = HeartbeatData("c", consumer_data_set=[ConsumerData("") for _ in range(5)])
    data = encode_body(body, Dialect.CBOR if codec == CBOR else Dialect.STANDARD)
    with pytest.raises(ProtocolError, match="more than 20 entries"):
        decode_limited(HeartbeatData, data, codec, LIMITS)
    assert made == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b'{"table":{}}' + b" " * 1_000, "1012 bytes"), (b'{"table":{1:"' + b"x" * 100 + b'"}}', "too long")],
)
def test_too_many_bytes_are_not_parsed(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_limited(KVTable, data, JSON, LIMITS)


VALUES = st.recursive(
    st.none() | st.integers(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner)
)


def _entries(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(_entries, inner))


@given(VALUES, st.integers(0, 20))
def test_entries_are_counted_at_all_depths(value: Any, most: int) -> None:
    assert _has_at_most(value, most) == (_entries(value) <= most)
