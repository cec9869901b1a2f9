"""The answer to brokerStatus (28): RocketMQ's keys, all values text.

All of RocketMQ's keys are given, since its tools print wrong rows without them. They are zero for features that this
broker does not have.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from skylark.broker.observe.stats import BrokerStats
from skylark.broker.replication.stats import ReplicationStats
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.daemons.memory import memory_limit
from skylark.mqcommon.daemons.open_files import open_files_limit
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.command import VERSION

VERSION_NAME = "V5_3_3"
# RocketMQ's thread pools. Here sends wait for an fsync or for slaves, and requests that read the store wait for the
# disk; the other pools have no use.
POOLS = ("send", "pull", "litePull", "query", "ack")
# RocketMQ's value for "no limit".
NO_LIMIT = 2**31 - 1
_ABSENT = {
    "pageCacheLockTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "getMessageEntireTimeMax": "0",
    "dispatchMaxBuffer": "0",
}


class Waiting(NamedTuple):
    """Waiting requests: how many, how many may wait, and how long the oldest has waited."""

    size: int
    capacity: int
    head_wait_ms: int


@lazy_dataclass(frozen=True, slots=True)
class RuntimeSources:
    """The objects and functions that the table is read from."""

    store: MessageStore
    stats: BrokerStats
    replication: ReplicationStats
    fs: FileSystem
    clock: Clock
    #: Whether this broker is the master, or acts as it.
    is_active: Callable[[], bool]
    #: Requests that wait, by RocketMQ's thread pool.
    waiting: Callable[[], Mapping[str, Waiting]]
    #: The rows about timed messages.
    timers: Callable[[], Mapping[str, str]]
    #: The longest flush of the last minutes.
    slowest_flush_ms: Callable[[], int]
    #: The rows about damage of the disk.
    damage: Callable[[], Mapping[str, str]]
    #: The rows about the bucket; none without one.
    tier: Callable[[], Mapping[str, str]]


class RuntimeInfo:
    """Call it to get the present table. ``directory`` is the store's."""

    def __init__(self, directory: str, sources: RuntimeSources) -> None:
        self._directory = directory
        self._sources = sources
        self._boot_ms = sources.clock.now_ms()
        self._memory = memory_limit()

    def __call__(self) -> dict[str, str]:
        sources = self._sources
        table = {
            **_ABSENT,
            **sources.timers(),
            "brokerActive": str(sources.is_active()).lower(),
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration(sources.clock.now_ms() - self._boot_ms),
        }
        # A row for each pool: RocketMQ's tools show wrong rows for pools that are missing.
        waiting = sources.waiting()
        for pool in POOLS:
            size, capacity, head_wait_ms = waiting.get(pool, (0, 0, 0))
            table[f"{pool}ThreadPoolQueueSize"] = str(size)
            table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = str(head_wait_ms)
        table |= sources.stats.put_times.table()
        table |= self._counters() | self._log() | self._machine() | self._disk()
        return table | dict(sources.damage()) | dict(sources.tier()) | sources.replication.table()

    def _counters(self) -> dict[str, str]:
        stats, store = self._sources.stats, self._sources.store
        # RocketMQ counts a pull as found or missed; its total is of both.
        put, got, rates = stats.put_totals(), stats.get_totals(), stats.rates()
        totals = [found + missed for found, missed in zip(rates.found, rates.missed, strict=True)]
        return {
            "msgPutTotalYesterdayMorning": str(put.yesterday_morning),
            "msgPutTotalTodayMorning": str(put.today_morning),
            "msgPutTotalTodayNow": str(put.now),
            "msgGetTotalYesterdayMorning": str(got.yesterday_morning),
            "msgGetTotalTodayMorning": str(got.today_morning),
            "msgGetTotalTodayNow": str(got.now),
            "putTps": _rates(rates.put),
            "getFoundTps": _rates(rates.found),
            "getMissTps": _rates(rates.missed),
            "getTotalTps": _rates(totals),
            "getTransferredTps": _rates(rates.transferred),
            "getTransferedTps": _rates(rates.transferred),  # the spelling of 4.x
            "putMessageTimesTotal": str(store.puts),
            "putMessageSizeTotal": str(store.put_bytes),
            "putMessageAverageSize": str(store.put_bytes / store.puts if store.puts else 0.0),
        }

    def _log(self) -> dict[str, str]:
        store, log = self._sources.store, self._sources.store.log
        return {
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.end),
            "dispatchBehindBytes": str(store.index_behind),
            "remainHowManyDataToCommit": _bytes(0),
            "remainHowManyDataToFlush": _bytes(log.end - log.flushed),
            "commitLogSyncTimes": str(log.syncs),  # Skylark's own: shows how many sends share an fsync
            "queueEntriesMended": str(log.entries_mended),
            "damagedMessagesSkipped": str(log.messages_skipped),
            "droppedMessages": str(self._sources.stats.dropped.count),
            "earliestMessageTimeStamp": str(store.earliest_store_time()),
            "clockSetBackTimes": str(store.clock_steps.times_back),
            "clockSetBackMs": str(store.clock_steps.back_ms),
            "storeTimeAheadMs": str(store.ahead_ms),
        }

    def _machine(self) -> dict[str, str]:
        """Skylark's own rows: what this process may use of the machine, and what it uses."""
        used_bytes = self._memory.used_bytes()
        return {
            "openFilesLimit": str(open_files_limit()),
            "mostMappedQueueFiles": str(self._sources.store.queues.maps.most),
            "memoryLimit": str(self._memory.limit_bytes),
            "memoryLimitSource": self._memory.source,
            **({} if used_bytes is None else {"memoryUsed": str(used_bytes)}),
            "slowestFlushMs": str(self._sources.slowest_flush_ms()),
        }

    def _disk(self) -> dict[str, str]:
        fs = self._sources.fs
        usage = fs.disk_usage(self._directory)
        ratio = f"{1 - fs.free_ratio(self._directory):.2f}"
        return {
            "commitLogDirCapacity": f"Total : {_bytes(usage.total)}, Free : {_bytes(usage.free)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._directory}/commitlog": ratio,
            "consumeQueueDiskRatio": ratio,
        }


def _rates(values: list[float]) -> str:
    return " ".join(str(round(value, 4)) for value in values)


def _duration(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes(number: int) -> str:
    """A size as Java's tools write it: ``252.0 GiB``."""
    if number < 1024:
        return f"{number} B"
    size, units = number / 1024, iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = next(units)
    for larger in units:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"
