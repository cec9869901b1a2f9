"""Reads and hashes the keys of the messages in a range of the log, for the index.

Runs of records with the unique key at the same position are decoded together (mqcommon/message/columns.py), all others
one by one. Both ways give the same result. An inner batch has the keys of its messages, too.
Neighbours: index.py (owns this), mqcommon/message/javahash.py.
"""

import mmap
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from skylark.broker.store.queue.entry import uniform_rows
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import BODY_AT, BODY_LENGTH_AT, OVERHEAD
from skylark.mqcommon.message.columns import MIN_RUN, Fixed, RunReader, Shape
from skylark.mqcommon.message.flags import (
    COMPRESSED,
    HOSTS_V6,
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    WRAPPED,
)
from skylark.mqcommon.message.javahash import TAIL, KeyHasher, head_hash, java_hash, powers_of_31
from skylark.mqcommon.message.layout import HEAD_V4, MAGIC_V1, MAGIC_V2, MIN_RECORD, TAIL_BYTES_V1, TOPIC_LENGTH_V1
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.message.record_keys import index_keys, record_keys

_HEAD = HEAD_V4.reader("size", "magic", "sys_flag", "store_timestamp", "body_length")
_BODY_AT = HEAD_V4.size
# Where the topic is, counted from the end of the body.
_TOPIC_AT = TOPIC_LENGTH_V1.size
_RUN_HEAD = HEAD_V4.format("store_timestamp")
_UNIQ_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"
_MAX_REACH = 256
_MAX_STARTS = 4096
# There are up to 256 shapes.
_MAX_STARTS_OF_SHAPE = 256
# Longer starts are not cached: they are rare, and would make the cache large.
_MAX_START = 512
# What `_of_inner` looks at: only uncompressed batches with IPv4 hosts that are in no transaction have just `WRAPPED`.
_FLAGS_OF_INNER = WRAPPED | COMPRESSED | HOSTS_V6 | TRANSACTION_MASK
# A record counts once more for each multiple of this many keys.
MANY_KEYS = 8


class Entries(NamedTuple):
    """Columns of equal length: the hash of a key, its message's physical offset and store time."""

    hashes: list[int]
    physicals: list[int]
    times_ms: list[int]


class LogKeys:
    """Reads keys. Caches the hashes of parts that records have in common."""

    def __init__(self, hasher: KeyHasher) -> None:
        self._hasher = hasher
        self._runs = RunReader[_TwoKeys | None](_learn_shape, _MAX_REACH)
        self._starts = _Starts()
        #: numpy, when it is loaded.
        self.np: Any = None

    def read(self, view: mmap.mmap, at: int, end: int, base: int, limit: int) -> tuple[Entries, int, int]:
        """(entries of up to ``limit`` records from ``at`` on, where the next record is, how many records).

        A record with many keys counts as several.
        ``base`` is the physical offset of the view's first byte. Ends early where there is no record.
        """
        entries = Entries([], [], [])
        done = next_try = 0
        while done < limit and at + MIN_RECORD <= end:
            size, magic, sys_flag, store_ms, body_bytes = _HEAD.unpack_from(view, at)
            if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= end - at:
                break
            if magic == MAGIC_V2 or sys_flag & (HOSTS_V6 | INNER_BATCH) or not 0 <= body_bytes <= size - MIN_RECORD:
                hashes, store_ms = self._of_inner(view, at, size, body_bytes) or self._unusual(view[at : at + size])
            elif sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                hashes = []
            else:
                most = min(limit - done, (end - at) // size, self._runs.reach)
                if most >= MIN_RUN and done >= next_try:
                    run = self._run(view[at : at + most * size], size, body_bytes, base + at, entries)
                    if run:
                        at += run * size
                        done += run
                        continue
                    next_try = done + MIN_RUN
                hashes = self._usual(view[at + _BODY_AT + body_bytes : at + size])
            entries.hashes.extend(hashes)
            entries.physicals.extend([base + at] * len(hashes))
            entries.times_ms.extend([store_ms] * len(hashes))
            at += size
            # One message may have hundreds of keys, as a trace has.
            done += 1 + len(hashes) // MANY_KEYS
        return entries, at, done

    def _usual(self, tail: bytes) -> list[int]:
        """Hashes of the keys in the part after the body, of a record with a topic of up to 127 bytes."""
        first = tail[0] + TAIL_BYTES_V1
        prefix = tail[_TOPIC_AT : tail[0] + _TOPIC_AT] + b"#"
        key_at = _unique_key_at(tail)
        key_end = tail.find(b"\x02", key_at)
        if 0 < key_at < key_end and tail.find(_KEYS) < 0:
            # The common case: a unique key and no other keys.
            return [self._hasher.index_hash(prefix + tail[key_at:key_end])]
        return [self._hasher.index_hash(prefix + key) for key in index_keys(tail[first:])]

    def _unusual(self, raw: bytes) -> tuple[list[int], int]:
        """Hashes of the keys of any record, and its store time.

        The largest batch, of 32,767 messages with two keys each, takes 0.25 s; one of 1,000 messages 8 ms, or 0.5 ms if
        they are of one size and have nothing but their unique keys.
        """
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            # A record that cannot be decoded cannot be found by key.
            return [], 0
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return [], 0
        prefix = record.topic.encode() + b"#"
        if record.sys_flag & (WRAPPED | COMPRESSED) == WRAPPED:
            with suppress(KeyError):
                hashes = self._of_uniform(prefix, record.body, 0, len(record.body), record.properties)
                return hashes, record.store_timestamp
        hashes = [self._hasher.index_hash(prefix + key) for key in record_keys(record)]
        return hashes, record.store_timestamp

    def _of_inner(self, view: mmap.mmap, at: int, size: int, body_bytes: int) -> tuple[list[int], int] | None:
        """As `_unusual`, of the most usual inner batches, whose bodies are read where they are; None for any other."""
        _, magic, sys_flag, store_ms, _ = _HEAD.unpack_from(view, at)
        if magic != MAGIC_V1 or sys_flag & _FLAGS_OF_INNER != WRAPPED or not 0 <= body_bytes <= size - MIN_RECORD:
            return None
        start, end = at + _BODY_AT, at + _BODY_AT + body_bytes
        tail = view[end : at + size]
        prefix = tail[_TOPIC_AT : tail[0] + _TOPIC_AT] + b"#"
        # The error is caught here: a file cannot be closed while the frames of an error hold arrays on it.
        try:
            return self._of_uniform(prefix, view, start, end, tail[tail[0] + TAIL_BYTES_V1 :]), store_ms
        except KeyError:
            return None

    def _of_uniform(self, prefix: bytes, data: bytes | mmap.mmap, start: int, end: int, properties: bytes) -> list[int]:
        """The hashes of an inner batch whose messages are of one size, column by column. KeyError for any other.

        The batch is ``data`` from ``start`` to ``end``; ``properties``: the properties of its record.
        """
        count = uniform_rows(data, start, end)
        if not count:
            raise KeyError
        stride = (end - start) // count
        body_length = int.from_bytes(data[start + BODY_LENGTH_AT : start + BODY_AT], "big")
        key_at = OVERHEAD + body_length + len(_UNIQ_KEY)
        if stride - 1 - key_at < TAIL:
            raise KeyError
        # The batch's own key may equal the key of one of its messages; a second entry of a hash would find nothing new.
        own = [self._hasher.index_hash(prefix + key) for key in index_keys(properties)]
        if self.np is not None:
            rows = self.np.frombuffer(data, self.np.uint8, end - start, start).reshape(count, stride)
            return list(dict.fromkeys(own + _column_hashes(self.np, prefix, rows[:, key_at : stride - 1])))
        keys = struct.Struct(f"{key_at}x{stride - 1 - key_at - TAIL}s2s2sx")
        with memoryview(data) as view, view[start:end] as batch:
            heads, high, low = zip(*keys.iter_unpack(batch), strict=True)
        starts = {}
        for head in dict.fromkeys(heads):
            if b"\x02" in head:  # another property follows the key
                raise KeyError(head)
            starts[head] = head_hash(prefix + head)
        return list(dict.fromkeys(own + self._hashes(starts, heads, high, low)))

    # --- runs

    def _run(self, data: bytes, size: int, body_bytes: int, physical: int, entries: Entries) -> int:
        """Add the entries of the first records of ``data``, while they have one shape; returns how many records."""
        run = self._runs.read(data, size, body_bytes)
        if run is None:
            return 0
        times_ms, physicals = run.columns[0], list(range(physical, physical + run.records * size, size))
        try:
            if run.known is None:
                hashes = self._hashes(self._starts, *run.columns[1:4])
            else:
                hashes = self._both_hashes(run.known, run.columns)
                physicals = [place for place in physicals for _ in range(2)]
                times_ms = tuple([time_ms for time_ms in times_ms for _ in range(2)])
        except KeyError:
            self._runs.refuse()
            return 0
        entries.hashes.extend(hashes)
        entries.physicals.extend(physicals)
        entries.times_ms.extend(times_ms)
        return run.records

    def _both_hashes(self, two: "_TwoKeys", columns: Sequence[Sequence[bytes]]) -> list[int]:
        """For each message the hash of its unique key, then the hash of its other key, in the order of `index_keys`."""
        unique, other = [columns[at : at + 3] for at in (two.unique_at, two.other_at)]
        if any([b" " in b"".join(pairs) for pairs in other[1:]]):
            raise KeyError("KEYS has several words")
        of_unique, of_other = self._hashes(two.starts, *unique), self._hashes(two.starts, *other)
        return [each for pair in zip(of_unique, of_other, strict=True) for each in pair]

    def _hashes(
        self, starts: dict[bytes, int], heads: Sequence[bytes], high: Sequence[bytes], low: Sequence[bytes]
    ) -> list[int]:
        """The hash of each key, computed from the hash of its start and its last two pairs; KeyError if unusual."""
        pairs, last_pairs = self._hasher.high, self._hasher.low
        return [
            h if (h := starts[a] + pairs[b] + last_pairs[c] & 0xFFFFFFFF) < 0x80000000 else 0x100000000 - h & 0x7FFFFFFF
            for a, b, c in zip(heads, high, low, strict=True)
        ]


@lru_cache(16)
def _powers(np: Any, count: int) -> Any:
    """`powers_of_31` as an array; most keys of a topic are of one length."""
    return np.array(powers_of_31(count), np.uint32)


def _column_hashes(np: Any, prefix: bytes, keys: Any) -> list[int]:
    """As `KeyHasher.index_hash` of ``prefix`` and each row of ``keys``, bytes of ASCII; KeyError for others."""
    if bool((keys >= 0x80).any()) or bool((keys == 2).any()):
        raise KeyError("another property follows the key, or it is not plain")
    powers = _powers(np, keys.shape[1] + 1)
    head = np.uint32(java_hash(prefix.decode("utf-8", "replace")) & 0xFFFFFFFF) * powers[:1]
    # In 32 bits, as Java counts.
    hashes = keys.astype(np.uint32) @ powers[1:] + head
    absolute: list[int] = np.where(hashes < 0x80000000, hashes, -hashes & np.uint32(0x7FFFFFFF)).tolist()
    return absolute


class _TwoKeys(NamedTuple):
    """Of records that have a unique key and another one: what keys begin with, and the columns where the two are."""

    starts: "_KeyStarts"
    unique_at: int
    other_at: int


def _learn_shape(raw: bytes, body_bytes: int) -> "Shape[_TwoKeys | None] | None":
    tail = raw[_BODY_AT + body_bytes :]
    key_at = _unique_key_at(tail)
    key_end = tail.find(b"\x02", key_at)
    if key_at < 0 or key_end < key_at + TAIL or tail.count(_UNIQ_KEY) > 1:
        return None
    if tail.find(_KEYS) >= 0:
        return _learn_two_keys(tail, body_bytes, (key_at, key_end))
    rest = tail[key_end:]
    record = struct.Struct(f"{_RUN_HEAD}{body_bytes}x{key_end - TAIL}s2s2s{len(rest)}s")
    return Shape(record, (Fixed(4, len(raw) - len(rest), rest),), None)


def _learn_two_keys(tail: bytes, body_bytes: int, unique: tuple[int, int]) -> "Shape[_TwoKeys | None] | None":
    """The shape of records with one property KEYS. All but the two values is the same in all records of a run."""
    start = tail.find(_KEYS) + len(_KEYS)
    other = start, tail.find(b"\x02", start)
    is_whole = tail.startswith(b"\x02", start - len(_KEYS) - 1) or start == tail[0] + TAIL_BYTES_V1 + len(_KEYS)
    if not is_whole or tail.count(_KEYS) > 1 or other[1] < start + TAIL:
        return None
    (a, a_end), (b, b_end) = sorted([unique, other])
    tail_at = _BODY_AT + body_bytes
    record = struct.Struct(
        f"{_RUN_HEAD}{body_bytes}x{a}s{a_end - TAIL - a}s2s2s{b - a_end}s{b_end - TAIL - b}s2s2s{len(tail) - b_end}s"
    )
    # The columns: time, what is before the first value, its three parts, what is between the values, three, the rest.
    fixed = (
        Fixed(1, tail_at, tail[:a]),
        Fixed(5, tail_at + a_end, tail[a_end:b]),
        Fixed(9, tail_at + b_end, tail[b_end:]),
    )
    starts = _KeyStarts(tail[_TOPIC_AT : tail[0] + _TOPIC_AT] + b"#")
    return Shape(record, fixed, _TwoKeys(starts, *((2, 6) if unique < other else (6, 2))))


class _KeyStarts(dict[bytes, int]):
    """A key without its tail -> the hash of that part of "topic#key"; KeyError if the key is not one word."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __missing__(self, head: bytes) -> int:
        if b"\x02" in head or (head and head.split() != [head]):
            raise KeyError(head)
        found = head_hash(self._prefix + head)
        if len(head) <= _MAX_START:
            if len(self) >= _MAX_STARTS_OF_SHAPE:
                self.clear()
            self[head] = found
        return found


class _Starts(dict[bytes, int]):
    """From the topic to the key without its tail -> the hash of that part of "topic#key"; KeyError if unusual."""

    def __missing__(self, head: bytes) -> int:
        key_at = _unique_key_at(head)
        if key_at < 0 or head.find(b"\x02", key_at) >= 0 or head.find(_KEYS) >= 0:
            raise KeyError(head)
        found = head_hash(head[_TOPIC_AT : head[0] + _TOPIC_AT] + b"#" + head[key_at:])
        if len(head) <= _MAX_START:
            if len(self) >= _MAX_STARTS:
                self.clear()
            self[head] = found
        return found


def _unique_key_at(tail: bytes) -> int:
    """Where the unique key is in the part after the body; -1 if there is none.

    Messages that a Java client of 5.x sent in a batch have two: the last one, which is the batch's, counts.
    """
    first = tail[0] + TAIL_BYTES_V1
    at = tail.rfind(_UNIQ_KEY, first)
    return at + len(_UNIQ_KEY) if at == first or (at > first and tail[at - 1] == 2) else -1
