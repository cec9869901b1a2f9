"""Who is a member of a set with Controllers, as real processes: strangers, copied identities, forgotten brokers.

Each round ends with the whole set in sync, and nothing that was acknowledged is lost.
"""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME
from scripts.daemons import HOST, Daemon, broker_daemon, reserve
from skylark.broker.replication.autoswitch.frames import SlaveHello, encode_ack, encode_slave_hello
from tests.e2e.switches import FEW, QUICK, LinkedSet, Switching, switching
from tests.support.waiting import until


async def claimed_by_a_stranger(now: Switching[LinkedSet], master: Daemon, slaves: list[Daemon]) -> None:
    """A stranger claims to be a slave that has the whole log: it is refused, and the real slave still counts."""
    port = now.at.ha_ports[now.at.brokers.index(master)]
    for broker_id in (now.at.id_of(slaves[0]), now.at.id_of(master), 99):
        async with await trio.open_tcp_stream(HOST, port) as stranger:
            await stranger.send_all(encode_slave_hello(SlaveHello(False, False, broker_id)) + encode_ack(0))
            assert await stranger.receive_some() == b""
    assert await now.at.until_in_sync(now.admin) is master
    await now.load.more_from(NAME, FEW)


async def identity_copied(now: Switching[LinkedSet], master: Daemon, slaves: list[Daemon]) -> None:
    """The younger of two brokers with one identity is refused, and says where both are."""
    home, name = now.at.home, "copied"
    port = reserve()
    copied = broker_daemon(
        home, name, now.at.nameserver, 0, *now.at.mode_options(0), "--ha-listen-port", str(port.number), *QUICK
    )
    now.at.store_of(copied).mkdir()
    shutil.copy(now.at.store_of(slaves[0]) / "brokerIdentity", now.at.store_of(copied))
    refusal = f"is alive at {slaves[0].addr}, so it cannot be at {copied.addr}, too".encode()
    copied.start()
    try:
        await until(lambda: refusal in copied.logged, "the younger one is refused")
        assert await now.at.until_in_sync(now.admin) is master
        await now.load.more_from(NAME, FEW)
    finally:
        copied.kill()
        shutil.rmtree(now.at.store_of(copied))


async def one_forgotten_the_other_killed(now: Switching[LinkedSet], master: Daemon, slaves: list[Daemon]) -> None:
    """The set shrinks though a slave follows that the Controllers do not know; that slave takes a new id."""
    forgotten, dead = slaves
    old_id = now.at.id_of(forgotten)
    dead.kill()
    await now.admin.clean_broker_metadata(now.at.controller_addrs, NAME, [old_id], even_living=True)

    async def is_shrunk() -> bool:
        return set(await now.at.in_sync_addresses(now.admin)) == {master.addr, forgotten.addr}

    await until(is_shrunk, "the dead one has left, and the other one is there under a new id")
    assert now.at.id_of(forgotten) != old_id
    assert b"this broker takes a new id, and its log stays" in forgotten.logged
    await now.load.more_from(NAME, FEW)
    await now.at.start_broker(dead)


EVENTS: list[Callable[[Switching[LinkedSet], Daemon, list[Daemon]], Awaitable[None]]] = [
    claimed_by_a_stranger, identity_copied, one_forgotten_the_other_killed,
]  # fmt: skip


@pytest.mark.fault("members", "identities are copied, claimed and forgotten", "controller")
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_members_are_who_the_controllers_say(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with switching(tmp_path, QUICK) as now:
        for number in range(rounds):
            master = await now.at.until_in_sync(now.admin)
            await now.load.more_from(NAME, FEW)
            slaves = [broker for broker in now.at.brokers if broker is not master]
            random.shuffle(slaves)
            await EVENTS[number % len(EVENTS)](now, master, slaves)
        await now.at.until_in_sync(now.admin)
        await now.load.more_from(NAME, FEW)
