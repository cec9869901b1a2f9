"""`Traces`: what is noted for the trace waits in bounded memory, and is sent as a few large messages.

Noting never waits and never fails. When more than MAX_WAITING_BYTES wait, because the broker is slow or away, what
comes is dropped and counted, and the log says so once. Messages of the trace topic itself are not traced.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import SkylarkError
from mqcommon.message.message import Message
from mqcommon.signal import Signal
from remoting.protocol.command import Command
from sdk.producer.result import SendStatus, StoredBatch
from sdk.runtime import survived
from sdk.shared import ClientHandle
from sdk.traces.entries import DEFAULT_REGION, Entry, Line, Sent

logger = logging.getLogger(__name__)

#: Before the name of the group whose messages are traced: the group that sends the traces.
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER-"
MAX_WAITING_BYTES = 32 * 1024 * 1024
# A trace message is sent when it has about this many bytes, or its keys have; there is room for 32,767 bytes of them.
BODY_BYTES = 128_000
KEYS_BYTES = 27_000
# Longer keys of one message are left out of the trace message's keys: its id finds it.
LONGEST_KEYS_BYTES = 4_000
# What waits is sent after this time, or as soon as it fills a message.
LINGER_S = 0.5
FULL_BYTES = 256 * 1024
# How many trace messages are sent at a time.
AT_ONCE = 16
# At the end, what waits is dropped after this time.
CLOSE_TIMEOUT_S = 3.0


class TraceProducer(AbstractAsyncContextManager[Any], Protocol):
    """What sends the trace messages."""

    async def send(self, message: Message) -> object: ...


class Traces:
    """The trace of one producer or consumer of ``group``, sent to ``topic`` by ``producer``, which it opens."""

    def __init__(self, producer: TraceProducer, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        #: How many records were dropped or could not be sent.
        self.dropped = 0
        self._producer = producer
        self._entries: deque[Entry] = deque()
        self._waiting_bytes = 0
        # Records of the entry that is being sent.
        self._lines: deque[Line] = deque()
        self._wake = Signal()
        self._full = Signal()
        self._idle = trio.Event()
        self._is_closing = self._is_closed = False
        self._said: set[str] = set()

    async def open(self, client: ClientHandle) -> None:
        """Send what is noted, in a task of ``client``, which is closed when that cannot be begun."""
        try:
            await self._producer.__aenter__()
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        client.nursery.start_soon(self._run)

    async def close(self) -> None:
        """Send what waits, for CLOSE_TIMEOUT_S at most."""
        self._is_closing = True
        self._wake.set()
        self._full.set()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self._idle.wait()
            self._is_closed = True
            left = sum(entry.count for entry in self._entries) + len(self._lines)
            if left:
                self._drop(left, "end", "the time at the end was over")
            await self._producer.__aexit__(None, None, None)

    def stored(self, batch: StoredBatch, addr: str, answer: Command, took_ms: float, now_ms: int) -> None:
        """The broker at ``addr`` has stored messages."""
        ext = answer.ext or {}
        if batch.queue.topic == self.topic or str(ext.get("TRACE_ON", "true")).lower() == "false":
            return
        cost_ms, region = round(took_ms), str(ext.get("MSG_REGION") or DEFAULT_REGION)
        success = batch.status is SendStatus.SEND_OK
        self.note(Sent(batch, self.group, region, addr, now_ms - cost_ms, cost_ms, success=success))

    def note(self, entry: Entry) -> None:
        """Send the records of ``entry`` later."""
        if self._is_closed:
            self._drop(entry.count, "end", "the client was closed")
            return
        if self._waiting_bytes + entry.size_bytes > MAX_WAITING_BYTES:
            self._drop(entry.count, "full", f"more than {MAX_WAITING_BYTES >> 20} MiB wait to be sent")
            return
        self._entries.append(entry)
        self._waiting_bytes += entry.size_bytes
        self._wake.set()
        if self._waiting_bytes >= FULL_BYTES:
            self._full.set()

    @enable_ki_protection
    async def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                await self._wake.wait()
                with trio.move_on_after(LINGER_S):
                    await self._full.wait()
                is_last = self._is_closing
                while self._entries or self._lines:
                    with survived("sending traces"):
                        await self._send_some()
                self._full.clear()
        finally:
            self._idle.set()

    async def _send_some(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                lines = list(cut(self._lines_left()))
                if not lines:
                    break
                nursery.start_soon(self._send, trace_message(self.topic, lines), len(lines))

    def _lines_left(self) -> Iterator[Line]:
        """All lines that wait. Those that the caller does not ask for stay."""
        lines = self._lines
        while lines or self._entries:
            if not lines:
                entry = self._entries.popleft()
                self._waiting_bytes -= entry.size_bytes
                lines.extend(entry.lines())
            else:
                yield lines.popleft()

    @enable_ki_protection
    async def _send(self, message: Message, count: int) -> None:
        try:
            await self._producer.send(message)
        except SkylarkError as error:
            self._drop(count, "failed", str(error))

    def _drop(self, count: int, kind: str, reason: str) -> None:
        self.dropped += count
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(
                "%d trace records of group %s for topic %s are dropped, and others may be without another word: %s",
                count, self.group, self.topic, reason,
            )  # fmt: skip


def cut(lines: Iterable[Line]) -> Iterator[Line]:
    """The first of ``lines``, as many as one trace message holds."""
    body_bytes = keys_bytes = 0
    for record, keys in lines:
        yield record, keys
        body_bytes += len(record)
        keys_bytes += len(keys) + 1
        if body_bytes >= BODY_BYTES or keys_bytes >= KEYS_BYTES:
            return


def trace_message(topic: str, lines: list[Line]) -> Message:
    """The message with these records, found by all of their keys."""
    found = dict.fromkeys(keys if len(keys) <= LONGEST_KEYS_BYTES else keys.partition(b" ")[0] for _, keys in lines)
    return Message(topic, b"".join([record for record, _ in lines]), keys=b" ".join(found).decode())
