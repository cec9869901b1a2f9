"""The worst send while a server dies: two masters, one NameServer, senders that send without a pause.

    python -m bench.failover [--json] [--rounds N]

Each round measures four spans of the same load: all servers run; one master is killed (kill -9); one master is frozen
(SIGSTOP, its connections stay open); the NameServer is killed and started again, empty. The limit of the killed master
and of the NameServer is the worst send while all run; the limit of the frozen master is one try's share of the send
timeout, as a client cannot notice earlier. A failed send ends the bench with exit code 1.
"""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bench.harness import Row, command, row
from scripts.daemons import POLL_S, Daemon, broker_daemon, namesrv_daemon, wait_ready
from skylark import Admin, Message, Producer, SendFailed
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPIC = "failover"
SENDERS = 100
BODY = bytes(128)
SPAN_S = 2.0
SEND_TIMEOUT_MS, RETRIES = 3_000, 2
BROKER_OPTIONS = ("--mapped-file-size-commit-log", str(256 * 1024 * 1024), "--max-index-num", "1000000")


class Load:
    """Senders that never stop; ``worst_ms`` is the worst send since it was last set to 0."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.worst_ms = 0.0
        self.failures: list[SendFailed] = []
        self.stored_by: dict[str, int] = {}

    async def send(self) -> None:
        while True:
            started = trio.current_time()
            try:
                result = await self._producer.send(Message(TOPIC, BODY))
            except SendFailed as error:
                self.failures.append(error)
                continue
            self.worst_ms = max(self.worst_ms, (trio.current_time() - started) * 1000)
            name = result.queue.broker_name
            self.stored_by[name] = self.stored_by.get(name, 0) + 1


class Cluster:
    """One NameServer, two masters."""

    def __init__(self, home: Path) -> None:
        self.namesrv = namesrv_daemon(home)
        names = ("broker-a", "broker-b")
        self.brokers = [broker_daemon(home, name, self.namesrv.addr, 0, *BROKER_OPTIONS) for name in names]

    async def until_route(self, brokers: int) -> None:
        """Wait until the NameServer has a route to ``brokers`` masters."""
        async with Admin(self.namesrv.addr) as admin:
            while True:
                try:
                    if len((await admin.topic_route(TOPIC)).broker_datas) == brokers:
                        return
                except (RemotingError, RouteNotFound, BrokerError):
                    pass
                await trio.sleep(POLL_S)


@asynccontextmanager
async def under_load(home: Path) -> AsyncIterator[tuple[Cluster, Load]]:
    cluster = Cluster(home)
    daemons = [cluster.namesrv, *cluster.brokers]
    try:
        for daemon in daemons:
            daemon.start()
        wait_ready(daemons)
        async with Admin(cluster.namesrv.addr) as admin:
            for broker in cluster.brokers:
                await admin.create_topic(broker.addr, TopicConfig(TOPIC, 4, 4))
        await cluster.until_route(2)
        async with (
            Producer(cluster.namesrv.addr, send_timeout_ms=SEND_TIMEOUT_MS, retries=RETRIES) as producer,
            trio.open_nursery() as nursery,
        ):
            load = Load(producer)
            for _ in range(SENDERS):
                nursery.start_soon(load.send)
            await until_both_store(load)
            yield cluster, load
            nursery.cancel_scope.cancel()
    finally:
        for daemon in daemons:
            if daemon.runs:
                daemon.kill()


async def until(reached: Callable[[], bool]) -> None:
    while True:
        if reached():
            return
        await trio.sleep(POLL_S)


async def until_both_store(load: Load) -> None:
    """Wait until both masters have taken messages after the call."""
    load.stored_by.clear()
    await until(lambda: len(load.stored_by) == 2)


async def worst_of(load: Load) -> float:
    """The worst send of a span that begins now."""
    load.worst_ms = 0.0
    await trio.sleep(SPAN_S)
    return load.worst_ms


async def span_with(daemon: Daemon, load: Load, before: Callable[[], None], after: Callable[[], None]) -> float:
    """The worst send of a span that begins with ``before`` on a daemon; ``after`` brings the daemon back."""
    before()
    try:
        return await worst_of(load)
    finally:
        after()
        if daemon.runs:
            await until(daemon.ready)


async def one_round(home: Path) -> tuple[float, float, float, float]:
    """Worst sends in ms: all run, a master killed, a master frozen, the NameServer restarted."""
    async with under_load(home) as (cluster, load):
        quiet = await worst_of(load)
        victim = cluster.brokers[1]
        killed = await span_with(victim, load, victim.kill, victim.start)
        await until_both_store(load)
        frozen = await span_with(victim, load, victim.freeze, victim.thaw)
        await until_both_store(load)
        namesrv = cluster.namesrv
        emptied = await span_with(namesrv, load, namesrv.kill, namesrv.start)
        await cluster.until_route(2)
    if load.failures:
        raise SystemExit(f"{len(load.failures)} sends failed; the first: {load.failures[0]}")
    return quiet, killed, frozen, emptied


def measure(rounds: int) -> Iterator[Row]:
    found: list[tuple[float, float, float, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            found.append(trio.run(one_round, Path(home)))
    quiet, killed, frozen, emptied = (list(column) for column in zip(*found, strict=True))
    share = [SEND_TIMEOUT_MS / (RETRIES + 1)]
    yield row("worst send, one of two masters killed (kill -9)", "ms", killed, quiet, rounds, smaller_is_better=True)
    yield row("worst send, one of two masters frozen (SIGSTOP)", "ms", frozen, share, rounds, smaller_is_better=True)
    yield row("worst send, NameServer killed, back empty", "ms", emptied, quiet, rounds, smaller_is_better=True)


if __name__ == "__main__":
    command(__doc__ or "", 5, measure)
