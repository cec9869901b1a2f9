"""Pops on a disk in memory, with a broker's own parts around them, which can be killed and started again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from skylark.broker.cold_reads import ColdReads
from skylark.broker.delivery.background import Background
from skylark.broker.delivery.filters import Filters
from skylark.broker.delivery.pop.acks import AckHandlers
from skylark.broker.delivery.pop.checks import PopChecks
from skylark.broker.delivery.pop.copies import RevivedCopies
from skylark.broker.delivery.pop.finder import Finder
from skylark.broker.delivery.pop.held_pops import HeldPops
from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.pops import PopHandlers
from skylark.broker.delivery.pop.positions import Positions
from skylark.broker.delivery.pop.records import Key, Queue
from skylark.broker.delivery.pop.reviving import Reviving
from skylark.broker.delivery.pop.state import PopState
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.writing.admission import Reason
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.steps import run_slices
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.requests.pops import (
    BATCH_ACK_MESSAGE,
    CHANGE_MESSAGE_INVISIBLETIME,
    INIT_MIN,
    POP_MESSAGE,
    BatchAck,
    BatchAckMessageRequestBody,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.consumer.popped import ReceivedMessage, received
from tests.broker.delivery.later import TrioClock
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, new_store, read_all
from tests.broker.writing.support import make_sends
from tests.support.caller import Caller
from tests.support.memory_files import MemoryFiles

FLUSH_S = 0.5
OPTIONS = StoreOptions(
    directory="/store", commitlog_segment_bytes=8192, consumequeue_segment_bytes=20 * 64, index_slots=50,
    index_capacity=60,
)  # fmt: skip


class Pops:
    """Topic ``T`` has two queues."""

    def __init__(self, broker_options: BrokerOptions | None = None, store_options: StoreOptions | None = None) -> None:
        self.options = broker_options or options()
        self.store_options = store_options or OPTIONS
        self.fs = MemoryFiles()
        self.clock = TrioClock()
        self.is_master = True
        #: Called when the log is on disk.
        self.on_flush: Callable[[], None] = lambda: None
        #: Whether the log cannot be brought to the disk.
        self.disk_fails = False

    def start(self) -> None:
        self.meta = meta = MetadataDir(self.options, self.fs, self.clock)
        self.store: MessageStore = new_store(self.fs, self.clock, self.store_options)
        self.store.open()
        if meta.topics.get("T") is None:
            meta.topics.put(TopicConfig("T", 2, 2))
            meta.journal.sync()
        #: What slaves have of the log.
        self.ledger = AckLedger(1 << 20)
        sends = make_sends(self.store, meta.topics, meta.options, self.clock, acks=self.ledger)
        self.writer = sends.writer
        if not self.is_master:
            self.writer.admission.refuse(Reason.NOT_MASTER)
        self.caller = Caller()
        stats = BrokerStats(self.clock)
        self.log = ReviveLog(self.store, self.writer, meta.offsets, self.clock, meta.options, HOST, stats.pops)
        positions = Positions(
            self.log, meta.offsets, self.store, self.clock, lambda topic, queue_id: True, lambda queue: None
        )
        copies = RevivedCopies(self.writer, meta.topics, meta.groups, meta.options, stats)
        state = PopState(self.log, positions, HeldPops(100, 100), copies)
        checks = PopChecks(meta.topics, meta.groups, Filters(), meta.options)
        background = Background(
            self.store, self.writer, self.clock, lambda: self.is_master, self.flush, lambda: None,
            meta.topics.deletions.covers,
        )  # fmt: skip
        self.part = Reviving(state, background, meta.offsets, lambda: self.store.log.flushed, self.persist, stats.pops)
        meta.topics.deletions.on_begin.append(self.part.topic_deleted)
        finder = Finder(self.store, meta.topics, self.log, positions)
        self.pops = PopHandlers(state, finder, checks, ColdReads(), stats, meta.options, self.clock)
        self.acks = AckHandlers(state, checks, self.store, sends.durability, self.clock)

    async def flush(self) -> None:
        """Bring to the disk what is in the log now, which takes time: what comes meanwhile is not on disk after it."""
        if self.disk_fails:
            raise OSError("the disk fails")
        self.store.flush()
        self.on_flush()
        await trio.sleep(FLUSH_S)

    async def persist(self) -> None:
        self.meta.offsets.append_changed(self.meta.offsets.pop_changed())
        self.meta.journal.sync()

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic as an administrator does; it is made again at once, and empty."""
        config, deletions = self.meta.topics.get(topic), self.meta.topics.deletions
        assert config is not None
        deletions.begin(topic)
        self.meta.topics.delete(topic)
        self.store.delete_topic(topic)
        self.store.checkpoint(with_ends=True)
        await run_slices(self.meta.offsets.remove_topic(topic))
        deletions.finish(topic, self.store.log.end)
        self.meta.topics.put(config)
        await self.persist()

    async def delete_group(self) -> None:
        """Delete a group with its offsets, as an administrator does."""
        await self.part.end_group("g")
        await run_slices(self.meta.offsets.remove_group("g"))

    @asynccontextmanager
    async def running(self, ending: str, random: Random) -> AsyncIterator[None]:
        """Started, and ended by a "stop", a "kill", or a loss of "power"."""
        self.start()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.part.run)
            yield
            if ending != "stop":
                self.fs = self.fs.killed() if ending == "kill" else self.fs.crash(random)
            nursery.cancel_scope.cancel()
        if ending == "stop":
            await self.persist()
            self.store.close()
            self.meta.journal.close()

    def take_role(self, is_master: bool) -> None:
        self.is_master = is_master
        if is_master:
            self.writer.admission.allow(Reason.NOT_MASTER)
        else:
            self.writer.admission.refuse(Reason.NOT_MASTER)
        self.part.role_changed()

    def send(self, body: bytes, queue_id: int, properties: bytes = b"") -> None:
        self.writer.put("T", queue_id, body, properties, 0, 0, 1, HOST)

    def pop(
        self, most: int, invisible_ms: int, *, is_ordered: bool = False, queue_id: int = -1
    ) -> list[ReceivedMessage]:
        header = PopMessageRequestHeader("g", "T", queue_id, most, invisible_ms, 0, 0, INIT_MIN, order=is_ordered)
        answer = self._ask(self.pops.pop, POP_MESSAGE.code, header.to_ext())
        if answer is None or not answer.body:
            return []
        fields: PopMessageResponseHeader = POP_MESSAGE.answer_header_type.from_answer(answer.ext)
        return received(answer.body, fields, "T", "g", "broker-a", "")

    def ack(self, message: ReceivedMessage) -> bool:
        """Whether the broker took it; it may be too late for it to count."""
        lease, offset = message.lease, message.queue_offset
        return self.ack_entry(lease.acks(1 << (offset - lease.start_offset)))

    def ack_entry(self, entry: BatchAck) -> bool:
        body = encode_body(BatchAckMessageRequestBody([entry], "broker-a"), Dialect.STANDARD)
        return self._ask(self.acks.ack_many, BATCH_ACK_MESSAGE.code, None, body) is not None

    def hide(self, message: ReceivedMessage, invisible_ms: int) -> None:
        lease, offset = message.lease, message.queue_offset
        ext = {
            "consumerGroup": "g", "topic": lease.read_topic, "queueId": lease.queue_id, "offset": offset,
            "extraInfo": message.receipt_handle, "invisibleTime": invisible_ms,
        }  # fmt: skip
        self._ask(self.acks.change_time, CHANGE_MESSAGE_INVISIBLETIME.code, ext)

    def is_hidden(self, message: ReceivedMessage) -> bool:
        """Whether it is in flight under its handle."""
        lease = message.lease
        key = Key(Queue("g", lease.read_topic, lease.queue_id), lease.start_offset, lease.pop_time)
        return bool(self.log.inflight.hidden(key, [message.queue_offset]))

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies in queue 0 of ``topic``."""
        return [record.body for record in read_all(self.store, topic, 0)]

    def _ask(self, handler: Any, code: int, ext: dict[str, Any] | None, body: bytes = b"") -> Command | None:
        try:
            answer: Command | None = handler(self.caller.channel, Command(code, ext, body))
        except RequestRefused:
            return None
        return answer
