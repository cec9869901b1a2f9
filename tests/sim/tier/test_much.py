"""100 GB in a bucket in memory: messages are found by a view that keeps 16 MiB of indexes."""

import zlib
from collections.abc import Iterable
from itertools import count

import pytest

from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.records import records_between
from skylark.mqcommon.tier.view import TierView
from tests.support.amounts import amount
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import SET, Sent, record_of

FILE_BYTES = 1 << 30
# So large that a file has few messages.
BODY = bytes(4_000_000)
QUEUES = 3
VIEW_BYTES = 16 << 20


class SqueezingBucket(MemoryBucket):
    """Keeps objects compressed, which makes bodies of zeros small."""

    def __init__(self) -> None:
        super().__init__()
        self._last = "", b""

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        data = b"".join(pieces)
        super().put(name, [zlib.compress(data, 1)])
        return len(data)

    def get(self, name: str) -> bytes:
        if "/manifest/" in name:
            return super().get(name)
        if self._last[0] != name:
            self._last = name, zlib.decompress(super().get(name))
        return self._last[1]


@pytest.mark.nightly
def test_messages_of_100_gigabytes_are_found() -> None:
    bucket, sent = SqueezingBucket(), dict.fromkeys(range(QUEUES), 0)
    log = ManifestLog(bucket, SET)
    manifest = log.claim(1, b"o" * 16, 1_000, FILE_BYTES)
    numbers = count()
    for number in range(amount(2, 100)):
        start, data = number * FILE_BYTES, bytearray()
        while True:
            queue_id = next(numbers) % QUEUES
            record = record_of(Sent("t", queue_id, sent[queue_id], BODY, 1_000 + number), start + len(data))
            if len(data) + len(record) + BLANK_BYTES > FILE_BYTES:
                break
            sent[queue_id] += 1
            data += record
        left = FILE_BYTES - len(data)
        data += SIZE_MAGIC.pack(left, BLANK_MAGIC) + bytes(left - BLANK_BYTES)
        before = manifest.segments[-1].index if manifest.segments else None
        task = UploadTask(SET, start, FILE_BYTES, 1, f"{number:08x}", {}, before, {}, FILE_BYTES, [-1])
        segment = upload(bucket, bytes(data), task)
        manifest = manifest.successor(2_000 + number).with_segment(segment)
        log.append(manifest)
    view = TierView(bucket, SET, VIEW_BYTES)
    view.refresh()
    for queue_id, end in sent.items():
        assert view.bounds("t", queue_id) == (0, end)
        for offset in range(0, end, 97):
            located = view.locate("t", queue_id, offset)
            assert located is not None
            data_there = view.read(located, view.stretches(located, offset, offset + 1))
            assert [each.queue_offset for each, _ in records_between(data_there, offset, offset + 1)] == [offset]
