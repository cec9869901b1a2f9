"""clusterList: every broker of every cluster, with its load."""

from collections.abc import Iterable, Iterator, Sequence
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
_BASE = Table(
    (
        *_PLACE,
        ("#BID", "broker_id"),
        ("#Addr", "broker_addr"),
        ("#Version", "version"),
        ("#InTPS(LOAD)", "in_text"),
        ("#OutTPS(LOAD)", "out_text"),
        ("#Timer(Progress)", "timer_text"),
        ("#PCWait(ms)", "page_cache_lock_ms"),
        ("#Hour", "hour_text"),
        ("#SPACE", "space_text"),
        ("#ACTIVATED", "active_text"),
    ),
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s",
)
_LAG = Table((*_BASE.columns, ("#LAG(bytes)", "lag_text"), ("#LAG(s)", "lag_s_text")), f"{_BASE.row_format}  %14s  %8s")
_MORE = Table(
    (
        *_PLACE,
        ("#InTotalYest", "in_yesterday"),
        ("#OutTotalYest", "out_yesterday"),
        ("#InTotalToday", "in_today"),
        ("#OutTotalToday", "out_today"),
    ),
    "%-16s  %-32s %14d %14d %14d %14d",
)


def _load_lines(rows: "Sequence[ClusterRow]", form: Table) -> Iterator[str]:
    yield form.head()
    for row in rows:
        load, lag = row.load, row.lag
        send = f"{load.send_queue_size},{load.send_wait_ms}ms"
        pull, ack = f"{load.pull_queue_size},{load.pull_wait_ms}ms", f"{load.ack_queue_size},{load.ack_wait_ms}ms"
        timer = (
            f"{load.timer_behind_s}-{load.timer_offset_behind}({load.timer_congested_messages / 10000:.1f}w, "
            f"{load.timer_enqueue_tps:.1f}, {load.timer_dequeue_tps:.1f})"
        )
        yield form.row(
            row,
            version=load.version,
            in_text=f"{load.in_tps:9.2f}({send})",
            out_text=f"{load.out_tps:9.2f}({pull}|{ack})",
            timer_text=timer,
            page_cache_lock_ms=load.page_cache_lock_ms,
            hour_text=f"{load.stored_hours:2.2f}",
            space_text=f"{load.commit_log_disk_ratio:.4f}",
            active_text="true" if load.is_active else "false",
            lag_text="-" if lag.lag_bytes is None else str(lag.lag_bytes),
            lag_s_text="-" if lag.lag_ms is None else f"{lag.lag_ms / 1000:.1f}",
        )


def _totals_lines(rows: "Sequence[ClusterTotals]") -> Iterator[str]:
    yield _MORE.head()
    for row in rows:
        every = row.totals
        yield _MORE.row(
            row,
            in_yesterday=every.in_yesterday,
            out_yesterday=every.out_yesterday,
            in_today=every.in_today,
            out_today=every.out_today,
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

    def lines(rows: "Sequence[ClusterRow]") -> Iterable[str]:
        return _load_lines(rows, _LAG if lag else _BASE)

    every = watch or interval
    if more_stats:
        return await in_rounds(session, every, totals, _totals_lines, clears=watch is not None)
    return await in_rounds(session, every, rows, lines, clears=watch is not None)


FAMILIES = {
    "Clusters": (cluster_list,),
}
