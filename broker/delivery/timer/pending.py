"""Which timed messages wait: their queue offsets, by slot. Pure.

A million of them take some 10 MB: an array for each slot, and counters by ranges of offsets. The arrays keep the order
of the queue, so that messages of one slot are delivered as they were sent.
"""

from array import array
from heapq import heappop, heappush

# How many offsets share a counter.
_RANGE_BITS = 12


class Pending:
    """See the module. ``done_slot``: the latest slot of which a message was delivered."""

    def __init__(self, done_slot: int = -1) -> None:
        self.done_slot = done_slot
        #: Messages that wait.
        self.count = 0
        self._offsets: dict[int, array[int]] = {}
        # How many of a slot's offsets are done.
        self._taken: dict[int, int] = {}
        self._slots: list[int] = []
        # The ranges of offsets in which messages wait, in rising order, and how many.
        self._ranges: dict[int, int] = {}
        self._recalled: dict[int, set[bytes]] = {}

    def add(self, slot: int, offset: int) -> None:
        """The message at ``offset``, which is higher than those before, waits in ``slot``."""
        offsets = self._offsets.get(slot)
        if offsets is None:
            offsets = self._open(slot)
        offsets.append(offset)
        self.count += 1
        number = offset >> _RANGE_BITS
        self._ranges[number] = self._ranges.get(number, 0) + 1

    def recall(self, slot: int, unique_key: bytes) -> None:
        """Messages of ``slot`` with this key are not to be delivered."""
        if slot not in self._offsets:
            self._open(slot)
        self._recalled.setdefault(slot, set()).add(unique_key)

    def _open(self, slot: int) -> "array[int]":
        heappush(self._slots, slot)
        offsets = self._offsets[slot] = array("q")
        return offsets

    def is_recalled(self, slot: int, unique_key: bytes | None) -> bool:
        keys = self._recalled.get(slot)
        return keys is not None and unique_key in keys

    @property
    def first_slot(self) -> int | None:
        """The slot that is due first."""
        return self._slots[0] if self._slots else None

    def late(self, last_slot: int) -> int:
        """How many messages of slots up to ``last_slot`` wait."""
        if not self._slots or self._slots[0] > last_slot:
            return 0
        late = [slot for slot in self._slots if slot <= last_slot]
        return sum(len(self._offsets[slot]) - self._taken.get(slot, 0) for slot in late)

    def due(self, last_slot: int, limit: int) -> tuple[int, list[int]]:
        """(slot, up to ``limit`` of its offsets) of the first slot, if that is not after ``last_slot``.

        A slot without offsets is closed here.
        """
        while self._slots and self._slots[0] <= last_slot:
            slot = self._slots[0]
            start = self._taken.get(slot, 0)
            found = self._offsets[slot][start : start + limit].tolist()
            if found:
                return slot, found
            self._close_first()
        return 0, []

    def done(self, slot: int, offset: int) -> None:
        """The next message of ``slot``, which is at ``offset``, was delivered, or never will be."""
        taken = self._taken[slot] = self._taken.get(slot, 0) + 1
        self.count -= 1
        self.done_slot = max(self.done_slot, slot)
        number = offset >> _RANGE_BITS
        left = self._ranges[number] - 1
        if left:
            self._ranges[number] = left
        else:
            del self._ranges[number]
        if taken == len(self._offsets[slot]) and self._slots[0] == slot:
            self._close_first()

    def _close_first(self) -> None:
        slot = heappop(self._slots)
        del self._offsets[slot]
        self._taken.pop(slot, None)
        self._recalled.pop(slot, None)
        self.done_slot = max(self.done_slot, slot)

    @property
    def is_between_slots(self) -> bool:
        """Whether all slots up to ``done_slot`` are done: the state can then be told by that slot alone."""
        return not self._slots or self._slots[0] > self.done_slot

    def low(self, read_to: int) -> int:
        """No message before this offset waits; ``read_to`` if none waits at all."""
        first = next(iter(self._ranges), None)
        return read_to if first is None else first << _RANGE_BITS
