"""Brokers: counters, options, replication, and which master wrote which part of the log."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.brokers import HARuntimeInfo
from skylark.remoting.protocol.requests.replication import EpochEntryCache
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.asking import AskEach, Reports, unanswered_of
from skylark.sdk.admin.reports.report import FLAT
from skylark.sdk.endpoint import ask_all


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
    """Of a master how far its slaves have copied; of a slave how far it has copied itself."""

    broker_addr: str
    status: HARuntimeInfo = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class BrokerEpochs:
    """Which master wrote which part of the broker's log."""

    broker_addr: str
    epochs: EpochEntryCache = field(metadata=FLAT)


async def broker_statuses(
    admin: Admin, addrs: Iterable[str], *, of_cluster: bool = False, each: AskEach = ask_all
) -> Reports[BrokerStatus]:
    """The counters of the brokers at ``addrs``."""
    answers = await each(addrs, admin.broker_runtime_info)
    rows = tuple(BrokerStatus(addr, of_cluster, table) for addr, table in answers.values.items())
    return Reports(rows, unanswered_of("broker", answers))


async def broker_configs(
    admin: Admin, masters: Mapping[str, str | None], *, each: AskEach = ask_all
) -> Reports[BrokerConfiguration]:
    """The options of brokers. ``masters``: address of each → address of its master, None where nobody asked for it."""
    answers = await each(masters, admin.broker_config)
    rows = tuple(BrokerConfiguration(addr, masters[addr], config) for addr, config in answers.values.items())
    return Reports(rows, unanswered_of("broker", answers))


async def ha_statuses(admin: Admin, addrs: Iterable[str], *, each: AskEach = ask_all) -> Reports[HaStatus]:
    """The replication of the brokers at ``addrs``."""
    answers = await each(addrs, admin.broker_ha_status)
    rows = tuple(HaStatus(addr, status) for addr, status in answers.values.items())
    return Reports(rows, unanswered_of("broker", answers))


async def broker_epochs(admin: Admin, addrs: Iterable[str], *, each: AskEach = ask_all) -> Reports[BrokerEpochs]:
    """The epochs of the brokers at ``addrs``, which are of sets that have Controllers."""
    answers = await each(addrs, admin.broker_epochs)
    rows = tuple(BrokerEpochs(addr, epochs) for addr, epochs in answers.values.items())
    return Reports(rows, unanswered_of("broker", answers))
