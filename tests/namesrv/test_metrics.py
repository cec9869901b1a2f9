"""A NameServer's metrics and health."""

import logging
import re
from pathlib import Path

import pytest
import trio

from skylark.namesrv.metrics import NAMESRV_METRICS
from tests.namesrv.peer import serve
from tests.support.scrape import get, names_and_labels, samples


async def test_a_nameserver_counts_brokers_topics_and_requests(
    nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = await serve(nursery, tmp_path, metrics_exporter_type="PROM", metrics_prom_exporter_port=0)
    found = re.search(r"metrics at http://(\S+)/metrics", caplog.text)
    assert found
    peer = await served.peer()
    async with peer.stream:
        await peer.register("127.0.0.1:10911", "t1", "t2")
        await peer.register("127.0.0.1:10911", "t1", "t2")
        await peer.register("127.0.0.1:20911", "t1", "t2")
        status, text = await get(found[1], "/metrics")
        assert await get(found[1], "/readyz") == (200, "ok\n")
    assert status == 200
    values = {name: value for (name, _), value in samples(text).items()}
    assert values["skylark_namesrv_brokers"] == 1
    assert values["skylark_namesrv_topics"] == 2
    assert values["skylark_namesrv_displaced_brokers_total"] == 1
    assert values["skylark_connections"] == 1
    assert values["rocketmq_rpc_latency_count"] == 3
    known = {metric.name: {"node_type", *metric.labels} for metric in NAMESRV_METRICS}
    del known["skylark_tls_handshakes_total"]  # without TLS there are none
    assert names_and_labels(text) == known


async def test_a_nameserver_has_health_pages_without_metrics(
    nursery: trio.Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await serve(nursery, tmp_path, health_port=0)
    found = re.search(r"health at http://(\S+)/healthz, /readyz", caplog.text)
    assert found and await get(found[1], "/readyz") == (200, "ok\n")
    assert (await get(found[1], "/metrics"))[0] == 404
