r"""Decodes stored records to an Arrow record batch, column by column.

`decode` returns the same as a plain loop over `decode_record`, but is hundreds of nanoseconds per row faster; it makes
only the columns of the schema. No record is ever skipped: invalid bytes raise `DamagedRecord`.
The properties of many records are found together: numpy finds the positions of each ``name \x01 value \x02`` by the
rules of `decode_properties` (mqcommon/message/properties.py). Messages of one producer mostly have the same names in
the same order: `_regular_pairs` detects this, and a name is then looked up once and not row by row.
`unwrapped` makes `Records` with one row for each message of inner batches (mqcommon/message/inner.py), so the rest
needs to know nothing of batches. Only compressed batches are copied. `record_batch` is for message objects.
Neighbours: records.py (positions of fields, and arrays of them), schema.py.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import BODY_AT, BODY_LENGTH_AT, FLAG_AT, OVERHEAD
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.compression import MissingPackage, decompressed
from skylark.mqcommon.message.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, WRAPPED
from skylark.mqcommon.message.inner import OUTER_BITS, said_count
from skylark.mqcommon.message.layout import CRC_MASK, PROPERTIES_LENGTH
from skylark.mqcommon.message.message import MessageExt, records_of
from skylark.mqcommon.message.overlapping import overlapping
from skylark.mqcommon.message.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from skylark.mqcommon.message.record import Record, encode_record, topic_field
from skylark.sdk.arrow.records import (
    Ints,
    Mask,
    Records,
    all_alike,
    gather,
    hex_text,
    hosts,
    is_text,
    numbers,
    patched,
    repeated,
    text,
    timestamps,
)
from skylark.sdk.arrow.schema import PROPERTIES

Bytes = NDArray[np.uint8]


class _PropertyPairs(NamedTuple):
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
        """The value of ``name`` in each row as strings, null where the row has none; ``name`` is 4 or 8 bytes long."""
        starts, seps, ends, rows = self._pairs
        # Regular rows: the n-th pair of every row has this name, so no name is compared. Of equal names the last one
        # counts.
        if self._names is not None:
            if name not in self._names:
                return pa.nulls(len(self), pa.string())
            last = len(self._names) - 1 - self._names[::-1].index(name)
            starts, ends = seps[last :: len(self._names)] + 1, ends[last :: len(self._names)]
            return gather(self._raw, starts, ends - starts, pa.string())
        # Names of this length are read as one number at every start, and compared at once.
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
        # A name twice in a row is rare, and only Python knows which value wins. To find such rows, names are hashed by
        # row, length, first and last 8 bytes; rows with equal hashes are candidates.
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


def _regular_pairs(raw: Bytes, bounds: Ints) -> tuple[_PropertyPairs | None, list[bytes] | None]:
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
    return _PropertyPairs(starts, seps, ends, np.repeat(np.arange(rows), each)), names


def _same_name(raw: Bytes, starts: Ints, seps: Ints) -> bytes | None:
    """The name between each start and separator, if it is the same in all rows and not empty."""
    length = int(seps[0] - starts[0])
    if length == 0 or not bool((seps - starts == length).all()):
        return None
    names = overlapping(raw, f"V{length}")[starts].view(np.uint8).reshape(len(starts), length)
    return names[0].tobytes() if all_alike(names) else None


def _any_pairs(raw: Bytes, bounds: Ints) -> _PropertyPairs:
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
    return _PropertyPairs(starts, seps[found], ends[found], rows)


# The limit of decompressed bytes in one record batch: Arrow cannot have 2 GiB in one column.
CONTENT_BYTES = 256 * 1024 * 1024
# From this size on, in bytes, a view of a body costs less than a copy.
LARGE_BODY = 4_096
_INT = struct.Struct(">i")


class TooMuchContent(Exception):
    """Compressed bodies hold more than CONTENT_BYTES: decode fewer records at once. A single record always fits."""


def decode(
    records: Records, broker_name: str, schema: pa.Schema, kind: "Callable[[Records, str], RecordColumns] | None" = None
) -> pa.RecordBatch:
    """One row per record, with the columns of ``schema``, which ``kind`` makes. Raises `TooMuchContent`."""
    whole = records.sys_flags & WRAPPED == WRAPPED
    if whole.any():
        row = int(whole.argmax())
        raise DamagedRecord(row, int(records.starts[row]), "holds a whole batch (BatchCQ): see `unwrapped`")
    columns = (kind or RecordColumns)(records, broker_name)
    return pa.RecordBatch.from_arrays([columns.make(field) for field in schema], schema=schema)


def has_tag(records: Records, tags: frozenset[str]) -> Mask:
    """Which records have one of ``tags``: brokers compare only hashes of tags, and two tags may have the same hash."""
    found: Mask = pc.is_in(RecordColumns(records, "").tags(), value_set=pa.array(sorted(tags), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found


def check_order(records: Records) -> Ints:
    """The queue offset of each record; raises `DamagedRecord` unless they ascend."""
    offsets: Ints = records.column("queue_offset")
    falls = offsets[1:] <= offsets[:-1]
    if falls.any():
        row = int(falls.argmax()) + 1
        reason = f"queue offset {offsets[row]} follows {offsets[row - 1]}"
        raise DamagedRecord(row, int(records.starts[row]), reason)
    return offsets


def check_bodies(records: Records) -> None:
    """Raise `DamagedRecord` for a body that does not match its CRC."""
    found = np.fromiter(map(zlib.crc32, _bodies(records)), np.uint32, len(records))
    bad = found & CRC_MASK != records.column("body_crc")
    if bad.any():
        row = int(bad.argmax())
        raise DamagedRecord(row, int(records.starts[row]), "the body does not match its CRC")


def _bodies(records: Records) -> Iterable[bytes | memoryview]:
    """The stored body of each record; all at once, if the bodies are small, of one length and at one distance."""
    starts, lengths = records.body_at, records.body_lengths
    is_small = lengths.sum() < LARGE_BODY * len(records)
    if is_small and len(records) > 1 and (length := int(lengths[0])) and (lengths == length).all():
        step = starts[1] - starts[0]
        if (np.diff(starts) == step).all():
            # Not "S": numpy would cut zeros at the end of a body.
            found = np.ndarray((len(records),), f"V{length}", records.data, starts[0], (step,)).tolist()
            return cast("list[bytes]", found)
    # Copies of small bodies cost less than views of them.
    data = records.data if is_small else memoryview(records.data)
    return (data[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True))


def unpacked(records: Records, row: int, body: bytes) -> bytes:
    """The decompressed content of a record's ``body``. Raises `DamagedRecord`."""
    try:
        return decompressed(body, int(records.sys_flags[row]))
    except MissingPackage:
        raise  # the record is sound
    except ProtocolError as error:
        raise DamagedRecord(row, int(records.starts[row]), str(error)) from None


class RecordColumns:
    """The columns of one buffer; intermediate results are shared between columns."""

    def __init__(self, records: Records, broker_name: str) -> None:
        self._records = records
        self._broker_name = broker_name
        self._pairs: PropertyPairs | None = None

    def make(self, field: pa.Field) -> pa.Array:
        """The column ``field.name``."""
        name: str = field.name
        if name in _NUMBERS:
            return numbers(self._records.column(_NUMBERS[name]))
        if name in _TIMES:
            return timestamps(self._records.column(_TIMES[name]), field.type)
        return _MAKERS[name](self)

    def topic(self) -> pa.Array:
        records = self._records
        length = int(records.topic_lengths[0]) if len(records) else 0
        if length and bool((records.topic_lengths == length).all()):
            topics = overlapping(records.data, f"V{length}")[records.topic_at].view(np.uint8)
            if all_alike(topics.reshape(-1, length)):
                return repeated(topics[:length].tobytes().decode("utf-8", "replace"), len(records))
        return text(gather(records.data, records.topic_at, records.topic_lengths, pa.string()))

    def broker_name(self) -> pa.Array:
        return repeated(self._broker_name, len(self._records))

    def body(self) -> pa.Array:
        records = self._records
        bodies = gather(records.data, records.body_at, records.body_lengths, pa.binary())
        # Compressed bodies are few, or need Python code for each anyway: their contents replace the gathered bodies.
        packed = np.flatnonzero(records.sys_flags & COMPRESSED)
        if len(packed) == 0:
            return bodies
        contents: list[bytes] = []
        left = CONTENT_BYTES
        for row in packed.tolist():
            contents.append(self._unpacked(row, bodies[row].as_py()))
            left -= len(contents[-1])
            if left < 0 and len(contents) > 1:
                raise TooMuchContent
        return patched(bodies, packed, contents)

    def keys(self) -> pa.Array:
        return text(self._property_pairs().values(KEYS.encode()))

    def tags(self) -> pa.Array:
        return text(self._property_pairs().values(TAGS.encode()))

    def properties(self) -> pa.Array:
        return self._property_pairs().maps()

    def msg_id(self) -> pa.Array:
        """The producer's unique key; the offset message id if there is none."""
        unique = text(self._property_pairs().values(UNIQ_KEY.encode()))
        ends = np.frombuffer(unique.buffers()[1], np.int32)[unique.offset : unique.offset + len(unique) + 1]
        missing = np.flatnonzero(ends[1:] == ends[:-1])  # null or empty
        return patched(unique, missing, self.offset_msg_id().take(numbers(missing))) if len(missing) else unique

    def offset_msg_id(self) -> pa.Array:
        """Upper-case hex of store host and physical offset."""
        heads = self._records.heads
        return self._by_host_length(
            STORE_HOST_V6,
            lambda rows, length: hex_text(heads["store_host"][rows, :length], heads["physical_offset"][rows]),
        )

    def born_host(self) -> pa.Array:
        """``ip:port`` of the producer."""
        heads = self._records.heads
        return self._by_host_length(BORN_HOST_V6, lambda rows, length: hosts(heads["born_host"][rows, :length]))

    def _property_pairs(self) -> PropertyPairs:
        if self._pairs is None:
            records = self._records
            # All properties in one buffer, so that one pass finds the pairs of all rows.
            bounds = np.concatenate([[0], np.cumsum(records.properties_lengths)])
            joined = gather(records.data, records.properties_at, records.properties_lengths, pa.binary())
            self._pairs = PropertyPairs(np.frombuffer(joined.buffers()[2], np.uint8)[: bounds[-1]], bounds)
        return self._pairs

    def _by_host_length(self, v6_bit: int, make: Callable[[Ints | slice, int], pa.Array]) -> pa.Array:
        """Call ``make(rows, bytes of a host)`` for IPv4 rows and for IPv6 rows, and join the results in row order."""
        if not self._records.v6:
            return make(slice(None), 8)
        v6 = (self._records.sys_flags & v6_bit) != 0
        short, long = np.flatnonzero(~v6), np.flatnonzero(v6)
        place = np.empty(len(v6), dtype=np.int64)
        place[np.concatenate([short, long])] = np.arange(len(v6))
        return pa.concat_arrays([make(short, 8), make(long, 20)]).take(numbers(place))

    def _unpacked(self, row: int, body: bytes) -> bytes:
        return unpacked(self._records, row, body)


_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "queueId": "queue_id",
        "queueOffset": "queue_offset",
        "flag": "flag",
        "sysFlag": "sys_flag",
        "reconsumeTimes": "reconsume_times",
    }
)
_TIMES: Mapping[str, str] = MappingProxyType({"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"})
_MAKERS: Mapping[str, Callable[[RecordColumns], pa.Array]] = MappingProxyType(
    {
        "topic": RecordColumns.topic,
        "brokerName": RecordColumns.broker_name,
        "msgId": RecordColumns.msg_id,
        "offsetMsgId": RecordColumns.offset_msg_id,
        "keys": RecordColumns.keys,
        "tags": RecordColumns.tags,
        "body": RecordColumns.body,
        "bornHost": RecordColumns.born_host,
        PROPERTIES: RecordColumns.properties,
    }
)


def holds_batches(records: Records) -> bool:
    """Whether one of the records is an inner batch."""
    return bool((records.sys_flags & WRAPPED == WRAPPED).any())


def unwrapped(records: Records) -> tuple[Records, Ints]:
    """One row for each message, and the row of ``records`` that each comes from. There must be an inner batch.

    Bodies of batches are not compared with their CRC here: call `check_bodies` first. Raises `DamagedRecord` with the
    row in ``records``, and `TooMuchContent` when compressed batches hold too much together.
    """
    whole: Mask = records.sys_flags & WRAPPED == WRAPPED
    given = records
    packed = np.flatnonzero(whole & (records.sys_flags & COMPRESSED != 0))
    if len(packed):
        records = _inflated(records, packed)
    batches = np.flatnonzero(whole)
    # Each batch is split by itself; all later steps are done for all messages together.
    found = [_starts(records, row, int(given.starts[row])) for row in batches.tolist()]
    counts = np.ones(len(records), dtype=np.int64)
    counts[batches] = [len(each) for each in found]
    which = np.repeat(np.arange(len(records)), counts)
    messages = _changed(
        records,
        {name: _repeated(value, counts) for name, value in vars(records).items() if isinstance(value, np.ndarray)},
    )
    heads = messages.heads
    # A message's offset is its batch's offset plus its number in the batch.
    heads["queue_offset"] = heads["queue_offset"] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
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
    """The positions at which the messages of a batch begin; the messages fill the batch's body."""
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
        # A size below the fixed part would let the loop stand still, or go back.
        (size,) = _INT.unpack_from(records.data, at)
        if size < OVERHEAD:
            raise DamagedRecord(row, shown_at, f"message {len(found) - 1} of its batch has a size of {size} bytes")
        at += size
    if at != end or len(found) != count:
        raise DamagedRecord(row, shown_at, f"its {count} messages do not end where its body does")
    return np.array(found, dtype=np.int64)


def _inflated(records: Records, packed: Ints) -> Records:
    """The records in a buffer of their own, in which the decompressed body of each of ``packed`` follows its record.

    So the parts of all rows are in the order of the rows, as `gather` needs them.
    """
    view, left = memoryview(records.data), CONTENT_BYTES
    contents = dict.fromkeys(range(len(records)), b"")
    for row in packed.tolist():
        start = int(records.body_at[row])
        content = unpacked(records, row, bytes(view[start : start + int(records.body_lengths[row])]))
        # Bound the bytes that are joined below: a pull of a megabyte may hold gigabytes.
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
        "starts": starts,
        "body_at": body_at,
        "body_lengths": body_lengths,
        "topic_at": records.topic_at + shift,
        "properties_at": records.properties_at + shift,
    }
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


class _OfMessages(RecordColumns):
    """Columns in which each message decompresses its own body: it may hold the result already."""

    def __init__(self, messages: Sequence[MessageExt], records: Records, broker_name: str) -> None:
        super().__init__(records, broker_name)
        self._messages = messages

    def _unpacked(self, row: int, body: bytes) -> bytes:
        return self._messages[row].body


def _encoded(record: Record) -> bytes:
    """The record as it would be stored by itself."""
    return encode_record(
        *topic_field(record.topic),
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def record_batch(messages: Sequence[MessageExt], schema: pa.Schema) -> pa.RecordBatch:
    """A row for each of ``messages``, which are of one queue. Raises `TooMuchContent`."""
    data, starts, changed = records_of(messages)
    if any([messages[row].is_inner for row in changed]):
        # Messages of inner batches: their records contain whole batches.
        plain = [_encoded(message.record) for message in messages]
        data, starts, changed = b"".join(plain), [0, *accumulate(map(len, plain[:-1]))], []
    records = Records(data, np.array(starts, dtype=np.int64))
    batch = decode(records, messages[0].broker_name, schema, partial(_OfMessages, messages))
    if not changed:
        return batch
    now: dict[str, list[Any]] = {
        "topic": [messages[row].topic for row in changed],
        "reconsumeTimes": [messages[row].reconsume_times for row in changed],
    }
    arrays = [
        patched(array, np.array(changed, dtype=np.int64), now[name]) if name in now else array
        for name, array in zip(schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
