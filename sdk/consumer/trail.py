"""`Trail`: whether the queue that answers is still the queue that the reader's position belongs to. Pure.

A topic may be deleted and made again, and a broker may be replaced by an empty one of its name. The new queue has the
name of the old one, and begins at 0: a reader that goes on at its old offset would skip the new queue's first messages.
Skylark's brokers tell queues apart by the topic's creation stamp, which each answer to a pull has. RocketMQ's brokers
have no stamps. There, and for topics of older stores, a new queue has one of two signs: its end is before the position,
while it still has its first message; or its messages are at lower places in the broker's log than earlier messages. A
stamp that is seen for the first time is no change: after an upgrade every topic has a stamp that no reader knows yet.
"""

from typing import Protocol

from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.codes import ResponseCode

_PHYSICAL_AT = HEAD_V4.starts["physical_offset"]


class Answer(Protocol):
    """A broker's answer to a pull."""

    @property
    def code(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def broker_id(self) -> int: ...
    @property
    def offset_delta(self) -> int | None: ...
    @property
    def created_ms(self) -> int | None: ...


class Trail:
    """What a reader knows of its position's queue. ``created_ms`` is the topic's creation stamp, if it is known.

    ``has_been_there``: the queue once had this position, as a committed offset shows. (A caller may also choose an
    offset that no queue ever had.)
    """

    __slots__ = ("_doubted_at", "_last", "created_ms", "has_been_there")

    def __init__(self, created_ms: int | None = None, *, has_been_there: bool = False) -> None:
        self.created_ms = created_ms
        self.has_been_there = has_been_there
        # The offset after the last pull's messages, and a place in the log: later messages are at or after this place.
        self._last: tuple[int, int] | None = None
        # The offset at which places in the log went back last.
        self._doubted_at = -1

    def copy(self) -> "Trail":
        """An independent copy of this trail."""
        made = Trail(self.created_ms, has_been_there=self.has_been_there)
        made._last, made._doubted_at = self._last, self._doubted_at
        return made

    def is_outdated(self, answer: Answer) -> bool:
        """Whether the answer is from a slave that still has the old topic: it has not copied the new topic yet."""
        stamp, known = answer.created_ms, self.created_ms
        return answer.broker_id != MASTER_ID and stamp is not None and known is not None and stamp < known

    def change(self, answer: Answer, offset: int) -> str:
        """Why the queue of ``answer``, to a pull at ``offset``, is not the queue that was read before; "" if it is.

        Afterwards this is the trail of the queue that has answered.
        """
        # Logical queues of static topics move from broker to broker.
        if answer.offset_delta is not None:
            return ""
        known, stamp = self.created_ms, answer.created_ms
        if stamp is not None:
            self.created_ms = stamp
            if known is not None:
                return "" if known == stamp else "the topic was deleted and made again"
        why = self._sign(answer, offset)
        if why:
            self._last = None
        self.has_been_there = self.has_been_there or answer.code != ResponseCode.PULL_OFFSET_MOVED
        return why

    def _sign(self, answer: Answer, offset: int) -> str:
        """A sign in the answer that the queue is a new queue; "" without a sign."""
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            # An administrator may also move a reader to another offset; that is no sign.
            is_past = offset > answer.max_offset and answer.next_offset in (answer.min_offset, answer.max_offset)
            is_new = is_past and self.has_been_there and not answer.min_offset
            return "the queue begins anew, and ends before that offset" if is_new else ""
        if not answer.data:
            return ""
        place = int.from_bytes(answer.data[_PHYSICAL_AT : _PHYSICAL_AT + 8])
        # The messages lie in the log one after another: the last message ends at or after this place.
        last, self._last = self._last, (answer.next_offset, place + len(answer.data))
        # In a compacted log places may go back, always at the same offset. A reader that began again there each time
        # would never get past it.
        if last is None or offset < last[0] or place >= last[1] or offset == self._doubted_at:
            return ""
        self._doubted_at = offset
        return "the queue begins anew in the broker's log"
