"""All machines lose power at once under load, again and again: real daemons, disks that lose what was not synced.

A row is a mode and a flush setting. With SYNC_FLUSH no acknowledged message is lost. With ASYNC_FLUSH no message is
lost that was acknowledged before the last finished flush began, or that is older than the docs say. Every store starts
again, whether the machine was booted (power loss) or went on and its disk was mounted anew (as after a kill). `ROWS`
has the rows, with their rounds in CI; at night each has ROUNDS_AT_NIGHT, or as many as TEST_ROUNDS says. A failure
prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be repeated.
"""

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NOT_YET, ControllerSet
from scripts.controller_set import running as set_running
from scripts.daemons import Daemon
from scripts.dledger_set import DLedgerSet
from skylark import Admin, Message, Producer, PullConsumer, SendFailed
from skylark.broker.commands.diverged_slave import resync
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import BODY_BYTES, BULK, bodies
from tests.support.amounts import rounds_or
from tests.support.daemons import SMALL, BrokerSet, broker_set, make_topic, running
from tests.support.rounds import report
from tests.support.unsynced import LosingDisks
from tests.support.waiting import until

TOPIC = "power"
STOPPED = b"replication stopped"
QUEUES = 4
SENDERS = 20
SEND_TIMEOUT_MS = 3_000
# The docs say: about the last second, under steady load. A busy machine stops a process for seconds at times.
OLDEST_LOST_S = 10
ROUNDS_AT_NIGHT = 100
# How many messages are acknowledged before the power goes: in less than a flush interval, and in several.
COUNTS = (100, 1_000, 4_000, 8_000)

# (mode, flushDiskType) -> rounds in CI; 0: only at night.
ROWS = {
    ("single", "ASYNC_FLUSH"): 1,
    ("single", "SYNC_FLUSH"): 1,
    ("master-slave", "ASYNC_FLUSH"): 0,
    ("master-slave", "SYNC_FLUSH"): 1,
    ("controller", "ASYNC_FLUSH"): 0,
    ("controller", "SYNC_FLUSH"): 1,
    ("dledger", "ASYNC_FLUSH"): 1,
    ("dledger", "SYNC_FLUSH"): 0,
}

# A member of a DLedger group or of a SyncStateSet that has less than it promised in the same boot has a lost disk, and
# joins anew; with all members at once nobody is left to join.
ONLY_WITH_A_BOOT = [("dledger", "ASYNC_FLUSH"), ("controller", "ASYNC_FLUSH")]


@dataclass(frozen=True)
class Machines:
    """The daemons that lose power, in the order of their starts. ``ready``: sends are answered, and reads see all."""

    nameserver: str
    daemons: Sequence[Daemon]
    brokers: Sequence[Daemon]
    make_topic: Callable[[Admin], Awaitable[None]]
    ready: Callable[[Admin], Awaitable[None]]


@asynccontextmanager
async def single(home: Path, options: Sequence[str]) -> AsyncIterator[Machines]:
    async with running(home, 1, options) as cluster:

        async def make(admin: Admin) -> None:
            await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))

        async def ready(admin: Admin) -> None:
            await until_routed(admin)

        yield Machines(cluster.nameserver, cluster.brokers, cluster.brokers, make, ready)


@asynccontextmanager
async def master_and_slave(home: Path, options: Sequence[str], disks: LosingDisks) -> AsyncIterator[Machines]:
    async with broker_set(home, "SYNC_MASTER", options=options) as made:

        async def make(admin: Admin) -> None:
            await made.make_topic(TOPIC, QUEUES)

        async def ready(admin: Admin) -> None:
            await until_routed(admin)
            await copy_again_if_longer(made, disks)
            await made.until_in_sync(1)

        brokers = [made.master, made.slave]
        yield Machines(made.nameserver, brokers, brokers, make, ready)


async def copy_again_if_longer(made: BrokerSet, disks: LosingDisks) -> None:
    """A slave may have messages that its master has lost: it follows again after ``broker resyncSlave``."""

    async def decided() -> bool:
        return STOPPED in made.slave.logged or (await made.ha_status()).in_sync_slave_nums == 1

    await until(decided, "the slave follows, or says why it does not")
    if STOPPED in made.slave.logged:
        made.slave.kill()
        resync(OsFiles(), SystemClock(), str(made.store_of(made.slave)))
        disks.shadow.put_all(made.store_of(made.slave))
        made.slave.start()
        await until(made.slave.ready, "the slave serves")


@asynccontextmanager
async def elected(made: ControllerSet) -> AsyncIterator[Machines]:
    async with set_running(made):

        async def make(admin: Admin) -> None:
            await made.until_in_sync(admin)
            await made.make_topic(admin, TOPIC, QUEUES)

        async def ready(admin: Admin) -> None:
            await made.until_in_sync(admin)
            await until_routed(admin)

        yield Machines(made.nameserver, [*made.controllers, *made.brokers], made.brokers, make, ready)


async def until_routed(admin: Admin) -> None:
    async def is_there() -> bool:
        try:
            return bool((await admin.topic_route(TOPIC)).queue_datas)
        except NOT_YET:
            return False

    await until(is_there, f"{TOPIC} has a route")


@asynccontextmanager
async def machines(mode: str, home: Path, flush: str, disks: LosingDisks) -> AsyncIterator[Machines]:
    options = (*SMALL, "--flush-disk-type", flush)
    match mode:
        case "single":
            made = single(home, options)
        case "master-slave":
            made = master_and_slave(home, options, disks)
        case "controller":
            made = elected(ControllerSet(home, 2, options))
        case _:
            made = elected(DLedgerSet(home, 3, options))
    async with made as found:
        yield found


# The directories that lose pages: of brokers and of Controllers.
DISKS = {
    "single": ["broker-a"],
    "master-slave": ["master", "slave-1"],
    "controller": ["replica-0", "replica-1", "controller-n0", "controller-n1", "controller-n2"],
    "dledger": ["replica-0", "replica-1", "replica-2"],
}


@dataclass
class Trial:
    """The acknowledged messages, and the counts of rounds and of losses."""

    acked_at: dict[bytes, float] = field(default_factory=dict)
    rounds: int = 0
    acked: int = 0
    lost: int = 0
    oldest_lost_s: float = 0.0
    #: By queue: what was read after earlier power losses.
    read: dict[MessageQueue, list[bytes]] = field(default_factory=dict)

    async def load(self, nameserver: str, count: int, then: Callable[[], None]) -> None:
        """Send until ``count`` more sends are acknowledged; ``then`` is called while sends are under way."""
        wanted = len(self.acked_at) + count
        stopping = trio.Event()

        async def send(sender: int) -> None:
            number = 0
            while not stopping.is_set():
                number += 1
                names = [f"{self.rounds}/{sender}/{number}/{each}" for each in range(1 if sender else BULK)]
                texts = [name.encode().ljust(BODY_BYTES) for name in names]
                try:
                    if sender:
                        await producer.send(Message(TOPIC, texts[0]))
                    else:
                        await producer.send_many(TOPIC, texts)
                except SendFailed:
                    continue
                self.acked_at.update(dict.fromkeys(texts, time.monotonic()))

        async with (
            Producer(nameserver, retries=0, send_timeout_ms=SEND_TIMEOUT_MS) as producer,
            trio.open_nursery() as nursery,
        ):
            for sender in range(SENDERS):
                nursery.start_soon(send, sender)
            await until(lambda: len(self.acked_at) >= wanted, f"{count} more messages are acknowledged")
            stopping.set()
            then()

    async def check(self, nameserver: str, off_at: float, flushed_since: float, flush: str) -> None:
        """Read all; what is missing may be missing."""
        async with PullConsumer(nameserver) as consumer:
            for queue in await consumer.message_queues(TOPIC):
                read = self.read.setdefault(queue, [])
                assert await consumer.max_offset(queue) >= len(read), f"messages of {queue} that were read are gone"
                read += await bodies(consumer, queue, len(read))
        times = Counter(body for read in self.read.values() for body in read)
        twice = [body for body, count in times.items() if count > 1]
        assert twice == []
        lost = {body: acked_at for body, acked_at in self.acked_at.items() if body not in times}
        self.acked += len(self.acked_at)
        self.lost += len(lost)
        # With ASYNC_FLUSH the last messages may be lost: the asserts below say which may not.
        report(acknowledged=len(self.acked_at), lost=len(lost) if flush == "SYNC_FLUSH" else 0)
        self.acked_at.clear()
        if flush == "SYNC_FLUSH":
            assert lost == {}, f"{len(lost)} messages are lost"
        if lost:
            age_s = off_at - min(lost.values())
            self.oldest_lost_s = max(self.oldest_lost_s, age_s)
            flushed = [body for body, acked_at in lost.items() if acked_at < flushed_since]
            assert flushed == [], f"{len(flushed)} messages are lost that were acknowledged before the last flush"
            assert age_s < OLDEST_LOST_S


async def run(row: tuple[str, str], rounds: int, home: Path, random: Random, environment: pytest.MonkeyPatch) -> None:
    mode, flush = row
    live = home / "live"
    live.mkdir()
    disks = LosingDisks(home / "shadow", [live / name for name in DISKS[mode]], random)

    def set_environment() -> None:
        for name, value in disks.environment().items():
            environment.setenv(name, value)

    set_environment()
    trial = Trial()
    async with machines(mode, live, flush, disks) as at, Admin(at.nameserver) as admin:
        await at.make_topic(admin)
        for _ in range(rounds):
            trial.rounds += 1
            flushed_since: list[float] = []
            off_at: list[float] = []

            def cut_power(flushed_since: list[float] = flushed_since, off_at: list[float] = off_at) -> None:
                for daemon in at.daemons:
                    daemon.freeze()
                off_at.append(time.monotonic())
                flushed_since += [disks.shadow.flushed_since(broker.pid) for broker in at.brokers]
                for daemon in at.daemons:
                    daemon.kill()

            await trial.load(at.nameserver, random.choice(COUNTS), cut_power)
            new_boot = random.random() < 0.5 or row in ONLY_WITH_A_BOOT
            await trio.to_thread.run_sync(lambda new_boot=new_boot: disks.lose_power(new_boot=new_boot))
            set_environment()
            for daemon in at.daemons:
                daemon.start()
            for daemon in at.daemons:
                await until(daemon.ready, f"{daemon.name} serves")
            await at.ready(admin)
            await trial.check(at.nameserver, off_at[0], min(flushed_since), flush)
            report(1)
    sys.stdout.write(
        f"{mode} {flush}: {trial.rounds} power losses, {trial.acked} acknowledged, {trial.lost} lost,"
        f" the oldest of them {trial.oldest_lost_s:.1f} s old\n"
    )


@pytest.mark.parametrize(("mode", "flush"), [row for row, rounds in ROWS.items() if rounds])
async def test_power_losses(mode: str, flush: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await run((mode, flush), ROWS[mode, flush], tmp_path, Random(seed), monkeypatch)


@pytest.mark.fault("power", "all machines lose power at once, {flush}", "{mode}")
@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "flush"), ROWS)
async def test_many_power_losses(
    mode: str, flush: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = rounds_or(ROUNDS_AT_NIGHT)
    await run((mode, flush), rounds, tmp_path, Random(seed), monkeypatch)
