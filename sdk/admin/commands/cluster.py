"""clusterList: every broker of every cluster, with its load."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from common.errors import SkylarkError
from sdk.admin.command import command
from sdk.admin.params import cluster_name, option
from sdk.admin.render import Row, Table, to_json
from sdk.admin.session import Session
from sdk.admin.targets import Target, all_targets

FAMILY = "Clusters"
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
    """A broker's runtime info, which is text throughout; what is missing or no number reads as nothing."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def number(self, key: str) -> float:
        """The first number of a value: rates hold three, of 10 s, 1 min and 10 min."""
        try:
            return float(self.table.get(key, "").split(" ")[0])
        except ValueError:
            return 0.0

    def count(self, key: str) -> int:
        return int(self.number(key))


def _load_keys(pool: str) -> tuple[str, str]:
    return f"{pool}ThreadPoolQueueSize", f"{pool}ThreadPoolQueueHeadWaitTimeMills"


def _load(row: Row, pool: str) -> str:
    size, wait_ms = _load_keys(pool)
    return f"{row[size]},{row[wait_ms]}ms"


def base_row(target: Target, table: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """What clusterList says of one broker."""
    info = _Info(table)
    earliest = table.get("earliestMessageTimeStamp", "")
    return {
        "clusterName": target.cluster,
        "brokerName": target.broker_name,
        "brokerId": target.broker_id,
        "brokerAddr": target.addr,
        "version": table.get("brokerVersionDesc", ""),
        "inTps": info.number("putTps"),
        "outTps": info.number("getTransferredTps") or info.number("getTransferedTps"),
        **{key: info.count(key) for pool in _POOLS for key in _load_keys(pool)},
        "timerReadBehind": info.count("timerReadBehind"),
        "timerOffsetBehind": info.count("timerOffsetBehind"),
        "timerCongestNum": info.count("timerCongestNum"),
        "timerEnqueueTps": info.number("timerEnqueueTps"),
        "timerDequeueTps": info.number("timerDequeueTps"),
        "pageCacheLockTimeMills": info.count("pageCacheLockTimeMills"),
        "hour": (now_ms - info.number("earliestMessageTimeStamp")) / 3_600_000 if earliest else 0.0,
        "commitLogDiskRatio": info.number("commitLogDiskRatio"),
        "brokerActive": table.get("brokerActive") == "true",
    }


def more_row(target: Target, table: Mapping[str, str]) -> dict[str, Any]:
    """What clusterList -m says of one broker: messages in and out, yesterday and today."""
    info = _Info(table)
    put, got = "msgPutTotal", "msgGetTotal"
    return {
        "clusterName": target.cluster,
        "brokerName": target.broker_name,
        "brokerId": target.broker_id,
        "brokerAddr": target.addr,
        "inTotalYest": info.count(f"{put}TodayMorning") - info.count(f"{put}YesterdayMorning"),
        "outTotalYest": info.count(f"{got}TodayMorning") - info.count(f"{got}YesterdayMorning"),
        "inTotalToday": info.count(f"{put}TodayNow") - info.count(f"{put}TodayMorning"),
        "outTotalToday": info.count(f"{got}TodayNow") - info.count(f"{got}TodayMorning"),
    }


def _base_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        timer = (
            f"{row['timerReadBehind']}-{row['timerOffsetBehind']}({row['timerCongestNum'] / 10000:.1f}w, "
            f"{row['timerEnqueueTps']:.1f}, {row['timerDequeueTps']:.1f})"
        )
        yield _BASE.row(
            {
                **row,
                "inText": f"{row['inTps']:9.2f}({_load(row, 'send')})",
                "outText": f"{row['outTps']:9.2f}({_load(row, 'pull')}|{_load(row, 'ack')})",
                "timerText": timer,
                "hourText": f"{row['hour']:2.2f}",
                "spaceText": f"{row['commitLogDiskRatio']:.4f}",
                "activeText": "true" if row["brokerActive"] else "false",
            }
        )


async def _rows(session: Session, cluster: str | None, more_stats: bool) -> list[dict[str, Any]]:
    targets = all_targets(await session.admin.cluster_info(), cluster)
    answers = await session.each((one.addr for one in targets), session.admin.broker_runtime_info)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    rows = []
    for target in targets:
        table = answers.values.get(target.addr, {})
        row = more_row(target, table) if more_stats else base_row(target, table, int(time.time() * 1000))
        row["ok"] = target.addr in answers.values
        rows.append(row)
    return rows


@command(
    "clusterList",
    option("m", "moreStats", "Print more stats", type=bool, is_flag=True),
    option(
        "i",
        "interval",
        "print again and again, with that many seconds between; ends with Ctrl-C",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=None,
    ),
    cluster_name("which cluster", default=None),
)
async def cluster_list(
    session: Session, more_stats: bool, interval: float | None, cluster_name: str | None
) -> list[dict[str, Any]] | None:
    """List the brokers of all clusters, with version and load.

    With -i and --output json each round is one line.
    """
    if interval is None:
        rows = await _rows(session, cluster_name, more_stats)
        _say_rows(session, rows, more_stats)
        return rows
    try:
        await _repeat(session, cluster_name, more_stats, interval)
    except* KeyboardInterrupt:
        pass  # how one ends it
    return None


async def _repeat(session: Session, cluster: str | None, more_stats: bool, interval_s: float) -> None:
    import trio

    while True:
        try:
            rows = await _rows(session, cluster, more_stats)
        except SkylarkError as error:
            # the NameServer may be back in the next round
            session.fail(error)
        else:
            _say_rows(session, rows, more_stats)
            if session.json:
                click.echo(to_json(rows, one_line=True))
        await trio.sleep(interval_s)


def _say_rows(session: Session, rows: Sequence[Row], more_stats: bool) -> None:
    for line in _MORE.lines(rows) if more_stats else (_BASE.head(), *_base_lines(rows)):
        session.say(line)


COMMANDS = (cluster_list,)
