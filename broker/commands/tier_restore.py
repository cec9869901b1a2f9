"""Makes a store of a set's bucket: the work of ``mqadmin tierRestore``.

Neighbours: store/backup/from_bucket.py (the files), restore.py (the same of a backup).
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from skylark.broker.commands.restore import lower_offsets
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.backup.from_bucket import BucketRestore, Progress
from skylark.broker.tier.guard import queue_ends
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifest import Manifest, Segment, decode_span
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.metadata import MetadataCopy
from skylark.mqcommon.tier.opening import sets_in
from skylark.mqcommon.tier.view import TierView

_CACHE_BYTES = 64 * 1024 * 1024
# What comes back unless more is asked for: the rest is read from the bucket.
USUAL_MS = 3_600_000


@lazy_dataclass(frozen=True, slots=True)
class TierRestored:
    """A store that was made of a bucket. Its log goes from ``log_start`` to ``log_end``.

    ``metadata_ms``: when topics, groups and offsets were copied to the bucket; 0: they were not, and are missing.
    ``queues``: how many have no message in this log and go on where the bucket's messages end. ``lowered``: offsets of
    groups that were past the end of their queues. ``shortened``: why the log begins no earlier, though that was asked
    for; "" if it does not matter. ``unclean``: why the first start takes longer; "" if it does not.
    """

    directory: str
    broker_name: str
    mode: str
    segment_bytes: int
    files: int
    log_start: int
    log_end: int
    metadata_ms: int
    queues: int
    lowered: int
    shortened: str
    unclean: str


def restore_set(
    fs: FileSystem,
    bucket: Bucket,
    broker_set: str,
    directory: str,
    again: str,
    *,
    since_ms: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, total: None,
) -> TierRestored:
    """Make a store in ``directory``, which is new or empty, of the set. Blocks.

    ``since_ms``: messages from then on come back to the disk (0: all, None: the last hour's); ``again``: the command
    that goes on when this one was interrupted. Raises UserError, StoreError, BucketError.
    """
    manifest = ManifestLog(bucket, broker_set).newest()
    if manifest is None:
        known = ", ".join(sets_in(bucket)) or "none"
        raise UserError(
            f"{bucket.url} has nothing of the set {broker_set!r} (it has: {known}); check --tierPath, --set"
        )
    view = TierView(bucket, broker_set, _CACHE_BYTES)
    view.use(manifest)
    copy = view.metadata() or _no_metadata(broker_set, manifest)
    say(_what(bucket, broker_set, manifest, copy))
    segments = _wanted(bucket, manifest, since_ms)
    work = BucketRestore(fs, bucket, manifest, copy, directory, again)
    work.prepare(segments)
    work.log(segments, progress)
    work.metadata()
    metadata = Metadata(fs, f"{directory}/config", SystemClock(), BrokerOptions())
    metadata.recover(must_exist=bool(copy.files))
    is_batch = metadata.topics.has_batch_queues
    store = work.recover(queue_ends(view), is_batch, say)
    try:
        empty = sum(queue.is_empty and queue.next_offset > 0 for queue in store.queues)
        metadata.journal.close()
        lowered = lower_offsets(fs, directory, store) if copy.files else 0
        start, end = store.log.start, store.log.end
    finally:
        unclean = store.close()
    work.finish()
    files = -(-max(end - start, 1) // manifest.segment_bytes)
    return TierRestored(
        directory,
        copy.broker_name or broker_set,
        copy.mode,
        manifest.segment_bytes,
        files,
        start,
        end,
        copy.made_ms,
        empty,
        lowered,
        work.shortened,
        unclean,
    )


def _no_metadata(broker_set: str, manifest: Manifest) -> MetadataCopy:
    usual = BrokerOptions()
    return MetadataCopy(
        broker_set,
        "",
        "plain",
        "",
        0,
        manifest.end,
        usual.queue_file_bytes,
        usual.batch_queue_file_bytes,
        usual.max_hash_slot_num,
        usual.max_index_num,
        {},
    )


def _wanted(bucket: Bucket, manifest: Manifest, since_ms: int | None) -> list[Segment]:
    """The newest segments, oldest first, that may have messages from ``since_ms`` on."""
    found: list[Segment] = []
    for segment in _newest_first(bucket, manifest):
        if since_ms is None:
            since_ms = max(segment.last_ms - USUAL_MS, 0)
        if segment.last_ms < since_ms:
            break
        found.append(segment)
    return found[::-1]


def _newest_first(bucket: Bucket, manifest: Manifest) -> Iterator[Segment]:
    yield from reversed(manifest.segments)
    for span in reversed(manifest.spans):
        yield from reversed(decode_span(bucket.get(span.stored.name)))


def _what(bucket: Bucket, broker_set: str, manifest: Manifest, copy: MetadataCopy) -> str:
    made = datetime.fromtimestamp(manifest.created_ms / 1000).isoformat(" ", "seconds")
    tail = manifest.tails[-1].end if manifest.tails else manifest.end
    text = (
        f"{bucket.url}: {broker_set}, manifest {manifest.number:,} of {made}: log from {manifest.start:,} to {tail:,}"
    )
    if copy.made_ms:
        text += f", topics and offsets of {datetime.fromtimestamp(copy.made_ms / 1000).isoformat(' ', 'seconds')}"
    return text
