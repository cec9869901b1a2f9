"""What hostile peers do with one connection after the other. A process of its own, so that the time of making requests
is not the honest clients': ``python -m tests.e2e.fuzz.streams KIND PORT SEED SECONDS``.
"""

import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random

import trio

from scripts.daemons import HOST
from skylark.broker.replication.hello import MAGIC
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from tests.e2e.fuzz.requests import Requests

PEERS = 8
# A peer that gets no answer goes on with its next connection.
PATIENCE_S = 1.0
# A stranger that was sent away comes back after this.
RETURN_S = 0.5


async def attack(port: int, make: Callable[[Random], bytes], random: Random) -> None:
    """Connections to ``port``, each with bytes from ``make``; some are left without a word, some are not read."""
    while True:
        try:
            stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            continue  # refused for a moment: it has many connections; whether it lives is the honest clients' business
        try:
            with trio.move_on_after(PATIENCE_S):
                await _one(stream, make(random), random)
        except trio.BrokenResourceError:
            pass  # it closed the connection, as it should
        finally:
            await trio.aclose_forcefully(stream)


async def _one(stream: trio.SocketStream, data: bytes, random: Random) -> None:
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 6))))
    pause_s = random.choice((0.0, 0.0, 0.0, 0.05))
    for start, end in pairwise((0, *cuts, len(data))):
        await stream.send_all(data[start:end])
        if random.random() < 0.05:
            return
        await trio.sleep(pause_s)
    if random.random() < 0.2:
        return
    if random.random() < 0.8:
        await stream.send_eof()
    while await stream.receive_some():
        pass


async def stranger(port: int) -> None:
    """Connects and says nothing, again whenever it is sent away, until it is cancelled."""
    while True:
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.receive_some()
        await trio.sleep(RETURN_S)


def commands(random: Random) -> bytes:
    """Inputs of a port for requests: whole requests, damaged requests, and other bytes."""
    requests = Requests(random)
    kind = random.random()
    if kind < 0.1:
        return requests.pulls()
    if kind < 0.15:
        return requests.registration()
    if kind < 0.75:
        return b"".join(requests.frame() for _ in range(random.choice((1, 3, 20))))
    if kind < 0.9:
        return b"".join(requests.damaged() for _ in range(random.choice((1, 3))))
    data = random.randbytes(random.choice((1, 3, 4, 8, 100, 10_000)))
    return struct.pack(">II", random.choice((len(data) + 4, MAX_FRAME_BYTES, 2**31)), random.getrandbits(32)) + data


def reports(random: Random) -> bytes:
    """Inputs of an HA port: offsets of a slave, Skylark's greetings with wrong bytes, and other bytes."""
    kind = random.random()
    if kind < 0.4:
        return b"".join(struct.pack(">q", random.choice((0, 1, -1, 100, 2**62, -(2**63)))) for _ in range(5))
    body = random.randbytes(random.choice((0, 1, 50, 5_000)))
    if kind < 0.8:
        return MAGIC + struct.pack(">I", random.choice((len(body), 0, 2**31, 16_384))) + body
    return body


def pages(random: Random) -> bytes:
    """Inputs of the port of metrics: HTTP requests, damaged requests, endless requests, and other bytes."""
    odd = (b"/" + random.randbytes(20), b"/" + b"a" * 70_000)
    path = random.choice((b"/metrics", b"/healthz", b"/readyz", b"/", *odd))
    method = random.choice((b"GET", b"GET", b"HEAD", b"POST", b"get", b"\xff"))
    lines = [method + b" " + path + random.choice((b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9", b""))]
    lines += [
        random.choice((b"Host: a", b"Content-Length: 9999999999", b"Content-Length: -1", b":", b"X: " + b"y" * 9_000))
        for _ in range(random.choice((0, 1, 3, 500)))
    ]
    data = bytearray(random.choice((b"\r\n", b"\n")).join([*lines, b"", b""]))
    if random.random() < 0.4:
        for _ in range(random.choice((1, 5))):
            data[random.randrange(len(data))] = random.getrandbits(8)
    return bytes(data) if random.random() < 0.9 else random.randbytes(random.choice((1, 100, 20_000)))


MAKERS = {"commands": commands, "reports": reports, "pages": pages}


async def main(kind: str, port: int, seed: int, seconds: float) -> None:
    random = Random(seed)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(attack, port, MAKERS[kind], Random(random.getrandbits(64)))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
