"""Options of metrics and health pages.

Keys and defaults are RocketMQ's, except the host (loopback) and the keys of health pages, which RocketMQ does not have.
"""

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.metrics.metric import parse_labels
from skylark.mqcommon.options.fields import option


@lazy_dataclass(frozen=True)
class HealthOptions:
    """Part of the options of every daemon."""

    health_port: int = option(
        -1,
        "port of the pages /healthz and /readyz without metrics; 0 takes a free one, -1: none",
        minimum=-1,
        maximum=65535,
    )
    health_host: str = option("", "address of the pages of healthPort; empty: 127.0.0.1")


@lazy_dataclass(frozen=True)
class MetricsOptions(HealthOptions):
    """Part of the options of a daemon with metrics."""

    metrics_exporter_type: str = option(
        "DISABLE",
        "PROM: an HTTP port with /metrics, /healthz and /readyz; OTLP_GRPC: push to an OpenTelemetry collector, by HTTP"
        " though; LOG: write to the log",
        choices=("DISABLE", "PROM", "OTLP_GRPC", "LOG"),
    )
    metrics_prom_exporter_port: int = option(5557, "port of the pages; 0 takes a free one", minimum=0, maximum=65535)
    metrics_prom_exporter_host: str = option(
        "", "address of the pages; empty: 127.0.0.1; who can reach it sees names of topics and groups"
    )
    metrics_grpc_exporter_target: str = option(
        "", "OTLP_GRPC: the collector's URL for OTLP over HTTP, usually http://host:4318"
    )
    metrics_grpc_exporter_header: str = option("", "OTLP_GRPC: headers to send, name:value,name:value", secret=True)
    metric_grpc_exporter_time_out_in_mills: int = option(
        3_000, "OTLP_GRPC: how long a push may take", unit="ms", minimum=1
    )
    metric_grpc_exporter_interval_in_mills: int = option(
        60_000, "OTLP_GRPC: time between two pushes", unit="ms", minimum=100
    )
    metric_logging_exporter_interval_in_mills: int = option(
        10_000, "LOG: time between two times", unit="ms", minimum=100
    )
    metrics_label: str = option("", "labels to add to all metrics, name:value,name:value")
    metrics_in_delta: bool = option(
        False, "OTLP_GRPC: push what counters have grown since the last push, not their totals"
    )

    @property
    def own_labels(self) -> list[tuple[str, str]]:
        """``metricsLabel``, parsed."""
        try:
            return list(parse_labels(self.metrics_label))
        except ValueError as error:
            raise ConfigError(f"metricsLabel: {error}") from None

    @property
    def push_headers(self) -> dict[str, str]:
        """``metricsGrpcExporterHeader``, parsed. The option's text is secret, so an error does not show it."""
        found = {}
        for part in filter(None, (part.strip() for part in self.metrics_grpc_exporter_header.split(","))):
            name, colon, value = part.partition(":")
            if not colon or not name.strip():
                raise ConfigError("metricsGrpcExporterHeader: write name:value, several separated by commas")
            found[name.strip()] = value.strip()
        return found

    @property
    def push_url(self) -> str:
        """``metricsGrpcExporterTarget``, with OTLP's path if it has none."""
        target = self.metrics_grpc_exporter_target.strip().rstrip("/")
        url = target if "://" in target else f"http://{target}"
        return url if "/" in url.partition("://")[2] else f"{url}/v1/metrics"

    def check_metrics(self) -> None:
        """ConfigError for the first of these options that cannot be used."""
        _ = self.own_labels, self.push_headers
        if self.metrics_exporter_type == "OTLP_GRPC" and not self.metrics_grpc_exporter_target.strip():
            raise ConfigError(
                "metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs the collector's URL,"
                " as http://host:4318"
            )
