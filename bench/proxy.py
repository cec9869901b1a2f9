"""Sends through the proxy by gRPC, and what waiting receivers cost. Clients, proxy, broker have processes of their own.

The limit of sends a second is the same gRPC library with an empty handler; the limit of `enableProxy` is a proxy that
was started by itself; the limit of one send in flight is the SDK's asyncio producer without a proxy. A last row has the
empty handler with one send in flight, too: gRPC's own share. All clients are in Python.

    python -m bench.proxy [--sends 8000] [--receivers 1000] [--rounds 5] [--json]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from bench.harness import Row, row, show, turns
from bench.proxy_client import QUIET, TOPIC
from scripts.daemons import HOST, POLL_S, READY_TIMEOUT_S, Daemon, broker_daemon, namesrv_daemon, reserve, serving
from skylark import blocking
from skylark.remoting.protocol.requests.topics import TopicConfig

AT_ONCE = 64
# The most memory of all receivers together, in MB.
MOST_MB = 100.0
MB = 1e6
PROXY_SERVES = b"the proxy serves at "
# Receives must wait until all of them have been measured.
_LONG = ("--grpc-client-consumer-max-long-polling-timeout-millis", "3600000")


class Places:
    """Where the servers are: NameServer, and the addresses for gRPC."""

    def __init__(self, nameserver: str, proxy: Daemon, of_broker: str, limit: str) -> None:
        self.nameserver = nameserver
        self.proxy = proxy
        self.of_broker = of_broker
        self.limit = limit


def proxy_daemon(home: Path, nameserver: str, *options: str) -> Daemon:
    """A proxy that is started by itself."""
    port = reserve()
    command = [
        sys.executable,
        "-m",
        "skylark.mqproxy",
        "--namesrv-addr",
        nameserver,
        "--bind-address",
        HOST,
        "--grpc-server-port",
        str(port.number),
        *options,
    ]
    return Daemon("mqproxy", command, port.number, home / "mqproxy.log", port)


@contextmanager
def places() -> Iterator[Places]:
    """A cluster with a proxy, another one whose broker has started its proxy, and the limit."""
    with ExitStack() as running:
        home = Path(running.enter_context(tempfile.TemporaryDirectory()))
        namesrvs = [namesrv_daemon(home, name) for name in ("apart", "together")]
        port = reserve()
        alone = broker_daemon(home, "alone", namesrvs[0].addr)
        both = broker_daemon(
            home, "both", namesrvs[1].addr, 0, "--enable-proxy", "true", "--grpc-server-port", str(port.number)
        )
        proxy = proxy_daemon(home, namesrvs[0].addr, *_LONG)
        running.enter_context(serving(*namesrvs, alone, both, proxy))
        deadline = time.monotonic() + READY_TIMEOUT_S
        while PROXY_SERVES not in both.logged:
            if not both.ready() or time.monotonic() > deadline:
                raise SystemExit(f"the broker's proxy does not serve:\n{both.log_end()}")
            time.sleep(POLL_S)
        for namesrv, broker in zip(namesrvs, (alone, both), strict=True):
            with blocking.Admin(namesrv.addr) as admin:
                for topic in (TOPIC, QUIET):
                    admin.create_topic(broker.addr, TopicConfig(topic, 4, 4))
        limit = running.enter_context(held("bench.proxy_limit"))
        yield Places(namesrvs[0].addr, proxy, f"{HOST}:{port.number}", line_of(limit))


@contextmanager
def held(*command: str) -> Iterator[IO[str]]:
    """A process that prints a line, and ends when its stdin is closed; its output."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.stdin.close()
        process.wait()


def line_of(output: IO[str]) -> str:
    """The next line; ends this program when there is none."""
    line = output.readline()
    if not line:
        raise SystemExit("a process of this bench has ended; it says why above")
    return line.strip()


def client(what: str, address: str, *numbers: int) -> float:
    """The figure that a client prints."""
    command = [sys.executable, "-m", "bench.proxy_client", what, address, *map(str, numbers)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def idle_mb(proxy: Daemon, receivers: int) -> float:
    """The memory that ``receivers`` waiting receivers add to the proxy, in MB."""
    before = proxy.rss_bytes()
    with held("bench.proxy_client", "idle", proxy.addr, str(receivers)) as output:
        line_of(output)
        return (proxy.rss_bytes() - before) / MB


def rows(sends: int, receivers: int, rounds: int) -> Iterator[Row]:
    """All figures."""
    with places() as at:
        addresses = (at.proxy.addr, at.of_broker, at.limit)
        proxy, of_broker, limit = turns(rounds, *_each("rate", addresses, sends, AT_ONCE))
        yield row(f"SendMessage, 128 B, {AT_ONCE} in flight; limit: empty handler", "calls/s", proxy, limit, sends)
        yield row("the same with enableProxy; limit: a proxy by itself", "calls/s", of_broker, proxy, sends)
        one = max(sends // 8, 1)
        proxy, limit, remoting = turns(
            rounds, *_each("latency", (at.proxy.addr, at.limit), one), partial(client, "remoting", at.nameserver, one)
        )
        name = "a send, one in flight, median"
        yield row(f"{name}; limit: remoting", "ms", proxy, remoting, one, smaller_is_better=True)
        yield row(f"{name}, empty handler; limit: remoting", "ms", limit, remoting, one, smaller_is_better=True)
        # Measured last, as memory that was used once is used again.
        memory = [idle_mb(at.proxy, receivers)]
        yield row(
            f"{receivers:,} receivers that wait, each with a connection",
            "MB",
            memory,
            [MOST_MB],
            receivers,
            smaller_is_better=True,
        )


def _each(what: str, addresses: tuple[str, ...], *numbers: int) -> list[Callable[[], float]]:
    return [partial(client, what, address, *numbers) for address in addresses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sends", type=int, default=8_000, help="of one round; an eighth of them one in flight")
    parser.add_argument("--receivers", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.sends, arguments.receivers, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
