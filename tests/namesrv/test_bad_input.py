"""Whatever comes to the port, the NameServer serves on."""

import random
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC
from tests.namesrv.peer import Peer, Served, serve

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
            with trio.fail_after(5):
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


@given(st.data())
def test_every_request_is_answered_whatever_stands_in_it(data: st.DataObject) -> None:
    async def main() -> None:
        with TemporaryDirectory() as directory:
            async with trio.open_nursery() as nursery:
                peer = await (await serve(nursery, Path(directory))).peer()
                for _ in range(10):
                    await ask_anything(peer, data)
                nursery.cancel_scope.cancel()

    trio.run(main)


CODES = (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 999)
FIELDS = (
    "namespace", "key", "value", "brokerName", "brokerAddr", "clusterName", "cluster", "haServerAddr", "brokerId",
    "heartbeatTimeoutMillis", "enableActingMaster", "compressed", "bodyCrc32", "topic", "acceptStandardJsonOnly",
)  # fmt: skip
VALUES = st.one_of(st.sampled_from(["", "0", "1", "-1", "x", "true", "9" * 30]), st.text(max_size=5))
BODIES = st.one_of(
    st.sampled_from([b"", b"{}", b"[]", b"null", b'{"queueDatas":[{"brokerName":1}]}', b"a=b", b'{"counter":"x"}']),
    st.binary(max_size=20),
)


async def ask_anything(peer: Peer, data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(CODES))
    ext = data.draw(st.none() | st.dictionaries(st.sampled_from(FIELDS), VALUES))
    answer = await peer.ask(code, ext, data.draw(BODIES), version=data.draw(st.sampled_from([0, 399, 401, 479])))
    assert answer.code in (0, 1, 3, 16, 17, 22)
    # what a handler did not expect is answered with the name of its exception
    assert not (answer.remark or "").partition(":")[0].endswith(("Error", "Exception")) or "custom field" in str(
        answer.remark
    )
