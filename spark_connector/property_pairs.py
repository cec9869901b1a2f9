r"""The properties of many records at once: where each ``name \x01 value`` lies, found by numpy.

``raw`` holds the properties strings of all rows back to back; ``bounds[i]:bounds[i + 1]`` is row i's.
The rules are `common.message.properties.decode_properties`'s: a pair ends in ``\x02`` or with the row, the first
``\x01`` in it ends its name, what is no pair is skipped, and of equal names in a row the last counts.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.message.properties import decode_properties
from spark_connector.columns import gather, is_text, patched
from spark_connector.records import Ints, Mask, overlapping

PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())


class PropertyPairs:
    """The pairs of all rows, in order: ``starts`` of names, ``seps`` (the ``\\x01``), ``ends`` of values, ``rows``."""

    def __init__(self, raw: NDArray[np.uint8], bounds: Ints) -> None:
        self.raw = raw
        self.bounds = bounds
        starts, ends = _cut(raw, bounds)
        seps, found = _separators(raw, starts, ends)
        whole = found is None
        self.starts = starts if whole else starts[found]
        self.seps = seps if whole else seps[found]
        self.ends = ends if whole else ends[found]
        self.rows = _rows(self.starts, bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def values(self, name: bytes) -> pa.Array:
        """The value of ``name`` in each row as strings, null where it has none; ``name`` is 4 or 8 bytes long."""
        which = np.flatnonzero(self.seps - self.starts == len(name))
        found = overlapping(self.raw, f">u{len(name)}")[self.starts[which]]
        which = which[found == int.from_bytes(name, "big")]
        if len(which) == 0:
            return pa.nulls(len(self), pa.string())
        rows = self.rows[which]
        starts, ends = self.seps[which] + 1, self.ends[which]
        if len(which) == len(self) and rows[0] == 0 and bool((rows[1:] - rows[:-1] == 1).all()):
            return gather(self.raw, starts, ends - starts, pa.string())
        valid = np.zeros(len(self), dtype=np.bool_)
        valid[rows] = True
        spread = np.zeros((2, len(self)), dtype=np.int64)
        spread[:, rows] = starts, ends - starts  # of equal names in a row the last stays
        return gather(self.raw, spread[0], spread[1], pa.string(), valid)

    def maps(self) -> pa.Array:
        """All pairs of each row as map<string, string>."""
        counts = np.searchsorted(self.starts, self.bounds).astype(np.int32)
        keys = gather(self.raw, self.starts, self.seps - self.starts, pa.string())
        items = gather(self.raw, self.seps + 1, self.ends - self.seps - 1, pa.string())
        maps = pa.MapArray.from_arrays(pa.array(counts), keys, items)
        odd = np.arange(len(self)) if not (is_text(keys) and is_text(items)) else self._odd_rows()
        if len(odd) == 0:
            return maps
        return patched(maps, odd, pa.array([self._python_pairs(int(row)) for row in odd], maps.type))

    def _odd_rows(self) -> Ints:
        """Rows in which a name stands twice, or a pair is too short to count as one."""
        lengths = self.seps - self.starts
        rows = self.rows
        short = (self.ends - self.seps == 1) & (lengths <= 4)  # one character (at most 4 bytes) and no value
        padded = np.concatenate([self.raw, np.zeros(8, dtype=np.uint8)])
        eights = overlapping(padded, "<u8")
        masks = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)
        head = eights[self.starts] & masks[np.minimum(lengths, 8)]
        tail = eights[np.maximum(self.seps - 8, self.starts)] & masks[np.minimum(lengths, 8)]
        # equal names give equal hashes; a chance collision only sends a row through Python
        mix = np.uint64(0x9E3779B97F4A7C15)
        hashes = ((rows.astype(np.uint64) * mix + lengths.astype(np.uint64)) * mix + head) * mix + tail * mix
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        return np.unique(np.concatenate([rows[order[same]], rows[short]]))

    def _python_pairs(self, row: int) -> list[tuple[str, str]]:
        raw = self.raw[self.bounds[row] : self.bounds[row + 1]].tobytes()
        return list(decode_properties(raw.decode("utf-8", "replace")).items())


def _cut(raw: NDArray[np.uint8], bounds: Ints) -> tuple[Ints, Ints]:
    """(starts, ends) of what lies between ``\\x02`` or row bounds."""
    marks = np.flatnonzero(raw == 2)
    row_ends = bounds[1:][bounds[1:] > bounds[:-1]]
    open_ends = row_ends[raw[row_ends - 1] != 2]
    if len(open_ends) == 0:  # the rule: every row ends in \x02, so the pairs of all rows tile the bytes
        return np.concatenate([[0], marks[:-1] + 1])[: len(marks)], marks
    # an end without \x02 has no byte of its own: the next pair starts where it lies
    order = np.sort(np.concatenate([2 * marks + 1, 2 * open_ends]))
    ends = order >> 1
    return np.concatenate([[0], (ends + (order & 1))[:-1]]), ends


def _separators(raw: NDArray[np.uint8], starts: Ints, ends: Ints) -> tuple[Ints, Mask | None]:
    """(the first ``\\x01`` of each pair, which pairs have one after a name that is not empty: None for all)."""
    marks = np.flatnonzero(raw == 1)
    if len(marks) == len(starts) and bool(((marks > starts) & (marks < ends)).all()):
        return marks, None
    at = np.searchsorted(marks, starts)
    seps = np.append(marks, len(raw) + 1)[at]
    return seps, (seps > starts) & (seps < ends)


def _rows(starts: Ints, bounds: Ints) -> Ints:
    """The row of each pair."""
    rows = np.arange(len(bounds) - 1)
    if len(rows) == 0:
        return rows
    each = len(starts) // len(rows)
    if each * len(rows) == len(starts) and each and np.array_equal(starts[::each], bounds[:-1]):
        return np.repeat(rows, each)  # the rule: one producer gives every message as many properties
    return np.repeat(rows, np.diff(np.searchsorted(starts, bounds)))
