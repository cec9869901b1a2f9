"""A set whose master the Controllers choose, as real processes: whatever happens to the master, nothing is lost.

A failure prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be.
"""

import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME, ControllerSet, running
from scripts.daemons import Daemon
from skylark import Admin, Message, Producer, SendFailed
from skylark.broker.replication.autoswitch.frames import SlaveHello, encode_ack, encode_slave_hello
from skylark.mqcommon.errors import RouteNotFound
from tests.e2e.fuzz.streams import pages
from tests.e2e.load import Acked, check_acknowledged, stored
from tests.e2e.switches import (
    FEW,
    NOTHING_LOST,
    QUICK,
    TOPIC,
    LinkedSet,
    Switching,
    switching,
    until_logs_are_equal,
)
from tests.support.daemons import start
from tests.support.waiting import until
from tests.support.warm_daemons import warm

# A dead slave leaves the SyncStateSet after this time.
LEAVES_SOON = ("--ha-max-time-slave-not-catchup", "500")
# Between two tries of one stranger at one port.
STRANGERS_PAUSE_S = 0.2


async def killed(now: Switching[LinkedSet], master: Daemon) -> None:
    master.kill()
    await goes_on_without(now, master)
    await now.at.start_broker(master)


async def frozen(now: Switching[LinkedSet], master: Daemon) -> None:
    master.freeze()
    try:
        await goes_on_without(now, master)
    finally:
        master.thaw()


async def cut_from_controllers(now: Switching[LinkedSet], master: Daemon) -> None:
    if not now.at.asks_through_links(master):
        # It was cut off before, and since then asks a Controller at an address of which others told.
        await killed(now, master)
        return
    for link in now.at.links_of(master):
        link.cut()
    try:
        await goes_on_without(now, master)
    finally:
        for link in now.at.links_of(master):
            link.mend()


async def cut_from_slaves_then_killed(now: Switching[LinkedSet], master: Daemon) -> None:
    """Messages in between are on the master only, and not acknowledged: this tail has to be cut."""
    before = set(now.at.cut_tails())
    link = now.at.slaves_link_of(master)
    link.cut()
    slaves = [broker for broker in now.at.brokers if broker is not master]

    async def log_end(broker: Daemon) -> int:
        return int((await now.admin.broker_runtime_info(broker.addr))["commitLogMaxOffset"])

    ends: list[int] = []

    async def is_ahead() -> bool:
        end, before = await log_end(master), list(ends)
        ends[:] = [await log_end(slave) for slave in slaves]
        # Slaves may have received more than they have read.
        return end > max(ends) and ends == before

    await until(is_ahead, "the master has what no slave has")
    master.kill()
    await goes_on_without(now, master)
    link.mend()
    await now.at.start_broker(master)
    await until(lambda: bool(set(now.at.cut_tails()) - before), "the tail is cut, and kept")


async def disk_lost(now: Switching[LinkedSet], master: Daemon) -> None:
    """A broker loses its disk and comes back as a new replica; the Controllers are told to forget the old replica."""
    old_id = now.at.id_of(master)
    master.kill()
    now.at.lose_disk(master)
    await goes_on_without(now, master)
    await now.at.start_broker(master)
    command = [
        warm("mqadmin"), "cleanBrokerMetadata", "-a", ";".join(now.at.controller_addrs), "-bn", NAME,
        "-b", str(old_id),
    ]  # fmt: skip
    await trio.run_process(command, stdout=subprocess.DEVNULL)
    assert await now.at.until_in_sync(now.admin) is not master
    assert now.at.id_of(master) != old_id


async def goes_on_without(now: Switching[LinkedSet], old: Daemon) -> None:
    """Another broker is the master, and acknowledges."""
    await now.at.until_master(now.admin, but=old)
    await now.load.more_from(NAME, FEW)


async def slave_killed(now: Switching[LinkedSet], master: Daemon) -> None:
    """The master goes on as soon as the slave has left the SyncStateSet."""
    slave = next(broker for broker in now.at.brokers if broker is not master)
    slave.kill()
    await now.load.more_from(NAME, FEW)
    await now.at.start_broker(slave)


async def leading_controller_killed(now: Switching[LinkedSet], master: Daemon) -> None:
    """The others elect another leader. Until it answers heartbeats the set may have no master with a lease."""
    leading = await now.at.leading_controller(now.admin) or now.at.controllers[0]
    leading.kill()
    await now.load.more_from(NAME, FEW)
    await start(leading)


FAULTS: list[Callable[[Switching[LinkedSet], Daemon], Awaitable[None]]] = [
    killed, frozen, cut_from_controllers, cut_from_slaves_then_killed, disk_lost, slave_killed,
]  # fmt: skip


@pytest.mark.fault("kills", "masters are killed, frozen, cut off or lose their disks, by turns", "controller")
@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.nightly)])
async def test_masters_die_again_and_again(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with switching(tmp_path) as now:
        for number in range(rounds):
            if number % len(FAULTS) == 0:
                faults = random.sample(FAULTS, len(FAULTS))
            master = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            started = trio.current_time()
            await faults[number % len(FAULTS)](now, master)
            took_s = trio.current_time() - started
            sys.stdout.write(f"{master.name} {faults[number % len(FAULTS)].__name__}: {took_s:.1f} s\n")


@pytest.mark.fault("members", "strangers claim to be members while masters die", "controller")
@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.nightly)])
async def test_strangers_on_all_ports_change_nothing(
    tmp_path: Path, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers claim to be members of the set, and acknowledge all bytes, while masters die."""
    monkeypatch.setenv("ROCKETMQ_HA_SHARED_SECRET", "only the brokers know it")
    random = Random(seed)
    async with switching(tmp_path, all_ports=True) as now, trio.open_nursery() as nursery:
        strangers = Strangers(random)
        for port in now.at.ha_ports:
            nursery.start_soon(strangers.ask_for_the_log, port)
        for port in [*(daemon.port for daemon in now.at.daemons), *(port.number for port in now.at.fast_ports)]:
            nursery.start_soon(strangers.send_garbage, port)
        for port in now.at.http_ports:
            nursery.start_soon(strangers.ask_for_pages, port.number)
        faults: list[Callable[[Switching[LinkedSet], Daemon], Awaitable[None]]] = []
        for _ in range(rounds):
            faults = faults or random.sample([*FAULTS, leading_controller_killed], len(FAULTS) + 1)
            master = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            await faults.pop()(now, master)
        await now.at.until_in_sync(now.admin)
        # Only a master listens at its port for slaves.
        master_ha_port = now.at.ha_ports[now.at.brokers.index(await now.at.until_master(now.admin))]
        others = [*now.at.fast_ports, *now.at.http_ports]
        ports = {*(daemon.port for daemon in now.at.daemons), *(port.number for port in others), master_ha_port}
        before = strangers.turned_away.copy()
        await until(lambda: all(strangers.turned_away[port] > before[port] for port in ports), "all are turned away")
        nursery.cancel_scope.cancel()


class Strangers:
    """Peers without the secret. Nobody may serve them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        # By port.
        self.turned_away: Counter[int] = Counter()

    async def ask_for_the_log(self, port: int) -> None:
        """Ask at a port for slaves, as each replica in turn, and as a broker that is no replica."""
        while True:
            for broker_id in (1, 2, 3, 99):
                hello = encode_slave_hello(SlaveHello(False, False, broker_id))
                await self._talk(port, hello + b"".join(encode_ack(offset) for offset in (0, 1 << 10, 1 << 20)))

    async def send_garbage(self, port: int) -> None:
        """Send half frames, and frames of meaningless bytes, to a port for requests."""
        while True:
            size = self._random.randrange(4, 300)
            await self._talk(
                port, struct.pack(">I", size + self._random.choice([0, 100])) + self._random.randbytes(size)
            )

    async def ask_for_pages(self, port: int) -> None:
        """Send whole, damaged and endless requests to a port of metrics, where everybody on loopback gets pages."""
        while True:
            await self._talk(port, pages(self._random), may_be_answered=True)

    async def _talk(self, port: int, data: bytes, *, may_be_answered: bool = False) -> None:
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(1.0):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(data)
                answer = await stream.receive_some()
                assert may_be_answered or answer == b""
                self.turned_away[port] += 1
        await trio.sleep(STRANGERS_PAUSE_S)


# --- all replicas die


@pytest.mark.fault("kills", "all brokers and Controllers are killed while a slave lags", "controller")
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_without_options_nothing_is_lost_when_all_die_at_once(tmp_path: Path, seed: int, rounds: int) -> None:
    """All brokers and Controllers are killed while one broker lags, and the lagging broker is back first.

    On a busy machine it may have left the SyncStateSet before the kill. Then it must wait for another one.
    """
    random, led = Random(seed), 0
    async with switching(tmp_path, QUICK) as now:
        for _ in range(rounds):
            dead = await master_first(now)
            await now.load.more_from(NAME, FEW)
            behind = random.choice([1, 2])
            await falls_behind(now, dead[0], dead[behind])
            for daemon in (*dead, *now.at.controllers):
                daemon.kill()
            for controller in now.at.controllers:
                controller.start()
            in_sync = await now.at.in_sync_addresses(now.admin)
            await now.at.start_broker(dead[behind])
            if dead[behind].addr in in_sync:
                assert await now.at.until_master(now.admin) is dead[behind]
                led += 1
            for number in random.sample([0, 3 - behind], 2):
                await now.at.start_broker(dead[number])
            await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
    assert led or rounds == 1


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_a_topic_made_just_before_all_brokers_die_is_there(tmp_path: Path, rounds: int) -> None:
    """Its first message is acknowledged, so all replicas have it; the table of topics may be on the master only."""
    at = ControllerSet(tmp_path, options=QUICK, controllers=1)
    async with running(at), Admin(at.nameserver) as admin:
        for number in range(rounds):
            master = await at.until_in_sync(admin)
            topic = f"new-{number}"
            async with Producer(at.nameserver) as producer:
                result = await producer.send(Message(topic, b"acknowledged"))
            for broker in at.brokers:
                broker.kill()
            for broker in at.brokers:
                if broker is not master:
                    await at.start_broker(broker)
            assert await at.until_master(admin, but=master) is not master
            await until(lambda: has_route(admin, topic), f"a route for {topic}")  # noqa: B023
            check_acknowledged(
                [(result.queue, result.queue_offset, b"acknowledged")], await stored(at.nameserver, topic)
            )
            await at.start_broker(master)


async def has_route(admin: Admin, topic: str) -> bool:
    try:
        return bool((await admin.topic_route(topic)).broker_datas)
    except RouteNotFound:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_all_replicas_die_and_return(tmp_path: Path, order: tuple[int, ...]) -> None:
    """The replicas die at once, and return in each order: the first is the master when they die."""
    async with switching(tmp_path) as now:
        await now.load.more_from(NAME, FEW)
        dead = await master_first(now)
        for broker in dead:
            broker.kill()
        for number in order:
            await now.at.start_broker(dead[number])
        await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)


@pytest.mark.nightly
@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_all_replicas_die_one_after_the_other_and_return(tmp_path: Path, order: tuple[int, ...]) -> None:
    """In the end the SyncStateSet is the last master alone: only it has all, and has to lead."""
    async with switching(tmp_path, (*NOTHING_LOST, *LEAVES_SOON, "--min-in-sync-replicas", "1")) as now:
        await now.load.more_from(NAME, FEW)
        dead = await master_first(now)
        for left, broker in ((2, dead[2]), (1, dead[1])):
            broker.kill()
            await now.at.until_in_sync(now.admin, left)
            await now.load.more_from(NAME, FEW)
        dead[0].kill()
        for number in order:
            await now.at.start_broker(dead[number])
        assert await now.at.until_in_sync(now.admin) is dead[0]


async def falls_behind(now: Switching[LinkedSet], master: Daemon, slave: Daemon) -> None:
    """The slave freezes, and the master gets more."""

    async def log_end() -> int:
        return int((await now.admin.broker_runtime_info(master.addr))["commitLogMaxOffset"])

    async def is_ahead() -> bool:
        return await log_end() > end

    slave.freeze()
    end = await log_end()
    await until(is_ahead, "the master has more than its slave")


async def master_first(now: Switching[LinkedSet]) -> list[Daemon]:
    master = await now.at.until_in_sync(now.admin)
    return [master, *(broker for broker in now.at.brokers if broker is not master)]


# --- only replicas that lack messages are alive


async def send(producer: Producer, name: str, count: int) -> list[Acked]:
    """Messages that are acknowledged."""
    results = [(body := b"%s/%d" % (name.encode(), number), await producer.send(Message(TOPIC, body)))
               for number in range(count)]  # fmt: skip
    return [(result.queue, result.queue_offset, body) for body, result in results]


@asynccontextmanager
async def last_one_killed(home: Path, unclean: str) -> AsyncIterator[tuple[ControllerSet, Admin, Daemon, list[Acked]]]:
    """The two others left the SyncStateSet, and are back; what was acknowledged, FEW by the last one alone."""
    options = (*QUICK, *LEAVES_SOON, "--min-in-sync-replicas", "1")
    at = ControllerSet(
        home, options=options, controllers=1, controller_options=("--enable-elect-unclean-master", unclean)
    )
    async with running(at), Admin(at.nameserver) as admin:
        master = await at.until_in_sync(admin)
        await at.make_topic(admin, TOPIC)
        async with Producer(at.nameserver, batching=False) as producer:
            acked = await send(producer, "by all", FEW)
            others = [broker for broker in at.brokers if broker is not master]
            for broker in others:
                broker.kill()
            await at.until_in_sync(admin, 1)
            acked += await send(producer, "by the last one", FEW)
        master.kill()
        for broker in others:
            await at.start_broker(broker)
        yield at, admin, master, acked


async def test_nobody_leads_until_the_one_that_has_all_is_back(tmp_path: Path) -> None:
    async with last_one_killed(tmp_path, "false") as (at, admin, last, acked):

        async def others_are_alive() -> bool:
            return sum(each.alive for each in (await at.known(admin)).not_in_sync_replicas) == 2

        await until(others_are_alive, "the Controllers hear of the others")
        await at.until_no_master(admin)
        async with Producer(at.nameserver, send_timeout_ms=1_000) as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message(TOPIC, b"for nobody"))
        await at.start_broker(last)
        assert await at.until_in_sync(admin) is last
        async with Producer(at.nameserver) as producer:
            acked += await send(producer, "by all again", FEW)
        await until_logs_are_equal(at, admin)
        check_acknowledged(acked, await stored(at.nameserver, TOPIC))
        assert at.cut_tails() == []


@pytest.mark.nightly
async def test_an_unclean_choice_loses_what_only_the_last_one_had(tmp_path: Path) -> None:
    async with last_one_killed(tmp_path, "true") as (at, admin, last, acked):
        await at.until_master(admin, but=last)
        async with Producer(at.nameserver) as producer:
            later = await send(producer, "later", FEW // 2)
        await at.start_broker(last)
        await at.until_in_sync(admin)
        await until_logs_are_equal(at, admin)
        found = await stored(at.nameserver, TOPIC)
        check_acknowledged([*acked[:FEW], *later], found)
        lost = [body for queue, offset, body in acked if found[queue][offset : offset + 1] != [body]]
        sys.stdout.write(f"{len(lost)} of {len(acked)} acknowledged messages lost by the choice of an unclean master\n")
        assert lost == [body for _, _, body in acked[FEW:]]
        assert at.cut_tails(), "what was lost is kept in a file"
        assert any(b"its new master was not in the SyncStateSet" in controller.logged for controller in at.controllers)
