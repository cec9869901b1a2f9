"""The bytes of the HA link: any splitting of a stream gives the same, and garbage gives one error."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.frames import (
    MAX_CHUNK_BYTES,
    FrameReader,
    ReportReader,
    encode_header,
    encode_report,
)
from skylark.mqcommon.errors import ProtocolError


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` in pieces, some of them empty."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def joined(reader: FrameReader, parts: list[bytes]) -> tuple[dict[int, int], list[int]]:
    """(physical offset of each byte -> the byte, offsets of heartbeats)."""
    found: dict[int, int] = {}
    beats: list[int] = []
    for part in parts:
        for offset, data in reader.receive(part):
            found |= {offset + number: byte for number, byte in enumerate(data)}
            if not data:
                beats.append(offset)
    return found, beats


cuts = st.lists(st.integers(0, 10_000), max_size=12)
frames = st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=60)), max_size=8)


@given(frames, cuts)
def test_frames_are_the_same_however_they_are_split(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    stream = b"".join(encode_header(offset, len(data)) + data for offset, data in sent)
    assert joined(FrameReader(), split(stream, places)) == joined(FrameReader(), [stream])
    expected = {offset + number: byte for offset, data in sent for number, byte in enumerate(data)}
    assert joined(FrameReader(), [stream])[0] == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), cuts)
def test_reports_are_the_same_however_they_are_split(offsets: list[int], places: list[int]) -> None:
    stream = b"".join(encode_report(offset) for offset in offsets)
    reader = ReportReader()
    assert [offset for part in split(stream, places) for offset in reader.receive(part)] == offsets


@given(st.binary(max_size=200), cuts)
def test_random_bytes_give_pieces_or_one_error(data: bytes, places: list[int]) -> None:
    def outcome(parts: list[bytes]) -> object:
        reader = FrameReader()
        try:
            return joined(reader, parts)
        except ProtocolError as error:
            return str(error)

    assert outcome(split(data, places)) == outcome([data])


@pytest.mark.parametrize(("offset", "size"), [(0, -1), (0, MAX_CHUNK_BYTES + 1), (-1, 0), (-1, 10), (5, 2**31 - 1)])
def test_a_header_out_of_bounds_is_refused_before_its_data(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="are not a piece of a commit log"):
        FrameReader().receive(struct.pack(">qi", offset, size))


def test_the_wire_is_rocketmqs() -> None:
    assert encode_report(3446).hex() == "0000000000000d76"
    assert encode_header(3446, 0).hex() == "0000000000000d7600000000"
