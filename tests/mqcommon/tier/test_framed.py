"""A frame gives back what was put into it, and nothing else."""

import struct
import zlib
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.framed import framed, unframed

VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_comes_back(value: object) -> None:
    assert unframed(b"TEST", 1, framed(b"TEST", 1, value), "a test") == value


@given(VALUES, st.data())
def test_a_changed_byte_is_refused(value: object, data: st.DataObject) -> None:
    whole = framed(b"TEST", 1, value)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with pytest.raises(DamagedObject):
        unframed(b"TEST", 1, changed, "a test")


@given(VALUES, st.data())
def test_a_cut_or_longer_object_is_refused(value: object, data: st.DataObject) -> None:
    whole = framed(b"TEST", 1, value)
    with pytest.raises(DamagedObject):
        unframed(b"TEST", 1, whole[: data.draw(st.integers(0, len(whole) - 1))], "a test")
    with pytest.raises(DamagedObject):
        unframed(b"TEST", 1, whole + b"\0", "a test")


def test_objects_of_another_kind_or_of_a_newer_format_are_refused() -> None:
    with pytest.raises(DamagedObject, match="does not begin"):
        unframed(b"TEST", 1, framed(b"ELSE", 1, 1), "a test")
    with pytest.raises(DamagedObject, match="newer Skylark"):
        unframed(b"TEST", 1, framed(b"TEST", 2, 1), "a test")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (zlib.compress(b"\0")[:-1], "does not end where it should"),
        (zlib.compress(b"\0") + b"\0", "does not end where it should"),
        (b"not compressed", "a test is damaged"),
        (zlib.compress(b"\x82\0"), "a test is damaged"),
    ],
)
def test_a_body_that_is_not_one_compressed_value_is_refused(body: bytes, text: str) -> None:
    head = struct.pack(">4sHHI", b"TEST", 1, 0, len(body))
    with pytest.raises(DamagedObject, match=text):
        unframed(b"TEST", 1, head + struct.pack(">I", crc32(head + body)) + body, "a test")
