"""A broker itself: its options as properties text, and its state (25, 26, 28, 315), cleaning (306, 316, 329), the state
of its replication (907, 908), and where it keeps timed messages (5001).
"""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import (
    FLAG,
    INT,
    LONG,
    REAL,
    TEXT,
    Body,
    KVTable,
    body_of,
    list_of,
    member,
)
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_long, read_text


@lazy_dataclass(slots=True)
class HAConnectionRuntimeInfo(Body):
    """A slave that is connected to the master."""

    addr: str = member(TEXT, "")
    slave_ack_offset: int = member(LONG, 0)
    diff: int = member(LONG, 0)
    in_sync: bool = member(FLAG, False)
    transferred_byte_in_second: int = member(LONG, 0)
    transfer_from_where: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class HAClientRuntimeInfo(Body):
    """A slave's own state; ``master_addr`` is the address of the master's HA port."""

    master_addr: str | None = member(TEXT, None)
    transferred_byte_in_second: int = member(LONG, 0)
    max_offset: int = member(LONG, 0)
    last_read_timestamp: int = member(LONG, 0)
    last_write_timestamp: int = member(LONG, 0)
    master_flush_offset: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class HARuntimeInfo(Body):
    """The master's part or the slave's part is filled, as ``master`` says."""

    master: bool = member(FLAG, False)
    master_commit_log_max_offset: int = member(LONG, 0)
    in_sync_slave_nums: int = member(INT, 0)
    ha_connection_info: list[HAConnectionRuntimeInfo] = member(list_of(body_of(HAConnectionRuntimeInfo)))
    ha_client_runtime_info: HAClientRuntimeInfo = member(body_of(HAClientRuntimeInfo))


@lazy_dataclass(slots=True)
class BrokerStatsItem(Body):
    """One counter over one span: sum, per second, and average value per call."""

    sum: int = member(LONG, 0)
    tps: float = member(REAL, 0.0)
    avgpt: float = member(REAL, 0.0)


@lazy_dataclass(slots=True)
class BrokerStatsData(Body):
    """One counter over the last minute, hour and day (315)."""

    stats_minute: BrokerStatsItem = member(body_of(BrokerStatsItem))
    stats_hour: BrokerStatsItem = member(body_of(BrokerStatsItem))
    stats_day: BrokerStatsItem = member(body_of(BrokerStatsItem))


@lazy_dataclass(slots=True)
class GetBrokerConfigResponseHeader(Header):
    """The answer to 26: a DataVersion as JSON text."""

    version: str = required(read_text)


@lazy_dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader(Header):
    """315: one counter, like TOPIC_PUT_NUMS of a topic."""

    stats_name: str = required(read_text)
    stats_key: str = required(read_text)


@lazy_dataclass(slots=True)
class ResetMasterFlushOffsetHeader(Header):
    """908: sets a slave's record of how far the log is on the master's disk."""

    master_flush_offset: int = required(read_long)


#: Where RocketMQ 5.4 keeps messages with a time of delivery: files with a wheel, or RocksDB.
FILE_TIME_WHEEL: Final = "F"
ROCKSDB_TIMELINE: Final = "R"


@lazy_dataclass(slots=True)
class SwitchTimerEngineRequestHeader(Header):
    """5001: keep timed messages in the engine ``engine_type``, FILE_TIME_WHEEL or ROCKSDB_TIMELINE, from now on."""

    engine_type: str | None = optional(read_text, wire="E_T")


UPDATE_BROKER_CONFIG = Request(25, NOTHING, bytes, NOTHING, NOTHING, right=UPDATE_CLUSTER)
GET_BROKER_CONFIG = Request(
    26,
    NOTHING,
    NOTHING,
    GetBrokerConfigResponseHeader,
    bytes,
    right=GET_CLUSTER,
)
GET_BROKER_RUNTIME_INFO = Request(
    28,
    NOTHING,
    NOTHING,
    NOTHING,
    KVTable,
    right=GET_CLUSTER,
)
CLEAN_EXPIRED_CONSUMEQUEUE = Request(
    306,
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
VIEW_BROKER_STATS_DATA = Request(
    315,
    ViewBrokerStatsDataRequestHeader,
    NOTHING,
    NOTHING,
    BrokerStatsData,
    right=GET_CLUSTER,
)
CLEAN_UNUSED_TOPIC = Request(316, NOTHING, NOTHING, NOTHING, NOTHING, right=UPDATE_CLUSTER)
DELETE_EXPIRED_COMMITLOG = Request(
    329,
    NOTHING,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
GET_BROKER_HA_STATUS = Request(
    907,
    NOTHING,
    NOTHING,
    NOTHING,
    HARuntimeInfo,
    right=GET_CLUSTER,
)
RESET_MASTER_FLUSH_OFFSET = Request(
    908,
    ResetMasterFlushOffsetHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
SWITCH_TIMER_ENGINE = Request(
    5001,
    SwitchTimerEngineRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
