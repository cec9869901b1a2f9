"""Timed messages on a disk in memory, with a broker's own parts around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

from broker.delivery.timer.timed import TimerRules, to_timer
from broker.delivery.timer.timed_delivery import TimedDelivery
from broker.delivery.transaction.transactions import half_messages
from broker.store.store import MessageStore, StoreOptions
from broker.writing.writer import Writer
from mqcommon.message.ids import RecallHandle, UniqueKeys
from mqcommon.message.record import Record
from tests.broker.delivery.delay.support import TrioClock
from tests.broker.meta.support import MetadataDir
from tests.broker.store.support import HOST, SMALL, new_store, read_all
from tests.broker.writing.support import make_sends
from tests.support.memory_files import MemoryFiles

MAX_DELAY_MS = 3 * 86_400_000


class Timers:
    """A store and the part that delivers, which can be killed and started again."""

    def __init__(self, precision_ms: int = 1_000, options: StoreOptions = SMALL) -> None:
        self.fs = MemoryFiles()
        self.clock = TrioClock()
        self.precision_ms = precision_ms
        self.options = options
        self.is_master = True
        self.turns = 0
        self.java_checkpoint: bytes | None = None

    def start(self) -> None:
        self.meta = MetadataDir(fs=self.fs, clock=self.clock)
        self.store: MessageStore = new_store(self.fs, self.clock, self.options)
        self.store.open()
        rules = TimerRules(True, self.precision_ms, lambda: MAX_DELAY_MS, "b")
        interceptor = to_timer(rules, UniqueKeys("127.0.0.1", 1, 2), self.clock)
        sends = make_sends(
            self.store,
            self.meta.topics,
            self.meta.options,
            self.clock,
            interceptors=(half_messages(self.meta.options), interceptor),
        )
        self.writer: Writer = sends.writer
        self.part = TimedDelivery(
            self.store, self.writer, self.precision_ms, self.clock, lambda: self.is_master, self.turned,
            lambda: self.java_checkpoint, HOST, lambda topic: False,
        )  # fmt: skip

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

    def send(self, body: bytes, delay_ms: int, topic: str = "t", queue_id: int = 0) -> str:
        """Returns the recall handle."""
        properties = b"TAGS\x01a\x02TIMER_DELAY_MS\x01%d\x02" % delay_ms
        return self.writer.put(topic, queue_id, body, properties, 0, 0, 1, HOST).recall_handle

    def recall(self, handle: str) -> None:
        known = RecallHandle.decode(handle)
        text = f"TIMER_DEL_UNIQKEY\x01{known.topic}+{known.unique_key}\x02TIMER_DELIVER_MS\x01{known.slot_ms}\x02"
        self.writer.put(known.topic, 0, b"0", text.encode(), 0, 0, 1, HOST)

    def records(self, topic: str = "t", queue_id: int = 0) -> list[Record]:
        return read_all(self.store, topic, queue_id)

    def bodies(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]
