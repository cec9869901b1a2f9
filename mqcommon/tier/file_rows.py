"""Finds the sound records of a file of the log, and their fields, as columns.

broker/store/log/valid_record.py defines a sound record. A file may be damaged anywhere: where no record follows
another, the search goes on at the next place that looks like the head of a record. All bytes between sound records are
kept as they are.
Neighbours: gather.py.
"""

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.errors import ProtocolError, SkylarkError
from skylark.mqcommon.message.flags import (
    BORN_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    WRAPPED,
)
from skylark.mqcommon.message.inner import said_count
from skylark.mqcommon.message.layout import (
    BLANK_MAGIC,
    CRC_MASK,
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
    TAIL_BYTES_V1,
)
from skylark.mqcommon.message.overlapping import overlapping
from skylark.mqcommon.message.properties import KEYS, UNIQ_KEY
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.message.record_keys import index_keys, record_keys
from skylark.mqcommon.tier.key_hash import WORD_BYTES, key_hash, key_hashes, topic_seed
from skylark.mqcommon.tier.record_places import record_places

Ints = NDArray[np.int64]
View = bytes | mmap.mmap

MAX_REST_BYTES = 16 * 1024 * 1024
# Rows whose fields are looked at together: few enough for the processor's cache. Their properties and keys are copied:
# so such rows begin within this many bytes of the file.
ROWS_AT_ONCE, ROWS_BYTES = 1 << 14, 32 << 20
# The records in `AT_ONCE_BYTES` of the file are searched together, by a walk from the first head in each `STEP_BYTES`.
AT_ONCE_BYTES, STEP_BYTES = 64 << 20, 64 << 10
# This many records are searched one by one where a search together has found none.
_ONE_BY_ONE = 1024
_MAX_TOPIC_BYTES = 255
_MAGICS = MAGIC_V1, MAGIC_V2
_MAGIC_BYTES = tuple(magic.to_bytes(4, "big") for magic in _MAGICS)
_MAGIC_AT = HEAD_V4.starts["magic"]
_PLACE = HEAD_V4.reader("size", "magic", "physical_offset")
_SIZE = HEAD_V4.reader("size")
# The needed fields of a head, at their places with IPv4 hosts.
_FIELDS = tuple(name for name in HEAD_V4.codes if "host" not in name)
_HEAD = np.dtype(
    {
        "names": list(_FIELDS),
        "formats": [f">{HEAD_V4.codes[name]}" for name in _FIELDS],
        "offsets": [HEAD_V4.starts[name] for name in _FIELDS],
        "itemsize": HEAD_V4.size,
    }
)
# Layouts by the two bits of sysFlag for IPv6 hosts; the bytes of their heads.
_LAYOUTS = [HEADS[kind * BORN_HOST_V6] for kind in range(4)]
_HEAD_BYTES = np.array([head.size for head in _LAYOUTS])
# By layout, how many bytes longer the born host is than an IPv4 host.
_BORN_BYTES = np.array([head.host_bytes[0] - HEAD_V4.host_bytes[0] for head in _LAYOUTS])
# Shorter runs of zeros between other bytes are kept with these bytes.
_LEAST_ZEROS = 64
_ZEROS_AT_ONCE = 1 << 20


class TooDamaged(SkylarkError):
    """More than `MAX_REST_BYTES` of a file are neither sound records nor zeros."""


class Queue(NamedTuple):
    """A queue of a topic. ``is_shadow``: its records are in no consume queue, as half messages of old transactions."""

    topic: str
    queue_id: int
    is_shadow: bool


class FileRows(NamedTuple):
    """The sound records in the order of the file, one row each.

    ``starts``: in the file. ``queue``: number in ``queues``. ``counts``: messages in the queue. ``rest``: (physical
    offset, bytes). ``key_rows`` and ``key_hashes``: the rows of keys, and their hashes.
    """

    starts: Ints
    sizes: Ints
    queue: NDArray[np.int32]
    offsets: Ints
    counts: Ints
    stored_ms: Ints
    queues: list[Queue]
    rest: tuple[tuple[int, bytes], ...]
    key_rows: Ints
    key_hashes: NDArray[np.uint64]


def file_rows(view: View, start: int, unproved: Sequence[tuple[int, int]], starts: Ints | None = None) -> FileRows:
    """The rows of the file ``view``, whose first byte is at ``start`` of the log. Raises TooDamaged.

    ``unproved``: parts of the file in which bodies are compared with their CRCs. ``starts``: where the records begin
    in the file, if that is known: then nothing is searched, and there is no rest.
    """
    reader = _Reader(view, start, unproved)
    if starts is not None:
        return reader.rows(starts)
    rows = reader.rows(np.concatenate([np.empty(0, np.int64), *_walk(view, start)]))
    rest: list[tuple[int, bytes]] = []
    more: list[int] = []
    for gap, end in _gaps(rows.starts, rows.starts + rows.sizes, len(view)):
        found = _sound_between(view, start, gap, end)
        more += found
        inside = np.array(found, np.int64)
        for part, stop in _gaps(inside, inside + reader.sizes(inside), end, gap):
            rest += ((start + at, data) for at, data in _not_zeros(view, part, stop))
            if sum(len(data) for _, data in rest) > MAX_REST_BYTES:
                raise TooDamaged(
                    f"the file of the log that begins at {start} has over {MAX_REST_BYTES >> 20} MiB that are no sound"
                    " messages"
                )
    if more:
        rows = reader.rows(np.sort(np.concatenate([rows.starts, np.array(more, np.int64)])))
    return rows._replace(rest=tuple(rest))


def _walk(view: View, start: int) -> Iterator[Ints]:
    """Where records seem to begin."""
    at, end, searched_to = 0, len(view), 0
    unpack = SIZE_MAGIC.unpack_from
    while at + MIN_RECORD <= end:
        size, magic = unpack(view, at)
        if magic not in _MAGICS or not MIN_RECORD <= size <= end - at:
            if magic == BLANK_MAGIC and size == end - at:
                return
            at = _next_head(view, start, at + 1, end)
            continue
        if at >= searched_to:
            searched_to = min(at + AT_ONCE_BYTES, end)
            many = _at_once(view, start, at, searched_to)
            yield many
            if len(many):
                at = int(many[-1]) + unpack(view, int(many[-1]))[0]
                continue
        singles = _one_by_one(view, at, end)
        at = int(singles[-1])
        yield singles[:-1]


def _at_once(view: View, start: int, at: int, end: int) -> Ints:
    """Where records begin, by their sizes alone, that follow each other from ``at`` on and end before ``end``."""
    # A head has its own place in the log, so the next head can be found from any byte. Mostly all records have one
    # magic; a search for the other magic would go through all bytes.
    magic = view[at + _MAGIC_AT : at + _MAGIC_AT + 4]
    bounds = [*range(at + STEP_BYTES, end, STEP_BYTES), end]
    heads = [_next_head(view, start, low, high, (magic,)) for low, high in pairwise(bounds)]
    known = [head - at for head, high in zip(heads, bounds[1:], strict=True) if head < high]
    with memoryview(view) as whole, whole[at:end] as part:
        found, _ = record_places(part, np.array(known, np.int64))
    return found + at


def _one_by_one(view: View, at: int, end: int) -> Ints:
    """Where up to `_ONE_BY_ONE` records begin that follow each other from ``at`` on, and where the last ends."""
    places = [at]
    add, size_at, last = places.append, _SIZE.unpack_from, end - MIN_RECORD
    for _ in range(_ONE_BY_ONE):
        at += size_at(view, at)[0]
        add(at)
        if at > last:
            break
    found = np.array(places, np.int64)
    # The magics are compared at the end, all at once.
    magics = overlapping(np.frombuffer(view, np.uint8), ">u4")[found[:-1] + _MAGIC_AT]
    sizes = np.diff(found)
    bad = np.flatnonzero((magics != MAGIC_V1) & (magics != MAGIC_V2) | (sizes < MIN_RECORD) | (found[1:] > end))
    return found[: int(bad[0]) + 1] if len(bad) else found


def _next_head(view: View, start: int, at: int, end: int, magics: Sequence[bytes] = _MAGIC_BYTES) -> int:
    """The next place from ``at`` on that looks like the head of a record with one of ``magics``; ``end`` if none."""
    found = {magic: view.find(magic, at + _MAGIC_AT, end) for magic in magics}
    while any(place >= 0 for place in found.values()):
        magic, place = min(((m, p) for m, p in found.items() if p >= 0), key=lambda item: item[1])
        head = place - _MAGIC_AT
        if head + MIN_RECORD <= end:
            size, _, physical = _PLACE.unpack_from(view, head)
            if physical == start + head and MIN_RECORD <= size <= end - head:
                return head
        found[magic] = view.find(magic, place + 1, end)
    return end


def _sound_between(view: View, start: int, at: int, end: int) -> list[int]:
    """Where sound records begin between ``at`` and ``end``, found one by one."""
    found: list[int] = []
    # A record may begin at ``at`` itself: after a record whose size is wrong.
    at -= 1
    while (at := _next_head(view, start, at + 1, end)) < end:
        size, _ = SIZE_MAGIC.unpack_from(view, at)
        try:
            record = decode_record(view[at : at + size])
        except ProtocolError:
            continue
        if record.queue_offset >= 0 and record.queue_id >= 0 and _is_topic(record.topic.encode()):
            found.append(at)
            at += size - 1
    return found


def _gaps(starts: Ints, ends: Ints, end: int, begin: int = 0) -> list[tuple[int, int]]:
    """The parts of ``begin`` to ``end`` that no record covers."""
    lows, highs = np.append(begin, ends), np.append(starts, end)
    gaps = np.flatnonzero(highs > lows)
    return list(zip(lows[gaps].tolist(), highs[gaps].tolist(), strict=True))


def _not_zeros(view: View, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The pieces of these bytes that are not zeros."""
    for begin in range(at, end, _ZEROS_AT_ONCE):
        part = view[begin : min(begin + _ZEROS_AT_ONCE, end)]
        places = np.flatnonzero(np.frombuffer(part, np.uint8))
        if not len(places):
            continue
        cuts = np.flatnonzero(np.diff(places) > _LEAST_ZEROS) + 1
        for piece in np.split(places, cuts):
            first, last = int(piece[0]), int(piece[-1]) + 1
            yield begin + first, part[first:last]


def texts_and_gaps(data: pa.Buffer, starts: Ints, lengths: Ints) -> tuple[pa.LargeBinaryArray, Ints]:
    """The texts at these places of ``data``, which are in ascending order, without a copy.

    Returns (an array, the number in it of each text): where bytes are between two texts, the array has them, too.
    """
    stops = starts + lengths
    numbers = np.arange(len(starts))
    has_gap = starts[1:] != stops[:-1]
    if has_gap.any():
        numbers[1:] += np.cumsum(has_gap)
        edges = np.empty(numbers[-1] + 2, np.int64)
        edges[numbers], edges[numbers + 1] = starts, stops
    else:
        edges = np.concatenate([starts, stops[-1:]]) if len(starts) else np.zeros(1, np.int64)
    buffers = [None, pa.py_buffer(edges), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(edges) - 1, buffers), numbers


def _is_topic(name: bytes) -> bool:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(name) <= _MAX_TOPIC_BYTES and "\0" not in text and "/" not in text and text not in (".", "..")


class _Reader:
    """Reads fields of many records of one file at once."""

    def __init__(self, view: View, start: int, unproved: Sequence[tuple[int, int]]) -> None:
        self._view = view
        self._start = start
        firsts, lasts = np.array(unproved, np.int64).reshape(-1, 2).T
        is_apart = firsts[1:] != lasts[:-1]
        # The parts that are not proved, where they begin and end; after the last part an empty one.
        self._unproved_from = np.append(firsts[np.append(True, is_apart)[: len(firsts)]], len(view))
        self._unproved_to = lasts[np.append(is_apart, True)[: len(lasts)]]
        self._bytes = np.frombuffer(view, np.uint8)
        self._by_type = {code: overlapping(self._bytes, code) for code in (">i2", ">u2", ">i4", ">i8")}
        # As raw bytes: numpy copies a head of fields field by field.
        self._heads = overlapping(self._bytes, np.dtype((np.void, _HEAD.itemsize)))
        self._buffer = pa.py_buffer(view)
        # Topics and their numbers, and by number the seed of the hashes of a topic's keys.
        self._numbers: dict[bytes, int] = {}
        self._seeds = np.empty(0, np.uint64)

    def sizes(self, starts: Ints) -> Ints:
        """The sizes that the heads of these records have."""
        found: Ints = self._by_type[">i4"][starts].astype(np.int64)
        return found

    def _shifted(self, heads: NDArray[Any], name: str, starts: Ints, shift: Ints | None) -> Ints:
        """The number in the field ``name``; ``shift``: how much longer the hosts before it are than IPv4 hosts."""
        found: Ints = heads[name].astype(np.int64)
        if shift is not None and len(rows := np.flatnonzero(shift)):
            column = self._by_type[heads[name].dtype.str]
            found[rows] = column[starts[rows] + HEAD_V4.starts[name] + shift[rows]]
        return found

    def _places(self, starts: Ints) -> "_Places":
        # One copy of all heads: their fields are then close together.
        heads = self._heads[starts].view(_HEAD)
        sizes, flags = heads["size"].astype(np.int64), heads["sys_flag"].astype(np.int64)
        ends = starts + sizes
        layouts = flags >> BORN_HOST_V6.bit_length() - 1 & 3
        # Mostly all hosts are IPv4, all magics are one, and all rows are sound: then some passes are left out.
        is_v4 = not layouts.any()
        head_bytes = np.full(len(starts), HEAD_V4.size) if is_v4 else _HEAD_BYTES[layouts]
        sound = starts + head_bytes + TAIL_BYTES_V1 <= ends
        head_bytes = _or_else(sound, head_bytes, HEAD_V4.size)
        body_bytes = self._shifted(heads, "body_length", starts, None if is_v4 else head_bytes - HEAD_V4.size)
        bodies = starts + head_bytes
        sound &= (body_bytes >= 0) & (bodies + body_bytes + TAIL_BYTES_V1 <= ends)
        # From here on a row that is not sound has places within its record that mean nothing.
        topics = _or_else(sound, bodies + body_bytes, starts)
        is_v2 = heads["magic"] == MAGIC_V2
        topic_bytes = self._by_type[">u2"][topics].astype(np.int64)
        if is_v2.all():
            topics += 2
        else:
            is_v1 = heads["magic"] == MAGIC_V1
            sound &= is_v1 | is_v2
            topic_bytes = np.where(is_v1, topic_bytes >> 8, topic_bytes)
            topics += np.where(is_v1, 1, 2)
        sound &= (topic_bytes > 0) & (topic_bytes <= _MAX_TOPIC_BYTES) & (topics + topic_bytes + 2 <= ends)
        properties = _or_else(sound, topics + topic_bytes, starts)
        property_bytes = self._by_type[">i2"][properties].astype(np.int64)
        properties += 2
        sound &= (property_bytes >= 0) & (properties + property_bytes == ends)
        offsets, queue_ids = heads["queue_offset"].astype(np.int64), heads["queue_id"].astype(np.int64)
        sound &= (heads["physical_offset"] == starts + self._start) & (offsets >= 0) & (queue_ids >= 0)
        self._check_bodies(heads["body_crc"], starts, ends, bodies, body_bytes, sound)
        codes = self._check_topics(topics, topic_bytes, sound)
        # The times of rows that are not sound mean nothing.
        shift = None if is_v4 else np.where(sound, _BORN_BYTES[layouts], 0)
        stored_ms = self._shifted(heads, "store_timestamp", starts, shift)
        return _Places(
            sound, starts, sizes, ends, flags, queue_ids, offsets, stored_ms, topics, topic_bytes, codes, properties
        )

    def _check_bodies(
        self,
        crcs: NDArray[Any],
        starts: Ints,
        ends: Ints,
        bodies: Ints,
        body_bytes: Ints,
        sound: NDArray[np.bool_],
    ) -> None:
        if not len(self._unproved_to):
            return
        parts = np.searchsorted(self._unproved_to, starts, "right")
        rows = np.flatnonzero(sound & (self._unproved_from[parts] < ends))
        places = bodies[rows]
        with memoryview(self._view) as view:
            found = [
                large_crc32(view[body:end])
                for body, end in zip(places.tolist(), (places + body_bytes[rows]).tolist(), strict=True)
            ]
        sound[rows] = np.array(found, np.int64) & CRC_MASK == crcs[rows]

    def _check_topics(self, topics: Ints, topic_bytes: Ints, sound: NDArray[np.bool_]) -> Ints:
        """The numbers in `_numbers` of the topics of the rows that are sound; -1 for other rows."""
        rows = np.flatnonzero(sound)
        numbers = np.full(len(sound), -1, np.int64)
        codes, names = self._topics(topics[rows], topic_bytes[rows])
        known = self._numbers
        of_names = np.array([known.setdefault(name, len(known)) for name in names], np.int64)
        new = [topic_seed(name.decode("utf-8", "replace")) for name in list(known)[len(self._seeds) :]]
        self._seeds = np.append(self._seeds, np.array(new, np.uint64))
        are_names = np.array([_is_topic(name) for name in names], np.bool_)
        if len(rows):
            numbers[rows], sound[rows] = of_names[codes], are_names[codes]
        return numbers

    def _topics(self, starts: Ints, lengths: Ints) -> tuple[Ints, list[bytes]]:
        """(for each topic at these places its number in the list, the list). In a record its length is before it."""
        if not len(starts):
            return starts, []
        # Texts of one width, of zeros after the topic: its length is a part of the text, as a topic may end with zeros.
        starts, lengths, width = starts - 1, lengths + 1, int(lengths.max()) + 1
        last = len(self._bytes) - width
        found = overlapping(self._bytes, np.dtype((np.void, width)))[np.minimum(starts, last)]
        texts = found.view(np.uint8).reshape(-1, width)
        for row in np.flatnonzero(starts > last).tolist():
            texts[row, : lengths[row]] = self._bytes[starts[row] : starts[row] + lengths[row]]
        texts *= np.tri(width, dtype=np.uint8).take(lengths - 1, axis=0)
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(texts), [None, pa.py_buffer(texts)])
        encoded = column.dictionary_encode()
        names = [text[1 : text[0] + 1] for text in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy().astype(np.int64), names

    def _binary(self, starts: Ints, lengths: Ints) -> pa.LargeBinaryArray:
        """The texts at these places, which are in ascending order, one after the other."""
        texts, numbers = texts_and_gaps(self._buffer, starts, lengths)
        return texts.take(pa.array(numbers))

    def rows(self, starts: Ints) -> FileRows:
        """The rows of the sound records among the records that begin at ``starts``, with an empty ``rest``."""
        count = len(starts)
        columns = [np.empty(count, np.int64) for _ in range(6)]
        key_rows, hashes = [], []
        end = 0
        stop = 0
        while stop < count:
            at, first = stop, end
            near = starts[at : at + ROWS_AT_ONCE]
            stop = at + max(int(np.searchsorted(near, near[0] + ROWS_BYTES)), 1)
            *found, key_rows_here, hashes_here = self._columns(starts[at:stop])
            end += len(found[0])
            for column, values in zip(columns, found, strict=True):
                column[first:end] = values
            key_rows.append(key_rows_here + first)
            hashes.append(hashes_here)
        sizes, codes, offsets, counts, stored_ms = (column[:end] for column in columns[1:])
        queue_codes = pa.array(codes).dictionary_encode()
        names = list(self._numbers)
        return FileRows(
            columns[0][:end],
            sizes,
            queue_codes.indices.to_numpy(),
            offsets,
            counts,
            stored_ms,
            queues=[
                Queue(names[code >> 33].decode(), code >> 1 & 0xFFFFFFFF, bool(code & 1))
                for code in queue_codes.dictionary.to_pylist()
            ],
            rest=(),
            key_rows=np.concatenate([np.empty(0, np.int64), *key_rows]),
            key_hashes=np.concatenate([np.empty(0, np.uint64), *hashes]),
        )

    def _columns(self, starts: Ints) -> "_Columns":
        places = self._places(starts)
        if not places.sound.all():
            places = _Places._make(column[places.sound] for column in places)
        starts = places.starts
        transaction = places.flags & TRANSACTION_MASK
        shadow = (transaction != TRANSACTION_NONE) & (transaction != TRANSACTION_COMMIT)
        queue_codes = (places.topic_numbers << 32 | places.queue_ids) << 1 | shadow
        counts = np.ones(len(starts), np.int64)
        is_batch = places.flags & WRAPPED == WRAPPED
        key_rows, hashes = self._keys(places, self._seeds[places.topic_numbers], ~is_batch)
        rows_of_batches, hashes_of_batches = [key_rows], [hashes]
        for row in np.flatnonzero(is_batch).tolist():
            counts[row] = self._count(int(places.properties[row]), int(places.ends[row]))
            inner = self._inner_hashes(int(starts[row]), int(places.sizes[row]))
            rows_of_batches.append(np.full(len(inner), row, np.int64))
            hashes_of_batches.append(np.array(inner, np.uint64))
        return _Columns(
            starts,
            places.sizes,
            queue_codes,
            places.offsets,
            counts,
            places.stored_ms,
            np.concatenate(rows_of_batches),
            np.concatenate(hashes_of_batches),
        )

    def _count(self, properties: int, end: int) -> int:
        try:
            return said_count(self._view[properties:end])
        except ProtocolError:
            return 1

    # --- keys

    def _inner_hashes(self, start: int, size: int) -> list[int]:
        """The hashes of the keys of an inner batch, and of its messages."""
        record = decode_record(self._view[start : start + size], check_crc=False)
        return [key_hash(record.topic, key) for key in record_keys(record)]

    def _keys(
        self, places: "_Places", seeds: NDArray[np.uint64], wanted: NDArray[np.bool_]
    ) -> tuple[Ints, NDArray[np.uint64]]:
        """(rows, hashes) of all keys of the rows that are ``wanted``."""
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return rows, np.empty(0, np.uint64)
        # Each text is taken with the byte before it, which is then overwritten by a mark: so a mark is before each name
        # and after each value.
        begins = places.properties[rows] - 1
        texts = self._binary(begins, places.ends[rows] - begins)
        bounds = np.frombuffer(texts.buffers()[1], np.int64, len(rows) + 1)
        data = np.concatenate([np.frombuffer(texts.buffers()[2], np.uint8, int(bounds[-1])), _PADDING])
        data[bounds] = _MARK
        marks = np.flatnonzero(data == _MARK)
        words = overlapping(data, "<u8")[marks[:-1] + 1]
        odd = np.zeros(len(rows), np.bool_)
        found_rows, found = [], []
        for name in (UNIQ_KEY, KEYS):
            numbers, at, stops = _named(data, bounds, marks, words, name)
            odd[_repeated(numbers)] = True
            if name == KEYS:
                odd[numbers[_have_blanks(data, at, stops)]] = True
            found_rows.append((numbers, at, stops))
        result_rows: list[Ints] = []
        for numbers, at, stops in found_rows:
            usual = (stops > at) & ~odd[numbers]
            numbers, at, lengths = numbers[usual], at[usual], (stops - at)[usual]
            found.append(key_hashes(data, at, lengths, seeds[rows[numbers]]))
            result_rows.append(rows[numbers])
        for number in np.flatnonzero(odd).tolist():
            keys = list(dict.fromkeys(index_keys(data[bounds[number] + 1 : bounds[number + 1]].tobytes())))
            row = int(rows[number])
            topic = self._topic(places, row)
            result_rows.append(np.full(len(keys), row, np.int64))
            found.append(np.array([key_hash(topic, key) for key in keys], np.uint64))
        return np.concatenate(result_rows), np.concatenate(found)

    def _topic(self, places: "_Places", row: int) -> str:
        at = int(places.topics[row])
        return self._view[at : at + int(places.topic_bytes[row])].decode()


def _or_else(chosen: NDArray[np.bool_], values: Ints, others: Ints | int) -> Ints:
    """Of each row the one of ``values`` if it is ``chosen``, else the one of ``others``."""
    return values if chosen.all() else np.where(chosen, values, others)


class _Columns(NamedTuple):
    """A part of `FileRows`. ``queue_codes``: number of the topic, queue id, 1 bit: whether the queue is a shadow."""

    starts: Ints
    sizes: Ints
    queue_codes: Ints
    offsets: Ints
    counts: Ints
    stored_ms: Ints
    key_rows: Ints
    key_hashes: NDArray[np.uint64]


class _Places(NamedTuple):
    """Fields of records, and where their parts are in the file."""

    sound: NDArray[np.bool_]
    starts: Ints
    sizes: Ints
    ends: Ints
    flags: Ints
    queue_ids: Ints
    offsets: Ints
    stored_ms: Ints
    topics: Ints
    topic_bytes: Ints
    topic_numbers: Ints
    properties: Ints


_PADDING = np.zeros(2 * WORD_BYTES, np.uint8)
_MARK = 2  # what ends a value
# The blanks of ASCII are the space, and all from the tab to the return.
_SPACE, _TAB, _RETURN = np.frombuffer(b" \t\r", np.uint8)


def _named(
    data: NDArray[np.uint8], bounds: Ints, marks: Ints, words: NDArray[np.uint64], name: str
) -> tuple[Ints, Ints, Ints]:
    """(rows, where the value begins, where it ends) of the properties of this name, which has up to 8 bytes.

    ``words``: what is after each of ``marks`` but the last.
    """
    size = len(name)
    is_named = words & np.uint64((1 << 8 * size) - 1) == np.uint64(int.from_bytes(name.encode(), "little"))
    found = np.flatnonzero(is_named)
    at = marks[found] + 1 + size
    has_value = data[at] == 1
    found, at = found[has_value], at[has_value]
    return _rows_at(bounds, at), at + 1, marks[found + 1]


def _rows_at(bounds: Ints, at: Ints) -> Ints:
    """The rows, which begin at ``bounds`` but the last, that have the places ``at``, in ascending order."""
    # Mostly each row has one place: a search takes ten times as long.
    if len(at) == len(bounds) - 1 and (at >= bounds[:-1]).all() and (at < bounds[1:]).all():
        return np.arange(len(at))
    return np.searchsorted(bounds, at, "right") - 1


def _repeated(rows: Ints) -> Ints:
    """The rows that are there twice; ``rows`` are in ascending order."""
    repeated: Ints = rows[1:][rows[1:] == rows[:-1]]
    return repeated


def _have_blanks(data: NDArray[np.uint8], at: Ints, stops: Ints) -> NDArray[np.bool_]:
    """Which of the values have blanks, and so several words, or an empty one."""
    if not len(at):
        return np.zeros(0, np.bool_)
    # The numbers wrap: a byte before the tab becomes a large number.
    is_blank = data - _TAB <= _RETURN - _TAB
    is_blank |= data == _SPACE
    blanks = np.flatnonzero(is_blank)
    if not len(blanks):
        return np.zeros(len(at), np.bool_)
    found: NDArray[np.bool_] = np.searchsorted(blanks, at) < np.searchsorted(blanks, stops)
    return found
