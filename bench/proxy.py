"""gRPC through the proxy beside remoting: sends, receives, latency, memory. All servers and loads are processes.

The broker with ``enableProxy`` serves gRPC itself; a proxy that was started by itself stands beside another broker. The
loads are bench.grpc_load, with frames that were made before, but for official clients. Each row has its limit in its
name, measured in turns with it, and the bar in brackets: what the ratio should be at least, or the limit itself where
that is a fixed number.

    python -m bench.proxy [--sends 40000] [--messages 48000] [--receivers 1000] [--rounds 5] [--only ROWS] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import trio

from bench.consume import LATENCY_TOPIC, Bench
from bench.grpc_load import ARRIVALS, BODY, FULL
from bench.guard_auth import ROOT, prepare
from bench.harness import BROKER, Cluster, Row, row, show, turns
from bench.proxy_client import QUIET
from bench.traffic import QUEUES, TOPIC, pipeline, run, send_frames, send_many
from scripts.daemons import (
    HOST,
    POLL_S,
    READY_TIMEOUT_S,
    Daemon,
    broker_daemon,
    namesrv_daemon,
    proxy_daemon,
    reserve,
    serving,
)
from scripts.daemons import ROOT as FOLDER
from skylark import blocking
from skylark.remoting.protocol.requests.topics import TopicConfig

AT_ONCE = 64
RECEIVERS_AT_ONCE = 8
# The bars that are fixed numbers: messages a second that are received and acknowledged, MB of all waiting receivers.
LEAST_RECEIVED = 20_000.0
MOST_MB = 60.0
MB = 1e6
PROXY_SERVES = b"the proxy serves at "
# Receives must wait until all of them have been measured.
_LONG = ("--grpc-client-consumer-max-long-polling-timeout-millis", "3600000")
_OFFICIAL_CLIENT = FOLDER / ".venv" / "rocketmq5"


class Places(NamedTuple):
    """Where the servers are. ``near``: a broker that serves gRPC at ``near_grpc``; ``guarded``: the same with users."""

    near: Cluster
    near_grpc: str
    guarded_grpc: str
    proxy: Daemon
    own_limit: str
    aio_limit: str


def _guard(home: Path) -> str:
    """A conf file with users for a broker and its proxy; its path."""
    conf = home / "guarded.conf"
    inner = {"accessKey": "inner", "secretKey": "a secret of brokers"}
    first = {"username": ROOT.access_key, "password": ROOT.secret_key}
    conf.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        f"innerClientAuthenticationCredentials={json.dumps(inner)}\ninitAuthenticationUser={json.dumps(first)}\n"
    )
    conf.chmod(0o600)
    return str(conf)


@contextmanager
def places() -> Iterator[Places]:
    """The servers, with their topics."""
    with ExitStack() as running:
        home = Path(running.enter_context(tempfile.TemporaryDirectory()))
        namesrvs = {name: namesrv_daemon(home, f"namesrv-{name}") for name in ("near", "guarded", "apart")}
        ports = [reserve(), reserve()]
        proxied = [("--enable-proxy", "true", "--grpc-server-port", str(port.number)) for port in ports]
        near = broker_daemon(home, BROKER, namesrvs["near"].addr, 0, *proxied[0])
        guarded = broker_daemon(home, "guarded", namesrvs["guarded"].addr, 0, *proxied[1], "-c", _guard(home))
        apart = broker_daemon(home, "apart", namesrvs["apart"].addr)
        proxy = proxy_daemon(home, "mqproxy", namesrvs["apart"].addr, *_LONG)
        running.enter_context(serving(*namesrvs.values(), near, guarded, apart, proxy))
        for broker in (near, guarded):
            _wait_for_proxy(broker)
        at = Cluster(namesrvs["near"].addr, near.addr, near.pid)
        for nameserver, addr in ((at.nameserver, near.addr), (namesrvs["apart"].addr, apart.addr)):
            with blocking.Admin(nameserver) as admin:
                for topic in (TOPIC, FULL, ARRIVALS, LATENCY_TOPIC, QUIET):
                    admin.create_topic(addr, TopicConfig(topic, QUEUES, QUEUES))
        trio.run(prepare, guarded.addr)
        own, aio = (line_of(running.enter_context(held("bench.proxy_limit", kind))) for kind in ("own", "aio"))
        near_grpc, guarded_grpc = (f"{HOST}:{port.number}" for port in ports)
        yield Places(at, near_grpc, guarded_grpc, proxy, own, aio)


def _wait_for_proxy(broker: Daemon) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while PROXY_SERVES not in broker.logged:
        if not broker.ready() or time.monotonic() > deadline:
            raise SystemExit(f"the broker's proxy does not serve:\n{broker.log_end()}")
        time.sleep(POLL_S)


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


def figure(module: str, what: str, address: str, *numbers: int) -> float:
    """The figure that a load or a client prints."""
    command = [sys.executable, "-m", module, what, address, *map(str, numbers)]
    with tempfile.TemporaryDirectory() as home:
        # The official client writes its logs there. Its package has the name of the C++ client's.
        environ = {**os.environ, "HOME": home}
        if what == "official":
            environ["PYTHONPATH"] = str(_OFFICIAL_CLIENT)
        return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout)


load = partial(figure, "bench.grpc_load")
client = partial(figure, "bench.proxy_client")


def idle_mb(proxy: Daemon, receivers: int) -> float:
    """The memory that ``receivers`` waiting receivers add to the proxy, in MB."""
    before = proxy.rss_bytes()
    with held("bench.proxy_client", "idle", proxy.addr, str(receivers)) as output:
        line_of(output)
        return (proxy.rss_bytes() - before) / MB


def beside(kind: str, address: str, measure: Callable[[], float]) -> float:
    """A figure, measured while a load of ``kind`` keeps AT_ONCE requests in flight at ``address``."""
    with held("bench.grpc_load", kind, address, str(AT_ONCE)) as output:
        line_of(output)
        return measure()


def send_rows(at: Places, arguments: argparse.Namespace) -> Iterator[Row]:
    """Sends a second."""
    sends, rounds = arguments.sends, arguments.rounds
    own, aio = turns(rounds, *[partial(load, "rate", each, sends, AT_ONCE) for each in (at.own_limit, at.aio_limit)])
    yield row(f"empty handler, {AT_ONCE} in flight; limit: grpc.aio [4]", "calls/s", own, aio, sends)
    frames = send_frames(sends, BODY)
    near, signed, apart, remoting = turns(
        rounds,
        partial(load, "rate", at.near_grpc, sends, AT_ONCE),
        partial(load, "signed", at.guarded_grpc, sends, AT_ONCE),
        partial(load, "rate", at.proxy.addr, sends, AT_ONCE),
        partial(run, pipeline, at.near.broker, frames, AT_ONCE, b'"code":0,'),
    )
    name = f"SendMessage, 128 B, {AT_ONCE} in flight"
    yield row(f"{name}, enableProxy; limit: remoting [0.15]", "calls/s", near, remoting, sends)
    yield row("the same through mqproxy; limit: enableProxy [0.6]", "calls/s", apart, near, sends)
    yield row("signed, with users and policies; limit: unsigned [0.5]", "calls/s", signed, near, sends)


def one_rows(at: Places, arguments: argparse.Namespace) -> Iterator[Row]:
    """One send in flight."""
    sends, rounds = max(arguments.sends // 10, 1), arguments.rounds
    few = max(sends // 4, 1)
    grpc, remoting, empty, official, aio, least = turns(
        rounds,
        partial(load, "latency", at.near_grpc, sends),
        partial(load, "remoting", at.near.broker, sends),
        partial(load, "latency", at.own_limit, sends),
        partial(client, "official", at.near_grpc, few),
        partial(client, "remoting", at.near.nameserver, sends),
        partial(client, "official", at.own_limit, few),
    )
    name = "a send, one in flight, median"
    yield row(f"{name}; limit: remoting [1/1.5]", "ms", grpc, remoting, sends, smaller_is_better=True)
    yield row("the same of an empty handler; limit: remoting", "ms", empty, remoting, sends, smaller_is_better=True)
    name = "a send of RocketMQ's Python client"
    yield row(f"{name}; limit: skylark.aio [1/1.6]", "ms", official, aio, few, smaller_is_better=True)
    yield row("the same to an empty handler; limit: skylark.aio", "ms", least, aio, few, smaller_is_better=True)


def receive_rows(at: Places, arguments: argparse.Namespace) -> Iterator[Row]:
    """Receives, and the way of a message to a waiting receiver."""
    messages, rounds = arguments.messages, arguments.rounds

    def receive() -> float:
        run(send_many, at.near, FULL, BODY, messages)
        return load("receive", at.near_grpc, messages, RECEIVERS_AT_ONCE)

    (received,) = turns(rounds, receive)
    yield row("ReceiveMessage and AckMessage of 16 [20,000]", "messages/s", received, [LEAST_RECEIVED], messages)
    bench = Bench(at.near, 0)
    arrived, pushed = turns(rounds, partial(load, "arrive", at.near_grpc, 300), partial(trio.run, bench.latency))
    name = "to a waiting receiver, 100 a second"
    yield row(f"{name}; limit: push consumer [1/1.5]", "ms", arrived, pushed, 300, smaller_is_better=True)


def beside_rows(at: Places, arguments: argparse.Namespace) -> Iterator[Row]:
    """What remoting's clients see while the same broker serves gRPC."""
    sends, rounds = max(arguments.sends // 10, 1), arguments.rounds
    slowest = partial(load, "slowest", at.near.broker, sends)
    frames = send_frames(arguments.sends, BODY)
    rate = partial(run, pipeline, at.near.broker, frames, AT_ONCE, b'"code":0,')
    grpc, remoting, alone = turns(
        rounds,
        partial(beside, "hold", at.near_grpc, slowest),
        partial(beside, "hold_remoting", at.near.broker, slowest),
        slowest,
    )
    name = f"p99 of remoting beside {AT_ONCE} gRPC calls"
    yield row(f"{name}; limit: beside {AT_ONCE} sends", "ms", grpc, remoting, sends, smaller_is_better=True)
    yield row("the same; limit: alone", "ms", grpc, alone, sends, smaller_is_better=True)
    grpc, remoting, alone = turns(
        rounds,
        partial(beside, "hold", at.near_grpc, rate),
        partial(beside, "hold_remoting", at.near.broker, rate),
        rate,
    )
    name = f"sends by remoting beside {AT_ONCE} gRPC calls"
    yield row(f"{name}; limit: beside as many sends", "msg/s", grpc, remoting, arguments.sends)
    yield row("the same; limit: alone", "msg/s", grpc, alone, arguments.sends)


def idle_rows(at: Places, arguments: argparse.Namespace) -> Iterator[Row]:
    """Memory. Measured once, as memory that was used once is used again."""
    receivers = arguments.receivers
    memory = [idle_mb(at.proxy, receivers)]
    name = f"{receivers:,} receivers that wait, with connections [60]"
    yield row(name, "MB", memory, [MOST_MB], receivers, smaller_is_better=True)


ROWS = {"idle": idle_rows, "sends": send_rows, "one": one_rows, "receives": receive_rows, "beside": beside_rows}


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """All figures, or the figures that ``--only`` names."""
    with places() as at:
        for name, found in ROWS.items():
            if arguments.only in (None, name):
                yield from found(at, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sends", type=int, default=40_000, help="of one round; a tenth of them one in flight")
    parser.add_argument("--messages", type=int, default=48_000, help="that are received in one round")
    parser.add_argument("--receivers", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
