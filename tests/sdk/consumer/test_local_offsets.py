"""The offsets of a broadcasting consumer, in a file."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark import PushConsumer
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer import offsets as offsets_module
from skylark.sdk.consumer.offsets import LocalOffsets
from skylark.sdk.position import Position
from tests.sdk.consumer.test_workers import settings_of
from tests.support.in_process import Servers
from tests.support.memory_files import MemoryFiles

MQ = MessageQueue("t", "a", 0)


def made(files: MemoryFiles) -> LocalOffsets:
    return LocalOffsets(settings_of(None, broadcast=True, local_offsets_dir="/o"), files)


async def opened(files: MemoryFiles) -> LocalOffsets:
    offsets = made(files)
    await offsets.open()
    return offsets


async def test_offsets_that_could_not_be_written_are_written_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFiles()
    offsets = await opened(files)
    with pytest.MonkeyPatch.context() as full:
        full.setattr("skylark.sdk.consumer.offsets.write_atomic", no_space)
        for _ in range(3):
            await offsets.save({MQ: Position(5)})
    assert len(caplog.records) == 1 and "still trying: [Errno 28]" in caplog.text
    # Nothing new was consumed.
    await offsets.save({})
    await offsets.close()
    assert await (await opened(files)).read(MQ, zero_if_new=False) == Position(5)


async def test_offsets_that_have_not_changed_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    offsets = await opened(files)
    await offsets.save({MQ: Position(5)})
    await offsets.close()
    offsets = await opened(files)
    monkeypatch.setattr("skylark.sdk.consumer.offsets.write_atomic", no_space)
    await offsets.save({MQ: Position(5)})
    assert not offsets._is_failing


@pytest.mark.parametrize("data", [b"", b"{}", b'{"offsetTable":{}}', b'{"offsetTable":{"{', bytes(40)])
async def test_a_damaged_file_is_no_new_consumer_and_the_error_says_what_to_do(data: bytes) -> None:
    files = MemoryFiles()
    offsets = await opened(files)
    await offsets.save({MQ: Position(5)})
    path = offsets._path
    await offsets.save({MQ: Position(6)})
    await offsets.close()
    write_atomic(files, path, data)
    # The backup is used, as after a crash: some messages come again.
    again = await opened(files)
    assert await again.read(MQ, zero_if_new=False) == Position(5)
    await again.close()
    write_atomic(files, f"{path}.bak", data)
    damaged = made(files)
    with pytest.raises(InvalidArgument, match=r"cannot be used: .*remove it and offsets\.json\.bak"):
        await damaged.open()
    await damaged.close()
    files.remove(path)
    files.remove(f"{path}.bak")
    assert await (await opened(files)).read(MQ, zero_if_new=False) is None


async def test_a_file_without_stamps_is_read_and_one_with_stamps_by_older_versions_too() -> None:
    files = MemoryFiles()
    offsets = await opened(files)
    other = MessageQueue("t", "b", 0)
    await offsets.save({MQ: Position(5), other: Position(7)})
    (path,) = [path for path in files.paths() if path.endswith("offsets.json")]
    assert b"created" not in files.read(path), "as older versions write it"
    await offsets.save({MQ: Position(6, 1_000)})
    await offsets.close()
    offsets = await opened(files)
    assert await offsets.read(MQ, zero_if_new=False) == Position(6, 1_000)
    assert await offsets.read(other, zero_if_new=False) == Position(7)


def no_space(*args: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("how", ["cancelled", "damaged"])
async def test_a_start_that_failed_does_not_keep_the_lock(
    how: str, cluster: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = partial(
        PushConsumer, cluster.nameserver, group="g", subscriptions={"t": "*"}, handler=print, broadcast=True,
        local_offsets_dir=str(tmp_path),
    )  # fmt: skip
    with trio.CancelScope() as scope, monkeypatch.context() as patch:
        read = offsets_module.read_or_backup

        def fail(*args: Any) -> bytes | None:
            if how == "damaged":
                raise OSError("damaged")
            trio.from_thread.run_sync(scope.cancel)
            return read(*args)

        patch.setattr(offsets_module, "read_or_backup", fail)
        with pytest.raises((InvalidArgument, trio.Cancelled)) as caught:
            await made().__aenter__()
        assert caught.type is (trio.Cancelled if how == "cancelled" else InvalidArgument)
    async with made():
        pass
