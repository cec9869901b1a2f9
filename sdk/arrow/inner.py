"""Inner batches (mqcommon/message/inner.py) column by column: where their messages are within their bodies.

`unwrapped` makes `Records` with one row for each message, so the rest of this package needs to know nothing of batches.
Only compressed batches are copied.
Neighbours: records.py (positions of records), decode.py (record batches).
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqcommon.errors import ProtocolError
from mqcommon.message.batch import BODY_AT, BODY_LENGTH_AT, FLAG_AT, OVERHEAD
from mqcommon.message.columns import DamagedRecord
from mqcommon.message.flags import COMPRESSED, WRAPPED
from mqcommon.message.inner import OUTER_BITS, said_count
from mqcommon.message.layout import PROPERTIES_LENGTH
from sdk.arrow.decode import CONTENT_BYTES, TooMuchContent, unpacked
from sdk.arrow.records import Ints, Mask, Records, overlapping

_INT = struct.Struct(">i")


def holds_batches(records: Records) -> bool:
    """Whether one of the records is an inner batch."""
    return bool((records.sys_flags & WRAPPED == WRAPPED).any())


def unwrapped(records: Records) -> tuple[Records, Ints]:
    """One row for each message, and the row of ``records`` that each comes from. There must be an inner batch.

    Bodies of batches are not compared with their CRC: `check_bodies` does that before. Raises `DamagedRecord` with the
    row in ``records``, and `TooMuchContent` when compressed batches hold too much together.
    """
    whole: Mask = records.sys_flags & WRAPPED == WRAPPED
    given = records
    packed = np.flatnonzero(whole & (records.sys_flags & COMPRESSED != 0))
    if len(packed):
        records = _inflated(records, packed)
    batches = np.flatnonzero(whole)
    found = [_starts(records, row, int(given.starts[row])) for row in batches.tolist()]
    counts = np.ones(len(records), dtype=np.int64)
    counts[batches] = [len(each) for each in found]
    which = np.repeat(np.arange(len(records)), counts)
    messages = _changed(records, {
        name: _repeated(value, counts) for name, value in vars(records).items() if isinstance(value, np.ndarray)
    })  # fmt: skip
    heads, numbers = messages.heads, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
    heads["queue_offset"] = heads["queue_offset"] + numbers
    _place(messages, slice(None) if whole.all() else whole[which], np.concatenate(found), given, which)
    return messages, which


def _place(messages: Records, inner: Mask | slice, starts: Ints, given: Records, which: Ints) -> None:
    """Put the fields of the messages that begin at ``starts`` into the rows ``inner``."""

    def refuse(bad: Mask, reason: str) -> None:
        if bad.any():
            number = int(bad.argmax())
            row = int(which[inner][number])
            raise DamagedRecord(row, int(given.starts[row]), f"message {number} of its batches: {reason}")

    data, heads = messages.data, messages.heads
    ends = starts + overlapping(data, _INT.format)[starts]
    body_at = starts + BODY_AT
    # Read as unsigned: a negative length is refused as too large.
    lengths = overlapping(data, ">I")[starts + BODY_LENGTH_AT].astype(np.int64)
    properties_at = body_at + lengths + PROPERTIES_LENGTH.size
    refuse(properties_at > ends, "the body does not fit into it")
    properties_lengths = overlapping(data, ">H")[properties_at - PROPERTIES_LENGTH.size].astype(np.int64)
    refuse(properties_at + properties_lengths != ends, "its properties do not end where it does")
    messages.body_at[inner], messages.body_lengths[inner] = body_at, lengths
    messages.properties_at[inner], messages.properties_lengths[inner] = properties_at, properties_lengths
    heads["flag"][inner] = overlapping(data, _INT.format)[starts + FLAG_AT]
    heads["sys_flag"][inner] = messages.sys_flags[inner] & ~OUTER_BITS
    messages.sys_flags = messages.column("sys_flag")


def _starts(records: Records, row: int, shown_at: int) -> Ints:
    """Where the messages of a batch begin; they fill its body."""
    at, properties_at = int(records.body_at[row]), int(records.properties_at[row])
    end = at + int(records.body_lengths[row])
    try:
        properties = records.data[properties_at : properties_at + int(records.properties_lengths[row])]
        count = said_count(bytes(properties))
    except ProtocolError as error:
        raise DamagedRecord(row, shown_at, str(error)) from None
    size, rest = divmod(end - at, count)
    if not rest and size >= OVERHEAD:
        # Messages with generated bodies often have the same size.
        starts = np.arange(at, end, size, dtype=np.int64)
        if (overlapping(records.data, _INT.format)[starts] == size).all():
            return starts
    found: list[int] = []
    while at + OVERHEAD <= end and len(found) < count:
        found.append(at)
        (size,) = _INT.unpack_from(records.data, at)
        if size < OVERHEAD:
            raise DamagedRecord(row, shown_at, f"message {len(found) - 1} of its batch has a size of {size} bytes")
        at += size
    if at != end or len(found) != count:
        raise DamagedRecord(row, shown_at, f"its {count} messages do not end where its body does")
    return np.array(found, dtype=np.int64)


def _inflated(records: Records, packed: Ints) -> Records:
    """The records in a buffer of their own, in which the decompressed body of each of ``packed`` follows its record.

    So the parts of all rows are in the order of the rows, as `columns.gather` needs them.
    """
    view, left = memoryview(records.data), CONTENT_BYTES
    contents = dict.fromkeys(range(len(records)), b"")
    for row in packed.tolist():
        start = int(records.body_at[row])
        content = unpacked(records, row, bytes(view[start : start + int(records.body_lengths[row])]))
        left -= len(content)
        if left < 0 and len(records) > 1:
            raise TooMuchContent
        contents[row] = content
    sizes = records.heads["size"].astype(np.int64)
    lengths = np.array([len(content) for content in contents.values()], dtype=np.int64)
    starts = np.cumsum(sizes + lengths) - sizes - lengths
    shift = starts - records.starts
    body_at, body_lengths = records.body_at + shift, records.body_lengths.copy()
    body_at[packed], body_lengths[packed] = (starts + sizes)[packed], lengths[packed]
    parts: list[bytes | memoryview] = []
    for row, start in enumerate(records.starts.tolist()):
        parts += view[start : start + int(sizes[row])], contents[row]
    moved = {
        "starts": starts, "body_at": body_at, "body_lengths": body_lengths, "topic_at": records.topic_at + shift,
        "properties_at": records.properties_at + shift,
    }  # fmt: skip
    return _changed(records, {**moved, "data": b"".join(parts)})


def _repeated(rows: NDArray[Any], counts: Ints) -> NDArray[Any]:
    """Each row as often as ``counts`` says."""
    if rows.dtype.names is None:
        return rows.repeat(counts)
    # Row by row, not field by field.
    return rows.view(f"V{rows.dtype.itemsize}").repeat(counts).view(rows.dtype)


def _changed(records: Records, values: dict[str, object]) -> Records:
    """A copy with other values of these attributes."""
    copy = object.__new__(Records)
    vars(copy).update(vars(records) | values)
    return copy
