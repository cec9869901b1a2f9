"""Delayed and timed messages on a disk in memory, with a broker's own parts around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import trio

from skylark.broker.delivery.background import Background
from skylark.broker.delivery.delayed_delivery import DelayedDelivery
from skylark.broker.delivery.timed_delivery import TimedDelivery
from skylark.broker.observe.stats import DroppedMessages
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.message.ids import RecallHandle
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, SMALL, new_store, read_all
from tests.broker.writing.support import make_sends
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

LEVELS = "1s 5s 1m"
MAX_DELAY_MS = 3 * 86_400_000


class TrioClock(ManualClock):
    """Wall time that goes with trio's; ``set_by_ms`` sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms + round(trio.current_time() * 1000)

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + round(trio.current_time() * 1000)


class _Later:
    """A store with its metadata and a part that delivers, which can be killed and started again."""

    part: DelayedDelivery | TimedDelivery

    def __init__(self, broker_options: BrokerOptions, store_options: StoreOptions = SMALL) -> None:
        self.fs = MemoryFiles()
        self.clock = TrioClock()
        self.options = broker_options
        self.store_options = store_options
        self.is_master = True
        self.turns = 0
        self.dropped = DroppedMessages()

    def start(self) -> None:
        self.meta = MetadataDir(self.options, self.fs, self.clock)
        self.store: MessageStore = new_store(self.fs, self.clock, self.store_options)
        self.store.open()
        self.writer: Writer = make_sends(self.store, self.meta.topics, self.options, self.clock).writer
        self.make_part(
            Background(
                self.store, self.writer, self.clock, lambda: self.is_master, self.flush, self.turned,
                self.meta.topics.deletions.covers, self.dropped.add,
            )
        )  # fmt: skip

    def make_part(self, background: Background) -> None:
        raise NotImplementedError

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

    def records(self, topic: str = "t", queue_id: int = 0) -> list[Record]:
        return read_all(self.store, topic, queue_id)

    def bodies(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        """The delivered messages, none of which may still be marked as delayed."""
        found = self.records(topic, queue_id)
        assert all(find_property(record.properties, b"DELAY") is None for record in found)
        return [record.body for record in found]


class Delays(_Later):
    """Messages with delay levels."""

    part: DelayedDelivery

    def __init__(self, levels: str = LEVELS) -> None:
        broker_options = options(message_delay_level=levels)
        super().__init__(broker_options, replace(SMALL, delay_levels=broker_options.delay_levels))

    def make_part(self, background: Background) -> None:
        self.offsets = self.meta.metadata.delay_offsets
        self.part = DelayedDelivery(background, self.options.delay_levels, self.offsets)

    def send(self, body: bytes, level: int, topic: str = "t", queue_id: int = 0) -> None:
        properties = b"TAGS\x01a\x02" + (b"DELAY\x01%d\x02" % level if level else b"")
        self.writer.put(topic, queue_id, body, properties, 0, 0, 1, HOST)


class Timers(_Later):
    """Messages with a time of delivery."""

    part: TimedDelivery

    def __init__(self, precision_ms: int = 1_000, store_options: StoreOptions = SMALL) -> None:
        super().__init__(options(timer_precision_ms=precision_ms), store_options)
        self.java_checkpoint: bytes | None = None

    def make_part(self, background: Background) -> None:
        precision_ms = self.options.timer_precision_ms
        self.part = TimedDelivery(
            background, precision_ms, HOST, lambda: self.java_checkpoint, is_read_here=lambda topic: False
        )

    def send(self, body: bytes, delay_ms: int, topic: str = "t", queue_id: int = 0) -> str:
        """Returns the recall handle."""
        properties = b"TAGS\x01a\x02TIMER_DELAY_MS\x01%d\x02" % delay_ms
        return self.writer.put(topic, queue_id, body, properties, 0, 0, 1, HOST).recall_handle

    def recall(self, handle: str) -> None:
        known = RecallHandle.decode(handle)
        text = f"TIMER_DEL_UNIQKEY\x01{known.topic}+{known.unique_key}\x02TIMER_DELIVER_MS\x01{known.slot_ms}\x02"
        self.writer.put(known.topic, 0, b"0", text.encode(), 0, 0, 1, HOST)
