"""A DLedger group as real processes: whatever happens to its leader, nothing is lost.

A failure prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME, running
from scripts.daemons import HOST, Daemon
from scripts.dledger_set import DLedgerSet
from skylark import (
    Admin,
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from tests.e2e.switches import FEW, SEND_TIMEOUT_MS, TOPIC, Switching, under_load
from tests.support.daemons import SMALL, start
from tests.support.links import Link
from tests.support.waiting import until


class LinkedGroup(DLedgerSet):
    """Each member has a link of its own to each other one."""

    def __init__(self, home: Path, brokers: int = 3, options: Sequence[str] = SMALL) -> None:
        super().__init__(home, brokers, options)
        self.links = [[Link(port) for port in self.group_ports] for _ in range(brokers)]
        # All members learn of a member that joins anew, with the addresses that the leader has: addresses of its own
        # links.
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


async def goes_on_without(now: Now, *away: Daemon) -> None:
    """A master that is not away acknowledges."""
    leader = await now.at.until_master(now.admin)
    if leader in away:
        await now.at.until_master(now.admin, but=leader)
    await now.load.more_from(NAME, FEW)


@asynccontextmanager
async def killed(now: Now, member: Daemon) -> AsyncIterator[None]:
    member.kill()
    yield
    await now.at.start_broker(member)


@asynccontextmanager
async def frozen(now: Now, member: Daemon) -> AsyncIterator[None]:
    member.freeze()
    try:
        yield
    finally:
        member.thaw()


@asynccontextmanager
async def cut_off(now: Now, member: Daemon) -> AsyncIterator[None]:
    """Cut a member off; a member that led then has a tail that no other member has."""
    if not now.at.are_links_own:
        async with killed(now, member):
            yield
        return
    for link in now.at.links_around(member):
        link.cut()
    try:
        yield
    finally:
        for link in now.at.links_around(member):
            link.mend()


@asynccontextmanager
async def disk_lost(now: Now, member: Daemon) -> AsyncIterator[None]:
    """A member loses its disk, joins under a new id, and gets the whole log."""
    member.kill()
    now.at.lose_disk(member)
    now.at.are_links_own = False
    yield
    await now.at.start_broker(member)
    await until(lambda: b"is a voter now" in member.logged, f"{member.name} is a voter")


Fault = Callable[[Now, Daemon], AbstractAsyncContextManager[None]]
FAULTS: list[Fault] = [killed, frozen, cut_off, disk_lost]


@asynccontextmanager
async def group(home: Path, options: Sequence[str] = SMALL, brokers: int = 3) -> AsyncIterator[Now]:
    at = LinkedGroup(home, brokers, options)
    async with trio.open_nursery() as links:
        await at.open(links)
        async with under_load(at) as now:
            yield now
        links.cancel_scope.cancel()


@pytest.mark.fault("kills", "leaders are killed, frozen, cut off or lose their disks, by turns", "dledger")
@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_leaders_die_again_and_again(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    turns = [(fault, True) for fault in FAULTS] + [(killed, False)]
    async with group(tmp_path) as now:
        for number in range(rounds):
            if number % len(turns) == 0:
                random.shuffle(turns)
            fault, is_for_leader = turns[number % len(turns)]
            leader = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            member = leader if is_for_leader else next(each for each in now.at.brokers if each is not leader)
            await goes_on(now, (member, fault))


@pytest.mark.fault("kills", "two of five are killed, frozen, cut off or lose their disks at once", "dledger")
@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [100])
async def test_two_of_five_members_fail_at_once_again_and_again(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with group(tmp_path, brokers=5) as now:
        for number in range(rounds):
            leader = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            followers = [broker for broker in now.at.brokers if broker is not leader]
            first = leader if number % 3 else random.choice(followers)
            second = random.choice([broker for broker in followers if broker is not first])
            await goes_on(now, (first, random.choice(FAULTS)), (second, random.choice(FAULTS)))


async def goes_on(now: Now, *faults: tuple[Daemon, Fault]) -> None:
    """The group goes on while these members are away, and they come back."""
    started = trio.current_time()
    async with AsyncExitStack() as stack:
        for member, fault in faults:
            await stack.enter_async_context(fault(now, member))
        await goes_on_without(now, *(member for member, _ in faults))
    told = ", ".join(f"{member.name} {fault.__name__}" for member, fault in faults)
    sys.stdout.write(f"{told}: {trio.current_time() - started:.1f} s\n")


@pytest.mark.nightly
async def test_all_members_die_at_once(tmp_path: Path) -> None:
    async with group(tmp_path) as now:
        await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)
        for broker in now.at.brokers:
            broker.kill()
        await start(*now.at.brokers)
        await now.load.more_from(NAME, FEW)


@pytest.mark.nightly
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
