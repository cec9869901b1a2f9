"""What is no request, or not a whole one, costs its connection at most; test_junk.py has requests with junk in them."""

import random
import socket

import trio

from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC
from tests.namesrv.peer import Peer, Served
from tests.support.waiting import DEADLINE_S

GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",  # a TLS hello
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff" + bytes(100),
    b"\x00\x00\x00\x08\x00\x00\x00\x04null",
    b"\x00\x00\x00\x08\x09\x00\x00\x04{}  ",
    b"\x00\x00\x00\x06\x00\x00\x00\x02{}",
    bytes(1000),
)


async def test_garbage_closes_its_connection_only(served: Served, peer: Peer) -> None:
    await peer.register()
    noise = random.Random(7)
    for data in (*GARBAGE, *(noise.randbytes(noise.randrange(1, 2000)) for _ in range(50))):
        bad = await served.peer()
        try:
            await bad.stream.send_all(data)
            await bad.stream.send_eof()
            with trio.fail_after(DEADLINE_S):
                while await bad.stream.receive_some():
                    pass
        except trio.BrokenResourceError:
            pass  # closed before it had read everything
        await bad.stream.aclose()
        assert await peer.topics() == ["t1", "t2"]


async def test_clients_that_vanish_mid_frame_leave_nothing(served: Served, peer: Peer) -> None:
    frame = encode(Command(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "x"}))
    for cut in range(0, len(frame), 7):
        bad = await served.peer()
        await bad.stream.send_all(frame[:cut])
        # the hard way: a reset instead of an orderly end
        bad.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        await bad.stream.aclose()
    assert await peer.topics() == []
