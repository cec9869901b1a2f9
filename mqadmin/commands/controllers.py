"""Commands about groups that agree by Raft: Controllers, and the sets whose masters they elect; DLedger groups."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.brokers import config_lines
from skylark.mqadmin.params import Address, cluster_name, option
from skylark.mqadmin.render import Row, java_value
from skylark.mqadmin.scope import at_each
from skylark.mqadmin.session import Session, in_rounds, interval_option
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import all_targets

_KEY = "controllerAddr"


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


def _metadata_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"#ControllerGroup\t{row['group']}"
        yield f"#ControllerLeaderId\t{row['controllerLeaderId']}"
        yield f"#ControllerLeaderAddress\t{row['controllerLeaderAddress']}"
        for peer in filter(None, row["peers"].split(";")):
            yield f"#Peer:\t{peer}"


@command("getControllerMetaData", _controllers(), show=_metadata_lines)
async def get_controller_metadata(session: Session, controller_address: str) -> list[dict[str, Any]]:
    """Show who leads a group of Controllers, as each of -a sees it."""
    answers = await session.each(_split(controller_address), session.admin.controller_metadata)
    for addr, error in answers.errors.items():
        session.fail(error, f"Controller {addr}")
    return [{_KEY: addr, **header.to_ext()} for addr, header in answers.values.items()]


def _config_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield from config_lines(row[_KEY], row["config"])


@command("getControllerConfig", _controllers(), show=_config_lines)
async def get_controller_config(session: Session, controller_address: str) -> list[dict[str, Any]]:
    """Show the options of each Controller of -a."""
    answers = await session.each(_split(controller_address), session.admin.controller_config)
    for addr, error in answers.errors.items():
        session.fail(error, f"Controller {addr}")
    return [{_KEY: addr, "config": config} for addr, config in answers.values.items()]


@command(
    "updateControllerConfig",
    _controllers(),
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
)
async def update_controller_config(
    session: Session, controller_address: str, key: str, value: str
) -> list[dict[str, Any]]:
    """Change an option of each running Controller of -a."""
    values = {key: value.strip()}
    return await at_each(
        session,
        _split(controller_address),
        f"update config {key}",
        lambda addr: session.admin.update_controller_config(addr, values),
        lambda addr: f"update controller config success![{addr}]",
        key=_KEY,
    )


def _set_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"#brokerName\t{row['brokerName']}"
        yield f"#MasterBrokerId\t{java_value(row.get('masterBrokerId'))}"
        yield f"#MasterAddr\t{java_value(row.get('masterAddress'))}"
        yield f"#MasterEpoch\t{row['masterEpoch']}"
        yield f"#SyncStateSetEpoch\t{row['syncStateSetEpoch']}"
        yield f"#SyncStateSetNums\t{len(row['inSyncReplicas'])}"
        for title, replicas in (("InSyncReplica", "inSyncReplicas"), ("NotInSyncReplica", "notInSyncReplicas")):
            for each in row[replicas]:
                yield (
                    f"\n{title}:\tReplicaIdentity{{brokerName='{each['brokerName']}', brokerId={each['brokerId']},"
                    f" brokerAddress='{each['brokerAddress']}', alive={str(each['alive']).lower()}}}"
                )


@command(
    "getSyncStateSet",
    _controllers(),
    option("b", "brokerName", "broker name", default=None),
    cluster_name("which cluster; its brokers are asked of a NameServer"),
    interval_option(),
    either=("broker_name", "cluster_name"),
)
async def get_sync_state_set(
    session: Session, controller_address: str, broker_name: str | None, cluster_name: str | None, interval: float | None
) -> list[dict[str, Any]] | None:
    """Show the master and the SyncStateSet of a broker set, or of all sets of a cluster."""

    async def look() -> list[dict[str, Any]]:
        names = [broker_name or ""]
        if cluster_name is not None:
            targets = all_targets(await session.admin.cluster_info(), cluster_name)
            names = sorted({target.broker_name for target in targets})
        found = (await session.admin.sync_state_sets(_split(controller_address), names)).replicas_info_table
        for name in names:
            if name not in found:
                session.fail(UserError(f"the Controllers know no set {name}"), f"broker {name}")
        return [{"brokerName": name, **known.to_wire()} for name, known in sorted(found.items())]

    return await in_rounds(session, interval, look, _set_lines)


@command(
    "electMaster",
    _controllers(),
    option("b", "brokerId", "id of the replica that is to be the master", type=click.IntRange(min=1), required=True),
    option("", "brokerName", "broker name", required=True),
    option("c", "clusterName", "cluster of the broker", default=None),
)
async def elect_master(
    session: Session, controller_address: str, broker_id: int, broker_name: str, cluster_name: str | None
) -> dict[str, Any]:
    """Make a living member of the SyncStateSet the master of its set."""
    addrs = _split(controller_address)
    header = await session.admin.elect_master(addrs, broker_name, broker_id, cluster_name)
    session.say(f"#BrokerName\t{broker_name}")
    session.say(f"#BrokerMasterAddr\t{header.master_address}")
    session.say(f"#MasterEpoch\t{header.master_epoch}")
    session.say(f"#SyncStateSetEpoch\t{header.sync_state_set_epoch}")
    return {"brokerName": broker_name, **header.to_ext()}


@command(
    "cleanBrokerMetadata",
    _controllers(),
    option("bn", "brokerName", "broker name", required=True),
    option("b", "brokerControllerIdsToClean", "ids of replicas, as in 1;2; all of the set without it", default=None),
    option("c", "clusterName", "cluster of the broker", default=None),
    option("l", "cleanLivingBroker", "also those that are alive", is_flag=True, type=bool),
)
async def clean_broker_metadata(
    session: Session,
    controller_address: str,
    broker_name: str,
    broker_controller_ids_to_clean: str | None,
    cluster_name: str | None,
    clean_living_broker: bool,
) -> dict[str, Any]:
    """Let the Controllers forget replicas that will not return."""
    try:
        ids = [int(each) for each in (broker_controller_ids_to_clean or "").split(";") if each.strip()]
    except ValueError:
        raise UserError(f"-b {broker_controller_ids_to_clean} is not a list of ids, as in 1;2") from None
    await session.admin.clean_broker_metadata(
        _split(controller_address), broker_name, ids, cluster_name, even_living=clean_living_broker
    )
    session.say(f"clear broker {broker_name} metadata from controller success!")
    return {"brokerName": broker_name, "brokerIds": ids, "ok": True}


def _member_lines(row: Row) -> Iterator[str]:
    for kind in ("voters", "learners"):
        for node, addr in sorted(row[kind].items()):
            yield f"{node:<24} {addr:<24} {kind[:-1]}{' leader' if node == row['leader'] else ''}"


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
) -> dict[str, Any]:
    """Show the members of a group of Controllers, or change them: one at a time."""
    action, value = _change_of(add, remove, transfer)
    members = await session.admin.controller_members(
        _split(controller_address), action, node=None if add else value, addr=add
    )
    return members.to_wire()


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
) -> dict[str, Any]:
    """Show the members of a DLedger group of brokers, or change them: one at a time."""
    action, value = _change_of(add, remove, transfer)
    info = await session.admin.cluster_info()
    found = [each for each in all_targets(info) if each.broker_name == broker_name and each.broker_id == MASTER_ID]
    if not found:
        raise UserError(f"the NameServer knows no leader of {broker_name}: see mqadmin clusterList")
    members = await session.admin.dledger_members(found[0].addr, action, node=None if add else value, member=add)
    return members.to_wire()


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
