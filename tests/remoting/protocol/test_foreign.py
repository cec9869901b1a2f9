import pytest

from skylark.remoting.http2 import frames
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.foreign import GRPC, HTTP, REMOTING, TLS, foreign_protocol
from skylark.remoting.protocol.frame import encode

# As servers send them: SETTINGS with two values; an alert "unexpected message" of TLS 1.2.
SETTINGS = bytes.fromhex("00000c04000000000000030000006400040010000000")
ALERT = bytes.fromhex("1503030002020a")


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", HTTP),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9876\r\n", HTTP),
        (frames.PREFACE, GRPC),
        (SETTINGS, GRPC),
        (bytes.fromhex("16030102000100"), TLS),
        (ALERT, TLS),
        (b"-ERR unknown command\r\n", "Redis's protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (encode(Command(105, {"topic": "t"})), REMOTING),
        # Such as an answer above the limit of its receiver.
        (b"\x7f" + encode(Command(105, {"topic": "t"}))[1:], REMOTING),
        (encode(Command(105, {"topic": "t"}, codec=CBOR)), ""),
        (b"", ""),
        (b"\x4a\0\0\0\x0a8.0.36\0", ""),
    ],
)
def test_the_first_bytes_name_the_protocol(first: bytes, protocol: str) -> None:
    assert foreign_protocol(first) == protocol


def test_an_incomplete_frame_may_be_of_another_protocol() -> None:
    connection = Connection()
    assert connection.receive_data(ALERT) == []
    assert connection.protocol_of_pending == TLS
    own = Connection()
    assert own.receive_data(encode(Command(105, {"topic": "t"}))[:-1]) == []
    assert own.protocol_of_pending == REMOTING
