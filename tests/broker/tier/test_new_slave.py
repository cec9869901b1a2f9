"""A new slave copies the recent files only, reads older messages from the bucket, and may become the master."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.broker.broker import Broker
from skylark.remoting.net.client import open_client
from tests.broker.running import pull_request, send_request
from tests.namesrv.peer import serve
from tests.support.in_process import small_broker
from tests.support.waiting import until


@asynccontextmanager
async def served(broker: Broker) -> AsyncIterator[str]:
    """The address of ``broker``, which has stopped after the block."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(broker.run)
        broker.stop()


@pytest.mark.nightly
async def test_a_new_slave_begins_at_the_masters_files_and_knows_all_queues(tmp_path: Path) -> None:
    bucket, first = tmp_path / "bucket", f"{0:020d}"
    bucket.mkdir()
    options: dict[str, Any] = {
        "tier_path": f"file://{bucket}",
        "tier_local_bytes": 1 << 20,
        "clean_resource_interval": 50,
        "slave_read_enable": True,
    }
    async with trio.open_nursery() as nursery, open_client() as client:
        namesrv = (await serve(nursery, tmp_path)).address
        async with served(small_broker(namesrv, tmp_path / "master", **options)) as addr:
            await client.invoke(addr, send_request("old", b"first", queue_id=2))
            for _ in range(35):
                await client.invoke(addr, send_request("new", bytes(100_000)))
            log = tmp_path / "master/commitlog"
            await until(lambda: first not in [file.name for file in log.iterdir()])
            slave = small_broker(namesrv, tmp_path / "slave", broker_id=1, broker_role="SLAVE", **options)
            async with served(slave) as slave_addr:

                async def is_read_at_the_slave() -> bool:
                    answer = await client.invoke(slave_addr, pull_request("old", 0, queue_id=2))
                    return answer.code == 0 and b"first" in answer.body

                await until(is_read_at_the_slave)
                await until(
                    lambda: (tmp_path / "slave/commitlog").is_dir() and not (tmp_path / "slave/begunAt").exists()
                )
            files = [file.name for file in (tmp_path / "slave/commitlog").iterdir()]
            assert files and first not in files
        # The slave's directory is the master's now: its queue goes on after the message that only the bucket has.
        async with served(small_broker(namesrv, tmp_path / "slave", **options)) as addr:
            answer = await client.invoke(addr, send_request("old", b"second", queue_id=2))
            assert answer.code == 0, answer.remark
            assert answer.ext is not None and int(answer.ext["queueOffset"]) == 1
        nursery.cancel_scope.cancel()
