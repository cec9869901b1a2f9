"""What is in a broker's bucket: rows of brokerStatus, and metrics."""

from collections.abc import Callable

from skylark.broker.metrics import table
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.metrics.metric import Column, Metric, column, single
from skylark.remoting.protocol.requests.tier import OWNER, TierStatus


@lazy_dataclass(frozen=True, slots=True)
class BucketReads:
    """Reads of messages from the bucket since the start. ``hits`` of ``lookups`` found what they need in the cache."""

    messages: int = 0
    downloaded_bytes: int = 0
    failures: int = 0
    lookups: int = 0
    hits: int = 0
    cached_bytes: int = 0
    skipped_messages: int = 0


@lazy_dataclass(frozen=True, slots=True)
class TierFigures:
    """The figures of one broker's bucket."""

    status: Callable[[], TierStatus]
    reads: Callable[[], BucketReads]


def tier_rows(figures: TierFigures) -> dict[str, str]:
    """Rows for brokerStatus (28)."""
    status, reads = figures.status(), figures.reads()
    return {
        "tierRole": status.role,
        "tierPath": status.url,
        "tierSet": status.broker_set,
        "tierUploadedTo": str(status.uploaded_to),
        "tierBehindBytes": str(status.behind_bytes),
        "tierSegments": str(status.segments),
        "tierStoredBytes": str(status.stored_bytes),
        "tierOldestMs": str(status.oldest_ms),
        "tierProblem": status.problem,
        "tierProblemSinceMs": str(status.problem_since_ms),
        "tierRetryInMs": str(status.retry_in_ms),
        "tierSkippedMessages": str(reads.skipped_messages),
    }


def stored_rows(metric: Metric, on_disk: int, in_bucket: int | None) -> Column:
    """A metric of the store: its value on the disk, and its value in the bucket, if there is one."""
    rows = [(("local", "disk"), on_disk)]
    return column(metric, rows if in_bucket is None else [*rows, (("tiered", "blob"), in_bucket)])


def oldest_age_ms(status: TierStatus, clock: Clock) -> int:
    """The age of the oldest message in the bucket; 0 if there is none."""
    return max(clock.now_ms() - status.oldest_ms, 0) if status.oldest_ms else 0


def tier_columns(figures: TierFigures) -> list[Column]:
    """The metrics that only a broker with a bucket has."""
    status, reads = figures.status(), figures.reads()
    return [
        single(table.TIER_MESSAGES_UPLOADED, status.upload_messages),
        single(table.TIER_MESSAGES_OUT, reads.messages),
        single(table.TIER_CACHE_LOOKUPS, reads.lookups),
        single(table.TIER_CACHE_HITS, reads.hits),
        single(table.TIER_CACHE_BYTES, reads.cached_bytes),
        single(table.TIER_OWNER, int(status.role == OWNER)),
        single(table.TIER_PROBLEM, int(bool(status.problem))),
        single(table.TIER_BEHIND, status.behind_bytes),
        single(table.TIER_UPLOADED, status.upload_bytes),
        single(table.TIER_DOWNLOADED, reads.downloaded_bytes),
        single(table.TIER_READ_FAILURES, reads.failures),
        single(table.TIER_SKIPPED, reads.skipped_messages),
    ]
