"""What each port costs under the worst input that it takes from a stranger: memory, and how long others wait.

    python -m bench.intruder [--seconds 6] [--only PORT ...]

The daemons run as processes without access control, and a stranger in a process of its own; this process asks each port
for something small, again and again, meanwhile. "growth" is the highest resident size minus the size before, "wait" the
longest answer to the small request, which is at least the longest stop of the loop. Rows named "nothing" show what the
machine itself does. A port that does not answer at the end fails the run.
"""

import argparse
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from bench.console import console_daemon
from scripts.daemons import HOST, Daemon, broker_daemon, free_port, namesrv_daemon, proxy_daemon, serving
from tests.intruder import wire
from tests.support import http2

PROBE_S = 0.01
MIB = 1 << 20
UNKNOWN, CHALLENGE = 30_000, 7103
#: Attacks an address until it is cancelled.
Input = Callable[[str], Awaitable[None]]


# --- the stranger: each input goes on until it is cancelled


async def connect(addr: str) -> trio.SocketStream:
    host, _, port = addr.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def again(addr: str, data: bytes, tasks: int, *, reads: bool = True) -> None:
    """On ``tasks`` connections send ``data`` again and again; a connection that the peer closes is replaced."""

    async def go_on() -> None:
        while True:
            try:
                async with await connect(addr) as stream, trio.open_nursery() as nursery:
                    if reads:
                        nursery.start_soon(drain, stream, nursery.cancel_scope)
                    while True:
                        await stream.send_all(data)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(go_on)


async def drain(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    while await stream.receive_some(1 << 16):
        pass
    scope.cancel()


async def sent(addr: str, data: bytes) -> bool:
    """Send ``data`` on a connection, and wait for the first byte of an answer, or its end; False if it broke."""
    try:
        async with await connect(addr) as stream:
            await stream.send_all(data)
            await stream.receive_some(1)
    except (OSError, trio.BrokenResourceError):
        return False
    return True


async def kept_open(addr: str, data: bytes, count: int) -> None:
    """Many connections with ``data`` each, and nothing more; a connection that is closed is made again."""

    async def hold() -> None:
        while True:
            await sent(addr, data)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(hold)


async def handshakes(addr: str, data: bytes) -> None:
    """New connections, one after another, in 50 tasks."""

    async def one_by_one() -> None:
        while True:
            if not await sent(addr, data):
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one_by_one)


def frame(header: bytes, kind: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def heartbeats(addr: str) -> bytes:
    """Heartbeats with 1,000 new producer groups each."""
    found = b""
    for number in range(20):
        groups = [{"groupName": f"group-{number}-{each}"} for each in range(1_000)]
        body = json.dumps({"clientID": f"c{number}", "producerDataSet": groups, "consumerDataSet": []}).encode()
        found += wire.request(34, number, {}, body)
    return found


def registration(addr: str) -> bytes:
    """A registration of a broker whose 12 MB of zlib would be 12 GB."""
    bomb = zlib.compress(bytes(256 * MIB), 9)
    fields = {
        "brokerName": "fake",
        "brokerAddr": "127.0.0.1:9",
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:8",
        "brokerId": "0",
        "compressed": "true",
        "bodyCrc32": "0",
    }
    return wire.request(103, 1, fields, bomb)


def conditions(addr: str) -> bytes:
    """Heartbeats with the longest and deepest SQL that a subscription may have."""
    sql = "(" * 150 + "a = 1" + ")" * 150 + " AND b IN (" + ",".join(f"'{n}'" for n in range(1_000)) + ")"
    subscription = {"topic": "T", "subString": sql, "expressionType": "SQL92"}
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription] * 20,
    }
    body = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer] * 5}).encode()
    return wire.request(34, 1, {}, body)


def gzipped(addr: str) -> bytes:
    """One call with 150 messages that each are 600 KB when they are expanded; nobody has signed it."""
    body = zlib.compress(bytes(600_000), 9, wbits=31)
    system = wire.proto((3, b"0102FC0000000175170B1ABA8000000000"), (5, 2))
    message = wire.proto((1, wire.proto((2, b"T"))), (3, system), (4, body))
    request = wire.proto(*[(1, message)] * 150)
    path = b"/apache.rocketmq.v2.MessagingService/SendMessage"
    metadata = [(b"x-mq-client-id", b"c")]
    return http2.opened(*(http2.call(path, request, metadata, stream) for stream in range(1, 21, 2)))


def streams(addr: str) -> bytes:
    """Many calls that are given up at once."""
    path = b"/apache.rocketmq.v2.MessagingService/Heartbeat"
    calls = [
        http2.call(path, b"", [], number) + http2.frame(http2.RST_STREAM, 0, number, bytes(4))
        for number in range(1, 2_000, 2)
    ]
    return http2.opened(*calls)


#: Fields in a header of 600 KB.
FIELDS = json.dumps({"code": UNKNOWN, "opaque": 1, "extFields": {f"field-{n}": "x" for n in range(30_000)}}).encode()
LARGE_ANSWERS = {"broker": 26, "NameServer": 319, "Controller": 1010}


def request_inputs(port: str) -> dict[str, Input]:
    """Inputs of a port for requests, by name: what makes the task of an address."""
    half = struct.pack(">II", 16_000_000, 1_000) + bytes(MIB)
    unread = b"".join(wire.request(LARGE_ANSWERS[port], number, {}) for number in range(2_000))
    small = b"".join(wire.request(UNKNOWN, number, {}) for number in range(500))
    deep = b'{"code":1,"extFields":' * 20_000
    found: dict[str, Input] = {
        "bad frames, 50 connections at a time": lambda addr: handshakes(addr, b"GET / HTTP/1.1\r\n\r\n"),
        "2,000 silent connections": lambda addr: kept_open(addr, b"\0", 2_000),
        "half frames of 16 MB, 400 connections": lambda addr: kept_open(addr, half, 400),
        "answers that nobody reads, 50 connections": lambda addr: again(addr, unread, 50, reads=False),
        "30,000 fields in a header": lambda addr: again(addr, frame(FIELDS), 4),
        "JSON that is 20,000 deep": lambda addr: handshakes(addr, frame(deep)),
        "CBOR that is 200,000 deep": lambda addr: handshakes(addr, frame(b"\x81" * 200_000, 2)),
        "small requests": lambda addr: again(addr, small, 8),
    }
    if port == "broker":
        found |= {
            "20,000 new groups": lambda addr: again(addr, heartbeats(addr), 4),
            "long SQL conditions": lambda addr: again(addr, conditions(addr), 4),
        }
    if port == "NameServer":
        found["zlib that expands 1,000-fold"] = lambda addr: again(addr, registration(addr), 4)
    return found


LINES = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 80) for n in range(2_000))
LOGIN = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"


def web_inputs(path: bytes) -> dict[str, Input]:
    """Inputs of a port for HTTP, whose pages include ``path``."""
    page = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path
    return {
        "pages, 50 connections at a time": lambda addr: handshakes(addr, page),
        "pages that nobody reads, 50 connections": lambda addr: again(addr, page * 100, 50, reads=False),
        "endless headers, 100 connections": lambda addr: again(addr, LINES, 100),
        "1,000 silent connections": lambda addr: kept_open(addr, b"GET", 1_000),
        "bodies of 1 GB, 50 connections": lambda addr: again(
            addr, LOGIN + b"Content-Length: 1000000000\r\n\r\n" + bytes(MIB), 50
        ),
    }


HELLO = b"\xffSKYLARK" + struct.pack(">I", 16_000) + bytes(15_000)
INPUTS: dict[str, dict[str, Input]] = {
    **{port: request_inputs(port) for port in LARGE_ANSWERS},
    "HA": {
        "half hellos, 400 connections": lambda addr: kept_open(addr, HELLO, 400),
        "hellos, 50 connections at a time": lambda addr: handshakes(addr, bytes(8)),
    },
    "metrics": web_inputs(b"/metrics"),
    "console": web_inputs(b"/login"),
    "proxy": {
        "1,000 silent connections": lambda addr: kept_open(addr, http2.PREFACE, 1_000),
        "calls that are given up at once": lambda addr: handshakes(addr, streams(addr)),
        "gzip that expands 1,000-fold": lambda addr: again(addr, gzipped(addr), 4),
        "endless headers": lambda addr: again(addr, LINES, 50),
    },
}


def attack(port: str, name: str, addr: str) -> None:
    """The stranger's process, until it is ended."""
    trio.run(INPUTS[port][name], addr)


# --- the daemons, and what they cost


class Target:
    """A port, its process, and a small request to it."""

    def __init__(self, addr: str, pid: int, probe: Callable[[str], None]) -> None:
        self.addr = addr
        self.pid = pid
        self.probe = probe

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


def ask(data: bytes, addr: str) -> None:
    host, _, port = addr.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        if not connection.recv(1):
            raise ConnectionError(f"{addr} closed the connection of an honest caller")


CHALLENGED = partial(ask, wire.request(CHALLENGE, 1, {}))
PAGE = partial(ask, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
LOGIN_PAGE = partial(ask, b"GET /login HTTP/1.1\r\nHost: a\r\n\r\n")
CALLED = partial(ask, http2.opened())


@contextmanager
def targets() -> Iterator[dict[str, Target]]:
    """All daemons, without access control."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        metrics = free_port()
        namesrv = namesrv_daemon(home, "namesrv", 0)
        more = ("--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", str(metrics))
        broker = broker_daemon(home, "broker", namesrv.addr, 0, *more)
        peer = f"{HOST}:{free_port()}"
        command = [
            sys.executable,
            "-m",
            "skylark.namesrv.controller",
            "--controller-d-leger-peers",
            f"n0-{peer}",
            "--controller-d-leger-self-id",
            "n0",
            "--controller-store-path",
            str(home / "controller"),
        ]
        controller = Daemon("controller", command, int(peer.rpartition(":")[2]), home / "controller.log")
        proxy = proxy_daemon(home, "proxy", namesrv.addr)
        console = console_daemon(home, namesrv.addr)
        with serving(namesrv, broker, controller, proxy, console):
            ha = f"{HOST}:{int(broker.addr.rpartition(':')[2]) + 1}"
            yield {
                "broker": Target(broker.addr, broker.pid, CHALLENGED),
                "NameServer": Target(namesrv.addr, namesrv.pid, CHALLENGED),
                "Controller": Target(controller.addr, controller.pid, CHALLENGED),
                # The port for slaves gives no answer at once: the small request goes to the other port of the process.
                "HA": Target(ha, broker.pid, lambda _: CHALLENGED(broker.addr)),
                "metrics": Target(f"{HOST}:{metrics}", broker.pid, lambda _: CHALLENGED(broker.addr)),
                "console": Target(console.addr, console.pid, LOGIN_PAGE),
                "proxy": Target(proxy.addr, proxy.pid, CALLED),
            }


def measured(target: Target, seconds: float) -> tuple[float, float, int]:
    """The highest resident size in bytes, the longest wait of an honest caller in seconds, and refused probes."""
    highest, longest, refused = 0, 0.0, 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        begun = time.perf_counter()
        try:
            target.probe(target.addr)
        except OSError:
            refused += 1
        else:
            longest = max(longest, time.perf_counter() - begun)
        highest = max(highest, target.rss_bytes())
        time.sleep(PROBE_S)
    return highest, longest, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", nargs="*", default=list(INPUTS), choices=list(INPUTS))
    parser.add_argument("--attack", nargs=3, metavar=("PORT", "INPUT", "ADDR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        attack(*options.attack)
        return
    print("| port | input | growth, MiB | stays, MiB | longest wait, ms |")
    print("| --- | --- | ---: | ---: | ---: |", flush=True)
    with targets() as found:
        for port in options.only:
            target = found[port]
            target.probe(target.addr)
            for name in ("nothing", *INPUTS[port]):
                before = target.rss_bytes()
                command = [sys.executable, "-m", "bench.intruder", "--attack", port, name, target.addr]
                stranger = None if name == "nothing" else subprocess.Popen(command)
                try:
                    highest, longest, refused = measured(target, options.seconds)
                finally:
                    if stranger is not None:
                        stranger.kill()
                        stranger.wait()
                time.sleep(1.0)
                target.probe(target.addr)
                said = f"{longest * 1000:,.0f}" + (f" ({refused} refused)" if refused else "")
                growth, stays = (highest - before) / MIB, (target.rss_bytes() - before) / MIB
                print(f"| {port} | {name} | {growth:,.1f} | {stays:,.1f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
