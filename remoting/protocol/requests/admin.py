"""A broker itself: its options as properties text, and its state (25, 26, 28, 315), cleaning (306, 316, 329), and the
state of its replication (907, 908).
"""

from remoting.protocol.bodies.ha import HARuntimeInfo
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.stats import BrokerStatsData
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.admin import (
    GetBrokerConfigResponseHeader,
    ResetMasterFlushOffsetHeader,
    ViewBrokerStatsDataRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

UPDATE_BROKER_CONFIG = Request(RequestCode.UPDATE_BROKER_CONFIG, NOTHING, bytes, NOTHING, NOTHING)
GET_BROKER_CONFIG = Request(RequestCode.GET_BROKER_CONFIG, NOTHING, NOTHING, GetBrokerConfigResponseHeader, bytes)
GET_BROKER_RUNTIME_INFO = Request(RequestCode.GET_BROKER_RUNTIME_INFO, NOTHING, NOTHING, NOTHING, KVTable)
CLEAN_EXPIRED_CONSUMEQUEUE = Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NOTHING, NOTHING, NOTHING, NOTHING)
VIEW_BROKER_STATS_DATA = Request(
    RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader, NOTHING, NOTHING, BrokerStatsData
)
CLEAN_UNUSED_TOPIC = Request(RequestCode.CLEAN_UNUSED_TOPIC, NOTHING, NOTHING, NOTHING, NOTHING)
DELETE_EXPIRED_COMMITLOG = Request(RequestCode.DELETE_EXPIRED_COMMITLOG, NOTHING, NOTHING, NOTHING, NOTHING)
GET_BROKER_HA_STATUS = Request(RequestCode.GET_BROKER_HA_STATUS, NOTHING, NOTHING, NOTHING, HARuntimeInfo)
RESET_MASTER_FLUSH_OFFSET = Request(
    RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader, NOTHING, NOTHING, NOTHING
)
