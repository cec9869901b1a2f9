"""clusterList: every broker of every cluster, with its load."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from skylark.sdk.admin.command import command
from skylark.sdk.admin.params import cluster_name, option
from skylark.sdk.admin.render import Row, Table
from skylark.sdk.admin.session import Session, in_rounds, interval_option, watch_option
from skylark.sdk.admin.targets import MASTER_ID, Target, all_targets

_POOLS = ("send", "pull", "ack")

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


class _Info:
    """A broker's runtime info, whose values are text; a value that is missing or not a number is read as 0."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def as_float(self, key: str) -> float:
        """The first number of a value: rates hold three, of 10 s, 1 min and 10 min."""
        try:
            return float(self.table.get(key, "").split(" ")[0])
        except ValueError:
            return 0.0

    def as_int(self, key: str) -> int:
        return int(self.as_float(key))


def _thread_pool_keys(pool: str) -> tuple[str, str]:
    return f"{pool}ThreadPoolQueueSize", f"{pool}ThreadPoolQueueHeadWaitTimeMills"


def _load(row: Row, pool: str) -> str:
    size, wait_ms = _thread_pool_keys(pool)
    return f"{row[size]},{row[wait_ms]}ms"


def base_row(target: Target, table: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """The row of one broker in clusterList."""
    info = _Info(table)
    earliest_ms = info.as_float("earliestMessageTimeStamp")
    return {
        "clusterName": target.cluster,
        "brokerName": target.broker_name,
        "brokerId": target.broker_id,
        "brokerAddr": target.addr,
        "version": table.get("brokerVersionDesc", ""),
        "inTps": info.as_float("putTps"),
        # Older brokers misspell the key.
        "outTps": info.as_float("getTransferredTps") or info.as_float("getTransferedTps"),
        **{key: info.as_int(key) for pool in _POOLS for key in _thread_pool_keys(pool)},
        "timerReadBehind": info.as_int("timerReadBehind"),
        "timerOffsetBehind": info.as_int("timerOffsetBehind"),
        "timerCongestNum": info.as_int("timerCongestNum"),
        "timerEnqueueTps": info.as_float("timerEnqueueTps"),
        "timerDequeueTps": info.as_float("timerDequeueTps"),
        "pageCacheLockTimeMills": info.as_int("pageCacheLockTimeMills"),
        # Hours since the oldest message was stored.
        "hour": (now_ms - earliest_ms) / 3_600_000 if earliest_ms > 0 else 0.0,
        "commitLogDiskRatio": info.as_float("commitLogDiskRatio"),
        "brokerActive": table.get("brokerActive") == "true",
    }


def more_row(target: Target, table: Mapping[str, str]) -> dict[str, Any]:
    """The row of one broker in clusterList -m: messages in and out, yesterday and today."""
    info = _Info(table)
    put, got = "msgPutTotal", "msgGetTotal"
    return {
        "clusterName": target.cluster,
        "brokerName": target.broker_name,
        "brokerId": target.broker_id,
        "brokerAddr": target.addr,
        "inTotalYest": info.as_int(f"{put}TodayMorning") - info.as_int(f"{put}YesterdayMorning"),
        "outTotalYest": info.as_int(f"{got}TodayMorning") - info.as_int(f"{got}YesterdayMorning"),
        "inTotalToday": info.as_int(f"{put}TodayNow") - info.as_int(f"{put}TodayMorning"),
        "outTotalToday": info.as_int(f"{got}TodayNow") - info.as_int(f"{got}TodayMorning"),
    }


def lag_of(target: Target, tables: Mapping[str, Mapping[str, str]], masters: Mapping[str, str]) -> dict[str, Any]:
    """How far a slave lags behind its master. Both values are None for a master, each value if it is unknown.

    A Skylark master reports it for each slave; otherwise it is the difference between the ends of the two logs.
    """
    behind: dict[str, Any] = {"lagBytes": None, "lagMs": None}
    table, master = tables.get(target.addr), tables.get(masters.get(target.broker_name, ""))
    if target.broker_id == MASTER_ID or not master:
        return behind
    reported = master.get(f"slaveAckDiff_{target.addr}")
    if reported is not None:
        reported_ms = master.get(f"slaveBehindMs_{target.addr}")
        return {"lagBytes": int(reported), "lagMs": None if reported_ms is None else int(reported_ms)}
    ends = [info.get("commitLogMaxOffset", "") for info in (master, table or {})]
    if all(end.isdigit() for end in ends):
        behind["lagBytes"] = max(int(ends[0]) - int(ends[1]), 0)
    return behind


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
