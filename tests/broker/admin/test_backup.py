"""A backup of a serving broker: what it has, what is refused, and what a stop and a crash leave of it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from skylark.broker.broker import Broker
from skylark.broker.commands.restore import restore_to
from skylark.broker.options import BrokerOptions
from skylark.broker.store.backup.taking import StoreBackup
from skylark.broker.tasks.flush import Flusher
from skylark.mqcommon.errors import BrokerError, StoreError, UserError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.requests.backups import (
    BACK_UP_STORE,
    DONE,
    FAILED,
    GET_BACKUP_STATUS,
    RUNNING,
    BackupStatus,
    BackUpStoreRequestHeader,
)
from skylark.remoting.protocol.requests.offsets import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.running import SMALL, pull_request, running, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


async def status(client: RemotingClient, addr: str) -> BackupStatus:
    return (await call(Remote(client, addr, 5_000), GET_BACKUP_STATUS)).body()


async def begin(client: RemotingClient, addr: str, name: str = "b") -> None:
    await call(Remote(client, addr, 5_000), BACK_UP_STORE, BackUpStoreRequestHeader(name))


async def ended(client: RemotingClient, addr: str) -> BackupStatus:
    found = BackupStatus(RUNNING)

    async def is_over() -> bool:
        nonlocal found
        found = await status(client, addr)
        return found.state != RUNNING

    await until(is_over)
    return found


async def commit(client: RemotingClient, addr: str, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader("group", "t", 0, offset)
    await call(Remote(client, addr, 5_000), UPDATE_CONSUMER_OFFSET, header)


async def committed(client: RemotingClient, addr: str) -> int:
    header = QueryConsumerOffsetRequestHeader("group", "t", 0)
    return (await call(Remote(client, addr, 5_000), QUERY_CONSUMER_OFFSET, header)).header().offset


async def test_messages_and_offsets_of_the_moment_come_back_and_later_ones_do_not() -> None:
    fs = MemoryFiles()
    async with running(fs, flush_consumer_offset_interval=1_000_000) as (client, addr):
        for number in range(300):
            assert (await client.invoke(addr, send_request("t", b"%d" % number + bytes(400)))).code == 0
        await commit(client, addr, 100)
        await begin(client, addr)
        found = await ended(client, addr)
        assert (found.state, found.error, found.directory) == (DONE, "", "/store/backup/b")
        assert found.linked and found.to_copy and found.files > 5 and found.log_end > found.log_start == 0
        await client.invoke(addr, send_request("t", b"later"))
        await commit(client, addr, 301)
    assert restore_to(fs, "/store/backup/b", "/new")
    async with running(fs, store_path_root_dir="/new") as (client, addr):
        assert await committed(client, addr) == 100
        last = await client.invoke(addr, pull_request("t", 299))
        assert last.code == 0 and (last.ext or {})["maxOffset"] in (300, "300") and b"299" in last.body
        assert (await client.invoke(addr, send_request("t", b"new"))).code == 0


async def test_a_name_that_is_no_directorys_is_refused() -> None:
    async with running() as (client, addr):
        for name in ("", "a/b", "/a", "..", ".a", "a.partial", "a b", "x" * 101, "ä"):
            with pytest.raises(BrokerError, match="is not the name of a backup"):
                await begin(client, addr, name)
        assert (await status(client, addr)).state == ""


@asynccontextmanager
async def copying(
    fs: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RemotingClient, str, Broker]]:
    """A broker whose backup b copies until the broker stops."""

    def copy(self: StoreBackup, origin: object, made_ms: int, progress: object) -> None:
        while True:
            trio.from_thread.run(trio.sleep, 0.001)
            progress(1, 2)  # type: ignore[operator]

    monkeypatch.setattr(StoreBackup, "finish", copy)
    broker = Broker(BrokerOptions(**SMALL), fs=fs)
    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(broker.run)
        await client.invoke(addr, send_request("t", b"x"))
        await begin(client, addr)

        async def is_copying() -> bool:
            return (await status(client, addr)).copied == 1

        await until(is_copying)
        yield client, addr, broker
        broker.stop()


async def test_one_backup_at_a_time_and_a_stop_removes_what_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFiles()
    async with copying(fs, monkeypatch) as (client, addr, _):
        with pytest.raises(BrokerError, match="the backup b is being made"):
            await begin(client, addr, "c")
        # Sends, deletions and checkpoints go on beside it.
        assert (await client.invoke(addr, send_request("t", b"x"))).code == 0
        crashed = fs.killed()
        assert [path for path in crashed.paths() if "b.partial" in path]
    assert not [path for path in fs.paths() if "backup" in path]
    monkeypatch.undo()
    async with running(crashed) as (client, addr):
        assert not [path for path in crashed.paths() if "backup" in path]
        await begin(client, addr)
        assert (await ended(client, addr)).state == DONE


async def test_a_failure_is_told_and_the_next_backup_works() -> None:
    fs = MemoryFiles()
    async with running(fs, disk_space_warning_level_ratio=50) as (client, addr):
        await client.invoke(addr, send_request("t", b"x"))
        fs.capacity, had = fs.used() * 3 // 2, fs.capacity
        await begin(client, addr)
        found = await ended(client, addr)
        assert found.state == FAILED and re.search("over 50% of the disk would be in use", found.error)
        fs.capacity = had
        await begin(client, addr)
        assert (await ended(client, addr)).state == DONE
        await begin(client, addr)
        assert "exists already" in (await ended(client, addr)).error


async def test_a_journal_that_cannot_be_written_fails_the_backup_and_not_the_broker() -> None:
    fs = MemoryFiles()
    async with running(fs, flush_consumer_offset_interval=1_000_000) as (client, addr):
        for _ in range(2):
            await client.invoke(addr, send_request("t", b"x"))
        await commit(client, addr, 1)
        fs.faults.fail("write", path_part=".journal.")
        await begin(client, addr)
        assert "the offsets of groups cannot be written" in (await ended(client, addr)).error
        assert not fs.faults.pending
        await begin(client, addr, "c")
        assert (await ended(client, addr)).state == DONE


async def test_a_failed_sync_in_a_backup_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpoint(self: Flusher, *, note_ends: bool = False) -> None:
        raise StoreError("the store cannot be made durable")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with running() as (client, addr):
            monkeypatch.setattr(Flusher, "checkpoint", checkpoint)
            await begin(client, addr)
            await trio.sleep_forever()
    assert caught.group_contains(StoreError, match="cannot be made durable", depth=None)


async def test_a_broker_does_not_start_on_a_store_whose_restore_was_interrupted() -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("t", b"x"))
        await begin(client, addr)
        assert (await ended(client, addr)).state == DONE
    fs.overwrite("/new/unfinishedRestore", b"broker restore /store/backup/b /new\n")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(fs, store_path_root_dir="/new"):
            raise AssertionError("it started")
    assert caught.group_contains(Exception, match="Run again: broker restore /store/backup/b /new", depth=None)
    assert restore_to(fs, "/store/backup/b", "/new", checks=False)
    async with running(fs, store_path_root_dir="/new") as (client, addr):
        assert (await client.invoke(addr, pull_request("t", 0))).code == 0


def test_what_is_no_backup_is_not_restored() -> None:
    with pytest.raises(UserError, match=r"is not a whole backup: it has no backup.json"):
        restore_to(MemoryFiles(), "/nowhere", "/new")
