"""The keys of the messages in a stretch of the log, hashed: what the index is made of.

A producer's messages mostly have one layout: all of one size, the unique key in one place. A run of such records is
taken apart at once, column by column; all others are read one by one. Both give the same.
Neighbours: index.py (owns this), mqcommon/message/javahash.py.
"""

import mmap
import struct
from collections.abc import Sequence
from typing import NamedTuple

from mqcommon.errors import ProtocolError
from mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from mqcommon.message.javahash import TAIL, KeyHasher, head_hash
from mqcommon.message.properties import find_property
from mqcommon.message.record import MAGIC_V1, MAGIC_V2, MIN_RECORD, decode_record

# size, magic, sysFlag, storeTimestamp, bodyLength of a record with IPv4 hosts.
_HEAD = struct.Struct(">II28xi16xq20xi")
_BODY_AT = _HEAD.size
_V6 = BORN_HOST_V6 | STORE_HOST_V6
_UNIQ_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"
# Fewer records of one layout are read one by one, and so many after a try that found no more.
_MIN_RUN = 8
_MAX_RUN = 256
_FIRST_RUN = 32
_MAX_LAYOUTS = 256
_MAX_STARTS = 4096
# Longer ones are rare, and would make what is remembered large.
_MAX_START = 512


class Entries(NamedTuple):
    """Columns of equal length: the hash of a key, its message's physical offset and store time."""

    hashes: list[int]
    physicals: list[int]
    times_ms: list[int]


class _Layout(NamedTuple):
    """Of a record with a body of some length: ``rest`` follows the unique key."""

    record: struct.Struct
    rest: bytes


class LogKeys:
    """Reads keys, and remembers what records had in common."""

    def __init__(self, hasher: KeyHasher) -> None:
        self._hasher = hasher
        self._layouts: dict[tuple[int, int], _Layout] = {}
        # How many records to look at for the next run.
        self._reach = _FIRST_RUN
        self._starts = _Starts()

    def read(self, view: mmap.mmap, at: int, end: int, base: int, limit: int) -> tuple[Entries, int, int]:
        """(entries of up to ``limit`` records from ``at`` on, where the next record is, how many records).

        ``base`` is the physical offset of the view's first byte. Ends early where no record is.
        """
        entries = Entries([], [], [])
        done = next_try = 0
        while done < limit and at + MIN_RECORD <= end:
            size, magic, sys_flag, store_ms, body_bytes = _HEAD.unpack_from(view, at)
            if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD:
                break
            tail_at = _BODY_AT + body_bytes
            if magic == MAGIC_V2 or sys_flag & _V6 or not _BODY_AT <= tail_at < size:
                hashes, store_ms = self._unusual(view[at : at + size])
            elif sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                hashes = []
            else:
                most = min(limit - done, (end - at) // size, self._reach)
                if most >= _MIN_RUN and done >= next_try:
                    run = self._run(view[at : at + most * size], size, body_bytes, base + at, entries)
                    self._reach = min(2 * self._reach, _MAX_RUN) if run == most else _FIRST_RUN
                    if run:
                        at += run * size
                        done += run
                        continue
                    next_try = done + _MIN_RUN
                hashes = self._usual(view[at + tail_at : at + size])
            for key_hash in hashes:
                entries.hashes.append(key_hash)
                entries.physicals.append(base + at)
                entries.times_ms.append(store_ms)
            at += size
            done += 1
        return entries, at, done

    def _usual(self, tail: bytes) -> list[int]:
        """Hashes of the keys in what follows the body of a record with a topic of up to 127 bytes."""
        first = tail[0] + 3
        prefix = tail[1 : first - 2] + b"#"
        key_at = _unique_key_at(tail)
        key_end = tail.find(b"\x02", key_at)
        if 0 < key_at < key_end and tail.find(_KEYS) < 0:
            # The plain case: a unique key and no others.
            return [self._hasher.index_hash(prefix + tail[key_at:key_end])]
        return [self._hasher.index_hash(prefix + key) for key in index_keys(tail[first:])]

    def _unusual(self, raw: bytes) -> tuple[list[int], int]:
        """Hashes of the keys of any record, and its store time."""
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            # What cannot be read can't be found by key either.
            return [], 0
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return [], 0
        prefix = record.topic.encode() + b"#"
        hashes = [self._hasher.index_hash(prefix + key) for key in index_keys(record.properties)]
        return hashes, record.store_timestamp

    # --- runs of one layout

    def _run(self, data: bytes, size: int, body_bytes: int, physical: int, entries: Entries) -> int:
        """Add the entries of the records at the start of ``data`` that have the first one's layout; how many."""
        layout = self._layouts.get((size, body_bytes))
        if layout is None or not data.startswith(layout.rest, size - len(layout.rest)):
            layout = self._learn_layout(data[:size], body_bytes)
            if layout is None:
                return 0
        columns = zip(*layout.record.iter_unpack(data), strict=True)
        sizes, flags, times_ms, body_lengths, heads, high, low, rests = columns
        count = len(sizes)
        for column in (sizes, flags, body_lengths, rests):
            if column.count(column[0]) < count:
                count = min(count, next(number for number, value in enumerate(column) if value != column[0]))
        if count < _MIN_RUN:
            return 0
        try:
            hashes = self._hashes(heads[:count], high[:count], low[:count])
        except KeyError:
            return 0
        entries.hashes.extend(hashes)
        entries.physicals.extend(range(physical, physical + count * size, size))
        entries.times_ms.extend(times_ms[:count])
        return count

    def _hashes(self, heads: Sequence[bytes], high: Sequence[bytes], low: Sequence[bytes]) -> list[int]:
        """The hashes of the keys whose starts ``heads`` end in, with their last two pairs; KeyError if not plain."""
        starts, pairs, last_pairs = self._starts, self._hasher.high, self._hasher.low
        return [
            h if (h := starts[a] + pairs[b] + last_pairs[c] & 0xFFFFFFFF) < 0x80000000 else 0x100000000 - h & 0x7FFFFFFF
            for a, b, c in zip(heads, high, low, strict=True)
        ]

    def _learn_layout(self, raw: bytes, body_bytes: int) -> _Layout | None:
        tail = raw[_BODY_AT + body_bytes :]
        key_at = _unique_key_at(tail)
        key_end = tail.find(b"\x02", key_at)
        if key_at < 0 or key_end < key_at + TAIL or tail.find(_KEYS) >= 0 or tail.count(_UNIQ_KEY) > 1:
            return None
        rest = tail[key_end:]
        head_bytes = key_end - TAIL
        record = struct.Struct(f">8s28x4s16xq20x4s{body_bytes}x{head_bytes}s2s2s{len(rest)}s")
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        layout = self._layouts[len(raw), body_bytes] = _Layout(record, rest)
        return layout


class _Starts(dict[bytes, int]):
    """From the topic to the key without its tail -> what that part of "topic#key" adds; KeyError if not plain."""

    def __missing__(self, head: bytes) -> int:
        key_at = _unique_key_at(head)
        if key_at < 0 or head.find(b"\x02", key_at) >= 0 or head.find(_KEYS) >= 0:
            raise KeyError(head)
        found = head_hash(head[1 : head[0] + 1] + b"#" + head[key_at:])
        if len(head) <= _MAX_START:
            if len(self) >= _MAX_STARTS:
                self.clear()
            self[head] = found
        return found


def _unique_key_at(tail: bytes) -> int:
    """Where the unique key is in a record's end (topic, properties); -1 when there is none.

    Messages that a Java client of 5.x sent in a batch have two: the last one, the batch's, counts.
    """
    first = tail[0] + 3
    at = tail.rfind(_UNIQ_KEY, first)
    return at + len(_UNIQ_KEY) if at == first or (at > first and tail[at - 1] == 2) else -1


def index_keys(properties: bytes) -> list[bytes]:
    """The unique key and the words of KEYS, out of an encoded properties string."""
    keys: list[bytes] = []
    for name, many in ((b"UNIQ_KEY", False), (b"KEYS", True)):
        value = find_property(properties, name)
        if value:
            keys += value.split() if many else [value]
    return keys
