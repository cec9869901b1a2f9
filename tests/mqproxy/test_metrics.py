"""A proxy's metrics and health pages, and what it tells clients about theirs."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
import trio

from scripts.daemons import Daemon, proxy_daemon
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import ConfigError, RequestTimeout
from skylark.mqcommon.metrics.metric import Column
from skylark.mqproxy.brokers import Brokers
from skylark.mqproxy.clients import answered
from skylark.mqproxy.deliveries import Receipt
from skylark.mqproxy.metrics import PROXY_METRICS, Meters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.renewals import RenewalCounts, Renewals
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.support.daemons import started
from tests.support.proxies import call
from tests.support.scrape import get, names_and_labels, samples
from tests.support.waiting import DEADLINE_S

COMMON = {"cluster", "node_type", "node_id", "proxy_mode"}


def page_of(proxy: Daemon, kind: str) -> str:
    found = re.search(rf"{kind} at http://([^/]+)/", proxy.logged.decode())
    assert found, proxy.logged
    return found[1]


@contextmanager
def waiting_consumer(address: str, topic: str) -> Iterator[None]:
    """A client whose settings the proxy has, and whose receive waits for messages."""
    settings = wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=wire.Subscription())
    settings.subscription.group.name = "waits"
    asked = wire.ReceiveMessageRequest(group=wire.Resource(name="waits"))
    asked.message_queue.topic.name = topic
    asked.invisible_duration.FromSeconds(20)
    metadata = [("x-mq-client-id", "waits")]
    is_over = threading.Event()

    def commands() -> Iterator[wire.TelemetryCommand]:
        yield wire.TelemetryCommand(settings=settings)
        is_over.wait(DEADLINE_S)

    with grpc.insecure_channel(address) as channel:
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(commands(), metadata=metadata)
        assert next(stream).status.code == wire.OK
        receive = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage", type(asked).SerializeToString, wire.ReceiveMessageResponse.FromString
        )(asked, metadata=metadata)
        # The connection keeps the order of calls: once this one is answered, the proxy has the one before it.
        route = wire.QueryRouteRequest(topic=wire.Resource(name=topic))
        assert call(channel, "QueryRoute", route, wire.QueryRouteResponse).status.code == wire.OK
        yield
        receive.cancel()
        is_over.set()


async def test_a_proxy_counts_calls_clients_and_receives_that_wait(cluster: Cluster, tmp_path: Path) -> None:
    topic = "counted"
    await trio.to_thread.run_sync(cluster.create_topic, topic)
    long = ("--grpc-client-consumer-max-long-polling-timeout-millis", "600000")
    proxy = proxy_daemon(
        tmp_path, "mqproxy", cluster.nameserver, "--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", "0",
        "--proxy-name", "p1", *long,
    )  # fmt: skip
    async with started(proxy):
        page = page_of(proxy, "metrics")
        # Not as a context manager of this thread: it blocks.
        consumer = waiting_consumer(proxy.addr, topic)
        await trio.to_thread.run_sync(consumer.__enter__)
        try:
            status, text = await get(page, "/metrics")
            assert await get(page, "/readyz") == (200, "ok\n")
        finally:
            await trio.to_thread.run_sync(consumer.__exit__, None, None, None)
    assert status == 200 and 'node_id="p1",proxy_mode="cluster"' in text
    found = samples(text, *COMMON, "le")
    values = {(name, *sorted(dict(labels).values())): value for (name, labels), value in found.items()}
    assert values["rocketmq_proxy_up",] == 1
    assert values["rocketmq_rpc_latency_count", "false", "grpc", "ok", "query_route", "success"] == 1
    assert values["skylark_proxy_clients", "simple_consumer"] == 1
    assert values["skylark_proxy_waiting_receives",] == 1
    assert values["skylark_connections",] == 1
    assert values["skylark_proxy_renewed_messages",] == 0
    assert values["skylark_proxy_renewals_total", "ok"] == 0
    assert names_and_labels(text) == {metric.name: COMMON | {*metric.labels} for metric in PROXY_METRICS}


async def test_a_proxy_has_health_pages_without_metrics(cluster: Cluster, tmp_path: Path) -> None:
    proxy = proxy_daemon(tmp_path, "mqproxy", cluster.nameserver, "--health-port", "0")
    async with started(proxy):
        page = page_of(proxy, "health")
        assert await get(page, "/readyz") == (200, "ok\n")
        assert (await get(page, "/metrics"))[0] == 404


def test_a_proxy_that_does_not_serve_is_not_ready() -> None:
    assert Meters().unready() == "the proxy starts or stops"


def columns_of(meters: Meters) -> dict[str, Column]:
    with pytest.raises(StopIteration) as end:
        next(meters.collect())
    return {column.metric.name: column for column in end.value.value}


def test_the_time_of_calls_is_counted_by_method_and_code() -> None:
    times = iter([3.0, 7.0])
    meters = Meters(lambda: next(times))
    meters.count("ReceiveMessage", wire.MESSAGE_NOT_FOUND, 1.0)
    meters.count("AckMessage", wire.OK, 4.0)
    latency = columns_of(meters)["rocketmq_rpc_latency"]
    assert latency.labels == [
        ("grpc", "receive_message", "message_not_found", "true", "success"),
        ("grpc", "ack_message", "ok", "false", "success"),
    ]
    assert [histogram.total for histogram in latency.values] == [2_000, 3_000]


def test_a_receive_that_fails_waits_no_more() -> None:
    meters = Meters()
    with suppress(ConnectionError), meters.waiting():
        assert columns_of(meters)["skylark_proxy_waiting_receives"].values == (1,)
        raise ConnectionError
    assert columns_of(meters)["skylark_proxy_waiting_receives"].values == (0,)


async def test_renewals_and_those_that_fail_are_counted(nursery: trio.Nursery) -> None:
    now_ms = SystemClock().now_ms()
    receipt = Receipt.parse(f"0 {now_ms} 60000 0 0 broker-a 0 7 7", now_ms)
    answers: list[Receipt | Exception] = [RequestTimeout("broker-a", 200_009, 1.0), receipt]
    asked_thrice = trio.Event()

    async def change_invisible_time(*arguments: object) -> Receipt:
        if not answers:
            asked_thrice.set()
            await trio.sleep_forever()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    brokers = cast(Brokers, SimpleNamespace(change_invisible_time=change_invisible_time))
    options = ProxyOptions(renew_schedule_period_millis=1, renew_ahead_time_millis=3_600_000)
    counts = RenewalCounts()
    renewals = Renewals(brokers, options, SystemClock(), lambda client: True, counts)
    renewals.add("client", "group", "topic", receipt)
    nursery.start_soon(renewals.run)
    with trio.fail_after(DEADLINE_S):
        await asked_thrice.wait()
    assert (len(renewals), counts.renewed, counts.failed) == (1, 1, 1)


def test_clients_are_told_where_the_collector_of_their_metrics_is() -> None:
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing())
    on = ProxyOptions(metric_collector_mode="on", metric_collector_address="collector:4317")
    metric = answered(settings, on, None).metric
    assert metric.on and metric.endpoints.addresses[0] == wire.Address(host="collector", port=4317)
    assert not answered(settings, ProxyOptions(), None).metric.on


def test_a_collector_without_an_address_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="metricCollectorMode=on needs host:port"):
        ProxyOptions(metric_collector_mode="on", metric_collector_address="collector")
