"""The relay knows between which bytes of HTTP/2 it may put a frame, and ends connections that gRPC has closed."""

import asyncio
import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqproxy import relay
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.relay import Frames
from skylark.remoting.net.limits import ConnectionBudget
from tests.sdk.facades.adapter import in_asyncio
from tests.support import http2
from tests.support.waiting import until

# (kind, flags, payload)
FRAMES = st.lists(
    st.tuples(st.sampled_from([http2.DATA, http2.PING, http2.SETTINGS]), st.integers(0, 255), st.binary(max_size=20)),
    min_size=1,
    max_size=5,
)


@given(frames=FRAMES, data=st.data())
def test_a_frame_may_be_added_after_each_frame_and_nowhere_else(
    frames: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    encoded = [http2.frame(kind, flags, 1, payload) for kind, flags, payload in frames]
    ends, end = set(), 0
    for frame in encoded:
        end += len(frame)
        ends.add(end)
    whole, found, at = b"".join(encoded), Frames(), 0
    assert not found.may_add
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found.feed(whole[at : at + size])
        at += size
        assert found.may_add == (at in ends)


def test_no_frame_may_be_added_within_the_headers_of_a_call() -> None:
    found = Frames()
    found.feed(http2.frame(http2.SETTINGS) + http2.frame(http2.HEADERS, 0, 1, b"x"))
    assert not found.may_add
    found.feed(http2.frame(http2.CONTINUATION, 0, 1, b"x"))
    assert not found.may_add
    found.feed(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"x"))
    assert found.may_add


@pytest.mark.parametrize("reads", [False, True])
@in_asyncio
async def test_a_connection_that_grpc_has_closed_ends_whether_the_client_reads_or_not(
    reads: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay, "LINGER_S", 0.2)
    given_back: list[str] = []
    monkeypatch.setattr(ConnectionBudget, "give", lambda budget, network: given_back.append(network))
    size = 8_000_000

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(bytes(size))
        writer.close()

    def closed() -> None:
        trio.run(until, lambda: given_back == ["127.0.0.1"], "it is closed")

    server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
    made = relay.Relay(ProxyOptions(slow_reader_timeout=200), server.sockets[0].getsockname()[1], None)
    client = socket.create_connection(("127.0.0.1", made.listen("127.0.0.1", 0)))
    client.sendall(b"P")
    if reads:
        client.setblocking(False)
        got = 0
        while piece := await asyncio.get_running_loop().sock_recv(client, 1_000_000):
            got += len(piece)
        assert got == size
    await asyncio.to_thread(closed)
    client.close()
    await made.stop_accepting()
    await made.close()
    server.close()
    await server.wait_closed()
    assert caplog.records == []
