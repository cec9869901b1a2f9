"""The load of one broker and the lag of one slave as plain data, of what brokers say of themselves. Pure."""

from collections.abc import Mapping
from typing import Any

from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import Target

_POOLS = ("send", "pull", "ack")


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


def thread_pool_keys(pool: str) -> tuple[str, str]:
    """The members of a row about a thread pool: how many requests wait, and for how long the first one has waited."""
    return f"{pool}ThreadPoolQueueSize", f"{pool}ThreadPoolQueueHeadWaitTimeMills"


def base_row(target: Target, table: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """The load of one broker, as clusterList and the console show it: 0 for what it does not say."""
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
        **{key: info.as_int(key) for pool in _POOLS for key in thread_pool_keys(pool)},
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
    """How many messages went into and out of one broker, yesterday and today."""
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
