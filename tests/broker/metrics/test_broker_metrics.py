"""A whole broker's metrics: its pages, and its log."""

import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families

from skylark.broker.metrics.export import HealthPages
from skylark.broker.metrics.exporter_names import RUNTIME_METRICS
from skylark.broker.metrics.table import BROKER_METRICS, OLD_METRICS
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.role import RoleMachine
from skylark.broker.writing.admission import Admission
from skylark.mqcommon.errors import ConfigError, DiskFull, UserError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader
from tests.broker.delivery.pop.support import WAIT_MS, Popper
from tests.broker.running import pull_request, running, send_request
from tests.support.collector import collecting
from tests.support.memory_files import MemoryFiles
from tests.support.scrape import get, names_and_labels, samples
from tests.support.waiting import until

COMMON = ("cluster", "node_type", "node_id")
COMMON_LABELS = (("cluster", "DefaultCluster"), ("node_type", "broker"), ("node_id", "broker-a"))


@asynccontextmanager
async def measured(caplog: pytest.LogCaptureFixture, **options: Any) -> AsyncIterator[tuple[RemotingClient, str, str]]:
    """A client, the broker's address and the address of its pages."""
    caplog.set_level(logging.INFO)
    given = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0, **options}
    async with running(**given) as (client, addr):
        found = re.search(r"metrics at http://(\S+)/metrics", caplog.text)
        assert found
        yield client, addr, found[1]


async def messages(client: RemotingClient, addr: str) -> None:
    """Three messages, two of which are pulled and one is consumed."""
    for number in range(3):
        answer = await client.invoke(addr, send_request("T", b"x" * 10, queue_id=number % 2))
        assert answer.code == 0
    assert (await client.invoke(addr, pull_request("T", 0))).code == 0
    fields = {"consumerGroup": "group", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert (await client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, fields))).code == 0


async def test_prometheus_reads_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog, metrics_label="zone:z1") as (client, addr, pages):
        await messages(client, addr)
        status, text = await get(pages, "/metrics")
    assert status == 200
    found = samples(text, *COMMON, "zone")

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    topic = {"topic": "T", "is_system": "false"}
    group = {**topic, "consumer_group": "group", "is_retry": "false"}
    assert value("rocketmq_messages_in_total", **topic, message_type="normal") == 3
    assert value("rocketmq_throughput_in_total", **topic, message_type="normal") > 30
    assert value("rocketmq_messages_out_total", **group) == 2
    # Queue 0 has two messages; the offset of queue 1 was never committed.
    assert value("rocketmq_consumer_lag_messages", **group) == 1
    assert value("rocketmq_consumer_ready_messages", **group) == 1
    assert value("rocketmq_consumer_lag_latency", **group) >= 0
    # It has none yet; an alert sees the first one as an increase.
    assert value("rocketmq_send_to_dlq_messages_total", **topic, consumer_group="group") == 0
    sends = {
        "protocol_type": "remoting", "request_code": "send_message_v2", "response_code": "success",
        "is_long_polling": "false", "result": "success",
    }  # fmt: skip
    assert value("rocketmq_rpc_latency_count", **sends) == 3
    assert value("skylark_put_latency_count") == 3
    assert value("skylark_store_writable") == 1
    assert value("skylark_broker_role", role="master") == 1
    assert 'cluster="DefaultCluster",node_type="broker",node_id="broker-a",zone="z1"' in text


async def test_the_page_has_the_names_and_labels_of_the_table(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog, exporter_compatible_names=True) as (client, addr, pages):
        await messages(client, addr)
        found = names_and_labels((await get(pages, "/metrics"))[1])
    known = {metric.name: {*COMMON, *metric.labels} for metric in (*BROKER_METRICS, *OLD_METRICS, *RUNTIME_METRICS)}
    assert found.items() <= known.items()
    # These need clients, slaves, TLS, transactions, pops, groups that differ, a scrub that has ended.
    tiered = {name for name in known if "_tier" in name}
    absent = {name.removesuffix("s") for name in known.keys() - found.keys() - tiered}
    assert absent == {
        "rocketmq_producer_connection", "rocketmq_consumer_connection",
        "skylark_slave_behind_byte", "skylark_slave_behind_latency", "skylark_slave_in_sync",
        "skylark_tls_handshakes_total", "rocketmq_commit_messages_total", "rocketmq_rollback_messages_total",
        "rocketmq_finish_message_latency", "rocketmq_pop_revive_retry_messages_total",
        "skylark_different_subscription", "skylark_scrub_age",
    }  # fmt: skip


async def test_open_metrics_has_all_that_the_classic_text_has(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog, exporter_compatible_names=True) as (client, addr, pages):
        await messages(client, addr)
        _, classic = await get(pages, "/metrics")
        _, text = await get(pages, "/metrics", "application/openmetrics-text; version=1.0.0")
    found = {(one.name, *sorted(one.labels.items())) for family in families(text) for one in family.samples}
    expected = {(name, *sorted((*labels, *COMMON_LABELS))) for name, labels in samples(classic, *COMMON)}
    assert found == expected


async def test_counters_begin_at_zero_once_their_subject_is_known(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog) as (client, addr, pages):
        header = CreateTopicRequestHeader("unused", "TBW102", 1, 1, 6, "SINGLE_TAG", order=False)
        await call(Remote(client, addr, 5_000), UPDATE_AND_CREATE_TOPIC, header)
        fields = {"consumerGroup": "new", "topic": "unused", "queueId": 0, "commitOffset": 0}
        assert (await client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, fields))).code == 0
        found = samples((await get(pages, "/metrics"))[1], *COMMON)
    topic = {("topic", "unused"), ("is_system", "false")}
    group = {*topic, ("consumer_group", "new")}
    for way, labels in (("in", {*topic, ("message_type", "normal")}), ("out", {*group, ("is_retry", "false")})):
        for name in (f"rocketmq_messages_{way}_total", f"rocketmq_throughput_{way}_total"):
            assert found[name, frozenset(labels)] == 0
    assert found["rocketmq_send_to_dlq_messages_total", frozenset(group)] == 0


async def test_pops_sizes_and_the_runtime_table(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog, exporter_compatible_names=True) as (client, addr, pages):
        popper = Popper(client, addr)
        await popper.send(b"x" * 2_000, b"y")
        await popper.pop(max_msg_nums=1, invisible_time=0)
        back = await popper.pop(poll_time=WAIT_MS)
        while not any(one.message.reconsume_times for one in back):
            back += await popper.pop(poll_time=WAIT_MS)
        found = samples((await get(pages, "/metrics"))[1], *COMMON)
    topic = {("topic", "T"), ("is_system", "false")}
    assert found["rocketmq_message_size_count", frozenset(topic)] == 2
    assert found["rocketmq_message_size_bucket", frozenset({*topic, ("le", "256.0")})] == 1
    assert found["rocketmq_pop_revive_retry_messages_total", frozenset({*topic, ("consumer_group", "g")})] == 1
    assert found["rocketmq_pop_revive_in_message_total", frozenset({("revive_message_type", "ck")})] >= 2
    assert found["rocketmq_pop_checkpoint_buffer_size", frozenset()] >= 1
    broker = frozenset({("brokerIP", "127.0.0.1")})
    assert found["rocketmq_brokeruntime_commitlogdir_capacity_total", broker] > 2**20
    assert found["rocketmq_brokeruntime_pmdt_0ms", broker] >= 0


async def test_dead_letters_of_every_kind_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog) as (client, addr, pages):
        await messages(client, addr)
        config = SubscriptionGroupConfig("g", retry_max_times=0)
        await call(Remote(client, addr, 5_000), UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
        popper = Popper(client, addr)
        (popped,) = await popper.pop(max_msg_nums=1)
        # Its time is over at once, and it may not come again.
        await popper.hide(popped, 0)
        # Consumers send what they could not give back, themselves.
        assert (await client.invoke(addr, send_request("%RETRY%g", b"x", j=9))).code == 0
        name, common = "rocketmq_send_to_dlq_messages_total", {("consumer_group", "g"), ("is_system", "false")}
        rows = {(name, frozenset({*common, ("topic", topic)})) for topic in ("T", "%RETRY%g")}

        async def are_counted() -> bool:
            found = samples((await get(pages, "/metrics"))[1], *COMMON)
            return all(found.get(row) == 1 for row in rows)

        await until(are_counted, "both dead letters")


async def test_without_the_option_there_are_no_old_names(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog) as (client, addr, pages):
        await messages(client, addr)
        found = names_and_labels((await get(pages, "/metrics"))[1])
    assert not found.keys() & {metric.name for metric in OLD_METRICS}


async def test_readiness_needs_a_registration(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog) as (_, _, pages):
        assert await get(pages, "/healthz") == (200, "ok\n")
        assert await get(pages, "/readyz") == (200, "ok\n")
    async with measured(caplog, namesrv_addr="127.0.0.1:1") as (_, _, _):
        pages = re.findall(r"metrics at http://(\S+)/metrics", caplog.text)[-1]
        assert (await get(pages, "/healthz"))[0] == 200
        assert await get(pages, "/readyz") == (503, "not registered with a NameServer yet\n")


def test_a_broker_whose_disk_is_stuck_is_not_ready() -> None:
    fault = ""
    pages = HealthPages(BrokerOptions(), Admission(), RoleMachine(0), lambda: 1, lambda: "", lambda: fault)
    assert pages.unready() == ""
    fault = "the disk has not finished an fsync for 31 s"
    assert pages.unready() == fault


async def test_a_broker_whose_disk_has_no_room_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("T", b"x"))
        fs = fs.killed()

    def no_room(operation: str, path: str) -> None:
        if path.startswith("/store/consumequeue/"):
            raise DiskFull("no room for a queue")

    fs.before_call = no_room
    async with measured(caplog, fs=fs) as (_, _, pages):
        assert await get(pages, "/readyz") == (
            503,
            "no messages are accepted, as the disk has no room: no room for a queue\n",
        )
        found = samples((await get(pages, "/metrics"))[1], *COMMON)
        assert found["skylark_store_writable", frozenset()] == 0


@pytest.mark.parametrize("exporter", ["DISABLE", "LOG", "PROM"])
async def test_health_pages_do_not_need_metrics(caplog: pytest.LogCaptureFixture, exporter: str) -> None:
    caplog.set_level(logging.INFO)
    options = {"metrics_exporter_type": exporter, "metrics_prom_exporter_port": 0, "health_port": 0}
    async with running(**options, namesrv_addr="127.0.0.1:1"):
        pages = re.findall(r"health at http://(127\.0\.0\.1:\d+)/healthz, /readyz", caplog.text)[-1]
        assert await get(pages, "/healthz") == (200, "ok\n")
        assert await get(pages, "/readyz") == (503, "not registered with a NameServer yet\n")
        assert (await get(pages, "/metrics"))[0] == 404


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "skylark.remoting.metrics.http_pages", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    async with running():  # needs none
        pass
    for options, extra in (({"health_port": 0}, "health"), ({"metrics_exporter_type": "PROM"}, "metrics")):
        with pytest.raises(BaseExceptionGroup) as failed:
            async with running(**options):
                pass
        assert failed.group_contains(UserError, match=rf"needs Skylark's extra {extra} \(.*h11")


async def test_metrics_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    options = {"metrics_exporter_type": "LOG", "metric_logging_exporter_interval_in_mills": 100}
    async with running(**options) as (client, addr):
        await messages(client, addr)
        await until(lambda: 'rocketmq_messages_in_total{cluster="DefaultCluster"' in caplog.text, "metrics are logged")


async def test_a_collector_gets_a_brokers_metrics() -> None:
    with collecting() as collector:
        options = {
            "metrics_exporter_type": "OTLP_GRPC", "metrics_grpc_exporter_target": collector.url,
            "metric_grpc_exporter_interval_in_mills": 100,
        }  # fmt: skip

        def has_all() -> bool:
            points = [
                point for got in collector.requests for point in got["rocketmq_messages_in_total"].sum.data_points
            ]
            return any(point.as_int == 3 for point in points)

        async with running(**options) as (client, addr):
            await messages(client, addr)
            await until(has_all, "three messages are pushed")
    assert collector.requests[-1].keys() <= {metric.name for metric in BROKER_METRICS}


async def test_a_port_in_use_is_an_error_of_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with measured(caplog) as (_, _, pages):
        with pytest.raises(BaseExceptionGroup) as failed:
            port = int(pages.rpartition(":")[2])
            async with running(metrics_exporter_type="PROM", metrics_prom_exporter_port=port):
                pass
        assert failed.group_contains(UserError, match="metricsPromExporterPort")


def test_a_push_without_a_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="metricsGrpcExporterTarget"):
        BrokerOptions(metrics_exporter_type="OTLP_GRPC")
