"""Masters and slaves: how replication goes (907, 908), where the master is (906), tables of features that Skylark does
not have (60, 61, 402), and Skylark's own 7100. Other tables of a broker are in topics.py, groups.py and offsets.py.
"""

from remoting.protocol.bodies.ha import HARuntimeInfo
from remoting.protocol.bodies.metadata_versions import MetadataVersions
from remoting.protocol.bodies.slave_tables import MessageRequestModes, TimerMetrics
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.admin import ResetMasterFlushOffsetHeader
from remoting.protocol.headers.members import ExchangeHAInfoHeader
from remoting.protocol.headers.watch import WatchMetadataRequestHeader
from remoting.protocol.requests.request import NOTHING, Request

# RocketMQ's binary file.
GET_TIMER_CHECK_POINT = Request(RequestCode.GET_TIMER_CHECK_POINT, NOTHING, NOTHING, NOTHING, bytes)
GET_TIMER_METRICS = Request(RequestCode.GET_TIMER_METRICS, NOTHING, NOTHING, NOTHING, TimerMetrics)
GET_ALL_MESSAGE_REQUEST_MODE = Request(
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NOTHING, NOTHING, NOTHING, MessageRequestModes
)
EXCHANGE_BROKER_HA_INFO = Request(
    RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoHeader, NOTHING, ExchangeHAInfoHeader, NOTHING
)
GET_BROKER_HA_STATUS = Request(RequestCode.GET_BROKER_HA_STATUS, NOTHING, NOTHING, NOTHING, HARuntimeInfo)
RESET_MASTER_FLUSH_OFFSET = Request(
    RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader, NOTHING, NOTHING, NOTHING
)
# The versions that the slave knows; those that there are.
WATCH_METADATA = Request(
    RequestCode.WATCH_METADATA, WatchMetadataRequestHeader, MetadataVersions, NOTHING, MetadataVersions
)
