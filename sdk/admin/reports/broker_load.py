"""The load of a broker, its disk's damage, its bucket, and the lag of a slave, from brokers' runtime infos. Pure."""

from collections.abc import Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.reports.report import named
from skylark.sdk.admin.targets import Target


@lazy_dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of one broker; 0 for values that the broker does not report.

    ``in_tps`` and ``out_tps`` are messages a second. For each pool of threads: how many requests wait, and how long the
    first request has waited. ``stored_hours``: since the oldest message was stored. ``is_active``: the broker is not
    switched off.
    """

    version: str
    in_tps: float
    out_tps: float
    send_queue_size: int = field(metadata=named("sendThreadPoolQueueSize"))
    send_wait_ms: int = field(metadata=named("sendThreadPoolQueueHeadWaitTimeMills"))
    pull_queue_size: int = field(metadata=named("pullThreadPoolQueueSize"))
    pull_wait_ms: int = field(metadata=named("pullThreadPoolQueueHeadWaitTimeMills"))
    ack_queue_size: int = field(metadata=named("ackThreadPoolQueueSize"))
    ack_wait_ms: int = field(metadata=named("ackThreadPoolQueueHeadWaitTimeMills"))
    timer_behind_s: int = field(metadata=named("timerReadBehind"))
    timer_offset_behind: int
    timer_congested_messages: int = field(metadata=named("timerCongestNum"))
    timer_enqueue_tps: float
    timer_dequeue_tps: float
    page_cache_lock_ms: int = field(metadata=named("pageCacheLockTimeMills"))
    stored_hours: float = field(metadata=named("hour"))
    commit_log_disk_ratio: float
    is_active: bool = field(metadata=named("brokerActive"))


@lazy_dataclass(frozen=True, slots=True)
class BrokerTotals:
    """How many messages went into and out of one broker, yesterday and today."""

    in_yesterday: int = field(metadata=named("inTotalYest"))
    out_yesterday: int = field(metadata=named("outTotalYest"))
    in_today: int = field(metadata=named("inTotalToday"))
    out_today: int = field(metadata=named("outTotalToday"))


@lazy_dataclass(frozen=True, slots=True)
class SlaveLag:
    """How far a slave lags behind its master. Both values are None for a master, each value if it is unknown."""

    lag_bytes: int | None = None
    lag_ms: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class StoreScrubs:
    """What a broker's scrubs have found. All values are None for a broker that does not scrub.

    ``last_scrub_ms``: when all of the store was checked last; 0: never. ``scrub_percent``: how far the present scrub
    is, 100 between two. Blocks are those of the log: ``blocks_repaired`` since the broker's start, ``suspects`` are
    damaged now.
    """

    last_scrub_ms: int | None = field(default=None, metadata=named("lastScrub"))
    scrub_percent: int | None = None
    blocks_repaired: int | None = None
    suspects: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class BucketUse:
    """A broker's bucket. All values are None for a broker without one.

    ``role``: as `TierStatus.role`, but never OFF. ``stored_bytes``: of the set in the bucket; ``behind_bytes``: of full
    files of the log that are not in the bucket yet. ``oldest_ms``: time of the oldest message in the bucket, 0: none.
    ``problem``: why nothing is written since ``problem_since_ms``, "" if the bucket works.
    """

    role: str | None = field(default=None, metadata=named("tierRole"))
    stored_bytes: int | None = field(default=None, metadata=named("tierStoredBytes"))
    behind_bytes: int | None = field(default=None, metadata=named("tierBehindBytes"))
    oldest_ms: int | None = field(default=None, metadata=named("tierOldest"))
    problem: str | None = field(default=None, metadata=named("tierProblem"))
    problem_since_ms: int | None = field(default=None, metadata=named("tierProblemSince"))


class _Info:
    """A broker's runtime info, whose values are text; a value that is missing or not a number is read as 0."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def as_float(self, key: str) -> float:
        """The first number of a value: rates hold three, of 10 s, 1 min and 10 min."""
        try:
            return float(self.table.get(key, "").split(" ")[0])
        except ValueError:
            return 0.0

    def as_int(self, key: str) -> int:
        return int(self.as_float(key))


def load_of(table: Mapping[str, str], now_ms: int) -> BrokerLoad:
    """The load in a broker's runtime info."""
    info = _Info(table)
    earliest_ms = info.as_float("earliestMessageTimeStamp")
    return BrokerLoad(
        version=table.get("brokerVersionDesc", ""),
        in_tps=info.as_float("putTps"),
        # Older brokers misspell the key.
        out_tps=info.as_float("getTransferredTps") or info.as_float("getTransferedTps"),
        send_queue_size=info.as_int("sendThreadPoolQueueSize"),
        send_wait_ms=info.as_int("sendThreadPoolQueueHeadWaitTimeMills"),
        pull_queue_size=info.as_int("pullThreadPoolQueueSize"),
        pull_wait_ms=info.as_int("pullThreadPoolQueueHeadWaitTimeMills"),
        ack_queue_size=info.as_int("ackThreadPoolQueueSize"),
        ack_wait_ms=info.as_int("ackThreadPoolQueueHeadWaitTimeMills"),
        timer_behind_s=info.as_int("timerReadBehind"),
        timer_offset_behind=info.as_int("timerOffsetBehind"),
        timer_congested_messages=info.as_int("timerCongestNum"),
        timer_enqueue_tps=info.as_float("timerEnqueueTps"),
        timer_dequeue_tps=info.as_float("timerDequeueTps"),
        page_cache_lock_ms=info.as_int("pageCacheLockTimeMills"),
        stored_hours=(now_ms - earliest_ms) / 3_600_000 if earliest_ms > 0 else 0.0,
        commit_log_disk_ratio=info.as_float("commitLogDiskRatio"),
        is_active=table.get("brokerActive") == "true",
    )


def scrubs_of(table: Mapping[str, str]) -> StoreScrubs:
    """What a broker's runtime info says of its scrubs."""
    info = _Info(table)
    if "blocksDamaged" not in table:
        return StoreScrubs()
    return StoreScrubs(
        info.as_int("lastScrubEndMs"),
        info.as_int("scrubPercent"),
        info.as_int("blocksRepaired"),
        info.as_int("blocksDamaged"),
    )


def bucket_of(table: Mapping[str, str]) -> BucketUse:
    """What a broker's runtime info says of its bucket."""
    info = _Info(table)
    if "tierRole" not in table:
        return BucketUse()
    return BucketUse(
        table["tierRole"],
        info.as_int("tierStoredBytes"),
        info.as_int("tierBehindBytes"),
        info.as_int("tierOldestMs"),
        table.get("tierProblem", ""),
        info.as_int("tierProblemSinceMs"),
    )


def totals_of(table: Mapping[str, str]) -> BrokerTotals:
    """The totals in a broker's runtime info."""
    info = _Info(table)
    put, got = "msgPutTotal", "msgGetTotal"
    return BrokerTotals(
        in_yesterday=info.as_int(f"{put}TodayMorning") - info.as_int(f"{put}YesterdayMorning"),
        out_yesterday=info.as_int(f"{got}TodayMorning") - info.as_int(f"{got}YesterdayMorning"),
        in_today=info.as_int(f"{put}TodayNow") - info.as_int(f"{put}TodayMorning"),
        out_today=info.as_int(f"{got}TodayNow") - info.as_int(f"{got}TodayMorning"),
    )


def lag_of(target: Target, tables: Mapping[str, Mapping[str, str]], masters: Mapping[str, str]) -> SlaveLag:
    """How far a slave lags, by the runtime infos of the brokers by address, and the masters' addresses by name.

    A Skylark master reports the lag of each slave; otherwise the lag is the difference between the ends of the logs.
    """
    table, master = tables.get(target.addr), tables.get(masters.get(target.broker_name, ""))
    if target.broker_id == MASTER_ID or not master:
        return SlaveLag()
    reported = master.get(f"slaveAckDiff_{target.addr}")
    if reported is not None:
        reported_ms = master.get(f"slaveBehindMs_{target.addr}")
        return SlaveLag(int(reported), None if reported_ms is None else int(reported_ms))
    ends = [info.get("commitLogMaxOffset", "") for info in (master, table or {})]
    if all(end.isdigit() for end in ends):
        return SlaveLag(max(int(ends[0]) - int(ends[1]), 0))
    return SlaveLag()
