"""Checks that the entries and slots of an index file fit one another. Pure.

Each entry names the entry before it in its slot, and each slot its newest entry. So a changed hash, link or slot shows
without the log. A changed place of a message shows if it is out of the log's order.
"""

from array import array
from collections.abc import Callable

from skylark.broker.store.index.index_file import ENTRY, ENTRY_BYTES, SLOT_BYTES


class LinkCheck:
    """One reading of a file with ``count`` as in its header: first all entries in order, then all slots.

    ``problem``: the first thing that is wrong, "" if there is none.
    """

    def __init__(self, slots: int, count: int) -> None:
        self._newest = array("i", bytes(slots * SLOT_BYTES))
        self._count = count
        self._number = 0
        self._slot = 0
        #: The place of the last entry's message; -1 without entries.
        self.last_physical = -1
        self._rest = b""
        self.problem = ""

    def add_entries(self, data: bytes) -> None:
        """The next bytes of the entries, from entry 0, which is not used, on."""
        data = self._rest + data
        whole = len(data) // ENTRY_BYTES * ENTRY_BYTES
        self._rest = data[whole:]
        newest, slots, number, last = self._newest, len(self._newest), self._number, self.last_physical
        for key_hash, physical, _, previous in ENTRY.iter_unpack(data[:whole]):
            if 0 < number < self._count:
                place = key_hash % slots
                if key_hash < 0 or physical < last or previous != newest[place]:
                    self.problem = self.problem or f"entry {number} does not fit the entries before it"
                newest[place], last = number, physical
            number += 1
        self._number, self.last_physical = number, last

    def add_slots(self, numbers: "array[int]", before: Callable[[int], int]) -> None:
        """The next slots. ``before(number)``: the entry before a newer one than those that were added."""
        for number in numbers:
            while number >= self._count:
                older = before(number)
                number = older if older < number else 0
            if max(number, 0) != self._newest[self._slot]:
                self.problem = self.problem or f"slot {self._slot} does not name its newest entry"
            self._slot += 1
