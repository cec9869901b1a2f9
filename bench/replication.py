"""What slaves cost, and how fast a slave that is behind catches up. Real processes on loopback.

    python -m bench.replication [--json] [--n 50000] [--rounds 3] [--mib 2048]

Sends: "ours" is a SYNC_MASTER with one slave, "limit" an ASYNC_MASTER with one, in turn; the idle set costs next to
nothing. Catch-up: a slave without a log joins a master that has ``--mib`` MiB, once without sends and once with 64
sends in flight. Its limit is a plain copy of the same log to a file, through a socket on loopback, by two processes;
the limit of the sends is their rate before the slave joined.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from bench.harness import Cluster, Row, in_turn, row, show
from bench.traffic import TOPIC, awaited, make_topic, one_by_one, pipeline, requests, run, send_frames
from scripts.daemons import HOST, Daemon, broker_daemon, free_port, namesrv_daemon, serving, stop, wait_ready
from skylark import Admin, Producer
from skylark.mqcommon.message.message import Message

MIB = 1024 * 1024
BODY_BYTES = 1024
RECORD_BYTES = BODY_BYTES + 155
IN_FLIGHT = 64
QUIET_S = 5.0
POLL_S = 0.02
TIMEOUT_S = 300
CHUNK_BYTES = MIB
# Files of RocketMQ's size; short index files, since a fresh file of the default size takes 420 MB.
OPTIONS = ("--broker-name", "bench", "--max-index-num", "5000000")


@dataclass(frozen=True)
class BrokerSet:
    """One NameServer, a master, and a slave that need not run."""

    at: Cluster
    master: Daemon
    slave: Daemon


@contextmanager
def broker_set(role: str) -> Iterator[BrokerSet]:
    """NameServer and master run; `follow` starts the slave."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        namesrv = namesrv_daemon(home)
        options = (*OPTIONS, "--broker-role", role, "--ha-listen-port", str(free_port()))
        master = broker_daemon(home, "master", namesrv.addr, 0, *options)
        slave = broker_daemon(home, "slave", namesrv.addr, 0, *OPTIONS, "--broker-role", "SLAVE", "--broker-id", "1")
        with serving(namesrv, master):
            try:
                yield BrokerSet(Cluster(namesrv.addr, master.addr, master.pid), master, slave)
            finally:
                stop([slave])


async def acked(at: BrokerSet) -> tuple[int, int]:
    """The ends of the master's log and of the slave's, as the slave reports it; -1 before its first report."""
    async with Admin(at.at.nameserver) as admin:
        status = await admin.broker_ha_status(at.master.addr)
    rows = status.ha_connection_info
    return status.master_commit_log_max_offset, rows[0].slave_ack_offset if rows else -1


async def until_acked(at: BrokerSet, offset: int) -> float:
    """Seconds from the slave's first bytes until it reports that it has all before ``offset``."""
    started = 0.0
    with trio.fail_after(TIMEOUT_S):
        async with Admin(at.at.nameserver) as admin:
            while True:
                rows = (await admin.broker_ha_status(at.master.addr)).ha_connection_info
                if rows and not started:
                    started = time.perf_counter()
                if rows and rows[0].slave_ack_offset >= offset:
                    return time.perf_counter() - started
                await trio.sleep(POLL_S)


def follow(at: BrokerSet) -> None:
    """Start the slave and wait until it has the whole log."""
    at.slave.start()
    wait_ready([at.slave])
    end, _ = trio.run(acked, at)
    trio.run(until_acked, at, end)


# --- sends


def send_rows(n: int, rounds: int) -> Iterator[Row]:
    body = b"x" * 128
    frames = send_frames(n, body)
    with broker_set("SYNC_MASTER") as sync, broker_set("ASYNC_MASTER") as plain:
        for each in (sync, plain):
            trio.run(make_topic, each.at)
            follow(each)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, requests, sync.master.addr, body, n, window, 0),
                partial(run, requests, plain.master.addr, body, n, window, 0),
            )
            yield row(f"SYNC_MASTER, 128 B, one request each, {window} in flight", "msg/s", *figures, n)
        figures = in_turn(
            rounds,
            lambda: run(pipeline, sync.master.addr, frames, 1000, b'"code":0,'),
            lambda: run(pipeline, plain.master.addr, frames, 1000, b'"code":0,'),
        )
        yield row("the same, 1,000 in flight, frames made before", "msg/s", *figures, n)
        figures = in_turn(
            rounds,
            lambda: run(awaited, sync.at, body, 2 * n, 1000, batching=True),
            lambda: run(awaited, plain.at, body, 2 * n, 1000, batching=True),
        )
        yield row("the same, adaptive batches, 1,000 awaiting", "msg/s", *figures, 2 * n)
        figures = in_turn(
            rounds, lambda: run(one_by_one, sync.at, body, 1_000), lambda: run(one_by_one, plain.at, body, 1_000)
        )
        yield row("the same, one in flight, median", "ms", *figures, 1_000, smaller_is_better=True)


# --- catch-up


async def fill(at: BrokerSet, mib: int) -> None:
    await make_topic(at.at)
    body = os.urandom(BODY_BYTES)
    async with Producer(at.at.nameserver) as producer:
        for _ in range(max(mib // 64, 1)):
            await producer.send_many(TOPIC, [body] * (min(mib, 64) * MIB // RECORD_BYTES))


class Sends:
    """Sends that never stop; ``count`` of them are acknowledged so far."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, producer: Producer) -> None:
        body = bytes(128)
        while True:
            await producer.send(Message(TOPIC, body))
            self.count += 1


async def catch_up(at: BrokerSet, in_flight: int) -> tuple[float, float, float]:
    """MB/s of a slave that joins now; sends a second meanwhile, and before it joined."""
    sends, before, meanwhile = Sends(), 0.0, 0.0
    async with Producer(at.at.nameserver, batching=False, retries=0) as producer, trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(sends.run, producer)
        if in_flight:
            await trio.sleep(1)  # warms up
            count, started = sends.count, time.perf_counter()
            await trio.sleep(QUIET_S)
            before = (sends.count - count) / (time.perf_counter() - started)
        at.slave.start()
        await trio.to_thread.run_sync(wait_ready, [at.slave])
        end, _ = await acked(at)
        count, started = sends.count, time.perf_counter()
        seconds = await until_acked(at, end)
        meanwhile = (sends.count - count) / (time.perf_counter() - started)
        nursery.cancel_scope.cancel()
    return end / seconds / 1e6, meanwhile, before


def forget(at: BrokerSet) -> None:
    """Stop the slave and remove its store."""
    at.slave.kill()
    subprocess.run(["rm", "-rf", str(at.slave.log.parent / "slave")], check=True)


def loopback_copy(at: BrokerSet) -> float:
    """MB/s of the same files through a socket to a file, by another process."""
    files = sorted((at.master.log.parent / "master" / "commitlog").iterdir())
    target = at.master.log.parent / "copy"
    with subprocess.Popen(
        [sys.executable, "-m", "bench.replication", "--copy-to", str(target)], stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        total = 0
        started = time.perf_counter()
        with socket.create_connection((HOST, port)) as stream:
            for file in files:
                with file.open("rb") as source:
                    while data := source.read(CHUNK_BYTES):
                        stream.sendall(data)
                        total += len(data)
        receiver.stdout.readline()
        seconds = time.perf_counter() - started
    target.unlink()
    return total / seconds / 1e6


def receive_copy(path: str) -> None:
    """The other end of `loopback_copy`."""
    with socket.create_server((HOST, 0)) as server, open(path, "wb") as target:
        print(server.getsockname()[1], flush=True)
        stream, _ = server.accept()
        with stream:
            while data := stream.recv(CHUNK_BYTES):
                target.write(data)
        print("done", flush=True)


def catch_up_rows(mib: int, rounds: int) -> Iterator[Row]:
    with broker_set("ASYNC_MASTER") as at:
        trio.run(fill, at, mib)
        alone: list[float] = []
        copies: list[float] = []
        beside: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            copies.append(loopback_copy(at))
            alone.append(trio.run(catch_up, at, 0)[0])
            forget(at)
            beside.append(trio.run(catch_up, at, IN_FLIGHT))
            forget(at)
        yield row("a slave catches up, nobody sends", "MB/s", alone, copies, mib)
        yield row(
            f"a slave catches up beside sends, {IN_FLIGHT} in flight", "MB/s", [b[0] for b in beside], copies, mib
        )
        yield row(
            "these sends, against before it came",
            "msg/s",
            [each[1] for each in beside],
            [each[2] for each in beside],
            mib,
        )


def rows(n: int, rounds: int, mib: int) -> Iterator[Row]:
    yield from send_rows(n, rounds)
    yield from catch_up_rows(mib, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=50_000, help="messages of the sends; batches take twice as many")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--mib", type=int, default=2048, help="how far the slave is behind")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--copy-to", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.copy_to:
        receive_copy(arguments.copy_to)
    else:
        show(rows(arguments.n, arguments.rounds, arguments.mib), arguments.json)


if __name__ == "__main__":
    main()
