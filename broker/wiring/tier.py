"""The parts of tiered storage, for a broker with tierPath."""

from collections.abc import Callable, Mapping, Sequence

from skylark.broker.admin.tier import TierRequests
from skylark.broker.meta.topics import RESERVE_TIME
from skylark.broker.metrics.tier import BucketReads, TierFigures
from skylark.broker.tier.child import ChildUploader
from skylark.broker.tier.guard import BucketGuard
from skylark.broker.tier.metadata_copies import MetadataCopies
from skylark.broker.tier.reads import OlderReads
from skylark.broker.tier.retention_classes import retention_class
from skylark.broker.tier.tier import Tier, TierSources
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.healing import Healing
from skylark.broker.wiring.replication import Replicated
from skylark.broker.wiring.tiered import CACHE_FILE, Tiered
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.opening import open_bucket
from skylark.mqcommon.tier.segment_index import MAX_SEGMENT_BYTES
from skylark.mqcommon.tier.view import TierView


def wire_tier(core: Core, replicated: Replicated, healing: Healing, limit: Callable[[], int]) -> Tiered:
    """Make the parts. ``limit``: up to where the log is safe on all members that are in sync.

    Sends no request to the bucket. UserError when tierPath cannot be read, or the files of the log are too large.
    """
    options, store, role, clock = core.options, core.store, core.role, core.clock
    if options.mapped_file_size_commit_log > MAX_SEGMENT_BYTES:
        raise UserError(
            f"tierPath: files of the log may have at most {MAX_SEGMENT_BYTES} bytes, and mappedFileSizeCommitLog="
            f"{options.mapped_file_size_commit_log}: a store keeps its files' size, so a new store is needed"
        )
    timeout_s = options.tier_timeout_ms / 1000
    try:
        bucket = open_bucket(options.tier_path, timeout_s=timeout_s)
    except UserError as error:
        raise UserError(f"tierPath: {error}") from None
    broker_set = set_name(options.broker_name)
    index_bytes = options.tier_cache_bytes // 4
    view = TierView(bucket, broker_set, index_bytes)
    disk_cache = None
    if options.tier_disk_cache_bytes:
        disk_cache = f"{options.store_path_root_dir}/{CACHE_FILE}", options.tier_disk_cache_bytes
    guard = BucketGuard(view, store, core.flusher, core.admission, role, elects_master=options.elects_master)
    topics = core.metadata.topics

    def classes() -> Mapping[str, int]:
        return {
            name: number
            for name, config in topics.all().items()
            if (number := retention_class(config.attributes.get(RESERVE_TIME, "")))
        }

    def suspect(blocks: Sequence[int]) -> None:
        healing.healer.suspect([store.log.sums.block_at(start) for start in blocks])

    def may_write() -> bool:
        return core.is_master and (core.elected is None or core.elected.is_leased)

    tier = Tier(
        bucket,
        broker_set,
        view,
        store,
        role,
        options,
        clock,
        ChildUploader(options.tier_path, timeout_s),
        TierSources(
            limit,
            may_write,
            replicated.term,
            classes,
            topics.deletions.finished,
            MetadataCopies(core.fs, options, store, core.metadata.journal, core.persister, clock),
            suspect,
            replicated.is_following,
        ),
    )
    reads = OlderReads(
        view,
        store,
        clock,
        why_refused=lambda: tier.disagreement,
        cache_bytes=options.tier_cache_bytes - index_bytes,
        disk_cache=disk_cache,
        hold_ms=lambda: options.damaged_hold_ms if options.damaged_policy == "skip" else None,
    )
    return Tiered(
        (guard, tier, reads),
        (TierRequests(tier),),
        lambda: tier.uploaded_to,
        tier.why_kept,
        TierFigures(tier.status, lambda: _reads_of(reads)),
    )


def _reads_of(reads: OlderReads) -> BucketReads:
    figures, cache = reads.figures, reads.cache.figures
    hits = cache.hits + cache.disk_hits
    return BucketReads(
        figures.messages,
        cache.downloaded_bytes,
        figures.failures,
        hits + cache.misses,
        hits,
        reads.cache.used_bytes,
        reads.damaged.skipped_messages,
    )
