"""What an upload proves: the sums of the log's blocks, of its file, and of the objects that it writes."""

import mmap
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.tier import upload as upload_module
from skylark.broker.tier.repair import repair
from skylark.broker.tier.tasks import ChangedFile, DamagedFile, UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.tier.gather import Gathered
from tests.support.amounts import amount
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import SET, Sent, record_of

START = 3 * 4096
CLASSES = {"kept": 24}


def file_of(sizes: Sequence[int], filler: int) -> bytes:
    """A file of the log with messages of these sizes of two topics, and ``filler`` bytes."""
    out, ends = b"", {"kept": 0, "t": 0}
    for size in sizes:
        topic = "kept" if size % 3 else "t"
        out += record_of(Sent(topic, 0, ends[topic], bytes([size % 256]) * size, 1), START + len(out))
        ends[topic] += 1
    return out + (SIZE_MAGIC.pack(filler, BLANK_MAGIC).ljust(filler, b"\0") if filler else b"")


def task_of(view: bytes | mmap.mmap, block_bytes: int, crcs: Sequence[int]) -> UploadTask:
    return UploadTask(SET, START, len(view), 1, "u", CLASSES, None, {}, block_bytes, crcs)


@settings(max_examples=amount(25, 2_000), deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=20),
    st.sampled_from([BLANK_BYTES, 200]),
    st.sampled_from([100, 256, 1_000, 1 << 20]),
    st.data(),
)
def test_sums_are_those_of_the_bytes_of_file_and_objects(
    sizes: list[int], filler: int, block_bytes: int, data: st.DataObject
) -> None:
    view, bucket = file_of(sizes, filler), MemoryBucket()
    blocks = range(0, len(view), block_bytes)
    kinds = data.draw(st.lists(st.sampled_from("=-"), min_size=len(blocks), max_size=len(blocks)))
    crcs = [crc32(view[at : at + block_bytes]) if kind == "=" else -1 for at, kind in zip(blocks, kinds, strict=True)]
    segment = upload(bucket, view, task_of(view, block_bytes, crcs))
    assert (segment.crc, segment.records) == (crc32(view), len(sizes))
    for stored in (*(stored for _, stored in segment.classes), segment.index, segment.keys):
        written = bucket.get(stored.name)
        assert (stored.size, stored.crc) == (len(written), crc32(written))

    wrong = data.draw(st.sets(st.integers(0, len(blocks) - 1), min_size=1))
    crcs = [crc ^ 1 if number in wrong and crc >= 0 else crc for number, crc in enumerate(crcs)]
    if damaged := [START + blocks[number] for number in sorted(wrong) if crcs[number] >= 0]:
        with pytest.raises(DamagedFile) as raised:
            upload(bucket, view, task_of(view, block_bytes, crcs))
        assert raised.value.blocks == damaged


def spoiled_by_gather(data: bytes, monkeypatch: pytest.MonkeyPatch) -> mmap.mmap:
    """The file ``data``, of which a byte changes as soon as its sums were compared."""
    view = mmap.mmap(-1, len(data))
    view[:] = data
    real = upload_module.gather

    def gather(*given: object, **options: object) -> Gathered:
        view[100] ^= 1  # a byte of the first body
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(upload_module, "gather", gather)
    return view


def test_bytes_that_change_after_they_were_compared_are_not_left_in_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, bucket = file_of([50, 50], 200), MemoryBucket()
    view = spoiled_by_gather(data, monkeypatch)
    with pytest.raises(ChangedFile, match="have changed after they were compared"):
        upload(bucket, view, task_of(view, len(data), [crc32(data)]))
    assert not bucket.objects


def test_a_repair_from_a_file_that_changes_while_it_is_sent_leaves_the_bucket_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, bucket = file_of([50, 50], 200), MemoryBucket()
    task = task_of(data, len(data), [crc32(data)])
    segment = upload(bucket, data, task)
    del bucket.objects[segment.index.name]
    before = dict(bucket.objects)
    again = replace(task, unique="again")
    view = spoiled_by_gather(data, monkeypatch)
    with pytest.raises(ChangedFile):
        repair(bucket, segment, view, again)
    assert bucket.objects == before
    monkeypatch.undo()
    view[:] = data
    made = repair(bucket, segment, view, again)
    assert made is not None and made.crc == segment.crc and bucket.get(made.index.name)
