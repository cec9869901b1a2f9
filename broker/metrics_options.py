"""The options of metrics that only brokers have; see mqcommon/metrics/options.py for the others."""

from dataclasses import dataclass

from mqcommon.options.fields import option


@dataclass(frozen=True)
class BrokerMetricsOptions:
    """Part of `BrokerOptions`."""

    exporter_compatible_names: bool = option(
        False, "also give metrics under the names of rocketmq-exporter, for dashboards that were made for it"
    )
