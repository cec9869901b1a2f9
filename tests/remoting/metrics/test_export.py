"""Metrics in the log."""

import logging

import pytest
import trio
import trio.testing

from skylark.mqcommon.metrics.metric import Column, Metric, column
from skylark.mqcommon.metrics.options import HealthOptions, MetricsOptions
from skylark.remoting.metrics import export
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.steps import Stepper, Steps

LAG = Metric("rocketmq_consumer_lag_messages", "gauge", "", ("topic",), "Lag")


@pytest.mark.parametrize(
    ("most", "logged", "more"),
    [
        (3, 3, []),
        (2, 2, ["1 values were not logged: metricsExporterType=PROM has all"]),
        (0, 0, ["3 values were not logged: metricsExporterType=PROM has all"]),
    ],
)
async def test_the_log_has_a_bounded_number_of_values_and_says_how_many_are_missing(
    most: int,
    logged: int,
    more: list[str],
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def collect() -> Steps[list[Column]]:
        yield None
        return [column(LAG, [((f"t{number}",), number) for number in range(3)])]

    monkeypatch.setattr(export, "MAX_LOG_LINES", most)
    options = MetricsOptions(metrics_exporter_type="LOG", metric_logging_exporter_interval_in_mills=1_000)
    exporter = Exporter(options, [("cluster", "c")], collect, Health(HealthOptions(), str), Stepper())
    with caplog.at_level(logging.INFO), trio.move_on_after(1.5):
        await exporter.run()
    values = [f'{LAG.name}{{cluster="c",topic="t{number}"}} {number}' for number in range(3)]
    assert caplog.messages == values[:logged] + more
