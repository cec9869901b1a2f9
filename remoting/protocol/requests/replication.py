"""Masters and slaves: the address of the master (906), tables of features that Skylark does not have (60, 61),
modes of consumption (402), epochs of the log (1007), Skylark's own 7100. Other tables are in topics.py, groups.py and
offsets.py; the state of replication is in admin.py.
"""

from remoting.protocol.bodies.assignment import MessageRequestModes
from remoting.protocol.bodies.epochs import EpochEntryCache
from remoting.protocol.bodies.metadata_versions import MetadataVersions
from remoting.protocol.bodies.slave_tables import TimerMetrics
from remoting.protocol.codes import RequestCode
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
GET_BROKER_EPOCH_CACHE = Request(RequestCode.GET_BROKER_EPOCH_CACHE, NOTHING, NOTHING, NOTHING, EpochEntryCache)
# The versions that the slave has; the versions that the master has.
WATCH_METADATA = Request(
    RequestCode.WATCH_METADATA, WatchMetadataRequestHeader, MetadataVersions, NOTHING, MetadataVersions
)
