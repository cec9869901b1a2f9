"""A DLedger group as real processes: whatever happens to its leader, nothing is lost.

A failure prints its seed; SKYLARK_SEED repeats it, as far as the moments of other processes can be.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME, running
from scripts.daemons import HOST, Daemon
from scripts.dledger_set import DLedgerSet
from sdk import (
    Admin,
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from tests.e2e.switches import SEND_TIMEOUT_MS, TOPIC, Switching, under_load
from tests.support.daemons import SMALL, start
from tests.support.links import Link
from tests.support.waiting import until

# Sends that are acknowledged before and after each fault.
FEW = 100


class LinkedGroup(DLedgerSet):
    """Each member has a link of its own to each other one."""

    def __init__(self, home: Path, brokers: int = 3, options: Sequence[str] = SMALL) -> None:
        super().__init__(home, brokers, options)
        self.links = [[Link(port) for port in self.group_ports] for _ in range(brokers)]
        # A member that joins anew is told to all, with the addresses that the leader has: those of its own links.
        self.are_links_own = True

    async def open(self, nursery: trio.Nursery) -> None:
        """Before the brokers start."""
        for number, (broker, links) in enumerate(zip(self.brokers, self.links, strict=True)):
            for link in links:
                await nursery.start(link.run)
            addrs = [link.addr for link in links]
            addrs[number] = f"{HOST}:{self.group_ports[number]}"
            peers = ";".join(f"n{each}-{addr}" for each, addr in enumerate(addrs))
            broker.command = [*broker.command, "--d-leger-peers", peers]

    def links_around(self, broker: Daemon) -> list[Link]:
        """All by which this member hears of others, or they of it."""
        own = self.brokers.index(broker)
        return [*self.links[own], *(links[own] for links in self.links)]


Now = Switching[LinkedGroup]


async def goes_on_without(now: Now, old: Daemon) -> None:
    """Another member is the master, and acknowledges."""
    await now.at.until_master(now.admin, but=old)
    await now.load.more_from(NAME, FEW)


async def killed(now: Now, leader: Daemon) -> None:
    leader.kill()
    await goes_on_without(now, leader)
    await now.at.start_broker(leader)


async def frozen(now: Now, leader: Daemon) -> None:
    leader.freeze()
    try:
        await goes_on_without(now, leader)
    finally:
        leader.thaw()


async def cut_off(now: Now, leader: Daemon) -> None:
    """It has a tail that nobody else has."""
    if not now.at.are_links_own:
        await killed(now, leader)
        return
    for link in now.at.links_around(leader):
        link.cut()
    try:
        await goes_on_without(now, leader)
    finally:
        for link in now.at.links_around(leader):
            link.mend()


async def disk_lost(now: Now, leader: Daemon) -> None:
    """It joins under a new id, and gets the whole log."""
    leader.kill()
    now.at.lose_disk(leader)
    now.at.are_links_own = False
    await goes_on_without(now, leader)
    await now.at.start_broker(leader)
    await until(lambda: b"is a voter now" in leader.logged, f"{leader.name} is a voter")


async def follower_killed(now: Now, leader: Daemon) -> None:
    """The leader goes on at once."""
    follower = next(broker for broker in now.at.brokers if broker is not leader)
    follower.kill()
    await now.load.more_from(NAME, FEW)
    await now.at.start_broker(follower)


FAULTS: list[Callable[[Now, Daemon], Awaitable[None]]] = [killed, frozen, cut_off, disk_lost, follower_killed]


@asynccontextmanager
async def group(home: Path, options: Sequence[str] = SMALL, brokers: int = 3) -> AsyncIterator[Now]:
    at = LinkedGroup(home, brokers, options)
    async with trio.open_nursery() as links:
        await at.open(links)
        async with under_load(at) as now:
            yield now
        links.cancel_scope.cancel()


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_leaders_die_again_and_again(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with group(tmp_path) as now:
        for number in range(rounds):
            if number % len(FAULTS) == 0:
                faults = random.sample(FAULTS, len(FAULTS))
            leader = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            started = trio.current_time()
            await faults[number % len(FAULTS)](now, leader)
            took_s = trio.current_time() - started
            sys.stdout.write(f"{leader.name} {faults[number % len(FAULTS)].__name__}: {took_s:.1f} s\n")


async def test_all_members_die_at_once(tmp_path: Path) -> None:
    async with group(tmp_path) as now:
        await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)
        for broker in now.at.brokers:
            broker.kill()
        await start(*now.at.brokers)
        await now.load.more_from(NAME, FEW)


async def test_without_a_majority_nothing_is_acknowledged(tmp_path: Path) -> None:
    async with group(tmp_path) as now:
        leader = await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)
        dead = [broker for broker in now.at.brokers if broker is not leader]
        for broker in dead:
            broker.kill()
        await until(lambda: b"does not lead" in leader.logged, "the leader has stepped down")
        acked = len(now.load.acked)
        ended = now.load.ended.total()
        await until(lambda: now.load.ended.total() > ended, "sends have failed")
        assert len(now.load.acked) == acked
        await start(*dead)
        await now.load.more_from(NAME, FEW)


async def test_two_of_five_members_may_die(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with group(tmp_path, brokers=5) as now:
        leader = await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)
        other = random.choice([broker for broker in now.at.brokers if broker is not leader])
        leader.kill()
        other.freeze()
        try:
            await goes_on_without(now, leader)
        finally:
            other.thaw()
        await now.at.start_broker(leader)


async def test_consumers_transactions_and_timed_messages_go_on_over_a_switch(tmp_path: Path) -> None:
    checks = ("--transaction-time-out", "500", "--transaction-check-interval", "300")
    at = DLedgerSet(tmp_path, options=(*SMALL, *checks))
    async with running(at), Admin(at.nameserver) as admin:
        leader = await at.until_in_sync(admin)
        await at.make_topic(admin, TOPIC)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            seen.append(message.body)

        async with (
            PushConsumer(
                at.nameserver, group="switch-group", subscriptions={TOPIC: "*"}, handler=handle,
                consume_from=ConsumeFrom.FIRST_OFFSET,
            ),
            Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as producer,
            # Asked by the next leader, which has heard of no end.
            TransactionProducer(
                at.nameserver, group="halves", checker=lambda message: TransactionState.COMMIT, topics=[TOPIC],
                check_immunity_s=5,
            ) as halves,
        ):  # fmt: skip
            await producer.send(Message(TOPIC, b"before"))
            await producer.send(Message(TOPIC, b"timed"), delay=timedelta(seconds=6))
            await producer.send(Message(TOPIC, b"delayed", delay_level=2))
            async with halves.transaction(Message(TOPIC, b"open")) as transaction:
                transaction.leave_open()
            await until(lambda: b"before" in seen, "the consumer reads")
            leader.kill()
            await at.until_master(admin, but=leader)
            await producer.send(Message(TOPIC, b"after"))
            wanted = {b"before", b"after", b"timed", b"delayed", b"open"}
            await until(lambda: set(seen) >= wanted, "all of them are delivered", 90)
            assert set(seen) == wanted
