"""All metrics of a broker: names, kinds, units and labels. docs/reference/metrics.md is made from this.

Names with ``rocketmq_`` are RocketMQ 5's metrics, with its labels. Metrics of features that this broker lacks are left
out (`LEFT_OUT`). All have the labels ``cluster``, ``node_type`` and ``node_id`` (the broker's name) besides these.
"""

from skylark.mqcommon.metrics.metric import Metric
from skylark.remoting.metrics.rpc import RPC_LATENCY

_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_retry", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")
_ENDED = ("topic", "is_system")
_STORE = ("storage_type", "storage_medium")
_MS = "milliseconds"

WATERMARK = Metric("rocketmq_processor_watermark", "gauge", "", ("processor",), "Requests that wait")
PERMISSION = Metric("rocketmq_broker_permission", "gauge", "", (), "brokerPermission: 4 read, 2 write, 6 both")
TOPICS = Metric("rocketmq_topic_number", "gauge", "", (), "Topics")
GROUPS = Metric("rocketmq_consumer_group_number", "gauge", "", (), "Consumer groups")
MESSAGES_IN = Metric("rocketmq_messages_in_total", "counter", "", _IN, "Messages stored")
THROUGHPUT_IN = Metric("rocketmq_throughput_in_total", "counter", "bytes", _IN, "Bytes stored")
MESSAGES_OUT = Metric("rocketmq_messages_out_total", "counter", "", _OUT, "Messages given to consumers")
THROUGHPUT_OUT = Metric("rocketmq_throughput_out_total", "counter", "bytes", _OUT, "Bytes given to consumers")
PRODUCERS = Metric(
    "rocketmq_producer_connections", "gauge", "", ("language", "version", "protocol_type"), "Connections of producers"
)
CONSUMERS = Metric(
    "rocketmq_consumer_connections", "gauge", "",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"), "Connections of consumers",
)  # fmt: skip
DIVIDED = Metric(
    "skylark_different_subscriptions",
    "gauge",
    "",
    ("consumer_group",),
    "How many different subscriptions a group's members have; only groups with more than one: they lose messages",
)
LAG = Metric("rocketmq_consumer_lag_messages", "gauge", "", _LAG, "Messages that a group has not consumed")
LAG_LATENCY = Metric("rocketmq_consumer_lag_latency", "gauge", _MS, _LAG, "Age of the oldest such message")
INFLIGHT = Metric("rocketmq_consumer_inflight_messages", "gauge", "", _LAG, "Messages pulled and not consumed")
READY = Metric("rocketmq_consumer_ready_messages", "gauge", "", _LAG, "Messages not pulled")
TO_DLQ = Metric(
    "rocketmq_send_to_dlq_messages_total",
    "counter",
    "",
    ("consumer_group", "topic", "is_system"),
    "Messages that became dead letters",
)
STORAGE_SIZE = Metric("rocketmq_storage_size", "gauge", "bytes", _STORE, "Size of the commit log")
FLUSH_BEHIND = Metric("rocketmq_storage_flush_behind_bytes", "gauge", "bytes", _STORE, "Bytes not yet flushed to disk")
DISPATCH_BEHIND = Metric("rocketmq_storage_dispatch_behind_bytes", "gauge", "bytes", _STORE, "Bytes not yet indexed")
RESERVE_TIME = Metric("rocketmq_storage_message_reserve_time", "gauge", _MS, _STORE, "Age of the oldest message")
TIMER_ENQUEUE_LAG = Metric("rocketmq_timer_enqueue_lag", "gauge", "", (), "Timed messages not read yet")
TIMER_DEQUEUE_LATENCY = Metric("rocketmq_timer_dequeue_latency", "gauge", _MS, (), "How late the next timed message is")
TIMING = Metric("rocketmq_timing_messages", "gauge", "", (), "Timed messages that wait; of all topics")
TIMER_ENQUEUED = Metric("rocketmq_timer_enqueue_total", "counter", "", (), "Timed messages read; of all topics")
TIMER_DEQUEUED = Metric("rocketmq_timer_dequeue_total", "counter", "", (), "Timed messages delivered; of all topics")

QUEUEING_LATENCY = Metric("rocketmq_consumer_queueing_latency", "gauge", _MS, _LAG, "Age of the oldest one not pulled")
MESSAGE_SIZE = Metric(
    "rocketmq_message_size",
    "histogram",
    "bytes",
    _ENDED,
    "Stored size; messages of one request count with their average",
)
TOPIC_CREATE_TIME = Metric(
    "rocketmq_topic_create_execution_time",
    "histogram",
    _MS,
    ("invocation_status",),
    "Time of requests that make or change a topic",
)
GROUP_CREATE_TIME = Metric(
    "rocketmq_consumer_group_create_execution_time", "histogram", _MS, ("invocation_status",), "The same for groups"
)
COMMITS = Metric("rocketmq_commit_messages_total", "counter", "", _ENDED, "Transactions committed")
ROLLBACKS = Metric("rocketmq_rollback_messages_total", "counter", "", _ENDED, "Transactions rolled back by producers")
FINISH_LATENCY = Metric("rocketmq_finish_message_latency", "histogram", _MS, _ENDED, "From a half to its commit")
HALVES = Metric("rocketmq_half_messages", "gauge", "", (), "Transactions that are open; of all topics")
TIMER_ENQUEUE_LATENCY = Metric(
    "rocketmq_timer_enqueue_latency", "gauge", _MS, (), "Age of the oldest timed message not read yet"
)
TIMER_DEQUEUE_LAG = Metric("rocketmq_timer_dequeue_lag", "gauge", "", (), "Timed messages that are late")
REVIVE_IN = Metric(
    "rocketmq_pop_revive_in_message_total",
    "counter",
    "",
    ("revive_message_type",),
    "Records of pops (ck) and of acknowledgements (ack)",
)
REVIVE_RETRY = Metric(
    "rocketmq_pop_revive_retry_messages_total",
    "counter",
    "",
    ("consumer_group", "topic", "is_system"),
    "Popped messages that came back",
)
REVIVE_LATENCY = Metric("rocketmq_pop_revive_latency", "gauge", _MS, (), "How late popped messages come back")
POP_CHECKPOINTS = Metric("rocketmq_pop_checkpoint_buffer_size", "gauge", "", (), "Pops that are open")

PUT_LATENCY = Metric("skylark_put_latency", "histogram", _MS, (), "Time of sends, with their waits for disk and slaves")
FLUSH_LATENCY = Metric("skylark_flush_latency", "histogram", _MS, (), "Time of flushes of the commit log")
REPLICATION_LATENCY = Metric(
    "skylark_replication_latency", "histogram", _MS, (), "How far slaves were behind, sampled each second"
)
SLAVE_BEHIND = Metric("skylark_slave_behind_bytes", "gauge", "bytes", ("slave",), "Bytes that a slave does not have")
SLAVE_BEHIND_TIME = Metric("skylark_slave_behind_latency", "gauge", _MS, ("slave",), "Since when it lacks some")
SLAVE_IN_SYNC = Metric("skylark_slave_in_sync", "gauge", "", ("slave",), "Whether a slave is in sync")
PUT_FAILURES = Metric("skylark_put_failures_total", "counter", "", (), "Sends that could not be stored")
CONNECTIONS = Metric("skylark_connections", "gauge", "", (), "Connections of clients")
TLS_HANDSHAKES = Metric(
    "skylark_tls_handshakes_total", "counter", "", ("result",), "Clients that got through (ok) or not (failed)"
)
REFUSALS = Metric("skylark_auth_refusals_total", "counter", "", (), "Requests that users and policies refused")
LIMITS = Metric("skylark_limit_refusals_total", "counter", "", ("limit",), "What peers were refused because of a limit")
WRITABLE = Metric("skylark_store_writable", "gauge", "", (), "Whether the store takes messages: 0 or 1")
DISK_USED = Metric("skylark_disk_used_ratio", "gauge", "", (), "Used part of the store's disk: 0 to 1")
ENTRIES_MENDED = Metric(
    "skylark_queue_entries_mended_total", "counter", "", (), "Damaged entries of queues that were made again"
)
MESSAGES_SKIPPED = Metric(
    "skylark_damaged_messages_total", "counter", "", (), "Stored messages that are damaged, and that readers skip"
)
SCRUB_CHECKED = Metric("skylark_scrub_blocks_total", "counter", "", (), "Blocks of the log that were checked")
SCRUB_SEALED = Metric(
    "skylark_scrub_blocks_sealed_total", "counter", "", (), "Old blocks that got a sum, as their records are sound"
)
SCRUB_PROGRESS = Metric("skylark_scrub_progress_ratio", "gauge", "", (), "Checked part of the log: 0 to 1")
SCRUB_AGE = Metric(
    "skylark_scrub_age", "gauge", _MS, (), "Time since all of the store was checked last; absent before the first time"
)
SCRUB_PROBLEMS = Metric(
    "skylark_scrub_problems_total", "counter", "", ("result",), "Damage that scrubs found, by result: mended or left"
)
SUM_FILES_LOST = Metric(
    "skylark_sum_files_lost", "gauge", "", (), "Files of block sums that the start has missed, not made again yet"
)
BLOCKS_REPAIRED = Metric("skylark_blocks_repaired_total", "counter", "", (), "Blocks of the log that were repaired")
BLOCKS_DAMAGED = Metric("skylark_blocks_damaged", "gauge", "", (), "Blocks of the log that could not be repaired")
BLOCKS_IN_MEMORY = Metric(
    "skylark_blocks_wrong_in_memory_total", "counter", "", (), "Blocks that were damaged in memory only"
)
BLOCKS_UNSTABLE = Metric(
    "skylark_blocks_unstable_total", "counter", "", (), "Blocks whose bytes differed from read to read of the disk"
)
TIER_MESSAGES_UPLOADED = Metric(
    "rocketmq_tiered_store_messages_dispatch_total",
    "counter",
    "",
    (),
    "Messages that this broker has put into the bucket",
)
TIER_MESSAGES_OUT = Metric(
    "rocketmq_tiered_store_messages_out_total", "counter", "", (), "Messages read from the bucket; of all topics"
)
TIER_CACHE_LOOKUPS = Metric(
    "rocketmq_tiered_store_read_ahead_cache_access_total", "counter", "", (), "Pieces of the bucket that reads needed"
)
TIER_CACHE_HITS = Metric(
    "rocketmq_tiered_store_read_ahead_cache_hit_total",
    "counter",
    "",
    (),
    "Pieces of the bucket that reads needed and found on this machine",
)
TIER_CACHE_BYTES = Metric(
    "rocketmq_tiered_store_read_ahead_cache_bytes", "gauge", "bytes", (), "Memory that pieces of the bucket take"
)
TIER_OWNER = Metric(
    "skylark_tier_owner", "gauge", "", (), "Whether this broker writes to the bucket of its set: 0 or 1"
)
TIER_PROBLEM = Metric(
    "skylark_tier_problem", "gauge", "", (), "Whether the bucket cannot be written, or by a slave read: 0 or 1"
)
TIER_BEHIND = Metric(
    "skylark_tier_behind_bytes", "gauge", "bytes", (), "Full files of the log that are not in the bucket yet"
)
TIER_UPLOADED = Metric(
    "skylark_tier_uploaded_bytes_total", "counter", "bytes", (), "Bytes of the log put into the bucket"
)
TIER_DOWNLOADED = Metric("skylark_tier_downloaded_bytes_total", "counter", "bytes", (), "Bytes read from the bucket")
TIER_READ_FAILURES = Metric("skylark_tier_read_failures_total", "counter", "", (), "Reads of the bucket that failed")
TIER_SKIPPED = Metric(
    "skylark_tier_skipped_messages_total",
    "counter",
    "",
    (),
    "Damaged messages in the bucket, which readers skip",
)
DROPPED = Metric(
    "skylark_dropped_messages_total",
    "counter",
    "",
    (),
    "Delayed and timed messages that were not delivered, as their topic was deleted after they were stored",
)
SET_BACK = Metric(
    "skylark_clock_set_back_total", "counter", "", (), "How often the clock went back while the broker ran"
)
TIME_AHEAD = Metric(
    "skylark_store_time_ahead", "gauge", _MS, (), "How far store times are ahead of the clock, which was set back"
)
ROLE = Metric("skylark_broker_role", "gauge", "", ("role",), "1 for the present role")
REGISTERED = Metric("skylark_registered_nameservers", "gauge", "", (), "NameServers that have this broker")

BROKER_METRICS = (
    WATERMARK, PERMISSION, TOPICS, GROUPS, MESSAGES_IN, THROUGHPUT_IN, MESSAGES_OUT, THROUGHPUT_OUT, PRODUCERS,
    CONSUMERS, LAG, LAG_LATENCY, INFLIGHT, READY, TO_DLQ, STORAGE_SIZE, FLUSH_BEHIND, DISPATCH_BEHIND, RESERVE_TIME,
    TIMER_ENQUEUE_LAG, TIMER_DEQUEUE_LATENCY, TIMING, TIMER_ENQUEUED, TIMER_DEQUEUED, RPC_LATENCY, QUEUEING_LATENCY,
    MESSAGE_SIZE, TOPIC_CREATE_TIME, GROUP_CREATE_TIME, COMMITS, ROLLBACKS, FINISH_LATENCY, HALVES,
    TIMER_ENQUEUE_LATENCY, TIMER_DEQUEUE_LAG, REVIVE_IN, REVIVE_RETRY, REVIVE_LATENCY, POP_CHECKPOINTS, PUT_LATENCY,
    FLUSH_LATENCY, REPLICATION_LATENCY, SLAVE_BEHIND, SLAVE_BEHIND_TIME, SLAVE_IN_SYNC, PUT_FAILURES, CONNECTIONS,
    TLS_HANDSHAKES, REFUSALS, LIMITS, WRITABLE, DISK_USED, ENTRIES_MENDED, DIVIDED,
    MESSAGES_SKIPPED, SCRUB_CHECKED, SCRUB_SEALED, SCRUB_PROGRESS, SCRUB_AGE, SCRUB_PROBLEMS, SUM_FILES_LOST,
    BLOCKS_REPAIRED, BLOCKS_DAMAGED, BLOCKS_IN_MEMORY, BLOCKS_UNSTABLE, DROPPED, SET_BACK, TIME_AHEAD, ROLE, REGISTERED,
    TIER_MESSAGES_UPLOADED, TIER_MESSAGES_OUT, TIER_CACHE_LOOKUPS, TIER_CACHE_HITS, TIER_CACHE_BYTES, TIER_OWNER,
    TIER_PROBLEM, TIER_BEHIND, TIER_UPLOADED, TIER_DOWNLOADED, TIER_READ_FAILURES,
    TIER_SKIPPED,
)  # fmt: skip

_BROKER = ("brokerIP", "broker")
_TOPIC = ("broker", "topic")
_GROUP = ("broker", "topic", "group")

OLD_BROKER_TPS = Metric("rocketmq_broker_tps", "gauge", "", _BROKER, "Messages stored a second")
OLD_BROKER_QPS = Metric("rocketmq_broker_qps", "gauge", "", _BROKER, "Messages given to consumers a second")
OLD_PRODUCER_TPS = Metric("rocketmq_producer_tps", "gauge", "", _TOPIC, "Messages stored a second")
OLD_PRODUCER_SIZE = Metric("rocketmq_producer_message_size", "gauge", "bytes", _TOPIC, "Bytes stored a second")
OLD_PRODUCER_OFFSET = Metric("rocketmq_producer_offset", "gauge", "", _TOPIC, "Ends of all queues, added up")
OLD_CONSUMER_TPS = Metric("rocketmq_consumer_tps", "gauge", "", _GROUP, "Messages given to a group a second")
OLD_CONSUMER_SIZE = Metric("rocketmq_consumer_message_size", "gauge", "bytes", _GROUP, "Bytes given a second")
OLD_CONSUMER_OFFSET = Metric("rocketmq_consumer_offset", "gauge", "", _GROUP, "Ends of the queues that a group has")
OLD_CONSUMED = Metric("rocketmq_group_consume_total_offset", "gauge", "", _GROUP, "A group's offsets, added up")
OLD_ACCUMULATION = Metric("rocketmq_message_accumulation", "gauge", "", _GROUP, "Messages not consumed")
OLD_LATENCY = Metric("rocketmq_group_get_latency_by_storetime", "gauge", _MS, _GROUP, "Age of the oldest of them")

#: Shown with exporterCompatibleNames.
OLD_METRICS = (
    OLD_BROKER_TPS, OLD_BROKER_QPS, OLD_PRODUCER_TPS, OLD_PRODUCER_SIZE, OLD_PRODUCER_OFFSET, OLD_CONSUMER_TPS,
    OLD_CONSUMER_SIZE, OLD_CONSUMER_OFFSET, OLD_CONSUMED, OLD_ACCUMULATION, OLD_LATENCY,
)  # fmt: skip

#: Names of RocketMQ that this broker does not give: no such feature, or nothing that counts it.
LEFT_OUT = (
    "rocketmq_timer_message_snapshot", "rocketmq_delay_message_latency", "rocketmq_pop_revive_out_message_total",
    "rocketmq_pop_revive_lag", "rocketmq_pop_buffer_scan_time_consume", "rocketmq_pop_offset_buffer_size",
    "rocketmq_controller_*", "rocketmq_group_get_latency", "rocketmq_tiered_store_api_latency",
    "rocketmq_tiered_store_provider_*", "rocketmq_tiered_store_dispatch_*",
    "rocketmq_tiered_store_get_message_fallback_total", "rocketmq_tiered_store_read_ahead_cache_count",
    "rocketmq_group_diff", "rocketmq_client_consume_*",
)  # fmt: skip
