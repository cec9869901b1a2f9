"""Masters and slaves: the address of the master (906), tables of features that Skylark does not have (60, 61),
modes of consumption (402), epochs of the log (1007), Skylark's own 7100. Other tables are in topics.py, groups.py and
offsets.py; the state of replication is in brokers.py.
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import INT, LONG, TEXT, Body, DataVersion, body_of, list_of, map_of, member
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.groups import MessageRequestModes
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_long, read_text


@lazy_dataclass(slots=True)
class PageRequestHeader(Header):
    """Asks for one page; a request without these fields asks for the whole table."""

    page_from: int | None = optional(read_long)
    page_removals: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class PageResponseHeader(Header):
    """The fields for the request of the next page; without ``next_from`` this was the last page."""

    next_from: int | None = optional(read_long)
    removals: int | None = optional(read_long)

    @property
    def next(self) -> PageRequestHeader | None:
        """The request for the next page."""
        return None if self.next_from is None else PageRequestHeader(self.next_from, self.removals or 0)


FIRST_PAGE = PageRequestHeader(0, 0)


@lazy_dataclass(slots=True)
class WatchMetadataRequestHeader(Header):
    """7100: asks for an answer when something changes, at the latest after this time."""

    hold_millis: int = required(read_long)


@lazy_dataclass(slots=True)
class ExchangeHAInfoHeader(Header):
    """906 and its answer: a master tells a slave its addresses, or is asked for them."""

    master_ha_address: str | None = optional(read_text)
    master_flush_offset: int | None = optional(read_long)
    master_address: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class TimerCount(Body):
    """Timed messages of a topic that are not due yet."""

    count: int = member(LONG, 0)
    time_stamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class TimerMetrics(Body):
    """61: the timed messages that wait, by topic."""

    timing_count: dict[str, TimerCount] = member(map_of(body_of(TimerCount)))
    data_version: DataVersion = member(body_of(DataVersion))


@lazy_dataclass(slots=True)
class MetadataVersions(Body):
    """The version of each table. The version of offsets rises with each commit, before the journal has the commit."""

    topics: DataVersion = member(body_of(DataVersion))
    groups: DataVersion = member(body_of(DataVersion))
    consumer_offsets: DataVersion = member(body_of(DataVersion))
    delay_offsets: DataVersion = member(body_of(DataVersion))
    request_modes: DataVersion = member(body_of(DataVersion))
    users: DataVersion = member(body_of(DataVersion))
    acls: DataVersion = member(body_of(DataVersion))


@lazy_dataclass(slots=True)
class EpochEntry(Body):
    """The master of ``epoch`` wrote the bytes from ``start_offset`` to ``end_offset``."""

    epoch: int = member(INT, 0)
    start_offset: int = member(LONG, 0)
    end_offset: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class EpochEntryCache(Body):
    """The answer to 1007. ``max_offset`` is the end of the log."""

    cluster_name: str = member(TEXT, "")
    broker_name: str = member(TEXT, "")
    broker_id: int = member(LONG, 0)
    epoch_list: list[EpochEntry] = member(list_of(body_of(EpochEntry)))
    max_offset: int = member(LONG, 0)


# RocketMQ's binary file.
GET_TIMER_CHECK_POINT = Request(60, NOTHING, NOTHING, NOTHING, bytes, right=GET_CLUSTER)
GET_TIMER_METRICS = Request(61, NOTHING, NOTHING, NOTHING, TimerMetrics, right=GET_CLUSTER)
GET_ALL_MESSAGE_REQUEST_MODE = Request(
    402,
    NOTHING,
    NOTHING,
    NOTHING,
    MessageRequestModes,
    right=GET_CLUSTER,
)
EXCHANGE_BROKER_HA_INFO = Request(
    906,
    ExchangeHAInfoHeader,
    NOTHING,
    ExchangeHAInfoHeader,
    NOTHING,
    right=UPDATE_CLUSTER,
)
GET_BROKER_EPOCH_CACHE = Request(
    1007,
    NOTHING,
    NOTHING,
    NOTHING,
    EpochEntryCache,
    right=GET_CLUSTER,
)
# The request has the slave's versions, the answer the master's versions.
WATCH_METADATA = Request(
    7100,
    WatchMetadataRequestHeader,
    MetadataVersions,
    NOTHING,
    MetadataVersions,
    right=GET_CLUSTER,
)
