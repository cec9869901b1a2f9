"""A send that waits for its result, and what the sends of a lane share."""

from collections.abc import Callable
from typing import Any, Protocol

import trio

from mqcommon.backoff import Backoff
from mqcommon.errors import SendFailed, SkylarkError
from mqcommon.message.message import Message
from remoting.net.client import RemotingClient
from sdk.producer.brokers import Brokers
from sdk.producer.bulk import make_message_rows
from sdk.producer.result import SendResult, StoredBatch
from sdk.producer.wire import Row
from sdk.retry import FailedTries
from sdk.routes import TopicRoute


class PendingSend:
    """One send that waits for its result: of a message, or (with ``rows`` given) of a batch of a bulk send.

    It is what its task is woken with: trio calls `unwrap` there, which spares an object per send.
    """

    __slots__ = ("alone", "deadline", "error", "failed", "message", "result", "rows", "size", "task")

    def __init__(self, message: Message | None, rows: list[Row] | None, timeout_s: float, task: Any) -> None:
        self.message = message
        self.rows = rows
        self.size = len(message.body) if message is not None else 0
        # How long from now; the lane makes a time of it when it takes the send up.
        self.deadline = timeout_s
        self.task = task
        self.alone = rows is not None
        # None as long as no try has failed, as with most sends.
        self.failed: FailedTries | None = None
        self.result: SendResult | StoredBatch | None = None
        self.error: Exception | None = None

    def finish(self) -> None:
        """Wake the sender, unless it has gone away; ``result`` or ``error`` is set."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task, self)  # type: ignore[arg-type]  # all that trio does with it is unwrap()

    def fail(self, error: Exception) -> None:
        """Wake the sender with an error, unless it has its result already."""
        if self.task is not None:
            self.error = error
            self.finish()

    def unwrap(self) -> "SendResult | StoredBatch | None":
        """What the sender gets."""
        if self.error is not None:
            raise self.error
        return self.result

    def abort(self, _: Any) -> trio.lowlevel.Abort:
        """The sender was cancelled; what is on its way cannot be called back."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


def rows_of(sends: list[PendingSend], new_keys: Callable[[int], list[bytes]]) -> list[Row]:
    """What the sends store. A message keeps its unique key over its tries: see `keep_rows`."""
    if sends[0].message is None:
        return sends[0].rows or []
    fresh = [send.message for send in sends if send.rows is None and send.message is not None]
    made = make_message_rows(fresh, new_keys(len(fresh)))
    if len(fresh) == len(sends):
        return made
    rest = iter(made)
    return [send.rows[0] if send.rows else next(rest) for send in sends]


def keep_rows(sends: list[PendingSend], rows: list[Row]) -> None:
    """The next try of a message is to carry the same unique key."""
    if sends[0].message is not None:
        for send, row in zip(sends, rows, strict=True):
            send.rows = [row]


def not_stored(topic: str, error: SkylarkError) -> SendFailed:
    """What a send raises whose last try ended in ``error``."""
    failed = SendFailed(f"message for {topic} was not stored: {error}")
    failed.__cause__ = error
    return failed


class LaneOwner(Protocol):
    """What a lane needs of its producer."""

    group: str
    retries: int
    accept_weaker: bool
    retried: int
    remoting: RemotingClient

    @property
    def brokers(self) -> Brokers: ...

    @property
    def backoff(self) -> Backoff: ...

    def now_ms(self) -> int: ...

    def new_keys(self, count: int) -> list[bytes]: ...

    def route_of(self, topic: str) -> TopicRoute | None: ...
