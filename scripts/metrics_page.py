"""The page docs/reference/metrics.md: a head, and tables of all metrics from the code."""

from collections.abc import Iterable

from skylark.mqcommon.metrics.metric import Metric

HEAD = """\
# Metrics and health

<!-- made by scripts/docs: do not edit -->

What brokers, NameServers and proxies tell Prometheus, OpenTelemetry and health probes. Two commands show them:

    broker -c ~/skylark/broker.conf --metrics-exporter-type PROM
    curl http://127.0.0.1:5557/metrics

`pip install "skylark-mq[metrics] @ file:///path/to/clone"` installs what this needs. A NameServer has the same options,
and its port is 5556; so has a proxy, whose port is 5557 as a broker's, as in RocketMQ. While `metricsExporterType` is
`DISABLE`, the default, nothing is measured and nothing is imported.

| `metricsExporterType` | what it does |
| --- | --- |
| `PROM` | serves the pages at `metricsPromExporterHost` and `metricsPromExporterPort` (127.0.0.1:5557) |
| `OTLP_GRPC` | pushes to the OpenTelemetry collector at `metricsGrpcExporterTarget`, by **HTTP** |
| `LOG` | writes a line for each value to the log |

The name `OTLP_GRPC` is RocketMQ's, but Skylark speaks OTLP over HTTP only: give the collector's HTTP port,
`http://host:4318`.

`metricsLabel=name:value,...` adds labels to all metrics; `metricsInDelta=true` has OTLP push differences. The page
has no access control: open it to a network that you trust only (`metricsPromExporterHost`). RocketMQ's default
there is the broker's address, ours is loopback.

The pages `/healthz` and `/readyz` are on the same port, and with `healthPort` on one of their own, without metrics,
whatever `metricsExporterType` is: for probes of an orchestrator, which must not see names of topics and groups
(`healthHost=0.0.0.0` lets them come from elsewhere). `pip install "skylark-mq[health] @ file:///path/to/clone"` is
enough for that.

`/healthz` is 200 while the event loop turns. `/readyz` is 503, with the reason as its text, while there is no room
on the disk for messages, no NameServer has the broker, or it is just becoming the master, and from a slave's start
until it has begun to copy its master (with Controllers: until it is in the SyncStateSet); at a NameServer, while it
waits for brokers (`needWaitForService`) or stops; at a proxy, while it starts or stops.

With `exporterCompatibleNames=true` the broker's page also has the names of rocketmq-exporter, so that dashboards
made for it show data without that process. `conf/metrics/` has a Prometheus configuration with alert rules, and a
Grafana dashboard.

A client that asks for OpenMetrics (`Accept: application/openmetrics-text; version=1.0.0`, as Prometheus does) gets
that text, others get the classic text; names of values are the same in both. The page of several brokers of one conf
file is always classic. Counters of a topic begin at 0 when the topic is made, and counters of a group when the group
subscribes to the topic or commits an offset, so that `increase` and `rate` see the first message.

Counters and lags are read when a scrape asks for them, in steps of some milliseconds, so sends go on meanwhile. The
text is rendered by Skylark: OpenTelemetry's exporter makes objects for each line, which is too slow for 100,000
groups and topics. OTLP is encoded and sent by OpenTelemetry's own exporter. Requests are timed by turns of the
event loop: a time is that from the read of a request to the end of its turn. Requests that wait (held pulls, sends
that wait for a disk or a slave) are not in `rocketmq_rpc_latency`; `skylark_put_latency` has all sends.

All metrics of a broker have the labels `cluster`, `node_type`, `node_id` (the broker's name), metrics of a NameServer
have `node_type`, metrics of a proxy `cluster`, `node_type`, `node_id` (`proxyName`) and `proxy_mode`, besides the
labels in the tables. A histogram is `name_bucket`, `name_sum` and `name_count`.
"""


def _table(title: str, metrics: Iterable[Metric]) -> str:
    rows = [f"\n## {title}\n\n| name | kind | unit | labels | what |\n| --- | --- | --- | --- | --- |\n"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |\n")
    return "".join(rows)


def metrics_page() -> str:
    """The whole page."""
    from skylark.broker.metrics.exporter_names import RUNTIME_METRICS
    from skylark.broker.metrics.table import BROKER_METRICS, LEFT_OUT, OLD_METRICS
    from skylark.mqproxy.metrics import PROXY_METRICS
    from skylark.namesrv.metrics import NAMESRV_METRICS

    left_out = ", ".join(f"`{name}`" for name in LEFT_OUT)
    return "".join(
        [
            HEAD,
            _table("Broker", BROKER_METRICS),
            _table("Broker, names of rocketmq-exporter", (*OLD_METRICS, *RUNTIME_METRICS)),
            _table("NameServer", NAMESRV_METRICS),
            _table("Proxy", PROXY_METRICS),
            f"\n## Left out\n\nNames of RocketMQ 5 and rocketmq-exporter that are not given: {left_out}.\n",
        ]
    )
