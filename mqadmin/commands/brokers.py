"""Commands about brokers: state and options, replication, and the removal of files that are no longer needed."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, broker_name, cluster_name, option, where
from skylark.mqadmin.render import Table, java_value, time_text
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs
from skylark.mqadmin.session import Session, in_rounds, interval_option
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.order_records import PERM_WRITE, refuse_if_ordered
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.brokers import HAClientRuntimeInfo
    from skylark.sdk.admin.reports.brokers import BrokerConfiguration, BrokerEpochs, BrokerStatus, HaStatus
    from skylark.sdk.admin.reports.changes import BrokerChange

NO_MASTER = "NO_MASTER"


def _runtime_lines(rows: "Sequence[BrokerStatus]") -> Iterator[str]:
    for row in rows:
        for key, value in sorted(row.table.items()):
            line = f"{key:<32}: {value}"
            yield f"{row.broker_addr:<24} {line}" if row.of_cluster else line


@command(
    "brokerStatus",
    broker_addr("Broker address"),
    cluster_name("which cluster"),
    show=_runtime_lines,
)
async def broker_status(session: Session, scope: Scope) -> "Sequence[BrokerStatus]":
    """Show the counters and the state of a broker, or of all brokers of a cluster."""
    from skylark.sdk.admin.reports.brokers import broker_statuses

    addrs = await chosen_addrs(session, scope, slaves=True)
    of_cluster = scope.cluster_name is not None
    return await broker_statuses(
        session.admin, addrs, of_cluster=of_cluster, on_problem=session.report_problem, on_progress=session.progress
    )


def config_lines(title: str, config: Mapping[str, str]) -> Iterator[str]:
    """RocketMQ's list of options under a title."""
    yield f"============{title}============"
    for key, value in sorted(config.items()):
        yield f"{key:<50}=  {value}"


def _broker_config_lines(rows: "Sequence[BrokerConfiguration]") -> Iterator[str]:
    for row in rows:
        master = row.master_addr
        if master is None:
            title = row.broker_addr
        elif master == row.broker_addr:
            title = f"Master: {master}"
        else:
            title = f"My Master: {master}=====Slave: {row.broker_addr}"
        yield from config_lines(title, row.config)
        yield ""


@command(
    "getBrokerConfig",
    *where("get"),
    show=_broker_config_lines,
)
async def get_broker_config(session: Session, scope: Scope) -> "Sequence[BrokerConfiguration]":
    """Show the options of a broker, or of all brokers of a cluster."""
    from skylark.sdk.admin.reports.brokers import broker_configs

    if scope.broker_addr is not None:
        masters: dict[str, str | None] = {scope.broker_addr: None}
    else:
        masters = _masters(all_targets(await session.admin.cluster_info(), scope.cluster_name))
    return await broker_configs(session.admin, masters, on_problem=session.report_problem, on_progress=session.progress)


def _masters(targets: Sequence[Target]) -> dict[str, str | None]:
    """Broker address → address of its master."""
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    return {one.addr: masters.get(one.broker_name, NO_MASTER) for one in targets}


@lazy_dataclass(frozen=True, slots=True)
class ConfigChange:
    """An option, its new value, and the result of the change at each broker."""

    key: str
    value: str
    results: "Sequence[BrokerChange]"


@command(
    "updateBrokerConfig",
    *where("update"),
    option("a", "updateAllBroker", "update all brokers include slave", type=bool, default=False),
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
    option(
        "",
        "force",
        "take away the write permission (brokerPermission) even if the broker has queues of ordered topics",
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
) -> ConfigChange:
    """Change an option of a running broker, or of all masters of a cluster."""
    if key == "brokerPermission" and _is_closing(value) and scope.broker_addr is not None and not force:
        for one in all_targets(await session.admin.cluster_info()):
            if one.addr == scope.broker_addr:
                await refuse_if_ordered(session.admin, one.broker_name, session.warn)
    results = await at_each(
        session,
        await chosen_addrs(session, scope, slaves=update_all_broker),
        f"update config {key}",
        lambda addr: session.admin.update_broker_config(addr, {key: value.strip()}),
        lambda addr: f"update broker config success, {addr}",
    )
    return ConfigChange(key, value.strip(), results)


def _is_closing(permission: str) -> bool:
    """Whether clients may not write with this brokerPermission."""
    return permission.strip().isdecimal() and not int(permission) & PERM_WRITE


def _speed(bytes_per_second: int) -> str:
    return f"{bytes_per_second / 1024:.2f}"


_SLAVES = Table(
    (
        ("#SlaveAddr", "addr"),
        ("#SlaveAckOffset", "slave_ack_offset"),
        ("#Diff", "diff"),
        ("#TransferSpeed(KB/s)", lambda slave: _speed(slave.transferred_byte_in_second)),
        ("#Status", lambda slave: "OK" if slave.in_sync else "Fall Behind"),
        ("#TransferFromWhere", "transfer_from_where"),
    ),
    "%-32s  %-16d %16d %16s %16s %16d",
)


def _master_lines(row: "HaStatus") -> Iterator[str]:
    slaves = row.status.ha_connection_info
    yield f"#MasterAddr\t{row.broker_addr}"
    yield f"#MasterCommitLogMaxOffset\t{row.status.master_commit_log_max_offset}"
    yield f"#SlaveNum\t{len(slaves)}"
    yield f"#InSyncSlaveNum\t{row.status.in_sync_slave_nums}"
    yield from _SLAVES.lines(slaves)


def _slave_lines(client: "HAClientRuntimeInfo") -> Iterator[str]:
    yield f"#MasterAddr\t{java_value(client.master_addr)}"
    yield f"#CommitLogMaxOffset\t{client.max_offset}"
    yield f"#TransferSpeed(KB/s)\t{_speed(client.transferred_byte_in_second)}"
    yield f"#LastReadTime\t{time_text(client.last_read_timestamp)}"
    yield f"#LastWriteTime\t{time_text(client.last_write_timestamp)}"
    yield f"#MasterFlushOffset\t{client.master_flush_offset}"


def _ha_lines(rows: "Sequence[HaStatus]") -> Iterator[str]:
    for row in rows:
        yield ""
        yield from _master_lines(row) if row.status.master else _slave_lines(row.status.ha_client_runtime_info)


@command(
    "haStatus",
    broker_addr("which broker to fetch"),
    cluster_name("which cluster"),
    interval_option(),
)
async def ha_status(session: Session, scope: Scope, interval: float | None) -> "Sequence[HaStatus] | None":
    """Show the replication of each slave of a broker, or of each master of a cluster; for a slave, its own progress.

    With -i and --output json each round is one line.
    """

    from skylark.sdk.admin.reports.brokers import ha_statuses

    async def fetch() -> "Sequence[HaStatus]":
        return await ha_statuses(
            session.admin,
            await chosen_addrs(session, scope),
            on_problem=session.report_problem,
            on_progress=session.progress,
        )

    return await in_rounds(session, interval, fetch, _ha_lines)


@lazy_dataclass(frozen=True, slots=True)
class FlushOffsetReset:
    """The offset up to which a slave takes its master's log as flushed from now on."""

    broker_addr: str
    master_flush_offset: int
    ok: bool = True


@command(
    "resetMasterFlushOffset",
    broker_addr("which broker to reset", required=True),
    option("o", "offset", "the offset to reset at", type=click.IntRange(min=0), required=True),
)
async def reset_master_flush_offset(session: Session, broker_addr: str, offset: int) -> FlushOffsetReset:
    """Set the offset up to which a slave takes its master's log as flushed."""
    await session.admin.reset_master_flush_offset(broker_addr, offset)
    session.say(f"reset master flush offset to {offset} success")
    return FlushOffsetReset(broker_addr, offset)


def _epoch_lines(rows: "Sequence[BrokerEpochs]") -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"#clusterName\t{row.epochs.cluster_name}"
        yield f"#brokerName\t{row.epochs.broker_name}"
        yield f"#brokerAddr\t{row.broker_addr}"
        yield f"#brokerId\t{row.epochs.broker_id}"
        for one in row.epochs.epoch_list:
            span = f"startOffset={one.start_offset}, endOffset={one.end_offset}"
            yield f"#Epoch: EpochEntry{{epoch={one.epoch}, {span}}}"


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
) -> "Sequence[BrokerEpochs] | None":
    """Show which master wrote which part of the log, for each broker of a set that has Controllers."""
    from skylark.sdk.admin.reports.brokers import broker_epochs

    async def fetch() -> "Sequence[BrokerEpochs]":
        targets = all_targets(await session.admin.cluster_info(), cluster_name)
        addrs = [one.addr for one in targets if broker_name in (None, one.broker_name)]
        if not addrs:
            raise UserError(f"no broker {broker_name!r} at this NameServer; check -b and -n")
        return await broker_epochs(
            session.admin, addrs, on_problem=session.report_problem, on_progress=session.progress
        )

    return await in_rounds(session, interval, fetch, _epoch_lines)


def _where() -> tuple[click.Option, click.Option]:
    return broker_addr("Broker address", default=None), option("c", "cluster", "clustername", default=None)


@lazy_dataclass(frozen=True, slots=True)
class Removal:
    """The result of a removal of files at each broker."""

    results: "Sequence[BrokerChange]"


def _result_lines(removal: Removal) -> Iterator[str]:
    yield "success" if all(result.ok for result in removal.results) else "false"


async def _at_brokers(
    session: Session, broker_addr: str | None, cluster: str | None, doing: str, act: Callable[[str], Awaitable[None]]
) -> Removal:
    """Run ``act`` at one broker, at all brokers (slaves too) of a cluster, or at all brokers of all clusters."""
    if broker_addr is not None and cluster is not None:
        raise click.UsageError("Give only one of --brokerAddr or --cluster.")
    addrs = (
        [broker_addr] if broker_addr else [one.addr for one in all_targets(await session.admin.cluster_info(), cluster)]
    )

    async def shown(addr: str) -> None:
        session.progress(f"{doing} at {addr}")
        await act(addr)

    return Removal(await at_each(session, addrs, doing, shown, None))


_ENGINES = {"R": "ROCKSDB_TIMELINE", "F": "FILE_TIME_WHEEL"}


@command(
    "switchTimerEngine",
    *where("switch"),
    option("e", "engineType", "R: RocksDB timeline, F: files with a time wheel", required=True),
)
async def switch_timer_engine(session: Session, scope: Scope, engine_type: str) -> "Sequence[BrokerChange]":
    """Let brokers of RocketMQ 5.4 keep messages with a time of delivery in RocksDB, or in files again.

    Skylark's brokers have files only.
    """
    if engine_type not in _ENGINES:
        raise click.UsageError("switchTimerEngine engineType must be R or F")
    shown = engine_type if scope.broker_addr is not None else _ENGINES[engine_type]
    return await at_each(
        session,
        await chosen_addrs(session, scope),
        "switch timer engine",
        lambda addr: session.admin.switch_timer_engine(addr, engine_type),
        lambda addr: f"switchTimerEngine to {shown} success, {addr}",
    )


@command("deleteExpiredCommitLog", *_where(), show=_result_lines)
async def delete_expired_commit_log(session: Session, broker_addr: str | None, cluster: str | None) -> Removal:
    """Delete commit log files that are older than the broker's fileReservedTime, at any hour.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.delete_expired_commit_log
    return await _at_brokers(session, broker_addr, cluster, "delete expired commit log files", act)


@command("cleanExpiredCQ", *_where(), show=_result_lines)
async def clean_expired_cq(session: Session, broker_addr: str | None, cluster: str | None) -> Removal:
    """Delete consume queue files whose messages have been deleted.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.clean_expired_consume_queue
    return await _at_brokers(session, broker_addr, cluster, "clean expired consume queues", act)


@command("cleanUnusedTopic", *_where(), show=_result_lines)
async def clean_unused_topic(session: Session, broker_addr: str | None, cluster: str | None) -> Removal:
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
        switch_timer_engine,
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
