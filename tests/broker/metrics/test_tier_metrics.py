"""What a broker says of its bucket in brokerStatus and in its metrics."""

from skylark.broker.metrics import table
from skylark.broker.metrics.tier import BucketReads, TierFigures, oldest_age_ms, stored_rows, tier_columns, tier_rows
from skylark.remoting.protocol.requests.tier import OWNER, TierStatus
from skylark.sdk.admin.reports.broker_load import BucketUse, bucket_of
from tests.support.clock import ManualClock

STATUS = TierStatus(
    OWNER, "s3://b/p", "a", uploaded_to=40, behind_bytes=3, segments=2, stored_bytes=39, oldest_ms=1_000,
    upload_messages=5, upload_bytes=40, problem="no answer", problem_since_ms=8, retry_in_ms=7,
)  # fmt: skip


def test_tools_read_from_the_rows_what_the_broker_says() -> None:
    rows = tier_rows(TierFigures(lambda: STATUS, lambda: BucketReads(skipped_messages=17)))
    assert bucket_of(rows) == BucketUse(OWNER, 39, 3, 1_000, "no answer", 8)
    assert rows["tierSkippedMessages"] == "17"


def test_each_metric_of_the_tier_has_its_value() -> None:
    reads = BucketReads(11, 12, 13, 14, 15, 16, 17)
    columns = tier_columns(TierFigures(lambda: STATUS, lambda: reads))
    values = {column.metric.name: column.values[0] for column in columns}
    assert values == {
        "rocketmq_tiered_store_messages_dispatch_total": 5,
        "rocketmq_tiered_store_messages_out_total": 11,
        "rocketmq_tiered_store_read_ahead_cache_access_total": 14,
        "rocketmq_tiered_store_read_ahead_cache_hit_total": 15,
        "rocketmq_tiered_store_read_ahead_cache_bytes": 16,
        "skylark_tier_owner": 1,
        "skylark_tier_problem": 1,
        "skylark_tier_behind_bytes": 3,
        "skylark_tier_uploaded_bytes_total": 40,
        "skylark_tier_downloaded_bytes_total": 12,
        "skylark_tier_read_failures_total": 13,
        "skylark_tier_skipped_messages_total": 17,
    }
    tiered = {metric.name for metric in table.BROKER_METRICS if "_tier" in metric.name}
    assert tiered == values.keys()


def test_the_size_of_the_store_has_a_value_for_the_disk_and_one_for_the_bucket() -> None:
    column = stored_rows(table.STORAGE_SIZE, 1, 2)
    assert (column.labels, column.values) == ([("local", "disk"), ("tiered", "blob")], [1, 2])
    assert stored_rows(table.STORAGE_SIZE, 1, None).values == [1]
    assert oldest_age_ms(STATUS, ManualClock(3_000)) == 2_000 and oldest_age_ms(TierStatus(), ManualClock(3_000)) == 0
