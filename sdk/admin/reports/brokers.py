"""Brokers: counters, options, replication, and which master wrote which part of the log."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.brokers import HARuntimeInfo
from skylark.remoting.protocol.requests.replication import EpochEntryCache
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.reports.report import FLAT


@lazy_dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The counters and the state of a broker, as texts by their names. ``of_cluster``: a whole cluster was asked."""

    broker_addr: str
    of_cluster: bool
    table: Mapping[str, str]


@lazy_dataclass(frozen=True, slots=True)
class BrokerConfiguration:
    """The options of a broker, as texts by their names. ``master_addr``: see `broker_configs`."""

    broker_addr: str
    master_addr: str | None
    config: Mapping[str, str]


@lazy_dataclass(frozen=True, slots=True)
class HaStatus:
    """The replication of a broker: for a master, the progress of its slaves; for a slave, its own progress."""

    broker_addr: str
    status: HARuntimeInfo = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class BrokerEpochs:
    """Which master wrote which part of the broker's log."""

    broker_addr: str
    epochs: EpochEntryCache = field(metadata=FLAT)


async def broker_statuses(
    admin: Admin,
    addrs: Iterable[str],
    *,
    of_cluster: bool = False,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> list[BrokerStatus]:
    """The counters of the brokers at ``addrs``; ``of_cluster``: see `BrokerStatus`."""
    answers = await ask_each(addrs, admin.broker_runtime_info, on_progress)
    report_unanswered("broker", answers, on_problem)
    return [BrokerStatus(addr, of_cluster, table) for addr, table in answers.values.items()]


async def broker_configs(
    admin: Admin, masters: Mapping[str, str | None], *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[BrokerConfiguration]:
    """The options of brokers. ``masters``: broker address → address of its master, or None if not needed."""
    answers = await ask_each(masters, admin.broker_config, on_progress)
    report_unanswered("broker", answers, on_problem)
    return [BrokerConfiguration(addr, masters[addr], config) for addr, config in answers.values.items()]


async def ha_statuses(
    admin: Admin, addrs: Iterable[str], *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[HaStatus]:
    """The replication of the brokers at ``addrs``."""
    answers = await ask_each(addrs, admin.broker_ha_status, on_progress)
    report_unanswered("broker", answers, on_problem)
    return [HaStatus(addr, status) for addr, status in answers.values.items()]


async def broker_epochs(
    admin: Admin, addrs: Iterable[str], *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[BrokerEpochs]:
    """The epochs of the brokers at ``addrs``, which are of sets that have Controllers."""
    answers = await ask_each(addrs, admin.broker_epochs, on_progress)
    report_unanswered("broker", answers, on_problem)
    return [BrokerEpochs(addr, epochs) for addr, epochs in answers.values.items()]
