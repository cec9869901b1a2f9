"""A copy of metadata comes back as it was, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.framed import framed
from skylark.mqcommon.tier.metadata import MetadataCopy, decode_metadata, encode_metadata

copies = st.builds(
    MetadataCopy,
    st.text(max_size=8),
    st.text(max_size=8),
    st.sampled_from(["plain", "Controller", "DLedger"]),
    st.just("1"),
    st.integers(0, 2**40),
    st.integers(0, 2**60),
    *[st.integers(1, 2**40)] * 4,
    st.dictionaries(st.text(max_size=8), st.binary(max_size=30), max_size=3),
)


@given(copies)
def test_a_copy_comes_back_from_its_bytes(copy: MetadataCopy) -> None:
    assert decode_metadata(encode_metadata(copy)) == copy


@given(copies, st.data())
def test_a_changed_byte_is_refused(copy: MetadataCopy, data: st.DataObject) -> None:
    raw = bytearray(encode_metadata(copy))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject):
        decode_metadata(bytes(raw))


@given(copies, st.data())
def test_a_part_of_a_copy_is_refused(copy: MetadataCopy, data: st.DataObject) -> None:
    raw = encode_metadata(copy)
    with pytest.raises(DamagedObject):
        decode_metadata(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_a_copy_with_other_fields_is_refused() -> None:
    with pytest.raises(DamagedObject, match="not what this Skylark writes"):
        decode_metadata(framed(b"SKTD", 1, ["broker", "cluster"]))
