"""Raft groups: Controllers, the sets whose masters Controllers elect, and DLedger groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.controller import GetMetaDataResponseHeader, InSyncStateData, MasterHeader
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.reports.report import FLAT
from skylark.sdk.admin.targets import all_targets


@lazy_dataclass(frozen=True, slots=True)
class ControllerMetadata:
    """The leader of a group of Controllers, as one Controller sees it."""

    controller_addr: str
    group: GetMetaDataResponseHeader = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The options of a Controller, as texts by their names."""

    controller_addr: str
    config: Mapping[str, str]


@lazy_dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The master and the SyncStateSet of a broker set."""

    broker_name: str
    replicas: InSyncStateData = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class ElectedMaster:
    """The new master of a set."""

    broker_name: str
    master: MasterHeader = field(metadata=FLAT)


async def controller_metadata(
    admin: Admin, addrs: Iterable[str], *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[ControllerMetadata]:
    """The leader, as each of the Controllers at ``addrs`` sees it."""
    answers = await ask_each(addrs, admin.controller_metadata, on_progress)
    report_unanswered("Controller", answers, on_problem)
    return [ControllerMetadata(addr, header) for addr, header in answers.values.items()]


async def controller_configs(
    admin: Admin, addrs: Iterable[str], *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[ControllerConfig]:
    """The options of the Controllers at ``addrs``."""
    answers = await ask_each(addrs, admin.controller_config, on_progress)
    report_unanswered("Controller", answers, on_problem)
    return [ControllerConfig(addr, config) for addr, config in answers.values.items()]


async def replica_sets(admin: Admin, controllers: Sequence[str], broker_names: Sequence[str]) -> list[ReplicaSet]:
    """The sets of ``broker_names`` that the Controllers know, by name."""
    found = (await admin.sync_state_sets(controllers, broker_names)).replicas_info_table
    return [ReplicaSet(name, replicas) for name, replicas in sorted(found.items())]


async def dledger_leader(admin: Admin, broker_name: str) -> str:
    """The address of the broker that leads a DLedger group; UserError when NameServers know none."""
    targets = all_targets(await admin.cluster_info())
    found = [one.addr for one in targets if one.broker_name == broker_name and one.broker_id == MASTER_ID]
    if not found:
        raise UserError(f"the NameServer knows no leader of {broker_name}: see mqadmin clusterList")
    return found[0]
