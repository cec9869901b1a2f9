"""clusterList: every broker of every cluster, with its load."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skylark.mqadmin.command import command
from skylark.mqadmin.params import cluster_name, option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session, in_rounds, interval_option, watch_option

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.clusters import ClusterReport, ClusterRow, ClusterTotals

_PLACE = (
    ("#Cluster Name", "cluster_name"),
    ("#Broker Name", "broker_name"),
)


def _in(row: "ClusterRow") -> str:
    load = row.load
    return f"{load.in_tps:9.2f}({load.send_queue_size},{load.send_wait_ms}ms)"


def _out(row: "ClusterRow") -> str:
    load = row.load
    pull, ack = f"{load.pull_queue_size},{load.pull_wait_ms}ms", f"{load.ack_queue_size},{load.ack_wait_ms}ms"
    return f"{load.out_tps:9.2f}({pull}|{ack})"


def _timer(row: "ClusterRow") -> str:
    load = row.load
    rates = f"{load.timer_enqueue_tps:.1f}, {load.timer_dequeue_tps:.1f}"
    congested = load.timer_congested_messages / 10000
    return f"{load.timer_behind_s}-{load.timer_offset_behind}({congested:.1f}w, {rates})"


_BASE = Table(
    (
        *_PLACE,
        ("#BID", "broker_id"),
        ("#Addr", "broker_addr"),
        ("#Version", lambda row: row.load.version),
        ("#InTPS(LOAD)", _in),
        ("#OutTPS(LOAD)", _out),
        ("#Timer(Progress)", _timer),
        ("#PCWait(ms)", lambda row: row.load.page_cache_lock_ms),
        ("#Hour", lambda row: f"{row.load.stored_hours:2.2f}"),
        ("#SPACE", lambda row: f"{row.load.commit_log_disk_ratio:.4f}"),
        ("#ACTIVATED", lambda row: "true" if row.load.is_active else "false"),
    ),
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s",
)
_LAG = Table(
    (
        *_BASE.columns,
        ("#LAG(bytes)", lambda row: "-" if row.lag.lag_bytes is None else str(row.lag.lag_bytes)),
        ("#LAG(s)", lambda row: "-" if row.lag.lag_ms is None else f"{row.lag.lag_ms / 1000:.1f}"),
    ),
    f"{_BASE.row_format}  %14s  %8s",
)
_MORE = Table(
    (
        *_PLACE,
        ("#InTotalYest", lambda row: row.totals.in_yesterday),
        ("#OutTotalYest", lambda row: row.totals.out_yesterday),
        ("#InTotalToday", lambda row: row.totals.in_today),
        ("#OutTotalToday", lambda row: row.totals.out_today),
    ),
    "%-16s  %-32s %14d %14d %14d %14d",
)


def _complain(session: Session, found: "ClusterReport") -> None:
    """Warn of brokers that are registered twice, or are away."""
    from skylark.sdk.routes import away_because

    for row in found.rows:
        if row.contested_by is not None:
            session.warn(
                f"{row.broker_name} with id {row.broker_id} is registered from {row.broker_addr} and from"
                f" {row.contested_by}: if both run, stop one of them, or give it another brokerName or brokerId"
            )
    for one in found.absent:
        session.warn(
            f"broker {one.broker_name} of cluster {one.cluster} is away ({away_because(one)}): start it, or, if it"
            f" is gone for good, mqadmin forgetBroker -b {one.broker_name}"
        )


@command(
    "clusterList",
    option("m", "moreStats", "Print more stats", type=bool, is_flag=True),
    option("l", "lag", "also print how far each slave is behind its master", type=bool, is_flag=True),
    interval_option(),
    watch_option(),
    cluster_name("which cluster", default=None),
)
async def cluster_list(
    session: Session,
    more_stats: bool,
    lag: bool,
    interval: float | None,
    watch: float | None,
    cluster_name: str | None,
) -> "Sequence[ClusterRow] | Sequence[ClusterTotals] | None":
    """List the brokers of all clusters, with version and load.

    With -l two more columns show how far each slave is behind, in bytes, and in seconds if its master is a Skylark
    broker. With -i or --watch and --output json each round is one line.
    """
    from skylark.sdk.admin.reports.clusters import cluster_report

    async def fetch() -> "ClusterReport":
        found = await cluster_report(
            session.admin, cluster_name, on_problem=session.report_problem, on_progress=session.progress
        )
        _complain(session, found)
        return found

    async def rows() -> "Sequence[ClusterRow]":
        return (await fetch()).rows

    async def totals() -> "Sequence[ClusterTotals]":
        return (await fetch()).totals

    every, table = watch or interval, _LAG if lag else _BASE
    if more_stats:
        return await in_rounds(session, every, totals, _MORE.lines, clears=watch is not None)
    return await in_rounds(session, every, rows, table.lines, clears=watch is not None)


FAMILIES = {
    "Clusters": (cluster_list,),
}
