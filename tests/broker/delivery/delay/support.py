"""Delayed messages on a disk in memory, with a broker's own parts around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

from broker.delivery.delay.delayed_delivery import DelayedDelivery
from broker.delivery.delay.waiting import to_level
from broker.store.queue.delay_levels import DelayLevels
from broker.store.store import MessageStore
from broker.writing.writer import Writer
from mqcommon.message.properties import find_property
from tests.broker.meta.support import MetadataDir
from tests.broker.store.support import HOST, SMALL, new_store, read_all
from tests.broker.writing.support import make_sends
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

LEVELS = DelayLevels((1_000, 5_000, 60_000))


class TrioClock(ManualClock):
    """Wall time that goes with trio's; ``set_by_ms`` sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms + round(trio.current_time() * 1000)


class Delays:
    """A store with its metadata and the part that delivers, which can be killed and started again."""

    def __init__(self) -> None:
        self.fs = MemoryFiles()
        self.clock = TrioClock()
        self.is_master = True
        self.turns = 0

    def start(self) -> None:
        self.meta = MetadataDir(fs=self.fs, clock=self.clock)
        self.store: MessageStore = new_store(self.fs, self.clock, SMALL)
        self.store.open()
        sends = make_sends(
            self.store, self.meta.topics, self.meta.options, self.clock, interceptors=(to_level(LEVELS),)
        )
        self.writer: Writer = sends.writer
        self.offsets = self.meta.metadata.delay_offsets
        self.part = DelayedDelivery(
            self.store, self.writer, LEVELS, self.offsets, self.clock, lambda: self.is_master, self.flush, self.turned
        )

    async def flush(self) -> None:
        self.store.flush()

    def turned(self) -> None:
        self.turns += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Started, and stopped as the daemon does it."""
        self.start()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.part.run)
            yield
            await self.part.stop()
            self.store.flush()
            nursery.cancel_scope.cancel()
        await self.part.close()
        self.meta.journal.close()
        self.store.close()

    @asynccontextmanager
    async def killed(self, random: Random | None = None) -> AsyncIterator[None]:
        """Started, and killed at the end; with ``random`` the machine loses its power."""
        self.start()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.part.run)
            yield
            self.fs = self.fs.killed() if random is None else self.fs.crash(random)
            nursery.cancel_scope.cancel()

    def send(self, body: bytes, level: int, topic: str = "t", queue_id: int = 0) -> None:
        properties = b"TAGS\x01a\x02" + (b"DELAY\x01%d\x02" % level if level else b"")
        self.writer.put(topic, queue_id, body, properties, 0, 0, 1, HOST)

    def bodies(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        """What was delivered; none of it is still marked as delayed."""
        records = read_all(self.store, topic, queue_id)
        assert all(find_property(record.properties, b"DELAY") is None for record in records)
        return [record.body for record in records]
