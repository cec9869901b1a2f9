"""Which halves are over, by queue offset: all before ``base``, and those that are marked after it. Pure.

A half is a byte of an array, not an object, so a million of open or finished halves cost a megabyte. `Marks` knows from
where on op messages must be read again to know the same.
"""

from collections import deque

# So many op messages in a row are one row of `Marks`.
OPS_IN_A_ROW = 256


class Window:
    """See the module."""

    def __init__(self, base: int) -> None:
        self.base = base
        # A byte for each half from ``base`` on; those after its end are open.
        self._over = bytearray()

    def is_over(self, offset: int) -> bool:
        at = offset - self.base
        return at < 0 or (at < len(self._over) and self._over[at] == 1)

    def finish(self, offset: int) -> None:
        """Half ``offset`` is over."""
        at = offset - self.base
        if at < 0:
            return
        if at >= len(self._over):
            self._over.extend(bytes(at + 1 - len(self._over)))
        self._over[at] = 1

    def first_open(self, offset: int) -> int:
        """The first half at or after ``offset`` that is not over; it may not exist yet."""
        at = max(offset - self.base, 0)
        found = self._over.find(0, at)
        return self.base + (found if found >= 0 else max(len(self._over), at))

    def open_before(self, end: int) -> int:
        """How many halves before ``end`` are not over."""
        return max(end - self.base, 0) - self._over.count(1)

    def advance(self) -> int:
        """Let ``base`` be the first half that is not over; returns it."""
        done = self.first_open(self.base) - self.base
        if done:
            del self._over[:done]
            self.base += done
        return self.base


class Marks:
    """The op messages, in their order, and the highest half that each of them names."""

    def __init__(self) -> None:
        # [offset of the first op message of a row, number of them, highest half that they name]
        self._rows: deque[list[int]] = deque()

    def add(self, op_offset: int, highest: int) -> None:
        """Op message ``op_offset`` names halves up to ``highest``."""
        rows = self._rows
        if rows and rows[-1][1] < OPS_IN_A_ROW:
            last = rows[-1]
            last[1] += 1
            last[2] = max(last[2], highest)
        else:
            rows.append([op_offset, 1, highest])

    def needed_from(self, base: int, op_end: int) -> int:
        """The first op message that may name a half at or after ``base``; ``op_end`` when there is none."""
        rows = self._rows
        while rows and rows[0][2] < base:
            rows.popleft()
        return rows[0][0] if rows else op_end
