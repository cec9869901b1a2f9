import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.command import CBOR, JSON, ROCKETMQ, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import PREFIX, encode

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    codec = draw(st.sampled_from([JSON, ROCKETMQ, CBOR]))
    values = text if codec != CBOR else text | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    ext = draw(st.none() | st.dictionaries(text, values, min_size=int(codec == ROCKETMQ), max_size=5))
    return Command(
        draw(st.integers(-(2**15), 2**15 - 1)),
        ext,
        draw(st.binary(max_size=60)),
        draw(int32),
        draw(int32),
        draw(st.none() | text.filter(bool)),
        codec,
        draw(st.sampled_from(["JAVA", "CPP", "PYTHON", "NODE_JS"])),
        draw(st.integers(0, 1000)),
    )


def feed(connection: Connection, stream: bytes, cuts: list[int]) -> list[Command]:
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    found: list[Command] = []
    for begin, end in pairwise(bounds):
        found += connection.receive_data(stream[begin:end])
    return found


@given(st.lists(commands(), max_size=6), st.lists(st.integers(min_value=0), max_size=8))
def test_any_split_gives_the_same_commands(sent: list[Command], cuts: list[int]) -> None:
    connection = Connection()
    assert feed(connection, b"".join(map(encode, sent)), cuts) == sent
    assert connection.pending_bytes == 0


@given(st.lists(commands(), max_size=3))
def test_byte_by_byte(sent: list[Command]) -> None:
    connection = Connection()
    stream = b"".join(map(encode, sent))
    assert feed(connection, stream, list(range(len(stream)))) == sent


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_random_bytes_give_commands_or_that_one_error(chunks: list[bytes]) -> None:
    connection = Connection(max_frame_bytes=64)
    try:
        for chunk in chunks:
            connection.receive_data(chunk)
    except ProtocolError:
        assert connection.pending_bytes == 0


@given(
    st.sampled_from([JSON, ROCKETMQ, CBOR]),
    st.binary(max_size=60),
    st.binary(max_size=10),
)
def test_well_framed_random_headers(codec: int, header: bytes, body: bytes) -> None:
    frame = PREFIX.pack(4 + len(header) + len(body), codec << 24 | len(header)) + header + body
    connection = Connection()
    try:
        (command,) = connection.receive_data(frame)
    except ProtocolError:
        return
    assert command.body == body
    encode(command)


@given(commands(), st.integers(min_value=0), st.integers(0, 255))
def test_mutated_frames(command: Command, place: int, value: int) -> None:
    frame = bytearray(encode(command))
    frame[place % len(frame)] = value
    with contextlib.suppress(ProtocolError):
        Connection().receive_data(bytes(frame))


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (PREFIX.pack(100, 9 << 24 | 4), "unknown header type 9"),
        (PREFIX.pack(1001, 0), "frame of 1001 bytes is longer than 1000"),
        (PREFIX.pack(-1, 0), "does not fit"),
        (PREFIX.pack(3, 0), "does not fit"),
        (PREFIX.pack(10, 7), "does not fit"),
        (PREFIX.pack(10, 0), "a header has no bytes"),
    ],
)
def test_impossible_prefixes_are_refused_before_the_frame_is_here(prefix: bytes, reason: str) -> None:
    connection = Connection(max_frame_bytes=1000)
    with pytest.raises(ProtocolError, match=reason):
        connection.receive_data(prefix)
    assert connection.pending_bytes == 0


def test_after_an_error_the_connection_is_dead() -> None:
    connection = Connection()
    with pytest.raises(ProtocolError):
        connection.receive_data(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ProtocolError):
        connection.receive_data(encode(Command(34)))


def test_a_claimed_length_allocates_nothing() -> None:
    connection = Connection()
    connection.receive_data(PREFIX.pack(16_000_000, 100))
    assert connection.pending_bytes <= 2 * PREFIX.size


@pytest.mark.parametrize("bodies", [(b"", b"x", b""), (b"x", b"", b"y")])
def test_frames_without_a_body_stand_between_others(bodies: tuple[bytes, ...]) -> None:
    sent = [Command(310, {"a": "g"}, body) for body in bodies]
    assert Connection().receive_data(b"".join(map(encode, sent))) == sent


@pytest.mark.parametrize("body", [bytes(range(256)) * 8192, b""])
def test_a_large_frame_in_many_chunks(body: bytes) -> None:
    command = Command(310, {"a": "g" * 5_000}, body)
    frame = encode(command) + encode(Command(34))
    connection = Connection()
    found: list[Command] = []
    for at in range(0, len(frame), 1460):
        found += connection.receive_data(frame[at : at + 1460])
    assert found == [command, Command(34)]


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, CBOR])
def test_a_header_that_is_too_long_is_refused_before_it_is_decoded(codec: int) -> None:
    frame = encode(Command(11, {"subscription": "a" * 2_000}, codec=codec))
    assert len(Connection(max_header_bytes=4_000).receive_data(frame)) == 1
    with pytest.raises(ProtocolError, match="longer than 1000"):
        Connection(max_header_bytes=1_000).receive_data(frame[:8])


def test_a_binary_header_has_a_bounded_number_of_fields() -> None:
    frame = encode(Command(11, {f"{n}": "" for n in range(1_001)}, codec=ROCKETMQ))
    with pytest.raises(ProtocolError, match="more than 1000 ext fields"):
        Connection().receive_data(frame)


def test_a_connection_that_has_ended_holds_nothing() -> None:
    connection = Connection()
    connection.receive_data(encode(Command(1, body=b"x" * 100_000))[:-1])
    assert connection.pending_bytes > 100_000
    connection.release()
    assert connection.pending_bytes == 0
