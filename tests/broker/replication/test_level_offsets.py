"""Offsets of delay levels on their way to a slave: they never get ahead of its log."""

import pytest

from broker.replication import slave_sync as slave_sync_module
from remoting.protocol.body import DataVersion
from remoting.protocol.requests.offsets import DelayOffsetTable
from tests.broker.replication.test_slave_sync import SkylarkMaster, serving_master, short_pauses, slave, until
from tests.broker.store.support import put

__all__ = ["short_pauses"]


async def test_delay_offsets_wait_until_the_log_has_the_messages_that_they_stand_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_sync_module, "LOG_WAIT_S", 0.001)
    master = SkylarkMaster()
    put(master.desk.store, "T", 0, b"delivered")
    master.meta.metadata.delay_offsets.put(DelayOffsetTable({1: 5}, DataVersion(0, 1, 1)))
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds >= 2)
        assert copy.meta.metadata.delay_offsets.table.offset_table == {}
        copy.log_end = master.desk.store.log.end
        await until(lambda: copy.meta.metadata.delay_offsets.table.offset_table == {1: 5})
