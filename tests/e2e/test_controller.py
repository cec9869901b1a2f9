"""A set whose master the Controllers choose, as real processes: whatever happens to the master, nothing is lost.

A failure prints its seed; SKYLARK_SEED repeats it, as far as the moments of other processes can be.
"""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME
from scripts.daemons import BIN, Daemon
from tests.e2e.switches import Switching, switching
from tests.support.waiting import until

# Sends that are acknowledged before and after each fault.
FEW = 200


async def killed(now: Switching, master: Daemon) -> None:
    master.kill()
    await goes_on_without(now, master)
    await now.at.start_broker(master)


async def frozen(now: Switching, master: Daemon) -> None:
    master.freeze()
    try:
        await goes_on_without(now, master)
    finally:
        master.thaw()


async def cut_from_controllers(now: Switching, master: Daemon) -> None:
    for link in now.at.links_of(master):
        link.cut()
    try:
        await goes_on_without(now, master)
    finally:
        for link in now.at.links_of(master):
            link.mend()


async def cut_from_slaves_then_killed(now: Switching, master: Daemon) -> None:
    """What comes in between is on the master only, and not acknowledged: that tail has to be cut."""
    before = set(now.at.cut_tails())
    link = now.at.slaves_link_of(master)
    link.cut()
    slaves = [broker for broker in now.at.brokers if broker is not master]

    async def log_end(broker: Daemon) -> int:
        return int((await now.admin.broker_runtime_info(broker.addr))["commitLogMaxOffset"])

    async def is_ahead() -> bool:
        return await log_end(master) > max([await log_end(slave) for slave in slaves])

    await until(is_ahead, "the master has what no slave has")
    master.kill()
    await goes_on_without(now, master)
    link.mend()
    await now.at.start_broker(master)
    await until(lambda: bool(set(now.at.cut_tails()) - before), "the tail is cut, and kept")


async def disk_lost(now: Switching, master: Daemon) -> None:
    """It comes back as a new replica; the Controllers are told to forget the old one."""
    old_id = now.at.id_of(master)
    master.kill()
    now.at.lose_disk(master)
    await goes_on_without(now, master)
    await now.at.start_broker(master)
    command = [
        str(BIN / "mqadmin"), "cleanBrokerMetadata", "-a", ";".join(now.at.controller_addrs), "-bn", NAME,
        "-b", str(old_id),
    ]  # fmt: skip
    await trio.run_process(command, stdout=subprocess.DEVNULL)
    assert await now.at.until_in_sync(now.admin) is not master
    assert now.at.id_of(master) != old_id


async def goes_on_without(now: Switching, old: Daemon) -> None:
    """Another broker is the master, and acknowledges."""
    await now.at.until_master(now.admin, but=old)
    await now.load.more(FEW)


FAULTS: list[Callable[[Switching, Daemon], Awaitable[None]]] = [
    killed, frozen, cut_from_controllers, cut_from_slaves_then_killed, disk_lost,
]  # fmt: skip


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_masters_die_again_and_again(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with switching(tmp_path) as now:
        for number in range(rounds):
            if number % len(FAULTS) == 0:
                faults = random.sample(FAULTS, len(FAULTS))
            master = await now.at.until_in_sync(now.admin)
            await now.load.more(FEW)
            started = trio.current_time()
            await faults[number % len(FAULTS)](now, master)
            took_s = trio.current_time() - started
            sys.stdout.write(f"{master.name} {faults[number % len(FAULTS)].__name__}: {took_s:.1f} s\n")
