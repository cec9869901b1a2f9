"""Commands about replication: how far slaves have copied, and which master wrote what."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import UserError
from sdk.admin.command import command
from sdk.admin.params import broker_addr, cluster_name, option
from sdk.admin.render import Row, Table, java_value, time_text
from sdk.admin.rounds import in_rounds, interval_option
from sdk.admin.session import Session
from sdk.admin.targets import all_targets, chosen_addrs

if TYPE_CHECKING:
    from remoting.protocol.requests.brokers import HARuntimeInfo

FAMILY = "Replication"

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


def _status_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield ""
        yield from _master_lines(row) if row["master"] else _slave_lines(row)


@command(
    "haStatus",
    broker_addr("which broker to fetch"),
    cluster_name("which cluster"),
    interval_option(),
    either=("broker_addr", "cluster_name"),
)
async def ha_status(
    session: Session, broker_addr: str | None, cluster_name: str | None, interval: float | None
) -> list[dict[str, Any]] | None:
    """Show how far the slaves of a broker, or of each master of a cluster, have copied; of a slave, its own progress.

    With -i and --output json each round is one line.
    """

    async def look() -> list[dict[str, Any]]:
        addrs = await chosen_addrs(session, broker_addr, cluster_name)
        answers = await session.each(addrs, session.admin.broker_ha_status)
        for addr, error in answers.errors.items():
            session.fail(error, f"broker {addr}")
        return [_row(addr, status) for addr, status in answers.values.items()]

    return await in_rounds(session, interval, look, _status_lines)


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
    option("b", "brokerName", "which broker set"),
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


COMMANDS = (get_broker_epoch, ha_status, reset_master_flush_offset)
