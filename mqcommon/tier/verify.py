"""Checks that a bucket has all objects of a set, in their sizes; a full check also compares their CRCs.

Neighbours: manifests.py (what must be there), restore.py (makes files of it).
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import field
from itertools import pairwise

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.manifest import Manifest, Segment, StoredObject, decode_span
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.restore import PIECE_BYTES

THREADS = 16
# Objects that are asked for at a time, most of which wait for a thread: a set has millions of objects.
_WAITING = 256

#: Called with the objects checked, and with their bytes.
Progress = Callable[[int, int], None]


@lazy_dataclass(slots=True)
class Verified:
    """What a check of one set has found.

    ``manifest``: the number of the manifest that was checked, -1 if the bucket has nothing of the set. ``start`` to
    ``end``: the part of the log in the segments; ``tail_to``: with the copies of the open file. ``stored_bytes``: of
    all ``objects``; ``checked_bytes``: of those that were read whole. ``missing`` and ``damaged``: names of objects,
    with the reason. ``gaps``: places where bytes of the log are in no segment.
    """

    broker_set: str
    manifest: int = -1
    epoch: int = -1
    start: int = 0
    end: int = 0
    tail_to: int = 0
    segments: int = 0
    objects: int = 0
    stored_bytes: int = 0
    checked_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether everything is there that should be."""
        return not (self.missing or self.damaged or self.gaps)


def verify_set(
    bucket: Bucket,
    broker_set: str,
    manifests: ManifestLog,
    *,
    full: bool = False,
    progress: Progress = lambda objects, bytes_: None,
) -> Verified:
    """Ask for the size of each object that the newest manifest names; ``full``: read all bytes, and compare the CRCs.

    Blocks; a full check takes hours. Raises BucketAway or BucketRefused when the bucket cannot be used: then there is
    no verdict.
    """
    found = Verified(broker_set)
    manifest = manifests.newest()
    if manifest is None:
        return found
    found.manifest, found.epoch = manifest.number, manifest.epoch
    found.start, found.end = manifest.start, manifest.end
    found.tail_to = manifest.tails[-1].end if manifest.tails else manifest.end
    with ThreadPoolExecutor(THREADS, "bucket") as pool:
        asked: dict[Future[None], StoredObject] = {}

        def settle(*, all_: bool) -> None:
            done, _ = wait(asked, return_when="ALL_COMPLETED" if all_ else FIRST_COMPLETED)
            for each in done:
                stored = asked.pop(each)
                try:
                    each.result()
                except NoSuchObject:
                    found.missing.append(stored.name)
                except DamagedObject as damage:
                    found.damaged.append(str(damage))
                else:
                    found.checked_bytes += stored.size if full else 0
                found.objects += 1
                found.stored_bytes += stored.size
            progress(found.objects, found.checked_bytes if full else found.stored_bytes)

        check = _read if full else _look
        try:
            for stored in _objects(bucket, manifest, found):
                asked[pool.submit(check, bucket, stored)] = stored
                if len(asked) >= _WAITING:
                    settle(all_=False)
            settle(all_=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if found.missing and (newer := manifests.newest()) is not None and newer.number != manifest.number:
        # The owner went on meanwhile, and has removed what a later manifest does not need.
        named = {stored.name for stored in _objects(bucket, newer, Verified(broker_set))}
        found.missing = [name for name in found.missing if name in named]
    return found


def _objects(bucket: Bucket, manifest: Manifest, found: Verified) -> Iterator[StoredObject]:
    """All objects of the manifest; notes gaps on the way."""
    if manifest.metadata is not None:
        yield manifest.metadata
    at = manifest.start
    for span in manifest.spans:
        _join(found, at, span.start, span.stored.name)
        yield span.stored
        try:
            segments: Iterable[Segment] = decode_span(bucket.get(span.stored.name))
        except (NoSuchObject, DamagedObject):
            found.segments += span.segments  # the check of the span itself names the reason
        else:
            yield from _of_segments(segments, found, span.start)
        at = span.end
    yield from _of_segments(manifest.segments, found, at)
    for tail in manifest.tails:
        yield tail.stored
    for one, other in pairwise(manifest.tails):
        _join(found, one.end, other.start, other.stored.name)
    if manifest.tails and (manifest.segments or manifest.spans):
        _join(found, manifest.end, manifest.tails[0].start, manifest.tails[0].stored.name)


def _of_segments(segments: Iterable[Segment], found: Verified, at: int) -> Iterator[StoredObject]:
    for segment in segments:
        _join(found, at, segment.start, segment.folder)
        at = segment.end
        found.segments += 1
        yield segment.index
        yield segment.keys
        for _, stored in segment.classes:
            yield stored


def _join(found: Verified, end: int, start: int, name: str) -> None:
    if start != end:
        found.gaps.append(f"{name} begins at {start:,} of the log, and what is before it ends at {end:,}")


def _look(bucket: Bucket, stored: StoredObject) -> None:
    size = bucket.head(stored.name).size
    if size != stored.size:
        raise DamagedObject(f"{stored.name} has {size:,} bytes instead of {stored.size:,}")


def _read(bucket: Bucket, stored: StoredObject) -> None:
    _look(bucket, stored)
    crc = 0
    for at in range(0, stored.size, PIECE_BYTES):
        crc = large_crc32(bucket.get_range(stored.name, at, min(PIECE_BYTES, stored.size - at)), crc)
    if crc != stored.crc:
        raise DamagedObject(f"{stored.name}: its bytes are not those that were written (CRC)")
