"""Segments of a set in a bucket, written without a broker, from messages that a test names."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.index_builder import IndexBuilder, QueueRecords, SortedRecords
from skylark.mqcommon.tier.key_hash import key_hash
from skylark.mqcommon.tier.layout import INDEX, KEYS, class_name, segment_folder
from skylark.mqcommon.tier.manifest import Manifest, Segment, StoredObject
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.segment_index import QueueTable, SegmentIndex

SET = "set-a"
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


class Sent(NamedTuple):
    """A message to store; ``keys`` are words of the property KEYS."""

    topic: str
    queue_id: int
    offset: int
    body: bytes
    store_ms: int
    unique_key: str = ""
    keys: str = ""


def record_of(sent: Sent, physical: int) -> bytes:
    """The stored bytes of a message at a place of the log."""
    properties = f"UNIQ_KEY\x01{sent.unique_key}\x02" if sent.unique_key else ""
    properties += f"KEYS\x01{sent.keys}\x02" if sent.keys else ""
    return encode_record(
        *topic_field(sent.topic),
        *(sent.queue_id, sent.offset, physical, sent.body, properties.encode(), 0, 0, sent.store_ms),
        *(HOST, sent.store_ms, HOST, 0, 0),
    )


class TierWriter:
    """Writes segments to ``bucket`` as an owner does, in memory. ``end``: where the next segment begins."""

    def __init__(
        self, bucket: Bucket, class_of: Callable[[str], int] = lambda topic: 0, *, set_name: str = SET, start: int = 0
    ) -> None:
        self.bucket = bucket
        self.set_name = set_name
        self.log = ManifestLog(bucket, set_name)
        self.manifest: Manifest = self.log.claim(1, b"o" * 16, 1_000, 1 << 20)
        self.end = start
        self._class_of = class_of
        self._before: QueueTable | None = None
        #: All records, by place in the log.
        self.records: dict[int, bytes] = {}

    def add(self, messages: Iterable[Sent], *, filler: int = 8) -> Segment:
        """Write a segment, and a manifest with it."""
        start = self.end
        raws: list[tuple[Sent, int, bytes]] = []
        for message in messages:
            raw = record_of(message, self.end)
            raws.append((message, self.end, raw))
            self.records[self.end] = raw
            self.end += len(raw)
        rest = [(self.end, b"f" * filler)] if filler else []
        self.end += filler
        segment = self._put(start, raws, rest)
        self.manifest = self.manifest.successor(self.manifest.created_ms + 1).with_segment(segment)
        self.log.append(self.manifest)
        return segment

    def change(self, manifest: Manifest) -> None:
        """Append the successor that a test has made of `manifest`."""
        self.log.append(manifest)
        self.manifest = manifest

    def _put(self, start: int, raws: list[tuple[Sent, int, bytes]], rest: list[tuple[int, bytes]]) -> Segment:
        raws = sorted(raws, key=lambda row: (self._class_of(row[0].topic), row[0].topic, row[0].queue_id, row[1]))
        records, queues, objects = self._columns(raws)
        tombstones = {each.topic: each.physical_offset for each in self.manifest.tombstones}
        builder = IndexBuilder(start, self.end, records, queues, before=self._before, tombstones=tombstones)
        for number, data in objects.items():
            for at in range(0, len(data), 1_000):
                builder.feed(number, data[at : at + 1_000])
        keys = [
            (key_hash(sent.topic, key.encode()), row)
            for row, (sent, _, _) in enumerate(raws)
            for key in [sent.unique_key, *sent.keys.split()]
            if key
        ]
        hashes = np.array([hash_ for hash_, _ in keys], np.uint64)
        rows = np.array([row for _, row in keys], np.int64)
        classes_of = np.array([self._class_of(raws[row][0].topic) for row in rows], np.int64)
        index, encoded_keys = builder.encode(rest, hashes, classes_of, records.positions[rows])
        self._before = SegmentIndex.decode(index).table
        folder = segment_folder(self.set_name, start, self.manifest.epoch, "r")
        times = [sent.store_ms for sent, _, _ in raws] or [0]
        whole = b"".join(raw for _, _, raw in sorted(raws, key=lambda row: row[1])) + b"".join(b for _, b in rest)
        classes = tuple((number, self.store(class_name(folder, number), data)) for number, data in objects.items())
        return Segment(
            start,
            self.end,
            crc32(whole),
            self.manifest.epoch,
            min(times),
            max(times),
            len(raws),
            folder,
            classes,
            self.store(f"{folder}/{INDEX}", index),
            self.store(f"{folder}/{KEYS}", encoded_keys),
        )

    def _columns(
        self, raws: Sequence[tuple[Sent, int, bytes]]
    ) -> tuple[SortedRecords, list[QueueRecords], dict[int, bytes]]:
        objects: dict[int, bytes] = {}
        positions: list[int] = []
        queues: list[QueueRecords] = []
        for row, (sent, _, raw) in enumerate(raws):
            number = self._class_of(sent.topic)
            positions.append(len(objects.setdefault(number, b"")))
            objects[number] += raw
            begin = row
            if queues and (queues[-1].topic, queues[-1].queue_id) == (sent.topic, sent.queue_id):
                begin = queues.pop().first
            queues.append(QueueRecords(sent.topic, sent.queue_id, number, begin, row + 1, sent.offset + 1))
        columns = (
            [physical for _, physical, _ in raws],
            [len(raw) for _, _, raw in raws],
            [sent.offset for sent, _, _ in raws],
            [sent.store_ms for sent, _, _ in raws],
            positions,
        )
        return SortedRecords(*[np.array(column, np.int64) for column in columns]), queues, objects

    def store(self, name: str, data: bytes) -> StoredObject:
        """Write an object."""
        return StoredObject(name, self.bucket.put(name, [data]), crc32(data))
