"""The queues that a consumer was assigned, and what `poll` returns of them.

Each queue has a `MessageStream`: at most one batch is ready while another is returned. A queue's pulls are limited
to its share of CACHED_BYTES, which bounds the memory of all queues (a single message may be larger than its queue's
share). Positions are exact: a message was returned by `poll`, or its offset is at or past its queue's position. A seek
drops the stream with all messages that it has fetched, and starts another stream; so no message fetched before the seek
can follow it.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import trio

from skylark.mqcommon.errors import BrokerError, InvalidArgument, UserError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.broker_api import is_of_another_queue
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.decompression import keep_contents
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.reader import PullResult, Reader
from skylark.sdk.consumer.stream import FindStart, MessageStream
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.endpoint import ask_all
from skylark.sdk.position import Position

logger = logging.getLogger(__name__)

# Large enough to make the fixed cost of a pull negligible. RocketMQ's brokers have lower limits of their own (32
# messages, 256 KiB).
STREAM_COUNT = 32_768
STREAM_BYTES = 1024 * 1024
STREAM_WAIT_MS = 15_000
# Bytes of messages that are fetched ahead, of all queues together: two batches of each queue.
CACHED_BYTES = 64 * 1024 * 1024
# Decompressed bodies may take this many times the bytes of a queue's share.
CONTENT_RATIO = 4


class _Row:
    """One queue: its stream, the last batch taken from the stream, and how many messages of that batch were returned.

    ``created_ms`` is the creation stamp of the batch's topic.
    """

    __slots__ = ("batch", "committed", "created_ms", "expression", "is_paused", "returned", "stream")

    def __init__(self, stream: MessageStream, expression: str | Sql) -> None:
        self.stream = stream
        self.expression = expression
        self.batch: list[MessageExt] = []
        self.created_ms: int | None = None
        self.returned = 0
        self.is_paused = False
        # The last position that `commit` has committed.
        self.committed: Position | None = None

    @property
    def position(self) -> Position | None:
        """The position of the next message to return; None while it is not known."""
        if self.batch:
            return Position(self.batch[self.returned].queue_offset, self.created_ms)
        return self.stream.position

    def waiting(self) -> int:
        """How many messages can be returned now; raises the stream's error."""
        if self.is_paused:
            return 0
        if not self.batch:
            self.batch = self.stream.poll()
        return len(self.batch) - self.returned

    def take(self, count: int) -> list[MessageExt]:
        """The next ``count`` messages."""
        end = self.returned + count
        taken = self.batch[self.returned : end]
        if end < len(self.batch):
            self.returned = end
        else:
            self.batch, self.returned = [], 0
        return taken


class AssignedQueues:
    """The assignment of one consumer. Queues are given and compared as servers know them."""

    def __init__(
        self,
        client: ClientHandle,
        reader: Reader,
        first_offset: Callable[[MessageQueue], Awaitable[Position]],
        commit: Callable[[MessageQueue, Position], Awaitable[None]],
        on_taken: Callable[[MessageQueue, int | None], object] = lambda mq, created_ms: None,
    ) -> None:
        """``on_taken`` is called with the creation stamp of the topic of each batch that comes to its turn."""
        self._client = client
        self._reader = reader
        self._first_offset = first_offset
        self._commit = commit
        self._on_taken = on_taken
        # In the order of turns: queues served last are last. None until `assign` was called.
        self._rows: dict[MessageQueue, _Row] | None = None
        self._changed = trio.lowlevel.ParkingLot()

    def assign(self, queues: Iterable[MessageQueue], expression: str | Sql) -> None:
        """Read these queues and no others. A queue already assigned with this expression keeps its position."""
        self._reader.tags_of(expression)  # raises if the expression is invalid
        self._client.check_open()
        # Streams of queues that stay keep their fetched messages; all other streams are closed, and their pulls
        # cancelled.
        old = self._rows or {}
        self._rows = {}
        for mq in queues:
            known = old.get(mq)
            if known is not None and known.expression == expression:
                self._rows[mq] = old.pop(mq)
            elif mq not in self._rows:
                self._rows[mq] = _Row(self._stream(mq, partial(self._first_offset, mq), expression), expression)
        for row in old.values():
            row.stream.close()
        for row in self._rows.values():
            row.stream.prefetch()
        self._changed.unpark_all()

    def queues(self) -> tuple[MessageQueue, ...]:
        """The assigned queues, sorted."""
        return tuple(sorted(self._rows or {}))

    def seek(self, mq: MessageQueue, position: Position) -> None:
        """Go on at ``position``."""
        row = self._row(mq)
        row.stream.close()
        row.batch, row.returned = [], 0
        row.stream = self._stream(mq, position, row.expression)
        row.stream.prefetch()

    def pause(self, queues: Iterable[MessageQueue], is_paused: bool) -> None:
        """Return no messages of these queues, or return them again."""
        for row in [self._row(mq) for mq in queues]:
            row.is_paused = is_paused
        self._changed.unpark_all()

    def position(self, mq: MessageQueue) -> int | None:
        """The offset of the next message to return; None while it is not known."""
        position = self._row(mq).position
        return None if position is None else position.offset

    def check(self, mq: MessageQueue) -> None:
        """Raise InvalidArgument unless ``mq`` is assigned."""
        self._row(mq)

    async def wait(self, timeout_ms: int) -> None:
        """Return when there is a message to take, or after the timeout; raises the error of a queue.

        Between the last check and the return there is no checkpoint: the messages found can be taken.
        """
        self._client.check_open()
        if self._rows is None:
            raise UserError("this consumer has no queues: call assign first")
        await trio.lowlevel.checkpoint()
        # A cancelled call has taken nothing: messages are taken by the caller, after this returns.
        with trio.move_on_after(timeout_ms / 1000):
            while not any(self._waiting().values()):
                await self._changed.park()

    def take(self, max_count: int) -> list[MessageExt]:
        """The messages ready now, at most ``max_count``: as equal numbers of each queue as the queues allow."""
        self._client.check_open()
        waiting, rows = self._waiting(), self._rows or {}
        shares = dict(zip(waiting, share_out(list(waiting.values()), max_count), strict=True))
        found: list[MessageExt] = []
        for mq in sorted((mq for mq, share in shares.items() if share), key=shares.__getitem__):
            found += rows[mq].take(shares[mq])
            # Queues that were served now come last the next time.
            rows[mq] = rows.pop(mq)
        return found

    async def commit(self) -> None:
        """Commit the positions that have changed; raises the first error after all commits were tried.

        A position in a topic that was deleted and made again meanwhile is not committed: the new topic begins at 0.
        """
        self._client.check_open()
        due = {
            str(mq): (mq, row, position)
            for mq, row in (self._rows or {}).items()
            if (position := row.position) is not None and position != row.committed
        }

        async def commit_one(name: str) -> None:
            mq, row, position = due[name]
            try:
                await self._commit(mq, position)
            except BrokerError as error:
                if not is_of_another_queue(error):
                    raise
                logger.warning("offset %d of %s is not committed: %s", position.offset, mq, error)
            row.committed = position

        (await ask_all(due, commit_one)).all()

    def _row(self, mq: MessageQueue) -> _Row:
        self._client.check_open()
        row = (self._rows or {}).get(mq)
        if row is None:
            raise InvalidArgument(f"{mq} is not assigned to this consumer: pass it to assign first")
        return row

    def _stream(self, mq: MessageQueue, start: Position | FindStart, expression: str | Sql) -> MessageStream:
        client = self._client
        pull = partial(self._pull, mq, expression)
        return MessageStream(
            pull,
            client.nursery,
            start,
            None,
            client.instance.backoff,
            self._changed.unpark_all,
            partial(self._note_taken, mq),
        )

    def _note_taken(self, mq: MessageQueue, created_ms: int | None) -> None:
        self._row(mq).created_ms = created_ms
        self._on_taken(mq, created_ms)

    async def _pull(self, mq: MessageQueue, expression: str | Sql, trail: Trail, offset: int) -> PullResult:
        share = min(max(CACHED_BYTES // (2 * max(len(self._rows or {}), 1)), 1), STREAM_BYTES)
        result = await self._reader.pull(
            mq,
            offset,
            max_count=STREAM_COUNT,
            max_bytes=share,
            expression=expression,
            wait_ms=STREAM_WAIT_MS,
            trail=trail,
        )
        await keep_contents(result.messages, CONTENT_RATIO * share)
        return result

    def _waiting(self) -> dict[MessageQueue, int]:
        """How many messages of each queue can be taken now, in the order of turns."""
        waiting = {}
        for mq, row in (self._rows or {}).items():
            try:
                waiting[mq] = row.waiting()
            except Exception as error:
                error.add_note(f"while reading {mq}")
                raise
        return waiting


def share_out(waiting: Sequence[int], most: int) -> list[int]:
    """How many messages to take of each queue, given how many wait there: ``most`` in all, as equally as possible.

    The remainder of the division goes to the first queues.
    """
    shares = [0] * len(waiting)
    short = [number for number, count in enumerate(waiting) if count]
    while short and most:
        each = max(most // len(short), 1)
        for number in short[:most]:
            taken = min(each, waiting[number] - shares[number])
            shares[number] += taken
            most -= taken
        short = [number for number in short if shares[number] < waiting[number]]
    return shares
