"""The bytes of the auto-switch HA link: recorded ones and random ones, however they are split."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.epochs import Epoch, Epochs
from skylark.broker.replication.autoswitch.frames import (
    EpochPiece,
    MasterHello,
    MasterReader,
    SlaveHello,
    SlaveReader,
    encode_ack,
    encode_header,
    encode_master_hello,
    encode_slave_hello,
)
from skylark.mqcommon.errors import ProtocolError
from tests.broker.replication.test_frames import cuts, split

RECORDED = Path(__file__).parents[3] / "golden" / "ha-autoswitch"
CONNECTIONS = ["ha-1-06", "ha-1-09", "ha-1-22", "ha-2-14"]


def bytes_of(connection: str, direction: str) -> bytes:
    return (RECORDED / f"{connection}.{direction}.bin").read_bytes()


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_what_a_java_slave_sent_is_read_and_written_again(connection: str) -> None:
    data = bytes_of(connection, "c2s")
    reader = SlaveReader()
    offsets = reader.receive(data)
    assert reader.hello == SlaveHello(False, False, 1 if connection == "ha-2-14" else 2)
    assert encode_slave_hello(reader.hello) + b"".join(map(encode_ack, offsets)) == data
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_what_a_java_master_sent_is_read_and_written_again(connection: str) -> None:
    data = bytes_of(connection, "s2c")
    reader = MasterReader()
    pieces = reader.receive(data)
    assert reader.hello is not None
    written = encode_master_hello(reader.hello)
    for piece in pieces:
        epoch = Epoch(piece.epoch, piece.epoch_start)
        written += encode_header(piece.offset, len(piece.data), epoch, piece.confirm_offset) + piece.data
    assert written == data
    epochs = Epochs(reader.hello.epochs)
    for piece in pieces:
        if piece.data:
            assert epochs.at(piece.offset) == (piece.epoch, piece.epoch_start)


def joined(parts: list[bytes]) -> tuple[MasterHello | None, dict[int, tuple[int, ...]], list[EpochPiece]]:
    """The hello, (offset -> epoch, its start, confirm offset, the byte), heartbeats."""
    reader = MasterReader()
    found: dict[int, tuple[int, ...]] = {}
    beats: list[EpochPiece] = []
    for part in parts:
        for piece in reader.receive(part):
            head = (piece.epoch, piece.epoch_start, piece.confirm_offset)
            found |= {piece.offset + number: (*head, byte) for number, byte in enumerate(piece.data)}
            if not piece.data:
                beats.append(piece)
    return reader.hello, found, beats


sizes = st.lists(st.binary(max_size=50), max_size=6)
epoch_lists = st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=5).map(
    lambda numbers: tuple(Epoch(number, at * 7) for at, number in enumerate(sorted(numbers)))
)


@given(epoch_lists, sizes, cuts)
def test_a_masters_bytes_mean_the_same_however_they_are_split(
    epochs: tuple[Epoch, ...], data: list[bytes], places: list[int]
) -> None:
    hello = MasterHello(2**40, 3, epochs)
    frames = [
        encode_header(2**40 + number * 50, len(part), Epoch(3, 8), number) + part for number, part in enumerate(data)
    ]
    stream = encode_master_hello(hello) + b"".join(frames)
    whole = joined([stream])
    assert joined(split(stream, places)) == whole
    assert whole[0] == hello
    assert [byte for *_, byte in whole[1].values()] == list(b"".join(data))


@given(st.booleans(), st.booleans(), st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**63 - 1), max_size=6), cuts)
def test_a_slaves_bytes_mean_the_same_however_they_are_split(
    from_last_file: bool, is_learner: bool, broker_id: int, offsets: list[int], places: list[int]
) -> None:
    hello = SlaveHello(from_last_file, is_learner, broker_id)
    stream = encode_slave_hello(hello) + b"".join(map(encode_ack, offsets))
    reader = SlaveReader()
    assert [offset for part in split(stream, places) for offset in reader.receive(part)] == offsets
    assert reader.hello == hello


@given(st.binary(max_size=200), cuts)
def test_random_bytes_give_the_same_or_one_error(data: bytes, places: list[int]) -> None:
    def outcome(parts: list[bytes]) -> object:
        try:
            return joined(parts)
        except ProtocolError as error:
            return str(error)

    assert outcome(split(data, places)) == outcome([data])


@pytest.mark.parametrize(
    "data",
    [
        encode_ack(5) + b"\0" * 4,
        encode_slave_hello(SlaveHello(False, False, -1)),
        encode_slave_hello(SlaveHello(False, False, 1)) + b"\0\0\0\1" + b"\0" * 8,
        encode_slave_hello(SlaveHello(False, False, 1)) + encode_ack(-1),
    ],
)
def test_what_is_not_a_slave_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        SlaveReader().receive(data)


HELLO = encode_master_hello(MasterHello(0, 1, ()))


@pytest.mark.parametrize(
    "data",
    [
        encode_header(0, 0, Epoch(1, 0), 0),
        b"\0\0\0\1" + (13).to_bytes(4, "big") + b"\0" * 12,
        HELLO + encode_header(-1, 1, Epoch(1, 0), 0),
        HELLO + encode_header(-2, 0, Epoch(1, 0), 0),
        HELLO + encode_header(5, 1, Epoch(1, 6), 0),
        HELLO + encode_header(5, 2**30, Epoch(1, 0), 0),
        HELLO + HELLO + b"\0" * 16,
    ],
)
def test_what_is_not_a_master_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        MasterReader().receive(data)
