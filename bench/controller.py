"""How long a set with Controllers takes no messages when its master dies, and what Controllers cost. Real processes.

    python -m bench.controller [--json] [--kills 20] [--freezes 5] [--n 50000] [--rounds 3] [--only NAME ...]

switches: three replicas with allAckInSyncStateSet under the load of 20 senders. From the signal to the first
    acknowledgement of a send that began later, or was tried again. The limits are the targets.
leader: the Controller that leads is killed. The longest pause between two acknowledgements afterwards; its limit is
    the longest pause before. Then the master is killed, too.
sends: two replicas in Controller mode, allAckInSyncStateSet, against a SYNC_MASTER with a slave, in turn.
sets: bench/controller_sets.py.
"""

import argparse
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import trio

from bench import controller_sets
from bench.harness import BROKER, Cluster, Row, in_turn, row, show
from bench.replication import broker_set, follow
from bench.traffic import TOPIC, awaited, make_topic, requests, run
from scripts.controller_set import ControllerSet, running, until
from scripts.daemons import Daemon
from skylark import Admin, Message, Producer, SendFailed

SENDERS = 20
BODY = bytes(128)
QUIET_S = 3.0
# Small index files, as a fresh file of the default size takes 420 MB.
OPTIONS = (
    "--mapped-file-size-commit-log", str(256 * 1024 * 1024), "--max-index-num", "5000000",
    "--all-ack-in-sync-state-set", "true",
)  # fmt: skip
KILLED_BAR_S, FROZEN_BAR_S, AFTER_LEADER_BAR_S = 1.5, 5.0, 3.0


class Load:
    """Senders that never stop, and when their sends were acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acked = 0
        self.failed = 0
        self.longest_pause_s = 0.0
        self._acked_at = trio.current_time()
        # Sends that began, or were tried again, after this time: when the first of them was acknowledged.
        self.since = 0.0
        self.first_since: float | None = None

    async def send(self) -> None:
        while True:
            started = trio.current_time()
            try:
                result = await self._producer.send(Message(TOPIC, BODY))
            except SendFailed:
                self.failed += 1
                continue
            now = trio.current_time()
            self.acked += 1
            self.longest_pause_s = max(self.longest_pause_s, now - self._acked_at)
            self._acked_at = now
            if self.first_since is None and (started >= self.since or result.tries > 1):
                self.first_since = now

    async def more(self, count: int) -> None:
        wanted = self.acked + count
        await until(lambda: self.acked >= wanted, f"{count} more sends are acknowledged")

    async def until_acked_again(self, kill: Callable[[], None]) -> float:
        """Seconds from ``kill`` to the acknowledgement of a send that began, or was tried again, after it."""
        kill()
        self.since, self.first_since = trio.current_time(), None
        await until(lambda: self.first_since is not None, "sends are acknowledged again")
        assert self.first_since is not None
        return self.first_since - self.since

    async def pause_of_span(self) -> float:
        """The longest pause between acknowledgements in a span that begins now."""
        self.longest_pause_s = 0.0
        await trio.sleep(QUIET_S)
        return max(self.longest_pause_s, trio.current_time() - self._acked_at)


class Switches:
    """A set under load; each method is one round, which ends with all replicas in sync."""

    def __init__(self, at: ControllerSet, admin: Admin, load: Load) -> None:
        self._at = at
        self._admin = admin
        self._load = load

    async def killed(self) -> float:
        master = await self._ready()
        took_s = await self._load.until_acked_again(master.kill)
        await self._at.start_broker(master)
        return took_s

    async def frozen(self) -> float:
        master = await self._ready()
        try:
            return await self._load.until_acked_again(master.freeze)
        finally:
            master.thaw()

    async def leader_killed(self) -> tuple[float, float, float]:
        """The longest pause before, and after the leader was killed; then how long the master's death takes."""
        master = await self._ready()
        before = await self._load.pause_of_span()
        leader = await self._at.leading_controller(self._admin)
        assert leader is not None
        leader.kill()
        after = await self._load.pause_of_span()
        took_s = await self._load.until_acked_again(master.kill)
        await self._back(leader, master)
        return before, after, took_s

    async def both_killed(self) -> float:
        master = await self._ready()
        leader = await self._at.leading_controller(self._admin)
        assert leader is not None

        def kill() -> None:
            leader.kill()
            master.kill()

        took_s = await self._load.until_acked_again(kill)
        await self._back(leader, master)
        return took_s

    async def _ready(self) -> Daemon:
        """The master of a whole set that takes messages."""
        master = await self._at.until_in_sync(self._admin)
        await self._load.more(500)
        return master

    async def _back(self, controller: Daemon, broker: Daemon) -> None:
        controller.start()
        await until(controller.ready, f"{controller.name} serves")
        await self._at.start_broker(broker)


@asynccontextmanager
async def under_load(home: Path) -> AsyncIterator[Switches]:
    async with running(ControllerSet(home, options=OPTIONS)) as at, Admin(at.nameserver) as admin:
        await at.until_in_sync(admin)
        await at.make_topic(admin, TOPIC)
        async with Producer(at.nameserver) as producer, trio.open_nursery() as nursery:
            load = Load(producer)
            for _ in range(SENDERS):
                nursery.start_soon(load.send)
            yield Switches(at, admin, load)
            nursery.cancel_scope.cancel()


async def all_switches(kills: int, freezes: int) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as home:
        async with under_load(Path(home)) as switches:
            return (
                [await switches.killed() for _ in range(kills)],
                [await switches.frozen() for _ in range(freezes)],
            )


def switch_rows(args: argparse.Namespace) -> Iterator[Row]:
    killed, frozen = trio.run(all_switches, args.kills, args.freezes)
    yield _against("acknowledged again after kill -9 of the master, median", killed, KILLED_BAR_S)
    yield _against("the same, worst", [max(killed)], KILLED_BAR_S, len(killed))
    yield _against("acknowledged again after SIGSTOP of the master, median", frozen, FROZEN_BAR_S)
    yield _against("the same, worst", [max(frozen)], FROZEN_BAR_S, len(frozen))


def _against(name: str, seconds: list[float], bar_s: float, n: int = 0) -> Row:
    return row(name, "s", seconds, [bar_s], n or len(seconds), smaller_is_better=True)


async def leaders(count: int) -> tuple[list[tuple[float, float, float]], list[float]]:
    with tempfile.TemporaryDirectory() as home:
        async with under_load(Path(home)) as switches:
            return (
                [await switches.leader_killed() for _ in range(count)],
                [await switches.both_killed() for _ in range(count)],
            )


def leader_rows(args: argparse.Namespace) -> Iterator[Row]:
    found, both = trio.run(leaders, args.freezes)
    before, after, switched = (list(column) for column in zip(*found, strict=True))
    name = "leading Controller killed: longest pause of sends"
    yield row(name, "s", after, before, len(found), smaller_is_better=True)
    yield _against("then kill -9 of the master: acknowledged again", switched, AFTER_LEADER_BAR_S)
    yield _against("both killed at once: acknowledged again", both, AFTER_LEADER_BAR_S)


@contextmanager
def two_replicas() -> Iterator[Cluster]:
    """A set of two in Controller mode, in sync."""
    with tempfile.TemporaryDirectory() as home:
        at = ControllerSet(Path(home), brokers=2, options=OPTIONS, name=BROKER)

        async def master() -> Daemon:
            async with Admin(at.nameserver) as admin:
                return await at.until_in_sync(admin)

        try:
            at.start()
            leads = trio.run(master)
            yield Cluster(at.nameserver, leads.addr, leads.pid)
        finally:
            at.end()


def send_rows(args: argparse.Namespace) -> Iterator[Row]:
    n = args.n
    with two_replicas() as ours, broker_set("SYNC_MASTER") as sync:
        trio.run(make_topic, ours)
        trio.run(make_topic, sync.at)
        follow(sync)
        for window in (1000, 64):
            figures = in_turn(
                args.rounds,
                partial(run, requests, ours.broker, BODY, n, window, 0),
                partial(run, requests, sync.master.addr, BODY, n, window, 0),
            )
            yield row(f"Controller mode, 2 replicas, 128 B, {window} in flight", "msg/s", *figures, n)
        figures = in_turn(
            args.rounds,
            lambda: run(awaited, ours, BODY, 2 * n, 1000, batching=True),
            lambda: run(awaited, sync.at, BODY, 2 * n, 1000, batching=True),
        )
        yield row("the same, adaptive batches, 1,000 awaiting", "msg/s", *figures, 2 * n)


PARTS = {"switches": switch_rows, "leader": leader_rows, "sends": send_rows, "sets": controller_sets.rows}


def rows(args: argparse.Namespace) -> Iterator[Row]:
    for name, part in PARTS.items():
        if not args.only or name in args.only:
            yield from part(args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="masters killed")
    parser.add_argument("--freezes", type=int, default=5, help="masters frozen, and Controllers killed")
    parser.add_argument("--n", type=int, default=50_000, help="messages of the sends; batches take twice as many")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of the sends")
    parser.add_argument("--sets", type=int, default=10_000, help="sets that send heartbeats")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts only")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    show(rows(args), args.json)


if __name__ == "__main__":
    main()
