"""Commands about Raft groups: Controllers, the sets whose masters Controllers elect, and DLedger groups."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.brokers import config_lines
from skylark.mqadmin.params import Address, cluster_name, option
from skylark.mqadmin.render import java_value
from skylark.mqadmin.scope import at_servers
from skylark.mqadmin.session import Session, in_rounds, interval_option
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.raft import RaftMembers
    from skylark.sdk.admin.reports.changes import ControllerChange
    from skylark.sdk.admin.reports.controllers import (
        ControllerConfig,
        ControllerMetadata,
        ElectedMaster,
        ReplicaSet,
    )


def _controllers() -> click.Option:
    return option(
        "a",
        "controllerAddress",
        "addresses of Controllers",
        type=Address(several=True),
        metavar="HOST:PORT[;...]",
        required=True,
    )


def _split(addrs: str) -> list[str]:
    return addrs.split(";")


def _metadata_lines(rows: "Sequence[ControllerMetadata]") -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"#ControllerGroup\t{row.group.group}"
        yield f"#ControllerLeaderId\t{java_value(row.group.controller_leader_id)}"
        yield f"#ControllerLeaderAddress\t{java_value(row.group.controller_leader_address)}"
        for peer in filter(None, (row.group.peers or "").split(";")):
            yield f"#Peer:\t{peer}"


@command("getControllerMetaData", _controllers(), show=_metadata_lines)
async def get_controller_metadata(session: Session, controller_address: str) -> "Sequence[ControllerMetadata]":
    """Show who leads a group of Controllers, as each of -a sees it."""
    from skylark.sdk.admin.reports.controllers import controller_metadata

    return await controller_metadata(
        session.admin, _split(controller_address), on_problem=session.report_problem, on_progress=session.progress
    )


def _config_lines(rows: "Sequence[ControllerConfig]") -> Iterator[str]:
    for row in rows:
        yield from config_lines(row.controller_addr, row.config)


@command("getControllerConfig", _controllers(), show=_config_lines)
async def get_controller_config(session: Session, controller_address: str) -> "Sequence[ControllerConfig]":
    """Show the options of each Controller of -a."""
    from skylark.sdk.admin.reports.controllers import controller_configs

    return await controller_configs(
        session.admin, _split(controller_address), on_problem=session.report_problem, on_progress=session.progress
    )


@command(
    "updateControllerConfig",
    _controllers(),
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
)
async def update_controller_config(
    session: Session, controller_address: str, key: str, value: str
) -> "Sequence[ControllerChange]":
    """Change an option of each running Controller of -a."""
    from skylark.sdk.admin.reports.changes import ControllerChange

    values = {key: value.strip()}
    return await at_servers(
        session,
        _split(controller_address),
        f"update config {key}",
        lambda addr: session.admin.update_controller_config(addr, values),
        lambda addr: f"update controller config success![{addr}]",
        ControllerChange,
    )


def _set_lines(rows: "Sequence[ReplicaSet]") -> Iterator[str]:
    for row in rows:
        known = row.replicas
        yield ""
        yield f"#brokerName\t{row.broker_name}"
        yield f"#MasterBrokerId\t{java_value(known.master_broker_id)}"
        yield f"#MasterAddr\t{java_value(known.master_address)}"
        yield f"#MasterEpoch\t{known.master_epoch}"
        yield f"#SyncStateSetEpoch\t{known.sync_state_set_epoch}"
        yield f"#SyncStateSetNums\t{len(known.in_sync_replicas)}"
        for title, replicas in (
            ("InSyncReplica", known.in_sync_replicas),
            ("NotInSyncReplica", known.not_in_sync_replicas),
        ):
            for each in replicas:
                yield (
                    f"\n{title}:\tReplicaIdentity{{brokerName='{each.broker_name}', brokerId={each.broker_id},"
                    f" brokerAddress='{each.broker_address}', alive={str(each.alive).lower()}}}"
                )


@command(
    "getSyncStateSet",
    _controllers(),
    option("b", "brokerName", "broker name", default=None),
    cluster_name("which cluster; a NameServer lists its brokers"),
    interval_option(),
    either=("broker_name", "cluster_name"),
)
async def get_sync_state_set(
    session: Session, controller_address: str, broker_name: str | None, cluster_name: str | None, interval: float | None
) -> "Sequence[ReplicaSet] | None":
    """Show the master and the SyncStateSet of a broker set, or of all sets of a cluster."""
    from skylark.sdk.admin.reports.controllers import replica_sets

    async def fetch() -> "Sequence[ReplicaSet]":
        names = [broker_name or ""]
        if cluster_name is not None:
            targets = all_targets(await session.admin.cluster_info(), cluster_name)
            names = sorted({target.broker_name for target in targets})
        found = await replica_sets(session.admin, _split(controller_address), names)
        known = {one.broker_name for one in found}
        for name in names:
            if name not in known:
                session.fail(UserError(f"the Controllers know no set {name}"), f"broker {name}")
        return found

    return await in_rounds(session, interval, fetch, _set_lines)


@command(
    "electMaster",
    _controllers(),
    option("b", "brokerId", "id of the replica that is to be the master", type=click.IntRange(min=1), required=True),
    option("", "brokerName", "broker name", required=True),
    option("c", "clusterName", "cluster of the broker", default=None),
)
async def elect_master(
    session: Session, controller_address: str, broker_id: int, broker_name: str, cluster_name: str | None
) -> "ElectedMaster":
    """Make a living member of the SyncStateSet the master of its set."""
    from skylark.sdk.admin.reports.controllers import ElectedMaster

    addrs = _split(controller_address)
    header = await session.admin.elect_master(addrs, broker_name, broker_id, cluster_name)
    session.say(f"#BrokerName\t{broker_name}")
    session.say(f"#BrokerMasterAddr\t{header.master_address}")
    session.say(f"#MasterEpoch\t{header.master_epoch}")
    session.say(f"#SyncStateSetEpoch\t{header.sync_state_set_epoch}")
    return ElectedMaster(broker_name, header)


@lazy_dataclass(frozen=True, slots=True)
class CleanedMetadata:
    """The replicas of a set that the Controllers have forgotten; without ids all of them."""

    broker_name: str
    broker_ids: Sequence[int]
    ok: bool = True


@command(
    "cleanBrokerMetadata",
    _controllers(),
    option("bn", "brokerName", "broker name", required=True),
    option("b", "brokerControllerIdsToClean", "ids of replicas, as in 1;2; all of the set without it", default=None),
    option("c", "clusterName", "cluster of the broker", default=None),
    option("l", "cleanLivingBroker", "also replicas that are alive", is_flag=True, type=bool),
)
async def clean_broker_metadata(
    session: Session,
    controller_address: str,
    broker_name: str,
    broker_controller_ids_to_clean: str | None,
    cluster_name: str | None,
    clean_living_broker: bool,
) -> CleanedMetadata:
    """Let the Controllers forget replicas that will not return."""
    try:
        ids = [int(each) for each in (broker_controller_ids_to_clean or "").split(";") if each.strip()]
    except ValueError:
        raise UserError(f"-b {broker_controller_ids_to_clean} is not a list of ids, as in 1;2") from None
    await session.admin.clean_broker_metadata(
        _split(controller_address), broker_name, ids, cluster_name, even_living=clean_living_broker
    )
    session.say(f"clear broker {broker_name} metadata from controller success!")
    return CleanedMetadata(broker_name, ids)


def _member_lines(members: "RaftMembers") -> Iterator[str]:
    for kind, nodes in (("voter", members.voters), ("learner", members.learners)):
        for node, addr in sorted(nodes.items()):
            yield f"{node:<24} {addr:<24} {kind}{' leader' if node == members.leader else ''}"


@command(
    "controllerMembers",
    _controllers(),
    option("", "add", "address of a Controller that is to join", type=Address(), metavar="HOST:PORT", default=None),
    option("", "remove", "id of a Controller that is to leave", default=None),
    option("", "transfer", "id of the Controller that is to lead", default=None),
    show=_member_lines,
)
async def controller_members(
    session: Session, controller_address: str, add: str | None, remove: str | None, transfer: str | None
) -> "RaftMembers":
    """Show the members of a group of Controllers, or change them: one at a time."""
    action, value = _change_of(add, remove, transfer)
    node = None if add else value
    return await session.admin.controller_members(_split(controller_address), action, node=node, addr=add)


@command(
    "dledgerMembers",
    option("bn", "brokerName", "broker name of the group", required=True),
    option(
        "", "add", "address in the group of a member that is to join", type=Address(), metavar="HOST:PORT", default=None
    ),
    option("", "remove", "id of a member that is to leave", default=None),
    option("", "transfer", "id of the member that is to lead", default=None),
    show=_member_lines,
)
async def dledger_members(
    session: Session, broker_name: str, add: str | None, remove: str | None, transfer: str | None
) -> "RaftMembers":
    """Show the members of a DLedger group of brokers, or change them: one at a time."""
    from skylark.sdk.admin.reports.controllers import dledger_leader

    action, value = _change_of(add, remove, transfer)
    leader = await dledger_leader(session.admin, broker_name)
    return await session.admin.dledger_members(leader, action, node=None if add else value, member=add)


def _change_of(add: str | None, remove: str | None, transfer: str | None) -> tuple[str, str | None]:
    given = [(name, value) for name, value in (("add", add), ("remove", remove), ("transfer", transfer)) if value]
    if len(given) > 1:
        raise UserError("give only one of --add, --remove and --transfer: members change one at a time")
    return given[0] if given else ("list", None)


FAMILIES = {
    "Controllers": (
        get_controller_metadata,
        get_controller_config,
        update_controller_config,
        get_sync_state_set,
        elect_master,
        clean_broker_metadata,
        controller_members,
        dledger_members,
    ),
}
