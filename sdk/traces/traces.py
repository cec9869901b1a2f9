"""`Traces`: entries for the trace wait in bounded memory, and are sent as a few large messages.

Adding an entry never waits and never fails. When more than MAX_WAITING_BYTES wait, because the broker is slow or away,
further entries are dropped and counted, and the log says so once. Messages of the trace topic itself are not traced.
"""

import logging
from collections import deque
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.command import Command
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.result import SendStatus, StoredBatch
from skylark.sdk.runtime import survived
from skylark.sdk.traces.entries import DEFAULT_REGION, ConsumedMessage, EndedTransaction, Entry, Sent, TraceLines
from skylark.sdk.traces.sink import RecordsLost

logger = logging.getLogger(__name__)

#: The group that sends the traces has this prefix and the name of the traced group.
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER-"
MAX_WAITING_BYTES = 32 * 1024 * 1024
# A trace message is sent when its body has about this many bytes, or its keys are full; there is room for 32,767 bytes
# of keys.
BODY_BYTES = 128_000
KEYS_BYTES = 27_000
# Longer keys of one message are left out of the trace message's keys: its id finds it.
LONGEST_KEYS_BYTES = 4_000
# Waiting entries are sent after this time, or as soon as they fill a message.
LINGER_S = 0.5
FULL_BYTES = 256 * 1024
# How many trace messages are sent at a time.
AT_ONCE = 16
# At the end, waiting entries are dropped after this time.
CLOSE_TIMEOUT_S = 3.0


class TraceProducer(AbstractAsyncContextManager[Any], Protocol):
    """The sender of trace messages, or the writer of their records (`sdk/traces/sink.py`)."""

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
        # The remaining records of the entry that is being sent.
        self._left = TraceLines([], [])
        self._wake = Signal()
        self._full = Signal()
        self._idle = trio.Event()
        self._is_closing = self._is_closed = False
        self._said: set[str] = set()

    async def open(self, client: ClientHandle) -> None:
        """Send entries in a task of ``client``. Closes ``client`` when the producer cannot be opened."""
        try:
            await self._producer.__aenter__()
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        client.nursery.start_soon(self._run)

    async def close(self) -> None:
        """Send the waiting entries, for CLOSE_TIMEOUT_S at most."""
        self._is_closing = True
        self._wake.set()
        self._full.set()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self._idle.wait()
            self._is_closed = True
            left = sum(entry.count for entry in self._entries) + len(self._left.records)
            if left:
                self._drop(left, "end", "the time at the end was over")
            await self._producer.__aexit__(None, None, None)

    def stored(
        self,
        batch: StoredBatch,
        addr: str,
        answer: Command,
        took_ms: float,
        now_ms: int,
        plain_bytes: int | None = None,
    ) -> None:
        """Record that the broker at ``addr`` has stored ``batch``, with its ``answer`` after ``took_ms``.

        ``plain_bytes``: the length of the body before compression, if it was compressed.
        """
        ext = answer.ext or {}
        if batch.queue.topic == self.topic or str(ext.get("TRACE_ON", "true")).lower() == "false":
            return
        cost_ms, region = round(took_ms), str(ext.get("MSG_REGION") or DEFAULT_REGION)
        success = batch.status is SendStatus.SEND_OK
        self.note(Sent(batch, self.group, region, addr, now_ms - cost_ms, cost_ms, plain_bytes, success=success))

    def ended(
        self, message: Message | MessageExt, msg_id: str, addr: str, state: str, now_ms: int, *, from_check: bool
    ) -> None:
        """Record that the end of a transaction was sent to the broker at ``addr``.

        ``state``: RocketMQ's name of that end. ``from_check``: the broker had asked for it.
        """
        taken = ConsumedMessage(msg_id, message.keys or "", 0, DEFAULT_REGION)
        self.note(
            EndedTransaction(
                taken, message.tags or "", self.group, message.topic, addr, state, now_ms, from_check=from_check
            )
        )

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
                # More records fill the message meanwhile. Entries that wait when `close` is called are sent in one last
                # round, without a pause: ``is_last`` is read before the round, since `close` may be called during a
                # round.
                with trio.move_on_after(0 if self._is_closing else LINGER_S):
                    await self._full.wait()
                is_last = self._is_closing
                while self._entries or self._left.records:
                    with survived("sending traces"):
                        await self._send_some()
                self._full.clear()
        finally:
            self._idle.set()

    async def _send_some(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                filling = self._next_message()
                if not filling.records:
                    break
                nursery.start_soon(self._send, filling.message(self.topic), len(filling.records))

    def _next_message(self) -> "Filling":
        """The next trace message, as full as possible; empty when no entry waits."""
        filling = Filling()
        while self._left.records or self._entries:
            if not self._left.records:
                entry = self._entries.popleft()
                self._waiting_bytes -= entry.size_bytes
                self._left = entry.lines()
            count = filling.take(self._left)
            if count < len(self._left.records):
                self._left = TraceLines(self._left.records[count:], self._left.keys[count:])
                break
            self._left = TraceLines([], [])
        return filling

    @enable_ki_protection
    async def _send(self, message: Message, count: int) -> None:
        try:
            await self._producer.send(message)
        except RecordsLost as error:
            self._drop(error.count, "failed", str(error))
        except SkylarkError as error:
            self._drop(count, "failed", str(error))
        except trio.Cancelled:
            self._drop(count, "end", "the time at the end was over")
            raise

    def _drop(self, count: int, kind: str, reason: str) -> None:
        self.dropped += count
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(
                "%d trace records of group %s for topic %s are dropped, and others may be without another word: %s",
                count,
                self.group,
                self.topic,
                reason,
            )


class Filling:
    """A trace message that is being filled."""

    __slots__ = ("_body_bytes", "_keys", "_keys_bytes", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._keys: list[bytes] = []
        self._body_bytes = self._keys_bytes = 0

    def take(self, lines: TraceLines) -> int:
        """Add the first lines, as many as there is room for; returns how many. An empty message always takes one."""
        longest, longest_keys = max(map(len, lines.records)), max(map(len, lines.keys)) + 1
        room = min((BODY_BYTES - self._body_bytes) // longest, (KEYS_BYTES - self._keys_bytes) // longest_keys)
        count = max(room, 0 if self.records else 1)
        records, keys = lines.records[:count], lines.keys[:count]
        self.records += records
        self._keys += keys
        self._body_bytes += sum(map(len, records))
        self._keys_bytes += sum(map(len, keys)) + len(keys)
        return len(records)

    def message(self, topic: str) -> Message:
        """The trace message with these records, which can be found by all their keys."""
        found = dict.fromkeys(
            keys if len(keys) <= LONGEST_KEYS_BYTES else keys.partition(b" ")[0] for keys in self._keys
        )
        return Message(topic, b"".join(self.records), keys=b" ".join(found).decode())
