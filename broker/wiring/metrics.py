"""Metrics: where a broker's are read from."""

from collections.abc import Callable
from typing import NamedTuple

from broker.admin.runtime import RuntimeInfo
from broker.delivery.pop.reviving import Reviving
from broker.delivery.timer.part import TimedDelivery
from broker.delivery.transaction.part import Transactions
from broker.metrics.counters import Sources
from broker.metrics.health import HealthPages
from broker.metrics.part import Metrics
from broker.registration.registrar import Registrar
from broker.security.audit import Audit
from broker.wiring.core import Core
from broker.wiring.replication import Replicated
from remoting.net.server import Server


class Delivering(NamedTuple):
    """The parts that deliver otherwise than by pulls."""

    timed: TimedDelivery
    transactions: Transactions
    reviving: Reviving


def wire_metrics(
    core: Core, replicated: Replicated, delivering: Delivering, runtime: RuntimeInfo, audit: Audit,
    registrar: Registrar, health: HealthPages, server: Callable[[], Server],
) -> Metrics | None:  # fmt: skip
    """The part; None if metrics are off: then nothing is measured. ``server`` is made later, with its handlers."""
    if core.options.metrics_exporter_type == "DISABLE":
        return None
    sources = Sources(
        core.options, core.store, core.metadata.topics, core.metadata.groups, core.clients, core.stats,
        replicated.stats, *delivering, core.role, core.fs, core.clock, core.flusher.times_ms,
        waiting=lambda: {"send": len(core.durability), "pull": len(core.cold)},
        connections=lambda: len(server().channels),
        refusals=lambda: audit.refusals,
        limits=lambda: {**server().refusals.counts, "ha_strangers": replicated.log.strangers},
        tls=core.tls,
        registered=lambda: len(registrar.registered_addrs),
        runtime=runtime,
    )  # fmt: skip
    return Metrics(sources, core.metadata.consumer_offsets, health.health, core.stepper)
