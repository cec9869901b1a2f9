"""A master and its slave in this process: memory for disks, real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.running import SMALL, pull_request, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


@dataclass
class Running:
    """One broker."""

    broker: Broker
    fs: MemoryFiles
    client: RemotingClient
    addr: str
    scope: trio.CancelScope

    def kill(self) -> MemoryFiles:
        """End it as kill -9 does; returns what is on its disk then."""
        left = self.fs.killed()
        self.scope.cancel()
        return left

    async def send(self, topic: str, *bodies: bytes, queue_id: int = 0) -> None:
        for body in bodies:
            request = send_request(topic, body, queue_id=queue_id, n=self.broker.options.broker_name)
            answer = await self.client.invoke(self.addr, request, 5_000)
            assert answer.code == ResponseCode.SUCCESS, answer

    async def bodies(self, topic: str, *, queue_id: int = 0) -> list[bytes]:
        """All messages of a queue."""
        found: list[bytes] = []
        offset = 0
        while True:
            answer = await self.client.invoke(self.addr, pull_request(topic, offset, queue_id=queue_id), 5_000)
            ext = answer.ext or {}
            before, offset = offset, max(int(ext.get("nextBeginOffset", offset)), int(ext.get("minOffset", 0)))
            if answer.code == ResponseCode.SUCCESS:
                found += [decode_record(answer.body, at).body for at in record_starts(answer.body)]
            elif offset == before:
                return found

    async def has(self, topic: str, count: int, *, queue_id: int = 0) -> list[bytes]:
        """The messages of a queue, when there are ``count``."""
        found: list[bytes] = []

        async def enough() -> bool:
            found[:] = await self.bodies(topic, queue_id=queue_id)
            return len(found) >= count

        await until(enough, f"{count} messages of {topic}/{queue_id} at {self.addr}")
        return found

    @property
    def log_end(self) -> int:
        """Where the log's last byte is that is no zero."""
        names = self.fs.listdir("/store/commitlog")
        return int(names[0]) + len(self.log()) if names else 0

    def log(self) -> bytes:
        """All files of the commit log, up to its last byte that is no zero: the next file may be there, empty."""
        directory = "/store/commitlog"
        return b"".join(self.fs.read(f"{directory}/{name}") for name in self.fs.listdir(directory)).rstrip(b"\0")


# Options of a slave; where its master is, the NameServer tells.
SLAVE: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1}


@asynccontextmanager
async def namesrv(**more: Any) -> AsyncIterator[str]:
    """The address of a NameServer."""
    options = NamesrvOptions(bind_address="127.0.0.1", listen_port=0, **more)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(Namesrv(options, fs=MemoryFiles()).run)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def broker(fs: MemoryFiles | None = None, **options: Any) -> AsyncIterator[Running]:
    """Stopped gracefully at the end, unless it was killed."""
    fs = fs or MemoryFiles()
    made = Broker(BrokerOptions(**{**SMALL, "mapped_file_size_commit_log": 16 * 1024, **options}), fs=fs)
    async with trio.open_nursery() as nursery, open_client() as client:
        scope = trio.CancelScope()
        addr = await nursery.start(_run, made, scope)
        yield Running(made, fs, client, addr, scope)
        made.stop()


async def _run(made: Broker, scope: trio.CancelScope, *, task_status: trio.TaskStatus[str]) -> None:
    with scope:
        await made.run(task_status=task_status)
