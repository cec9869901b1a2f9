"""Up to where consumers may read a queue while a part of the log is not confirmed.

In Controller mode each log that an election can choose has all bytes before the confirm offset. Later bytes may be cut,
so no consumer sees them. Entries of a queue are in the order of the log, and mostly only the last few are hidden.
"""

from collections.abc import Iterator

from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.segment import SegmentChain
from skylark.broker.store.queue.bounds_search import first_from_end
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE


class VisiblePart:
    """A queue for a read of its messages before ``next_offset``."""

    __slots__ = ("_queue", "next_offset")

    def __init__(self, queue: ConsumeQueue, end: int) -> None:
        self._queue = queue
        self.next_offset = end

    @property
    def chain(self) -> SegmentChain:
        """The files."""
        return self._queue.chain

    @property
    def min_offset(self) -> int:
        return self._queue.min_offset

    @min_offset.setter
    def min_offset(self, offset: int) -> None:
        self._queue.min_offset = offset

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """As `ConsumeQueue.entries`, up to where this part ends."""
        return self._queue.entries(offset, min(count, self.next_offset - offset))

    def raw_entries(self, offset: int, count: int) -> bytes:
        """As `entries`, as they are in the file."""
        return self._queue.raw_entries(offset, min(count, self.next_offset - offset))


def visible_end(log: CommitLog, queue: ConsumeQueue, confirmed: int) -> int:
    """The offset after the last message of ``queue`` that ends at or before ``confirmed`` in the log."""
    if confirmed >= log.end:
        return queue.next_offset
    return first_from_end(queue.min_offset, queue.next_offset, lambda place: not _is_visible(queue, place, confirmed))


def first_hidden(queue: ConsumeQueue, end: int) -> int:
    """Where in the log the message ends that is the first hidden one of ``queue``, from ``end`` on."""
    place = _message_at(queue, end)
    if place == queue.next_offset:
        return 0
    physical, size, _ = queue.entry(place)
    return physical + size


def _is_visible(queue: ConsumeQueue, offset: int, confirmed: int) -> bool:
    """Whether the first message from ``offset`` on is confirmed. Without one it is not."""
    place = _message_at(queue, offset)
    if place == queue.next_offset:
        return False
    physical, size, _ = queue.entry(place)
    return physical + size <= confirmed


def _message_at(queue: ConsumeQueue, offset: int) -> int:
    """The first offset from ``offset`` on that is not blank; the queue's end if there is none."""
    end = queue.next_offset
    while offset < end and queue.entry(offset)[1] == BLANK_SIZE:
        offset += 1
    return offset
