"""A send that waits for its result, and the interface of a lane's producer."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import trio
from trio.lowlevel import reschedule

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SendFailed, SkylarkError
from skylark.mqcommon.message.batch import OVERHEAD
from skylark.mqcommon.message.message import Message, own_properties
from skylark.mqcommon.message.properties import decode_properties
from skylark.remoting.net.client import RemotingClient
from skylark.sdk.loop_thread import Inbox
from skylark.sdk.producer.backlog import Backlog, Span
from skylark.sdk.producer.brokers import Brokers
from skylark.sdk.producer.packing import PackedMessage
from skylark.sdk.producer.result import SendResult, StoredBatch
from skylark.sdk.producer.weak import WeakCopy
from skylark.sdk.producer.wire import Row
from skylark.sdk.retry import FailedTries
from skylark.sdk.routes import TopicRoute
from skylark.sdk.traces.traces import Traces

logger = logging.getLogger(__name__)

T = TypeVar("T", bound="PendingSend")
MAX_BATCH_BYTES = 512 * 1024
# Bytes of a message in a batch besides its body and properties; the unique key is a property of 42 bytes.
ROW_BYTES = OVERHEAD + 42
# Whether a send may share a request with other sends: always; only at a broker that takes messages with a time of
# delivery or a delay level in a batch; never.
TOGETHER, DEFERRED, ALONE = range(3)


class Watch:
    """What runs at the end of a ticket: functions that wake its waiters, and the ``on_delivery`` of its send."""

    __slots__ = ("on_delivery", "wakes")

    def __init__(self, on_delivery: Callable[[Any], object] | None = None) -> None:
        self.on_delivery = on_delivery
        self.wakes: list[Callable[[], object]] = []

    def wake(self) -> None:
        """Wake the waiters. Runs no user code: that could cancel a waiter."""
        for wake in tuple(self.wakes):
            wake()


def deliver(on_delivery: Callable[[Any], object], ticket: "PendingSend") -> None:
    """Call ``on_delivery`` with the ticket. An exception in it is logged: no other send must notice it."""
    try:
        on_delivery(ticket)
    except Exception:
        how = "was stored" if ticket.error is None else f"failed: {ticket.error}"
        logger.exception("on_delivery raised an exception for a message that %s", how)


class PendingSend:
    """One send that waits for its result: of a message, or (with ``rows`` given) of a batch of a bulk send.

    A waiting task is woken with this object as its outcome: trio calls `unwrap`. That saves an object per send. A
    ticket of `Producer.send_nowait` (see `new_ticket`) has a ``span`` and no task: it ends once, whether a task waits
    for it or not.
    """

    __slots__ = (
        *("alone", "batch", "body", "deadline", "error", "failed", "flag", "number", "packed", "properties", "rows"),
        *("size", "span", "task", "topic"),
    )

    def __init__(self, message: Message | None, rows: Sequence[Row] | None, timeout_s: float, task: Any) -> None:
        # The parts of a single message that are sent; a bulk send has no body. The message itself is not kept: with
        # many long-lived objects the garbage collector takes more time than sending them.
        self.flag = 0 if message is None else message.flag
        self.body = None if message is None else message.body
        self.properties = b"" if message is None or message.properties is None else own_properties(message)
        self.packed = message if type(message) is PackedMessage else None
        # Rows with unique keys: of a bulk send, of a message with its own key, and of a message that was tried before.
        self.rows = rows
        # In seconds from now; the lane turns it into a point in time when it admits the send.
        self.deadline = timeout_s
        # The waiter, until the end or until a cancellation: a task of this loop, or the `Inbox` of another loop with
        # its task. Of a ticket: a `Watch`, or None.
        self.task = task
        self.alone = TOGETHER if rows is None else ALONE
        # None until a try fails.
        self.failed: FailedTries | None = None
        # The send has ended when ``batch`` or ``error`` is set. ``number``: the place of a single message in the batch.
        self.batch: StoredBatch | None = None
        self.error: Exception | None = None
        self.number = 0
        # Of a ticket: its span in the producer's backlog.
        self.span: Span | None = None
        self.size = 0
        self.topic = ""

    @property
    def sys_flag(self) -> int:
        """The flags that say how the body is compressed; a compressed message is alone in its request."""
        return 0 if self.packed is None else self.packed.sys_flag

    @property
    def plain_bytes(self) -> int | None:
        """How long a compressed body was."""
        return None if self.packed is None else self.packed.plain_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether the sender was not cancelled."""
        return self.task is not None or self.span is not None

    @property
    def has_ended(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.batch is not None or self.error is not None

    def pack(self, packed: Message) -> None:
        """Send ``packed``, if the message was compressed."""
        if isinstance(packed, PackedMessage):
            self.body, self.packed = packed.body, packed
            self.alone = ALONE
            self.rows = self.rows and [(flag, packed.body, properties) for flag, _, properties in self.rows]

    def set_key(self, key: bytes) -> None:
        """Send the message with this unique key, an encoded property."""
        self.rows = [(self.flag, self.body or b"", self.properties + key)]

    def finish(self) -> None:
        """Wake the sender, unless it was cancelled; ``batch`` or ``error`` is set."""
        task, self.task = self.task, None
        if type(task) is Inbox:
            task.put(self)
        elif task is not None:
            reschedule(task, self)  # type: ignore[arg-type]  # trio only calls its unwrap()

    def fail(self, error: Exception) -> None:
        """End with an error, unless the send has a result already. A message stored weakly ends with that copy."""
        failed = self.failed
        if failed is not None and (copy := failed.weak) is not None:
            # The try that stored the message was counted as a failed try.
            failed.count -= 1
            self.end_weakly(copy, error)
        elif self.span is not None:
            self._fail_ticket(self.span.backlog, error)
        elif self.task is not None:
            self.error = error
            self.finish()

    def end_weakly(self, copy: WeakCopy, reason: Exception | None = None) -> None:
        """End with ``copy``, unless the send has a result already. ``reason``: why there is no safer copy."""
        if self.failed is not None:
            self.failed.weak = None
        if not copy.is_accepted:
            self.fail(copy.error(reason))
        elif self.is_wanted and not self.has_ended:
            finish_all([self], copy.batch, copy.number)

    def _fail_ticket(self, backlog: Backlog, error: Exception) -> None:
        if self.has_ended:
            return
        # The order matters, as other threads read without a lock: the outcome is set before the waiters are read. A
        # waiter that is added later finds the outcome.
        self.error = error
        watch, self.task = self.task, None
        if watch is None or (watch.on_delivery is None and not watch.wakes):
            backlog.keep(self)
        backlog.end([self])
        if watch is not None:
            watch.wake()
            if watch.on_delivery is not None:
                deliver(watch.on_delivery, self)

    def late(self, topic: str, last_error: SkylarkError | None) -> SendFailed:
        """The error when the send's time is over. ``last_error``: the lane's last error, if this send was not tried."""
        cause = last_error if self.failed is None else self.failed.error
        if cause is None:
            return SendFailed(f"no broker took the message for {topic} in time: all are busy with others")
        return not_stored(topic, cause, self.failed)

    def unwrap(self) -> "SendResult | StoredBatch | None":
        """Return the result or raise the error in the sender."""
        if self.error is not None:
            raise self.error
        return self.batch if self.body is None or self.batch is None else self._result(self.batch)

    def _result(self, batch: StoredBatch) -> SendResult:
        return SendResult(batch, self.number, 1 if self.failed is None else self.failed.count + 1)

    def abort(self, _: Any) -> trio.lowlevel.Abort:
        """Forget the sender, which was cancelled. A request that was sent already may still store the message."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    # --- of a ticket; any thread may call these

    def given(self) -> Message:
        """A message equal to the message that was sent (for a timed send with its time of delivery)."""
        if self.packed is not None:
            return self.packed.plain
        message = Message(self.topic, self.body or b"", flag=self.flag)
        message.properties = decode_properties(self.properties.decode()) or None
        return message

    def outcome(self) -> SendResult:
        """The result; raises the error, which then counts as seen, or RuntimeError before the end."""
        if self.batch is not None:
            return self._result(self.batch)
        if self.error is None:
            raise RuntimeError("this send has not ended: wait for its ticket, or ask `done` first")
        if self.span is not None:
            self.span.backlog.seen(self)
        raise self.error

    def watch(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` in the loop at the end. Check `has_ended` after this call: the send may have ended before.

        No lock is needed against the loop: the loop sets the outcome before it reads the waiters.
        """
        assert self.span is not None
        with self.span.backlog.lock:
            if self.task is None:
                self.task = Watch()
            self.task.wakes.append(wake)

    def unwatch(self, wake: Callable[[], object]) -> None:
        """Do not call ``wake`` at the end."""
        assert self.span is not None
        with self.span.backlog.lock:
            if self.task is not None and wake in self.task.wakes:
                self.task.wakes.remove(wake)


def new_ticket(
    kind: type[T],
    message: Message,
    body: bytes,
    timeout_s: float,
    waiter: Any,
    span: Span | None = None,
    size: int = 0,
) -> T:
    """A ticket of class ``kind``. Calling a constructor would take twice as long."""
    ticket = object.__new__(kind)
    ticket.topic = message.topic
    ticket.flag = message.flag
    ticket.body = body
    ticket.properties = b"" if message.properties is None else own_properties(message)
    ticket.packed = ticket.rows = None
    ticket.deadline = timeout_s
    ticket.task = waiter
    ticket.alone = TOGETHER
    ticket.failed = ticket.batch = ticket.error = None
    ticket.number = 0
    ticket.span = span
    ticket.size = size
    return ticket


def take_batch(
    pending: deque[PendingSend], most: int, most_alone: int = TOGETHER, most_bytes: int = MAX_BATCH_BYTES
) -> list[PendingSend]:
    """Take the first send, and further sends, up to ``most``, that fit with it into one request of ``most_bytes``.

    ``most_alone``: DEFERRED when the broker takes messages with times of delivery in a batch, else TOGETHER.
    """
    # The first send is taken in any case, so that a message larger than ``most_bytes`` is sent alone and not stuck.
    first = pending.popleft()
    sends = [first]
    if first.alone > most_alone:
        return sends
    free_bytes = most_bytes - row_bytes(first)
    while pending and len(sends) < most:
        send = pending[0]
        if send.alone > most_alone:
            break
        # Inlined for the usual send, to save a call: see `row_bytes`.
        free_bytes -= ROW_BYTES + len(send.body) + len(send.properties) if send.rows is None else row_bytes(send)  # type: ignore[arg-type]
        if free_bytes < 0:
            break
        sends.append(pending.popleft())
    return sends


def row_bytes(send: PendingSend) -> int:
    """The bytes of a single message in the body of a batch, with properties, which may outweigh the body."""
    if send.rows is not None:
        _, body, properties = send.rows[0]
        return OVERHEAD + len(body) + len(properties)
    return ROW_BYTES + len(send.body) + len(send.properties)  # type: ignore[arg-type]  # only bulk sends have none


def finish_all(sends: list[PendingSend], batch: StoredBatch, first: int = 0) -> None:
    """Give each sender its result. For single messages: as `PendingSend.finish`, without a call for each.

    ``first``: the number of the first send in the batch.
    """
    # A bulk send gets the whole batch, and is alone in its request.
    if sends[0].body is None:
        sends[0].batch = batch
        sends[0].finish()
        return
    watched: list[tuple[Watch, PendingSend]] = []
    for number, send in enumerate(sends, first):
        send.number = number
        # From now on other threads see that the send has ended.
        send.batch = batch
        task = send.task
        if task is not None:
            send.task = None
            if send.span is not None:
                watched.append((task, send))
            elif type(task) is Inbox:
                task.put(send)
            else:
                reschedule(task, send)  # type: ignore[arg-type]  # all that trio does with it is unwrap()
    tickets = [send for send in sends if send.span is not None]
    if tickets and (span := tickets[0].span) is not None:
        span.backlog.end(tickets)
    # All senders are woken before the first callback runs: a callback is user code, and must not delay other senders.
    for watch, _ in watched:
        if watch.wakes:
            watch.wake()
    for watch, ticket in watched:
        if watch.on_delivery is not None:
            deliver(watch.on_delivery, ticket)


def rows_of(sends: list[PendingSend], new_keys: Callable[[int], list[bytes]]) -> Sequence[Row]:
    """The rows of the sends. A retried message keeps its unique key: see `keep_rows`."""
    if sends[0].body is None:
        return sends[0].rows or []
    if len(sends) == 1 and sends[0].rows:
        return sends[0].rows
    fresh = [send for send in sends if send.rows is None]
    # Messages that bring their keys, as the proxy's do, need no new keys.
    made = fresh_rows(fresh, new_keys(len(fresh))) if fresh else []
    if len(fresh) == len(sends):
        return made
    rest = iter(made)
    return [send.rows[0] if send.rows else next(rest) for send in sends]


def fresh_rows(sends: list[PendingSend], keys: list[bytes]) -> Sequence[Row]:
    """The rows of single messages that have no unique keys yet."""
    if len(sends) == 1:
        (send,) = sends
        return [(send.flag, send.body or b"", send.properties + keys[0])]
    return Columns(
        [send.flag for send in sends],
        [send.body for send in sends],  # type: ignore[misc]  # only bulk sends have none
        [send.properties + key for send, key in zip(sends, keys, strict=True)],
    )


def keep_rows(sends: list[PendingSend], rows: Sequence[Row]) -> None:
    """Keep the rows for the next try, so that a message is retried with the same unique key."""
    if sends[0].body is not None:
        for send, row in zip(sends, rows, strict=True):
            send.rows = [row]


def not_stored(topic: str, error: SkylarkError, tries: FailedTries | None = None) -> SendFailed:
    """The error of a send whose last try failed with ``error``.

    The last try may just have had no time left for an answer: then what a broker answered to one of the ``tries``
    before is the reason that the sender needs.
    """
    text = f"message for {topic} was not stored: {error}"
    if tries is not None and tries.answer is not None and tries.answer is not error:
        text += f"; before that {tries.answer}"
    failed = SendFailed(text)
    failed.__cause__ = error
    return failed


class Columns(Sequence[Row]):
    """Rows that are created on access.

    A tuple for each message in flight would keep the garbage collector busy, and the encoder needs no tuples.
    """

    __slots__ = ("_bodies", "_flags", "_properties")

    def __init__(self, flags: list[int], bodies: list[bytes], properties: list[bytes]) -> None:
        self._flags = flags
        self._bodies = bodies
        self._properties = properties

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Iterator[Row]:
        return zip(self._flags, self._bodies, self._properties, strict=True)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Columns(self._flags[index], self._bodies[index], self._properties[index])
        return self._flags[index], self._bodies[index], self._properties[index]


class LaneOwner(Protocol):
    """The producer as its lanes see it."""

    wire_group: str
    sys_flag: int
    retries: int
    accept_weaker: bool
    has_many_senders: bool
    max_batch_bytes: int
    retried: int
    remoting: RemotingClient
    traces: Traces | None
    #: Undoes a copy at one address once the message is stored safely at another; None: both copies stay.
    undo_copy: Callable[[StoredBatch, str], None] | None

    @property
    def brokers(self) -> Brokers: ...

    @property
    def backoff(self) -> Backoff: ...

    def now_ms(self) -> int: ...

    def new_keys(self, count: int) -> list[bytes]: ...

    def route_of(self, topic: str) -> TopicRoute | None: ...
