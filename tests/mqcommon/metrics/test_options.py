"""Options of metrics."""

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.metrics.options import MetricsOptions


def test_labels_and_headers() -> None:
    options = MetricsOptions(metrics_label="zone:a, rack : 7 ", metrics_grpc_exporter_header="token:a:b")
    assert options.own_labels == [("zone", "a"), ("rack", "7")]
    assert options.push_headers == {"token": "a:b"}


@pytest.mark.parametrize("label", ["zone", "1a:b", "a-b:c", "__name__:x"])
def test_a_label_that_prometheus_would_refuse_is_refused(label: str) -> None:
    with pytest.raises(ConfigError, match=r"metricsLabel: .* is not a label"):
        MetricsOptions(metrics_label=label).check_metrics()


def test_a_wrong_header_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        MetricsOptions(metrics_grpc_exporter_header="secret").check_metrics()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("collector:4318", "http://collector:4318/v1/metrics"),
        ("https://collector:4318/", "https://collector:4318/v1/metrics"),
        ("http://collector/own/path", "http://collector/own/path"),
    ],
)
def test_the_url_of_a_collector(target: str, url: str) -> None:
    assert MetricsOptions(metrics_grpc_exporter_target=target).push_url == url


def test_a_push_needs_a_target() -> None:
    with pytest.raises(ConfigError, match="metricsGrpcExporterTarget"):
        MetricsOptions(metrics_exporter_type="OTLP_GRPC").check_metrics()
