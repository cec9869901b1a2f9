"""Commands about brokers: state and options, replication, and the removal of files that are not needed any more."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.order_records import PERM_WRITE, refuse_if_ordered
from skylark.mqadmin.params import broker_addr, broker_name, cluster_name, option, where
from skylark.mqadmin.render import Row, Table, java_value, time_text
from skylark.mqadmin.scope import Scope, all_ok, at_each, chosen_addrs
from skylark.mqadmin.session import Session, in_rounds, interval_option
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.brokers import HARuntimeInfo

NO_MASTER = "NO_MASTER"


def _runtime_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for key, value in sorted(row["table"].items()):
            line = f"{key:<32}: {value}"
            yield f"{row['brokerAddr']:<24} {line}" if row["ofCluster"] else line


@command(
    "brokerStatus",
    broker_addr("Broker address"),
    cluster_name("which cluster"),
    show=_runtime_lines,
)
async def broker_status(session: Session, scope: Scope) -> list[dict[str, Any]]:
    """Show the counters and the state of a broker, or of all brokers of a cluster."""
    addrs = await chosen_addrs(session, scope, slaves=True)
    answers = await session.each(addrs, session.admin.broker_runtime_info)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    return [
        {"brokerAddr": addr, "ofCluster": scope.cluster_name is not None, "table": table}
        for addr, table in answers.values.items()
    ]


def config_lines(title: str, config: dict[str, str]) -> Iterator[str]:
    """RocketMQ's list of options under a title."""
    yield f"============{title}============"
    for key, value in sorted(config.items()):
        yield f"{key:<50}=  {value}"


def _broker_config_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        master = row["masterAddr"]
        if master is None:
            title = row["brokerAddr"]
        elif master == row["brokerAddr"]:
            title = f"Master: {master}"
        else:
            title = f"My Master: {master}=====Slave: {row['brokerAddr']}"
        yield from config_lines(title, row["config"])
        yield ""


@command(
    "getBrokerConfig",
    *where("get"),
    show=_broker_config_lines,
)
async def get_broker_config(session: Session, scope: Scope) -> list[dict[str, Any]]:
    """Show the options of a broker, or of all brokers of a cluster."""
    if scope.broker_addr is not None:
        masters: dict[str, str | None] = {scope.broker_addr: None}
    else:
        masters = _masters(all_targets(await session.admin.cluster_info(), scope.cluster_name))
    answers = await session.each(masters, session.admin.broker_config)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    return [
        {"brokerAddr": addr, "masterAddr": masters[addr], "config": config} for addr, config in answers.values.items()
    ]


def _masters(targets: Sequence[Target]) -> dict[str, str | None]:
    """Broker address → address of its master."""
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    return {one.addr: masters.get(one.broker_name, NO_MASTER) for one in targets}


@command(
    "updateBrokerConfig",
    *where("update"),
    option("a", "updateAllBroker", "update all brokers include slave", type=bool, default=False),
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
    option(
        "",
        "force",
        "also a brokerPermission without writing, when the broker has queues of ordered topics",
        type=bool,
        is_flag=True,
    ),
)
async def update_broker_config(
    session: Session,
    scope: Scope,
    update_all_broker: bool,
    key: str,
    value: str,
    force: bool,
) -> dict[str, Any]:
    """Change an option of a running broker, or of all masters of a cluster."""
    if key == "brokerPermission" and _is_closing(value) and scope.broker_addr is not None and not force:
        for one in all_targets(await session.admin.cluster_info()):
            if one.addr == scope.broker_addr:
                await refuse_if_ordered(session, one.broker_name)
    results = await at_each(
        session,
        await chosen_addrs(session, scope, slaves=update_all_broker),
        f"update config {key}",
        lambda addr: session.admin.update_broker_config(addr, {key: value.strip()}),
        lambda addr: f"update broker config success, {addr}",
    )
    return {"key": key, "value": value.strip(), "results": results}


def _is_closing(permission: str) -> bool:
    """Whether clients may not write with this brokerPermission."""
    return permission.strip().isdecimal() and not int(permission) & PERM_WRITE


_SLAVES = Table(
    (
        ("#SlaveAddr", "addr"),
        ("#SlaveAckOffset", "slaveAckOffset"),
        ("#Diff", "diff"),
        ("#TransferSpeed(KB/s)", "speedText"),
        ("#Status", "statusText"),
        ("#TransferFromWhere", "transferFromWhere"),
    ),
    "%-32s  %-16d %16d %16s %16s %16d",
)


def _speed(bytes_per_second: int) -> str:
    return f"{bytes_per_second / 1024:.2f}"


def _master_lines(row: Row) -> Iterator[str]:
    slaves = row["haConnectionInfo"]
    yield f"#MasterAddr\t{row['brokerAddr']}"
    yield f"#MasterCommitLogMaxOffset\t{row['masterCommitLogMaxOffset']}"
    yield f"#SlaveNum\t{len(slaves)}"
    yield f"#InSyncSlaveNum\t{row['inSyncSlaveNums']}"
    yield from _SLAVES.lines(
        {
            **slave,
            "speedText": _speed(slave["transferredByteInSecond"]),
            "statusText": "OK" if slave["inSync"] else "Fall Behind",
        }
        for slave in slaves
    )


def _slave_lines(row: Row) -> Iterator[str]:
    client = row["haClientRuntimeInfo"]
    yield f"#MasterAddr\t{java_value(client.get('masterAddr'))}"
    yield f"#CommitLogMaxOffset\t{client['maxOffset']}"
    yield f"#TransferSpeed(KB/s)\t{_speed(client['transferredByteInSecond'])}"
    yield f"#LastReadTime\t{time_text(client['lastReadTimestamp'])}"
    yield f"#LastWriteTime\t{time_text(client['lastWriteTimestamp'])}"
    yield f"#MasterFlushOffset\t{client['masterFlushOffset']}"


def _ha_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield ""
        yield from _master_lines(row) if row["master"] else _slave_lines(row)


@command(
    "haStatus",
    broker_addr("which broker to fetch"),
    cluster_name("which cluster"),
    interval_option(),
)
async def ha_status(session: Session, scope: Scope, interval: float | None) -> list[dict[str, Any]] | None:
    """Show how far the slaves of a broker, or of each master of a cluster, have copied; of a slave, its own progress.

    With -i and --output json each round is one line.
    """

    async def look() -> list[dict[str, Any]]:
        addrs = await chosen_addrs(session, scope)
        answers = await session.each(addrs, session.admin.broker_ha_status)
        for addr, error in answers.errors.items():
            session.fail(error, f"broker {addr}")
        return [_row(addr, status) for addr, status in answers.values.items()]

    return await in_rounds(session, interval, look, _ha_lines)


def _row(addr: str, status: "HARuntimeInfo") -> dict[str, Any]:
    return {"brokerAddr": addr, **status.to_wire()}


@command(
    "resetMasterFlushOffset",
    broker_addr("which broker to reset", required=True),
    option("o", "offset", "the offset to reset at", type=click.IntRange(min=0), required=True),
)
async def reset_master_flush_offset(session: Session, broker_addr: str, offset: int) -> dict[str, Any]:
    """Set the offset up to which a slave takes its master's log as flushed."""
    await session.admin.reset_master_flush_offset(broker_addr, offset)
    session.say(f"reset master flush offset to {offset} success")
    return {"brokerAddr": broker_addr, "masterFlushOffset": offset, "ok": True}


def _epoch_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"#clusterName\t{row['clusterName']}"
        yield f"#brokerName\t{row['brokerName']}"
        yield f"#brokerAddr\t{row['brokerAddr']}"
        yield f"#brokerId\t{row['brokerId']}"
        for entry in row["epochList"]:
            start, end = entry["startOffset"], entry["endOffset"]
            yield f"#Epoch: EpochEntry{{epoch={entry['epoch']}, startOffset={start}, endOffset={end}}}"


@command(
    "getBrokerEpoch",
    broker_name("which broker set"),
    cluster_name("which cluster"),
    interval_option(),
    show=_epoch_lines,
    either=("broker_name", "cluster_name"),
)
async def get_broker_epoch(
    session: Session, broker_name: str | None, cluster_name: str | None, interval: float | None
) -> list[dict[str, Any]] | None:
    """Show which master wrote which part of the log, for each broker of a set that has Controllers."""

    async def look() -> list[dict[str, Any]]:
        targets = all_targets(await session.admin.cluster_info(), cluster_name)
        addrs = [one.addr for one in targets if broker_name in (None, one.broker_name)]
        if not addrs:
            raise UserError(f"no broker {broker_name!r} at this NameServer; check -b and -n")
        answers = await session.each(addrs, session.admin.broker_epochs)
        for addr, error in answers.errors.items():
            session.fail(error, f"broker {addr}")
        return [{"brokerAddr": addr, **epochs.to_wire()} for addr, epochs in answers.values.items()]

    return await in_rounds(session, interval, look, _epoch_lines)


def _where() -> tuple[click.Option, click.Option]:
    return broker_addr("Broker address", default=None), option("c", "cluster", "clustername", default=None)


def _result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield "success" if all_ok(result["results"]) else "false"


async def _at_brokers(
    session: Session, broker_addr: str | None, cluster: str | None, doing: str, act: Callable[[str], Awaitable[None]]
) -> dict[str, Any]:
    """Run ``act`` at one broker, at all brokers (slaves too) of a cluster, or at all brokers of all clusters."""
    if broker_addr is not None and cluster is not None:
        raise click.UsageError("Give only one of --brokerAddr or --cluster.")
    addrs = (
        [broker_addr] if broker_addr else [one.addr for one in all_targets(await session.admin.cluster_info(), cluster)]
    )

    async def shown(addr: str) -> None:
        session.progress(f"{doing} at {addr}")
        await act(addr)

    return {"results": await at_each(session, addrs, doing, shown, None)}


@command("deleteExpiredCommitLog", *_where(), show=_result_lines)
async def delete_expired_commit_log(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete commit log files that are older than the broker's fileReservedTime, at any hour.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.delete_expired_commit_log
    return await _at_brokers(session, broker_addr, cluster, "delete expired commit log files", act)


@command("cleanExpiredCQ", *_where(), show=_result_lines)
async def clean_expired_cq(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete consume queue files whose messages have been deleted.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.clean_expired_consume_queue
    return await _at_brokers(session, broker_addr, cluster, "clean expired consume queues", act)


@command("cleanUnusedTopic", *_where(), show=_result_lines)
async def clean_unused_topic(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete the consume queues of topics that the broker no longer has.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.clean_unused_topic
    return await _at_brokers(session, broker_addr, cluster, "clean unused topics", act)


FAMILIES = {
    "Brokers": (
        broker_status,
        get_broker_config,
        update_broker_config,
    ),
    "Replication": (
        get_broker_epoch,
        ha_status,
        reset_master_flush_offset,
    ),
    "Stores": (
        delete_expired_commit_log,
        clean_expired_cq,
        clean_unused_topic,
    ),
}
