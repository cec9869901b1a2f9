r"""The properties of many records at once: numpy finds the positions of each ``name \x01 value \x02``.

``raw`` has the properties strings of all rows back to back; ``bounds[i]:bounds[i + 1]`` is row i.
The rules are those of `mqcommon.message.properties.decode_properties`: a pair ends with ``\x02`` or with the row, the
first ``\x01`` in it ends its name, anything else is skipped, and of equal names in a row the last one is used.
Messages of one producer mostly have the same names in the same order: `_regular_pairs` detects this, and a name is then
looked up once and not row by row.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mqcommon.arrow.columns import gather, is_text, numbers, patched
from mqcommon.arrow.records import Ints, all_alike, overlapping
from mqcommon.message.properties import decode_properties

Bytes = NDArray[np.uint8]


class _Pairs(NamedTuple):
    """All pairs in order: starts of names, the ``\\x01`` after them, ends of values, and the row of each."""

    starts: Ints
    seps: Ints
    ends: Ints
    rows: Ints


class PropertyPairs:
    """The properties of all rows."""

    def __init__(self, raw: Bytes, bounds: Ints) -> None:
        self._raw = raw
        self._bounds = bounds
        pairs, self._names = _regular_pairs(raw, bounds)
        self._pairs = pairs or _any_pairs(raw, bounds)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def values(self, name: bytes) -> pa.Array:
        """The value of ``name`` in each row as strings, null where it has none; ``name`` is 4 or 8 bytes long."""
        starts, seps, ends, rows = self._pairs
        if self._names is not None:
            if name not in self._names:
                return pa.nulls(len(self), pa.string())
            last = len(self._names) - 1 - self._names[::-1].index(name)
            starts, ends = seps[last :: len(self._names)] + 1, ends[last :: len(self._names)]
            return gather(self._raw, starts, ends - starts, pa.string())
        which = np.flatnonzero(seps - starts == len(name))
        found = overlapping(self._raw, f">u{len(name)}")[starts[which]]
        which = which[found == int.from_bytes(name, "big")]
        spread = np.full(len(self), -1, dtype=np.int64)
        spread[rows[which]] = which  # of equal names in a row the last one wins
        values = seps[spread] + 1 if len(which) else spread
        lengths = ends[spread] - values if len(which) else spread
        return gather(self._raw, values, lengths, pa.string(), spread >= 0)

    def maps(self) -> pa.Array:
        """All pairs of each row as map<string, string>."""
        starts, seps, ends, _ = self._pairs
        counts = np.searchsorted(starts, self._bounds).astype(np.int32)
        keys = gather(self._raw, starts, seps - starts, pa.string())
        items = gather(self._raw, seps + 1, ends - seps - 1, pa.string())
        maps = pa.MapArray.from_arrays(numbers(counts), keys, items)
        odd = self._odd_rows() if is_text(keys) and is_text(items) else np.arange(len(self))
        if len(odd) == 0:
            return maps
        return patched(maps, odd, pa.array([self._python_pairs(int(row)) for row in odd], maps.type))

    def _odd_rows(self) -> Ints:
        """Rows with a name twice, or with a pair too short to be valid."""
        starts, seps, ends, rows = self._pairs
        lengths = seps - starts
        short = rows[(ends - seps == 1) & (lengths <= 4)]  # one character (at most 4 bytes) and no value
        if self._names is not None and len(set(self._names)) == len(self._names):
            return np.unique(short)
        padded = np.concatenate([self._raw, np.zeros(8, dtype=np.uint8)])
        eights = overlapping(padded, "<u8")
        masks = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)[np.minimum(lengths, 8)]
        head = eights[starts] & masks
        tail = eights[np.maximum(seps - 8, starts)] & masks
        # equal names have equal hashes; after a hash collision the row is only decoded by slower Python code
        mix = np.uint64(0x9E3779B97F4A7C15)
        hashes = ((rows.astype(np.uint64) * mix + lengths.astype(np.uint64)) * mix + head) * mix + tail * mix
        order = np.argsort(hashes, kind="stable")
        same = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        return np.unique(np.concatenate([rows[same], short]))

    def _python_pairs(self, row: int) -> list[tuple[str, str]]:
        raw = self._raw[self._bounds[row] : self._bounds[row + 1]].tobytes()
        return list(decode_properties(raw.decode("utf-8", "replace")).items())


def _regular_pairs(raw: Bytes, bounds: Ints) -> tuple[_Pairs | None, list[bytes] | None]:
    """The pairs and their names when every row has the same names in the same order; else (None, None)."""
    rows = len(bounds) - 1
    marks = np.flatnonzero(raw - np.uint8(1) <= 1)  # \x01 and \x02; 0 wraps to 255
    if rows == 0 or len(marks) == 0 or len(marks) % (2 * rows):
        return None, None
    seps, ends = marks[0::2], marks[1::2]
    each = len(ends) // rows
    whole_rows = np.array_equal(ends[each - 1 :: each] + 1, bounds[1:])
    if not (whole_rows and bool((raw[seps] == 1).all()) and bool((raw[ends] == 2).all())):
        return None, None
    starts = np.concatenate([bounds[:1], ends[:-1] + 1])
    names: list[bytes] = []
    for number in range(each):
        name = _same_name(raw, starts[number::each], seps[number::each])
        if name is None:
            return None, None
        names.append(name)
    return _Pairs(starts, seps, ends, np.repeat(np.arange(rows), each)), names


def _same_name(raw: Bytes, starts: Ints, seps: Ints) -> bytes | None:
    """The name between each start and separator, if it is the same in all rows and not empty."""
    length = int(seps[0] - starts[0])
    if length == 0 or not bool((seps - starts == length).all()):
        return None
    names = overlapping(raw, f"V{length}")[starts].view(np.uint8).reshape(len(starts), length)
    return names[0].tobytes() if all_alike(names) else None


def _any_pairs(raw: Bytes, bounds: Ints) -> _Pairs:
    """The pairs of rows with different names."""
    marks = np.flatnonzero(raw == 2)
    row_ends = bounds[1:][bounds[1:] > bounds[:-1]]
    open_ends = row_ends[raw[row_ends - 1] != 2]
    # an end without \x02 takes up no byte: the next pair starts there. The low bit tells the two kinds apart.
    order = np.sort(np.concatenate([2 * marks + 1, 2 * open_ends]))
    ends = order >> 1
    starts = np.concatenate([[0], (ends + (order & 1))[:-1]])[: len(ends)]
    ones = np.append(np.flatnonzero(raw == 1), len(raw) + 1)
    seps = ones[np.searchsorted(ones[:-1], starts)]
    found = (seps > starts) & (seps < ends)
    starts = starts[found]
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(np.searchsorted(starts, bounds)))
    return _Pairs(starts, seps[found], ends[found], rows)
