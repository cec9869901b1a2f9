"""`OwnedQueue`: one queue that this member consumes; `Room`: limits of what all of them have in memory."""

from dataclasses import dataclass
from math import inf

import trio

from mqcommon.message.queue import MessageQueue
from mqcommon.signal import Signal
from sdk.consumer.settings import Settings
from sdk.consumer.window import Batch, Window

# A queue whose oldest message is not consumed is pulled this many times ``max_queue_messages`` past it. Without a limit
# a crash would deliver again all that was consumed after that message.
MAX_SPAN = 10


class OwnedQueue:
    """A queue and its messages in memory. ``scope`` ends the task that pulls, ``room`` wakes it.

    ``is_dropped``: another member's now; results of handlers that still run are ignored. ``locked_until``: the time
    until which a lock for orderly consumption is certain.
    """

    __slots__ = (
        "is_dropped", "is_paused", "consumed_ms", "expression", "idle", "locked_until", "mq", "pulled_ms", "room",
        "scope", "window",
    )  # fmt: skip

    def __init__(self, mq: MessageQueue, expression: str, window: Window) -> None:
        self.mq = mq
        self.expression = expression
        self.window = window
        self.scope = trio.CancelScope()
        self.room = Signal()
        # Set while no handler of an orderly consumer works on the queue.
        self.idle = trio.Event()
        self.is_dropped = False
        self.is_paused = False
        self.locked_until = -inf
        self.pulled_ms = 0
        self.consumed_ms = 0


@dataclass(slots=True)
class Room:
    """Counts the messages in memory of all queues, and tells when a queue may be pulled."""

    settings: Settings
    messages: int = 0
    size_bytes: int = 0
    #: Queues that wait because of the limits of all queues together.
    waiting: dict[MessageQueue, OwnedQueue] = None  # type: ignore[assignment]
