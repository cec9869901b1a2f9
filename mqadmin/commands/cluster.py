"""clusterList: every broker of every cluster, with its load."""

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from skylark.mqadmin.command import command
from skylark.mqadmin.params import cluster_name, option
from skylark.mqadmin.render import Row, Table
from skylark.mqadmin.session import Session, in_rounds, interval_option, watch_option
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.broker_rows import base_row, lag_of, more_row, thread_pool_keys
from skylark.sdk.admin.targets import all_targets

_BASE = Table(
    (
        ("#Cluster Name", "clusterName"),
        ("#Broker Name", "brokerName"),
        ("#BID", "brokerId"),
        ("#Addr", "brokerAddr"),
        ("#Version", "version"),
        ("#InTPS(LOAD)", "inText"),
        ("#OutTPS(LOAD)", "outText"),
        ("#Timer(Progress)", "timerText"),
        ("#PCWait(ms)", "pageCacheLockTimeMills"),
        ("#Hour", "hourText"),
        ("#SPACE", "spaceText"),
        ("#ACTIVATED", "activeText"),
    ),
    "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s",
)
_LAG = Table(
    (*_BASE.columns, ("#LAG(bytes)", "lagText"), ("#LAG(s)", "lagSecondsText")), f"{_BASE.row_format}  %14s  %8s"
)
_MORE = Table(
    (
        ("#Cluster Name", "clusterName"),
        ("#Broker Name", "brokerName"),
        ("#InTotalYest", "inTotalYest"),
        ("#OutTotalYest", "outTotalYest"),
        ("#InTotalToday", "inTotalToday"),
        ("#OutTotalToday", "outTotalToday"),
    ),
    "%-16s  %-32s %14d %14d %14d %14d",
)


def _load(row: Row, pool: str) -> str:
    size, wait_ms = thread_pool_keys(pool)
    return f"{row[size]},{row[wait_ms]}ms"


def _base_lines(rows: Sequence[Row], form: Table) -> Iterator[str]:
    yield form.head()
    for row in rows:
        timer = (
            f"{row['timerReadBehind']}-{row['timerOffsetBehind']}({row['timerCongestNum'] / 10000:.1f}w, "
            f"{row['timerEnqueueTps']:.1f}, {row['timerDequeueTps']:.1f})"
        )
        yield form.row(
            {
                **row,
                "inText": f"{row['inTps']:9.2f}({_load(row, 'send')})",
                "outText": f"{row['outTps']:9.2f}({_load(row, 'pull')}|{_load(row, 'ack')})",
                "timerText": timer,
                "hourText": f"{row['hour']:2.2f}",
                "spaceText": f"{row['commitLogDiskRatio']:.4f}",
                "activeText": "true" if row["brokerActive"] else "false",
                "lagText": "-" if row["lagBytes"] is None else str(row["lagBytes"]),
                "lagSecondsText": "-" if row["lagMs"] is None else f"{row['lagMs'] / 1000:.1f}",
            }
        )


async def _rows(session: Session, cluster: str | None, more_stats: bool) -> list[dict[str, Any]]:
    info = await session.admin.cluster_info()
    targets = all_targets(info, cluster)
    answers = await session.each((one.addr for one in targets), session.admin.broker_runtime_info)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    rows = []
    for target in targets:
        table = answers.values.get(target.addr, {})
        if more_stats:
            row = more_row(target, table)
        else:
            row = base_row(target, table, int(time.time() * 1000)) | lag_of(target, answers.values, masters)
        rival = (info.contested or {}).get(target.broker_name, {}).get(target.broker_id)
        if rival is not None:
            row["contestedBy"] = rival
            session.warn(
                f"{target.broker_name} with id {target.broker_id} is registered from {target.addr} and from {rival}:"
                " if both run, stop one of them, or give it another brokerName or brokerId"
            )
        row["ok"] = target.addr in answers.values
        rows.append(row)
    from skylark.sdk.routes import away_because

    for one in info.absent_brokers or ():
        if cluster in (None, one.cluster):
            session.warn(
                f"broker {one.broker_name} of cluster {one.cluster} is away ({away_because(one)}): start it, or, if it"
                f" is gone for good, mqadmin forgetBroker -b {one.broker_name}"
            )
    return rows


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
) -> list[dict[str, Any]] | None:
    """List the brokers of all clusters, with version and load.

    With -l two more columns show how far each slave is behind, in bytes, and in seconds if its master is a Skylark
    broker. With -i or --watch and --output json each round is one line.
    """

    def lines(rows: list[dict[str, Any]]) -> Iterable[str]:
        return _MORE.lines(rows) if more_stats else _base_lines(rows, _LAG if lag else _BASE)

    look = partial(_rows, session, cluster_name, more_stats)
    return await in_rounds(session, watch or interval, look, lines, clears=watch is not None)


FAMILIES = {
    "Clusters": (cluster_list,),
}
