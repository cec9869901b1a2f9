"""100 GB in a bucket in memory: messages are found by a view that keeps 16 MiB of indexes."""

from itertools import count
from typing import Any

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
PAGE = 16 << 10
ZEROS = bytes(PAGE)
QUEUES = 3
VIEW_BYTES = 16 << 20


class Sparse:
    """The bytes of an object, of which only the pages that are not all zeros take memory."""

    def __init__(self, data: bytes) -> None:
        self._size = len(data)
        self._pages: dict[int, bytes] = {}
        for at in range(0, len(data), PAGE):
            if (page := data[at : at + PAGE]) != ZEROS:
                self._pages[at] = page

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice) -> bytes:
        start, end, _ = wanted.indices(self._size)
        first = start - start % PAGE
        pages = b"".join(self._pages.get(at, ZEROS) for at in range(first, end, PAGE))
        return pages[start - first : end - first]


class SparseBucket(MemoryBucket):
    """Keeps of an object what is not zeros."""

    def kept(self, data: bytes) -> Any:
        return Sparse(data)


@pytest.mark.nightly
def test_messages_of_100_gigabytes_are_found() -> None:
    bucket, sent = SparseBucket(), dict.fromkeys(range(QUEUES), 0)
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
