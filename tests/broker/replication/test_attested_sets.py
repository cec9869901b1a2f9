"""Whole brokers attest their sums, and a slave that joins a master with a damaged disk gets what was sent."""

import pytest

from skylark.broker.replication import attesting, compared_log
from skylark.broker.store.log import commitlog
from tests.broker.healing.test_sets import BODIES, damage, fill, master_and_slave, seals_soon, sums_of
from tests.broker.replication.autoswitch.test_set import controlled, is_in_sync, leads
from tests.broker.replication.dledger.groups import started
from tests.broker.replication.sets import SLAVE, Running, broker
from tests.support.waiting import until

__all__ = ["seals_soon"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attesting, "INTERVAL_S", 0.05)


async def until_attested(*brokers: Running) -> None:
    for running in brokers:

        async def is_attested(running: Running = running) -> bool:
            return all(each is not None and each.is_attested for each in await sums_of(running))

        await until(is_attested, f"the sums of {running.addr} are attested")


async def test_a_new_slave_gets_from_a_master_with_damage_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "RECENT_BYTES", 0)
    monkeypatch.setattr(compared_log, "COMPARED_S", 0)
    async with master_and_slave() as (master, slave):
        whole = await fill(master, slave)
        await until_attested(master, slave)
        damage(master)
        options = {**SLAVE, "broker_id": 2, "namesrv_addr": master.broker.options.namesrv_addr}
        async with broker(**options) as joined:
            assert await joined.has("topic", len(BODIES)) == BODIES
            await until(lambda: joined.log() == master.log() == whole, "the damage is mended")


@pytest.mark.nightly
async def test_the_members_of_a_set_with_controllers_attest_their_sums() -> None:
    async with controlled() as brokers, brokers.broker() as master:
        await leads(master)
        async with brokers.broker() as slave:
            await is_in_sync(master, 1)
            await fill(master, slave)
            await until_attested(master, slave)


@pytest.mark.nightly
async def test_all_members_of_a_dledger_group_attest_their_sums() -> None:
    async with started() as made:
        leader = await made.leader()
        others = made.others(leader)
        await fill(leader, *others)
        await until_attested(leader, *others)
