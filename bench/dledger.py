"""What a DLedger group of three costs and how soon it writes again. Real processes on loopback.

    python -m bench.dledger [--json] [--n 50000] [--rounds 3] [--kills 20] [--mib 2048]

Sends, in turn: "ours" is the group; "limit" a SYNC_MASTER with one slave, so two copies, and for one in flight an
ASYNC_MASTER. Writes after a kill: the time from kill -9 of the leader to the next acknowledged send; the limit is the
target of 2 s. Catch-up: a member whose disk was lost joins; the limit is an empty slave of an ASYNC_MASTER with as much
to copy.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from bench.harness import Cluster, Row, in_turn, row, show
from bench.replication import BODY_BYTES, MIB, OPTIONS, RECORD_BYTES, broker_set, catch_up, fill, follow, forget
from bench.traffic import TOPIC, awaited, make_topic, one_by_one, requests, run
from scripts.dledger_set import DLedgerSet
from skylark import Admin, Producer
from skylark.mqcommon.message.message import Message

TIMEOUT_S = 300
POLL_S = 0.02
LIMIT_S = 2.0
NAME = "bench"
# How much of the log of each member is shown when a run fails.
LOG_BYTES = 4_000


@contextmanager
def group() -> Iterator[DLedgerSet]:
    """Three members, of which one leads."""
    with tempfile.TemporaryDirectory() as name:
        made = DLedgerSet(Path(name), options=OPTIONS, name=NAME)
        try:
            made.start()
            yield made
            made.stop()
        except BaseException:
            for broker in made.brokers:
                sys.stderr.write(f"--- {broker.name}\n{broker.logged[-LOG_BYTES:].decode(errors='replace')}\n")
            raise
        finally:
            made.end()


async def led(made: DLedgerSet) -> Cluster:
    """The leader, as other benches see a broker."""
    async with Admin(made.nameserver) as admin:
        leader = await made.until_in_sync(admin)
    return Cluster(made.nameserver, leader.addr, leader.pid)


# --- sends


def send_rows(n: int, rounds: int) -> Iterator[Row]:
    body = b"x" * 128
    with group() as made, broker_set("SYNC_MASTER") as sync, broker_set("ASYNC_MASTER") as plain:
        ours = trio.run(led, made)
        for at in (ours, sync.at, plain.at):
            trio.run(make_topic, at)
        for each in (sync, plain):
            follow(each)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, requests, ours.broker, body, n, window, 0),
                partial(run, requests, sync.master.addr, body, n, window, 0),
            )
            yield row(f"128 B, one request each, {window} in flight", "msg/s", *figures, n)
        figures = in_turn(
            rounds,
            lambda: run(awaited, ours, body, 2 * n, 1000, batching=True),
            lambda: run(awaited, sync.at, body, 2 * n, 1000, batching=True),
        )
        yield row("adaptive batches, 1,000 awaiting", "msg/s", *figures, 2 * n)
        figures = in_turn(
            rounds, lambda: run(one_by_one, ours, body, 1_000), lambda: run(one_by_one, plain.at, body, 1_000)
        )
        yield row("one in flight, median, against ASYNC_MASTER", "ms", *figures, 1_000, smaller_is_better=True)
        figures = in_turn(
            rounds, lambda: run(one_by_one, sync.at, body, 1_000), lambda: run(one_by_one, plain.at, body, 1_000)
        )
        yield row("the same of SYNC_MASTER, against ASYNC_MASTER", "ms", *figures, 1_000, smaller_is_better=True)


# --- a leader is killed


async def until_written(made: DLedgerSet, kills: int) -> list[float]:
    """Seconds from each kill of the leader to the next acknowledged send."""
    taken = []
    async with Admin(made.nameserver) as admin, Producer(made.nameserver) as producer:
        await made.make_topic(admin, TOPIC)
        for _ in range(kills):
            leader = await made.until_in_sync(admin)
            await producer.send(Message(TOPIC, b"before"))
            leader.kill()
            started = time.perf_counter()
            await producer.send(Message(TOPIC, b"after"))
            taken.append(time.perf_counter() - started)
            await made.start_broker(leader)
    return taken


def kill_rows(kills: int) -> Iterator[Row]:
    with group() as made:
        seconds = trio.run(until_written, made, kills)
    yield row("writes after the leader was killed", "s", seconds, [LIMIT_S], kills, smaller_is_better=True)


# --- catch-up


async def fill_group(made: DLedgerSet, mib: int) -> None:
    at = await led(made)
    await make_topic(at)
    body = os.urandom(BODY_BYTES)
    async with Producer(made.nameserver) as producer:
        for _ in range(max(mib // 64, 1)):
            await producer.send_many(TOPIC, [body] * (min(mib, 64) * MIB // RECORD_BYTES))


async def joins(made: DLedgerSet) -> float:
    """MB/s of a member that joins with an empty disk."""
    async with Admin(made.nameserver) as admin:
        leader = await made.until_in_sync(admin)
        follower = next(broker for broker in made.brokers if broker is not leader)
        follower.kill()
        made.lose_disk(follower)
        end = int((await admin.broker_runtime_info(leader.addr))["commitLogMaxOffset"])
        await made.start_broker(follower)
        started = 0.0
        with trio.fail_after(TIMEOUT_S):
            while True:
                has = int((await admin.broker_runtime_info(follower.addr))["commitLogMaxOffset"])
                if has and not started:
                    started = time.perf_counter()
                if has >= end:
                    return end / (time.perf_counter() - started) / 1e6
                await trio.sleep(POLL_S)


def catch_up_rows(mib: int, rounds: int) -> Iterator[Row]:
    with group() as made, broker_set("ASYNC_MASTER") as plain:
        trio.run(fill_group, made, mib)
        trio.run(fill, plain, mib)
        ours: list[float] = []
        slaves: list[float] = []
        for _ in range(rounds):
            ours.append(trio.run(joins, made))
            slaves.append(trio.run(catch_up, plain, 0)[0])
            forget(plain)
        yield row("a member with an empty disk catches up", "MB/s", ours, slaves, mib)


def rows(n: int, rounds: int, kills: int, mib: int) -> Iterator[Row]:
    yield from send_rows(n, rounds)
    yield from kill_rows(kills)
    yield from catch_up_rows(mib, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=50_000, help="messages of the sends; batches take twice as many")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--kills", type=int, default=20, help="how often the leader is killed")
    parser.add_argument("--mib", type=int, default=2048, help="how much a member copies")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.n, arguments.rounds, arguments.kills, arguments.mib), arguments.json)


if __name__ == "__main__":
    main()
