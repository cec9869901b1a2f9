"""Connecting: what counts as a server that does not listen, and who a server says that it is."""

import logging
import socket
from functools import partial

import pytest
import trio

from skylark.mqcommon.errors import ConnectFailed, ConnectionLost, NotRocketMQ
from skylark.remoting.net import sockets
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import BROKER_NAME_FIELD, Command
from skylark.remoting.protocol.frame import encode


async def test_a_connection_to_itself_is_a_server_that_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[trio.SocketStream] = []

    async def connect_to_itself(host: str, port: int, **_: object) -> trio.SocketStream:
        """Connect to itself, as when the system gives an attempt the very port that it must reach."""
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        await sock.bind((host, port))
        await sock.connect((host, port))
        made.append(trio.SocketStream(sock))
        return made[-1]

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(sockets.trio, "open_tcp_stream", connect_to_itself)
    async with open_client() as client:
        with pytest.raises(ConnectFailed, match=r"cannot connect to [0-9.:]+: Connection refused$"):
            await client.invoke(f"127.0.0.1:{port}", Command(105), 1_000)
    assert [stream.socket.fileno() for stream in made] == [-1], "it is closed, so that the server can have its port"


async def test_the_name_of_the_broker_is_known_as_long_as_the_connection_lives() -> None:
    def answer(channel: Channel, request: Command) -> Command:
        return request.respond(ext={BROKER_NAME_FIELD: "broker-a"} if request.code == 1 else None)

    async with trio.open_nursery() as nursery, open_client() as client:
        server = Server({1: answer, 2: answer})
        addr = await nursery.start(server.serve, "127.0.0.1", 0)
        assert client.broker_name_at(addr) == ""
        await client.invoke(addr, Command(1))
        assert client.broker_name_at(addr) == "broker-a"
        await client.invoke(addr, Command(2))
        assert client.broker_name_at(addr) == "broker-a", "only the first answer tells"
        client.close_connection(addr)
        assert client.broker_name_at(addr) == ""
        await client.invoke(addr, Command(2))
        assert client.broker_name_at(addr) == "", "another broker may listen there by now"
        nursery.cancel_scope.cancel()


SETTINGS = bytes.fromhex("000000040000000000")


@pytest.mark.parametrize(
    ("said", "protocol"), [(b"HTTP/1.1 400 \r\n\r\n", "HTTP"), (SETTINGS, "gRPC"), (b"\n\n\n\n\n\n\n\n\n", "")]
)
async def test_a_server_with_another_protocol_is_named(
    said: bytes, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(said)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery, open_client() as client:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        addr = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(NotRocketMQ) as raised:
            await client.invoke(addr, Command(105))
        assert raised.value.protocol == protocol
        assert str(raised.value) == f"{addr} speaks {protocol or 'another protocol'}, not RocketMQ's"
        nursery.cancel_scope.cancel()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == [], "the error says it"


@pytest.mark.parametrize("alert", ["1503030002020a", "1503030002020a" * 2])
async def test_an_alert_of_tls_means_that_tls_is_missing(alert: str) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(bytes.fromhex(alert))

    async with trio.open_nursery() as nursery, open_client() as client:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        with pytest.raises(ConnectionLost, match=r"if that port expects TLS, turn TLS on$"):
            await client.invoke(f"127.0.0.1:{listener.socket.getsockname()[1]}", Command(105))
        nursery.cancel_scope.cancel()


DAMAGED = encode(Command(1, {"topic": "t"})).replace(b"topic", b'to"ic')
# The length of a frame above the limit.
TOO_LONG = b"\x7f" + encode(Command(1, {"topic": "t"}))[1:]


@pytest.mark.parametrize("said", [bytes(9), DAMAGED, TOO_LONG, b"HTTP/1.1 400 \r\n\r\n"])
async def test_garbage_after_an_answer_is_a_lost_connection(said: bytes) -> None:
    def answer(channel: Channel, request: Command) -> None:
        channel.queue(encode(request.respond()) if request.code == 1 else said)

    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(Server({1: answer, 2: answer}).serve, "127.0.0.1", 0)
        await client.invoke(addr, Command(1))
        with pytest.raises(ConnectionLost):
            await client.invoke(addr, Command(2))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("said", "reason"), [(DAMAGED, "header is not JSON"), (TOO_LONG, "is longer than")])
async def test_a_damaged_first_answer_is_a_lost_connection(said: bytes, reason: str) -> None:
    def answer(channel: Channel, _: Command) -> None:
        channel.queue(said)

    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(Server({1: answer}).serve, "127.0.0.1", 0)
        with pytest.raises(ConnectionLost, match=reason):
            await client.invoke(addr, Command(1))
        nursery.cancel_scope.cancel()


async def test_a_request_without_a_connection_is_not_submitted() -> None:
    async with open_client() as client:
        with pytest.raises(ConnectFailed, match="not connected"):
            client.submit("127.0.0.1:10911", Command(105), 1_000, lambda result: None)
