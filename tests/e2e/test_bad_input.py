"""Any bytes on any port: the connection is answered or closed, the daemon serves on, and its memory is bounded."""

import struct
from collections.abc import Iterator
from random import Random

import pytest
import trio

from scripts.daemons import HOST, Daemon, broker_daemon, namesrv_daemon, serving
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES, encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.routes import GET_NAMESRV_CONFIG
from tests.remoting.protocol.golden import recorded
from tests.support.amounts import amount
from tests.support.daemons import SMALL
from tests.support.waiting import until

MIB = 1024 * 1024
# What a daemon may grow by: less than what is sent to it, or than what is claimed to come.
GROWTH_BYTES = 64 * MIB
CLOSED_TIMEOUT_S = 30
RECORDED = ("admin_5.3.3", "broker_namesrv", "cpp", "java_json", "java_rocketmq")


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    """A NameServer and a broker for all tests, as daemons serve on whatever they get."""
    home = tmp_path_factory.mktemp("daemons")
    namesrv = namesrv_daemon(home)
    broker = broker_daemon(home, "broker-a", namesrv.addr, 0, *SMALL)
    with serving(namesrv, broker):
        yield {daemon.name: daemon for daemon in (namesrv, broker)}


@pytest.fixture(params=["namesrv", "broker-a"])
def daemon(daemons: dict[str, Daemon], request: pytest.FixtureRequest) -> Daemon:
    return daemons[request.param]


async def answers(daemon: Daemon) -> bool:
    """Whether a well-behaved client gets an answer."""
    async with open_client() as client:
        code = GET_BROKER_CONFIG.code if daemon.name != "namesrv" else GET_NAMESRV_CONFIG.code
        return (await client.invoke(daemon.addr, Command(code), 10_000)).code == 0


async def send_and_read(daemon: Daemon, data: bytes) -> bytes:
    """Send and half-close; all that comes back until the daemon closes, too."""
    stream = await trio.open_tcp_stream(HOST, daemon.port)
    answer = b""
    with trio.fail_after(CLOSED_TIMEOUT_S):
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while piece := await stream.receive_some():
                answer += piece
        except trio.BrokenResourceError:
            pass  # closed while we were still sending: as good an answer
        finally:
            await trio.aclose_forcefully(stream)
    return answer


async def test_random_bytes(daemon: Daemon) -> None:
    random, before = Random(1), daemon.rss_bytes()
    for _ in range(amount(100, 3_000)):
        data = random.randbytes(random.choice([1, 3, 4, 5, 8, 9, 100, 1_000, 100_000]))
        if random.random() < 0.5:
            # a length that is right, and a header that is not
            header_length = random.choice([len(data), 0, 0xFFFFFF, random.getrandbits(32)])
            data = struct.pack(">II", len(data) + 4, header_length) + data
        await send_and_read(daemon, data)
    assert await answers(daemon)
    assert daemon.rss_bytes() - before < GROWTH_BYTES
    assert b"Traceback" not in daemon.logged


async def test_recorded_frames_whole_and_damaged(daemon: Daemon) -> None:
    """Requests of RocketMQ's own clients and brokers, as they are and with wrong bytes in them."""
    random, before = Random(2), daemon.rss_bytes()
    answered = 0
    for data in [row.frame for row in recorded(*RECORDED) if row.is_request]:
        answered += bool(await send_and_read(daemon, data))
        for count in (1, 1, 2, 5):
            damaged = bytearray(data)
            for _ in range(count):
                damaged[random.randrange(4, len(data))] = random.getrandbits(8)
            await send_and_read(daemon, bytes(damaged))
    assert answered > 100
    assert await answers(daemon)
    assert daemon.rss_bytes() - before < GROWTH_BYTES
    assert b"Traceback" not in daemon.logged


async def test_half_frames_and_giant_lengths(daemon: Daemon) -> None:
    before = daemon.rss_bytes()
    for length in (0, 1, 3, MAX_FRAME_BYTES + 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF):
        assert await send_and_read(daemon, struct.pack(">I", length) + bytes(1_000)) == b""
    streams = []
    for _ in range(200):
        # as much as may come, so that the daemon has to wait for it; it never comes
        stream = await trio.open_tcp_stream(HOST, daemon.port)
        await stream.send_all(struct.pack(">II", MAX_FRAME_BYTES, 100) + bytes(1_000))
        streams.append(stream)
    assert await answers(daemon)
    assert daemon.rss_bytes() - before < GROWTH_BYTES
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def test_a_peer_that_asks_and_does_not_read(daemon: Daemon) -> None:
    before = daemon.rss_bytes()
    code = GET_BROKER_CONFIG.code if daemon.name != "namesrv" else GET_NAMESRV_CONFIG.code
    requests = encode(Command(code)) * 1_000
    stream = await trio.open_tcp_stream(HOST, daemon.port)
    sent = 0
    # The daemon does not take more requests than it can answer: the peer gets stuck, or is dropped. All answers would
    # take more memory than the daemon may use.
    with trio.move_on_after(2):
        try:
            while sent < 100_000:
                await stream.send_all(requests)
                sent += 1_000
        except trio.BrokenResourceError:
            pass
    assert await answers(daemon)
    assert daemon.rss_bytes() - before < 2 * GROWTH_BYTES
    await trio.aclose_forcefully(stream)
    await until(lambda: daemon.rss_bytes() - before < 2 * GROWTH_BYTES, "the memory of the daemon is bounded")
