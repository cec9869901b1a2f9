"""The metrics of rocketmq-exporter, so that dashboards made for it show data; see table.py for their names.

Rates are of the last minute, as the exporter reads them from a broker's statistics. Its label ``lastUpdateTimestamp``
is left out: a label that changes makes a new series each time.
"""

from broker.metrics import table
from broker.metrics.counters import ROWS
from broker.metrics.lag import Lags
from broker.observe.stats import BrokerStats
from broker.store.store import MessageStore
from mqcommon.clock import Clock
from mqcommon.metrics.metric import Column, column
from remoting.net.steps import Steps

_Labels = tuple[str, ...]


def old_columns(
    broker_name: str, ip: str, stats: BrokerStats, store: MessageStore, lags: Lags, clock: Clock
) -> Steps[list[Column]]:
    """The columns of these metrics."""
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
