"""Groups of a broker: 38, 40, 201, 203, 204, 207, 208, 303, 317, 343, 352."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_text


@dataclass(slots=True)
class ConsumerGroupRequestHeader(Header):
    """38, 203: about one consumer group."""

    consumer_group: str = required(read_text)


@dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    """40: the members of a group changed. A client does nothing about one that names no group."""

    consumer_group: str | None = optional(read_text)


@dataclass(slots=True)
class ProducerGroupRequestHeader(Header):
    """204: about one producer group."""

    producer_group: str = required(read_text)


@dataclass(slots=True)
class GetAllSubscriptionGroupRequestHeader(Header):
    """201: older callers send no header, and get all."""

    group_seq: int | None = optional(read_int)
    data_version: str | None = optional(read_text)
    max_group_num: int | None = optional(read_int)


@dataclass(slots=True)
class GetAllSubscriptionGroupResponseHeader(Header):
    """How many groups there are."""

    total_group_num: int | None = optional(read_int)


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """207. ``remove_offset`` is what 4.x calls ``clean_offset``; clients send both."""

    group_name: str = required(read_text)
    clean_offset: bool | None = optional(read_flag)
    remove_offset: bool | None = optional(read_flag)


@dataclass(slots=True)
class GetConsumeStatsRequestHeader(Header):
    """208. A blank topic means all topics of the group; ``topic_list`` is a ";" list."""

    consumer_group: str = required(read_text)
    topic: str | None = optional(read_text)
    topic_list: str | None = optional(read_text)


@dataclass(slots=True)
class GroupRequestHeader(Header):
    """343 and 352: about one group."""

    group: str = required(read_text)


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    """303."""

    topic: str = required(read_text)
    group: str = required(read_text)


@dataclass(slots=True)
class GetBrokerConsumeStatsRequestHeader(Header):
    """317. ``is_order``: only ordered topics."""

    is_order: bool = required(read_flag)
