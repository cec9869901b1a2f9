"""A send that waits for its result, and the interface of a lane's producer."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import trio
from trio.lowlevel import reschedule

from mqcommon.backoff import Backoff
from mqcommon.errors import SendFailed, SkylarkError
from mqcommon.message.message import Message
from remoting.net.client import RemotingClient
from sdk.producer.brokers import Brokers
from sdk.producer.bulk import make_message_rows
from sdk.producer.packing import PackedMessage
from sdk.producer.result import SendResult, StoredBatch
from sdk.producer.wire import Row
from sdk.retry import FailedTries
from sdk.routes import TopicRoute
from sdk.traces.traces import Traces

MAX_BATCH_BYTES = 512 * 1024


class PendingSend:
    """One send that waits for its result: of a message, or (with ``rows`` given) of a batch of a bulk send.

    The task is woken with this object as its outcome: trio calls `unwrap`. That saves an object per send.
    """

    __slots__ = ("alone", "deadline", "error", "failed", "message", "result", "rows", "task")

    def __init__(self, message: Message | None, rows: Sequence[Row] | None, timeout_s: float, task: Any) -> None:
        self.message = message
        self.rows = rows
        # In seconds from now; the lane turns it into a point in time when it takes the send in.
        self.deadline = timeout_s
        self.task = task
        self.alone = rows is not None
        # None until a try fails.
        self.failed: FailedTries | None = None
        self.result: SendResult | StoredBatch | None = None
        self.error: Exception | None = None

    @property
    def sys_flag(self) -> int:
        """How the body is compressed; a compressed message is alone in its request."""
        return self.message.sys_flag if type(self.message) is PackedMessage else 0

    @property
    def plain_bytes(self) -> int | None:
        """How long a compressed body was."""
        return self.message.plain_bytes if type(self.message) is PackedMessage else None

    def finish(self) -> None:
        """Wake the sender, unless it was cancelled; ``result`` or ``error`` is set."""
        task, self.task = self.task, None
        if task is not None:
            reschedule(task, self)  # type: ignore[arg-type]  # trio only calls its unwrap()

    def fail(self, error: Exception) -> None:
        """Wake the sender with an error, unless it has its result already."""
        if self.task is not None:
            self.error = error
            self.finish()

    def late(self, topic: str, last_error: SkylarkError | None) -> SendFailed:
        """The error when its time is over; ``last_error``: of another send, if this one was not tried."""
        cause = last_error if self.failed is None else self.failed.error
        if cause is None:
            return SendFailed(f"no broker took the message for {topic} in time: all are busy with others")
        return not_stored(topic, cause)

    def unwrap(self) -> "SendResult | StoredBatch | None":
        """Return the result or raise the error in the sender."""
        if self.error is not None:
            raise self.error
        return self.result

    def abort(self, _: Any) -> trio.lowlevel.Abort:
        """The sender was cancelled. A request that was sent already may still store the message."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


def take_batch(pending: deque[PendingSend], most: int) -> list[PendingSend]:
    """Take the first send, and up to ``most`` that can be in one request with it."""
    first = pending.popleft()
    sends = [first]
    if first.alone:
        return sends
    free_bytes = MAX_BATCH_BYTES
    while pending and len(sends) < most:
        send = pending[0]
        if send.alone:
            break
        free_bytes -= len(send.message.body)  # type: ignore[union-attr]  # only bulk sends have none, and are alone
        if free_bytes < 0:
            break
        sends.append(pending.popleft())
    return sends


def finish_all(sends: list[PendingSend], batch: StoredBatch) -> None:
    """Wake the senders, each with its result. Of single messages: as `PendingSend.finish`, without a call for each."""
    if sends[0].message is None:
        sends[0].result = batch
        sends[0].finish()
        return
    for number, send in enumerate(sends):
        failed, task = send.failed, send.task
        send.result = SendResult(batch, number, 1 if failed is None else failed.count + 1)
        if task is not None:
            send.task = None
            reschedule(task, send)  # type: ignore[arg-type]  # all that trio does with it is unwrap()


def rows_of(sends: list[PendingSend], new_keys: Callable[[int], list[bytes]]) -> Sequence[Row]:
    """The rows of the sends. A retried message keeps its unique key: see `keep_rows`."""
    if sends[0].message is None:
        return sends[0].rows or []
    fresh = [send.message for send in sends if send.rows is None and send.message is not None]
    made = make_message_rows(fresh, new_keys(len(fresh)))
    if len(fresh) == len(sends):
        return made
    rest = iter(made)
    return [send.rows[0] if send.rows else next(rest) for send in sends]


def keep_rows(sends: list[PendingSend], rows: Sequence[Row]) -> None:
    """Keep the rows for the next try, so that a message is retried with the same unique key."""
    if sends[0].message is not None:
        for send, row in zip(sends, rows, strict=True):
            send.rows = [row]


def not_stored(topic: str, error: SkylarkError) -> SendFailed:
    """The error of a send whose last try failed with ``error``."""
    failed = SendFailed(f"message for {topic} was not stored: {error}")
    failed.__cause__ = error
    return failed


class LaneOwner(Protocol):
    """The producer as its lanes see it."""

    wire_group: str
    sys_flag: int
    retries: int
    accept_weaker: bool
    retried: int
    remoting: RemotingClient
    traces: Traces | None

    @property
    def brokers(self) -> Brokers: ...

    @property
    def backoff(self) -> Backoff: ...

    def now_ms(self) -> int: ...

    def new_keys(self, count: int) -> list[bytes]: ...

    def route_of(self, topic: str) -> TopicRoute | None: ...
