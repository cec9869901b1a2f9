"""Backups of brokers under load, some ended by kill -9: each that is whole has what was acknowledged before it began.

What is restored is compared with the broker record by record.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest
import trio

from scripts.daemons import Daemon
from skylark import Admin, Producer
from skylark.broker.commands.restore import restore_to
from skylark.broker.store.log.log_files import LogFiles
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.record import Record
from skylark.remoting.protocol.requests.backups import DONE, RUNNING, BackupStatus
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Load
from tests.support.daemons import Cluster, broker_set, make_topic, running
from tests.support.waiting import until

ROUNDS = 20
SENDERS = 20
TOPIC = "backed-up"
pytestmark = pytest.mark.nightly


@asynccontextmanager
async def master_alone(home: Path) -> AsyncIterator[tuple[Cluster, Daemon]]:
    async with running(home) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        yield cluster, cluster.brokers[0]


@asynccontextmanager
async def slave_of_a_set(home: Path) -> AsyncIterator[tuple[Cluster, Daemon]]:
    async with broker_set(home) as made:
        await made.make_topic(TOPIC)
        yield made.cluster, made.slaves[0]


def records(directory: Path, end: int) -> list[Record]:
    """The records of the log in a store, in order, as far as it was backed up."""
    log = LogFiles(OsFiles(), f"{directory}/commitlog")
    try:
        return [record for file in log.files for record in file.sound_after(file.base, min(file.end, end))]
    finally:
        log.close()


async def back_up(broker: Daemon, name: str, *, kill_after_s: float | None = None) -> BackupStatus | None:
    """The status of the backup when it is over; None when the broker was killed before that."""
    found = BackupStatus(RUNNING)

    async def is_over() -> bool:
        nonlocal found
        found = await admin.backup_status(broker.addr)
        return found.state != RUNNING

    async with Admin() as admin:
        await admin.begin_backup(broker.addr, name)
        with trio.move_on_after(kill_after_s or float("inf")):
            await until(is_over)
            return found
    broker.kill()
    return None


@pytest.mark.parametrize("made", [master_alone, slave_of_a_set])
async def test_backups_under_load_have_all_that_was_acknowledged(
    made: Callable[[Path], AbstractAsyncContextManager[tuple[Cluster, Daemon]]], tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    whole = 0
    async with made(tmp_path) as (cluster, broker):
        is_master = broker in cluster.brokers[:1]
        for number in range(ROUNDS):
            async with Producer(cluster.nameserver, retries=0) as producer, trio.open_nursery() as nursery:
                load = Load(producer, TOPIC, f"round-{number}")
                for sender in range(SENDERS):
                    nursery.start_soon(load.send, sender)
                await until(lambda load=load: len(load.acked) > 200)  # type: ignore[misc]
                acked = list(load.acked)
                kill_after_s = random.random() * 0.05 if number % 4 == 3 else None
                try:
                    status = await back_up(broker, f"b{number}", kill_after_s=kill_after_s)
                finally:
                    load.stopping = True
                nursery.cancel_scope.cancel()
            store = tmp_path / broker.name
            if status is None:
                broker.start()
                await until(broker.ready)
                assert not list((store / "backup").glob("*.partial"))
            else:
                assert status.state == DONE, status.error
                whole += 1
                backup, new = store / "backup" / f"b{number}", tmp_path / "new"
                assert await trio.to_thread.run_sync(restore_to, OsFiles(), str(backup), str(new))
                restored = records(new, status.log_end)
                assert restored == records(store, status.log_end)
                if is_master:  # a slave may be behind
                    found = {(record.queue_id, record.queue_offset): record.body for record in restored}
                    assert [body for queue, offset, body in acked if found.get((queue.queue_id, offset)) != body] == []
                rmtree(new)
                rmtree(backup)
    assert whole >= ROUNDS // 2
