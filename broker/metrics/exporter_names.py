"""The metrics of rocketmq-exporter, for dashboards made for the exporter; shown with exporterCompatibleNames.

`runtime_columns` returns the metrics that the exporter makes of a broker's runtime table (request 28), as
``rocketmq_brokeruntime_*``. The exporter's labels for the start time and the version are left out: this broker's own
labels identify it. `old_columns` returns the exporter's metrics of topics and groups (names: table.py). Rates are of
the last minute, as the exporter reads them from a broker's statistics. The exporter's label ``lastUpdateTimestamp`` is
left out: a label that changes makes a new series each time.
"""

import re
from collections.abc import Mapping

from skylark.broker.metrics import table
from skylark.broker.metrics.counters import ROWS
from skylark.broker.metrics.lag import Lags
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.metrics.metric import Column, Metric, column
from skylark.remoting.net.steps import Steps

_PREFIX = "rocketmq_brokeruntime_"
_SPANS = ("10", "60", "600")
_UNITS = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5}

# Name of the metric -> key of the table, for values that are one number.
_NUMBERS = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
}
# Name without the span -> key, for rates of the last 10, 60 and 600 seconds.
_RATES = {
    "put_tps": "putTps",
    "getfound_tps": "getFoundTps",
    "getmiss_tps": "getMissTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferedTps",
}
# The steps of putMessageDistributeTime, in their order.
_STEPS = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s", "2to3s", "3to4s",
    "4to5s", "5to10s", "10stomore",
)  # fmt: skip


def _metric(name: str, key: str) -> Metric:
    return Metric(_PREFIX + name, "gauge", "", ("brokerIP",), f"{key} of brokerStatus")


_OF_NUMBERS = {key: _metric(name, key) for name, key in _NUMBERS.items()}
_OF_RATES = {key: [_metric(name + span, key) for span in _SPANS] for name, key in _RATES.items()}
_OF_STEPS = [_metric(f"pmdt_{step}", "putMessageDistributeTime") for step in _STEPS]
_FREE = _metric("commitlogdir_capacity_free", "commitLogDirCapacity")
_TOTAL = _metric("commitlogdir_capacity_total", "commitLogDirCapacity")
_TO_FLUSH = _metric("remain_howmanydata_toflush", "remainHowManyDataToFlush")

#: Shown with exporterCompatibleNames.
RUNTIME_METRICS = (
    *_OF_NUMBERS.values(), *[metric for row in _OF_RATES.values() for metric in row], *_OF_STEPS, _FREE, _TOTAL,
    _TO_FLUSH,
)  # fmt: skip


def runtime_columns(ip: str, table: Mapping[str, str]) -> list[Column]:
    """The exporter's columns, made of the runtime ``table`` as tools get it."""
    # Read from the texts of the table, as the exporter does: dashboards then show what brokerStatus shows.
    labels = ((ip,),)
    columns = [Column(metric, labels, (float(table[key]),)) for key, metric in _OF_NUMBERS.items()]
    for key, metrics in _OF_RATES.items():
        for metric, text in zip(metrics, table[key].split(), strict=True):
            columns.append(Column(metric, labels, (float(text),)))
    steps = table["putMessageDistributeTime"].split()
    for metric, step in zip(_OF_STEPS, steps, strict=True):
        columns.append(Column(metric, labels, (int(step.rpartition(":")[2]),)))
    total, free = (_bytes(text) for text in re.findall(r": ([0-9.]+ \w+)", table["commitLogDirCapacity"]))
    for metric, number in ((_TOTAL, total), (_FREE, free), (_TO_FLUSH, _bytes(table["remainHowManyDataToFlush"]))):
        columns.append(Column(metric, labels, (number,)))
    return columns


def _bytes(text: str) -> float:
    """``252.0 GiB`` in bytes."""
    number, unit = text.split()
    return float(number) * (1 << 10 * _UNITS[unit])


_Labels = tuple[str, ...]


def old_columns(
    broker_name: str, ip: str, stats: BrokerStats, store: MessageStore, lags: Lags, clock: Clock
) -> Steps[list[Column]]:
    """The exporter's columns of topics and groups."""
    now_ms = clock.now_ms()
    put: list[tuple[_Labels, float]] = []
    put_size: list[tuple[_Labels, float]] = []
    for number, (topic, meter) in enumerate(stats.topic_meters(), 1):
        if number % ROWS == 0:
            yield None
        labels: _Labels = (broker_name, topic)
        put.append((labels, meter.view(now_ms).stats_minute.tps))
        put_size.append((labels, meter.view(now_ms, of_size=True).stats_minute.tps))
    got: list[tuple[_Labels, float]] = []
    got_size: list[tuple[_Labels, float]] = []
    for number, (topic, group, meter) in enumerate(list(stats.get_meters()), 1):
        if number % ROWS == 0:
            yield None
        labels = (broker_name, topic, group)
        got.append((labels, meter.view(now_ms).stats_minute.tps))
        got_size.append((labels, meter.view(now_ms, of_size=True).stats_minute.tps))
    ends: dict[_Labels, int] = {}
    for number, queue in enumerate(list(store.queues), 1):
        if number % ROWS == 0:
            yield None
        key = (broker_name, queue.topic)
        ends[key] = ends.get(key, 0) + queue.next_offset
    pairs: list[_Labels] = []
    for number, (group, topic, *_) in enumerate(lags.labels, 1):
        if number % (ROWS * 10) == 0:
            yield None
        pairs.append((broker_name, topic, group))
    rates, whole = stats.rates(), ((ip, broker_name),)
    return [
        Column(table.OLD_BROKER_TPS, whole, (rates.put[1],)),
        Column(table.OLD_BROKER_QPS, whole, (rates.transferred[1],)),
        column(table.OLD_PRODUCER_TPS, put),
        column(table.OLD_PRODUCER_SIZE, put_size),
        column(table.OLD_PRODUCER_OFFSET, list(ends.items())),
        column(table.OLD_CONSUMER_TPS, got),
        column(table.OLD_CONSUMER_SIZE, got_size),
        Column(table.OLD_CONSUMER_OFFSET, pairs, lags.ends),
        Column(table.OLD_CONSUMED, pairs, lags.consumed),
        Column(table.OLD_ACCUMULATION, pairs, lags.lag),
        Column(table.OLD_LATENCY, pairs, lags.latency_ms),
    ]
