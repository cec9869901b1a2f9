r"""Texts and bytes of a user's columns, whatever their type, as binary arrays; and the encoded properties of them.

A property is ``name \x01 value \x02``, see mqcommon/message/properties.py.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mqcommon.message.properties import RESERVED
from sdk.arrow.columns import numbers
from sdk.arrow.records import Ints, Mask

_VIEW_WORDS = 4
_SHORT = 12


def view_lengths(array: pa.Array) -> Ints:
    """How many bytes each value has; any number for a null."""
    return _words(array)[:, 0].astype(np.int64)


def without_views(array: pa.Array) -> pa.Array:
    """The same values as a binary array. Long values that lie side by side are copied together."""
    words = _words(array)
    sizes = view_lengths(array)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    ends = np.cumsum(sizes)
    begins = ends - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    short = np.flatnonzero((sizes > 0) & (sizes <= _SHORT))
    places = np.arange(_SHORT)
    held = places < sizes[short, None]
    data[(begins[short, None] + places)[held]] = words.view(np.uint8)[short, 4:][held]
    long = np.flatnonzero(sizes > _SHORT)
    which, at = words[long, 2], words[long, 3]
    is_next = (np.diff(long) == 1) & (which[1:] == which[:-1]) & (at[1:] == at[:-1] + sizes[long][:-1])
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in array.buffers()[2:]]
    for first, end in pairwise([0, *(np.flatnonzero(~is_next) + 1).tolist(), len(long)]):
        if first < end:
            begin, stop, start = int(begins[long[first]]), int(ends[long[end - 1]]), int(at[first])
            data[begin:stop] = buffers[which[first]][start : start + stop - begin]
    bounds = np.append(0, ends).astype(np.int32)
    bitmap = None
    if array.null_count:
        bitmap = pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(array), [bitmap, pa.py_buffer(bounds), pa.py_buffer(data)])


def _words(array: pa.Array) -> NDArray[np.int32]:
    """The views, a row each."""
    words = np.frombuffer(array.buffers()[1], np.int32)[_VIEW_WORDS * array.offset :]
    return words[: _VIEW_WORDS * len(array)].reshape(-1, _VIEW_WORDS)


BINARY = pa.binary()


def is_text(kind: Any) -> bool:
    """Whether values of this type are texts."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether values of this type are bytes."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_bytes(kind.value_type)
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_plain or types.is_binary_view(kind))


def is_list(kind: Any) -> bool:
    """Whether values of this type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def are_properties(kind: Any) -> bool:
    """Whether values of this type are maps of texts, or lists of pairs of texts."""
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and is_text(kind.item_type)
    if not is_list(kind) or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        return False
    return all(is_text(kind.value_type.field(number).type) for number in range(2))


def lengths(array: pa.Array) -> Ints:
    """How many bytes each text, or each bytes, has; any number for a null."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if pa.types.is_dictionary(kind):
        known = np.append(lengths(array.dictionary), 0)
        found: Ints = known[array.indices.cast(pa.int64()).fill_null(len(known) - 1).to_numpy()]
        return found
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(array), kind.byte_width, np.int64)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return view_lengths(array)
    return np.diff(_bounds(array)).astype(np.int64)


def is_valid(array: pa.Array) -> Mask:
    """Which values are not null."""
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def as_binary(array: pa.Array) -> pa.Array:
    """The same values as a binary array."""
    kind = array.type
    if pa.types.is_binary(kind):
        return array
    if pa.types.is_string(kind):
        return array.view(BINARY)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, as_binary(array.dictionary)).dictionary_decode()
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return without_views(array)
    return array.cast(BINARY)


def joined(*pieces: pa.Array | bytes) -> pa.Array:
    """The pieces of each row, one after another, without those that are null; of each row one must not be null."""
    given = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*given, pa.scalar(b"", BINARY), null_handling="skip")


def joined_lists(lists: pa.Array) -> pa.Array:
    """The texts of each list with blanks between them, without those that are null or empty."""
    values, counts = as_binary(lists.flatten()), _counts(lists)
    given = _are_given(values)
    if not given.all():
        values, counts = values.take(numbers(np.flatnonzero(given))), _counts_of(given, counts)
    return pc.binary_join(pa.ListArray.from_arrays(_starts(counts), values), pa.scalar(b" ", BINARY))


def pairs(name: bytes, values: pa.Array) -> pa.Array:
    """The property ``name`` with these values; null where there is none."""
    if values.null_count < len(values) and not _are_given(values).all():
        values = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, BINARY), values)
    given = (pa.scalar(name + b"\x01", BINARY), values, pa.scalar(b"\x02", BINARY))
    return pc.binary_join_element_wise(*given, pa.scalar(b"", BINARY))


def first_marked(values: pa.Array) -> int | None:
    r"""The number of the first value that holds \x01 or \x02."""
    bounds, data = _bounds(values), values.buffers()[2]
    if data is None:
        return None
    held = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    marks = np.flatnonzero(held - np.uint8(1) <= 1)  # 0 wraps to 255
    if not len(marks):
        return None
    found = np.searchsorted(bounds, marks + bounds[0], side="right") - 1
    found = found[is_valid(values)[found]]  # the bytes of a null are not looked at
    return int(found[0]) if len(found) else None


class Properties:
    """The properties of all rows that are given and not reserved: ``names`` and ``values``, one after another."""

    def __init__(self, lists: pa.Array) -> None:
        bounds = lists.offsets.to_numpy()
        counts = np.diff(bounds).astype(np.int64)
        is_map = pa.types.is_map(lists.type)
        pair = (lists.keys, lists.items) if is_map else lists.values.flatten()
        self.names, self.values = [as_binary(each[bounds[0] : bounds[-1]]) for each in pair]
        given = _are_given(self.names) & _are_given(self.values) & np.repeat(is_valid(lists), counts)
        given &= ~pc.is_in(self.names, value_set=_RESERVED).to_numpy(zero_copy_only=False)
        if not given.all():
            kept = numbers(np.flatnonzero(given))
            self.names, self.values = self.names.take(kept), self.values.take(kept)
            counts = _counts_of(given, counts)
        self._ends = np.cumsum(counts)

    def row_of(self, number: int) -> int:
        """The row of a property."""
        return int(np.searchsorted(self._ends, number, side="right"))

    def encoded(self) -> pa.Array:
        """The properties of each row, encoded."""
        each = joined(self.names, b"\x01", self.values, b"\x02")
        # Those of a row lie side by side.
        bounds = np.ascontiguousarray(_bounds(each)[np.append(0, self._ends)])
        held = each.buffers()[2] or pa.py_buffer(b"")
        return pa.Array.from_buffers(BINARY, len(self._ends), [None, pa.py_buffer(bounds), held])


def _bounds(array: pa.Array) -> Ints:
    """Where each value begins in the data of a binary or text array, and where the last one ends."""
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    kind: type[Any] = np.int64 if is_large else np.int32
    if not len(array):
        return np.zeros(1, kind)
    bounds: Ints = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array) + 1]
    return bounds


def _are_given(values: pa.Array) -> Mask:
    """Which values of a binary array are neither null nor empty."""
    return is_valid(values) & (lengths(values) > 0)


def _counts(lists: pa.Array) -> Ints:
    """How many values each list has; 0 for a null."""
    counts: Ints = np.diff(lists.offsets.to_numpy()).astype(np.int64) * is_valid(lists)
    return counts


def _counts_of(given: Mask, counts: Ints) -> Ints:
    """How many of the values of each list are given."""
    found: Ints = np.bincount(np.repeat(np.arange(len(counts)), counts)[given], minlength=len(counts))
    return found


def _starts(counts: Ints) -> pa.Array:
    """The offsets of lists with so many values."""
    return numbers(np.append(0, np.cumsum(counts)).astype(np.int32))


def _binaries(values: list[bytes]) -> pa.Array:
    # not pa.array(values): see `numbers`
    bounds = np.append(0, np.cumsum([len(value) for value in values])).astype(np.int32)
    return pa.Array.from_buffers(BINARY, len(values), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(values))])


_RESERVED = _binaries([name.encode() for name in sorted(RESERVED)])
