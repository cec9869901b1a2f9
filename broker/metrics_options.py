"""Options of a broker's metrics."""

from dataclasses import dataclass

from mqcommon.metrics.options import MetricsOptions
from mqcommon.options import option


@dataclass(frozen=True)
class BrokerMetricsOptions(MetricsOptions):
    """Part of `BrokerOptions`."""

    exporter_compatible_names: bool = option(
        False, "also give metrics under the names of rocketmq-exporter, for dashboards that were made for it"
    )
