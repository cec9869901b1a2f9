"""Offsets of groups (14, 15, 43; set from outside: 222, 314; 308), of queues (29 - 32) and of delay levels (45)."""

from collections.abc import Mapping
from typing import Any, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import (
    LONG,
    TEXT,
    Body,
    DataVersion,
    Kind,
    body_of,
    list_of,
    map_by_int,
    map_by_queue,
    map_of,
    member,
    read_queue,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request, SlaveAnswer
from skylark.remoting.protocol.rights import (
    GET,
    GET_CLUSTER,
    SUB_GET,
    SUB_UPDATE,
    UPDATE,
    Need,
    Right,
    need_group,
    on_both,
    on_topic,
    text_of,
)
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(Header):
    """14: asks for a group's offset in a queue."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    set_zero_if_not_found: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(Header):
    """15: commits a group's offset. Clients do send -1, which must not be stored.

    Two fields are for Skylark's brokers. ``forward_only``: a lower offset than the present one is not stored.
    ``topic_created_ms``: the creation stamp of the topic that the offset belongs to; refused when the topic has another
    stamp.
    """

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    commit_offset: int = required(read_long)
    forward_only: bool | None = optional(read_flag)
    topic_created_ms: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class GetAllConsumerOffsetRequestHeader(Header):
    """43: all consumer offsets. A Skylark slave tells its Skylark master which version of the offsets it has."""

    known_run: int | None = optional(read_long)
    known_changes: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class GetAllConsumerOffsetResponseHeader(Header):
    """The answer to 43: the version of these offsets, and whether they are only those that changed."""

    run: int | None = optional(read_long)
    changes: int | None = optional(read_long)
    is_part: bool = optional(read_flag, False)


@lazy_dataclass(slots=True)
class SearchOffsetRequestHeader(Header):
    """29: the offset for a time. ``boundary_type`` is LOWER or UPPER."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    timestamp: int = required(read_long)
    boundary_type: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class GetMaxOffsetRequestHeader(Header):
    """30: the offset that the next message gets."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    committed: bool | None = optional(read_flag)
    #: False: ``queue_id`` is a queue of the broker, also of a static topic.
    lo: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class QueueRequestHeader(Header):
    """31 and 32: the first offset of a queue, or its message's store time."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)


@lazy_dataclass(slots=True)
class OffsetResponseHeader(Header):
    """The answer to 14, 29, 30, 31. ``topic_created_ms``, Skylark's own: the creation stamp of the topic."""

    offset: int = required(read_long)
    topic_created_ms: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class TimestampResponseHeader(Header):
    """The answer to 32; -1 for an empty queue."""

    timestamp: int = required(read_long)


@lazy_dataclass(slots=True)
class GetAllDelayOffsetResponseHeader(Header):
    """The answer to 45, from a Skylark master: where its log ends. RocketMQ's masters send no such field."""

    log_end: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class CloneGroupOffsetRequestHeader(Header):
    """314: copy the offsets of a group to another group.

    Without a topic: of all topics. ``offline``: also topics that connected consumers no longer subscribe to.
    """

    src_group: str = required(read_text)
    dest_group: str = required(read_text)
    topic: str | None = optional(read_text)
    offline: bool = optional(read_flag, False)


@lazy_dataclass(slots=True)
class QueryCorrectionOffsetHeader(Header):
    """308: the lowest offset of all groups in each queue, for comparison with ``compare_group``.

    ``filter_groups``: groups that are left out, separated by commas.
    """

    topic: str = required(read_text)
    compare_group: str = required(read_text)
    filter_groups: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ResetOffsetRequestHeader(Header):
    """222 asks a broker to reset a group's offsets; with 220 it tells the group's consumers.

    ``timestamp`` -1 is the end of each queue. Without ``is_force`` offsets are only moved back. ``offset`` is for one
    queue.
    """

    group: str = required(read_text)
    topic: str = required(read_text)
    timestamp: int = required(read_long)
    is_force: bool = required(read_flag)
    queue_id: int | None = optional(read_int)
    offset: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class GetConsumerStatusRequestHeader(Header):
    """223 asks a broker for the offsets of a group's consumers, or of one client; the broker asks them with 221."""

    topic: str = required(read_text)
    group: str = required(read_text)
    client_addr: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ConsumerOffsetTable(Body):
    """Committed offsets by ``topic@group`` and queue; 5.x also sends the topics of each group."""

    offset_table: dict[str, dict[int, int]] = member(map_of(map_by_int(LONG)))
    group_topic_map: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    data_version: DataVersion = member(body_of(DataVersion))


@lazy_dataclass(slots=True)
class DelayOffsetTable(Body):
    """How far the messages of each delay level were delivered."""

    offset_table: dict[int, int] = member(map_by_int(LONG))
    data_version: DataVersion = member(body_of(DataVersion))


@lazy_dataclass(slots=True)
class CorrectionOffsets(Body):
    """The lowest offset of all groups in each queue of a topic (308)."""

    correction_offsets: dict[int, int] = member(map_by_int(LONG))


_OFFSETS: Final = map_by_queue(LONG)


def _read_pair(value: Any) -> tuple[MessageQueue, int]:
    if type(value) is not dict:
        raise ValueError("not an object")
    return read_queue(value), read_long(value.get("offset"))


def _write_pair(pair: tuple[MessageQueue, int]) -> dict[str, Any]:
    queue, offset = pair
    return {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}


_PAIRS: Final = list_of(Kind(_read_pair, _write_pair))


def _read_either(value: Any) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = dict(_PAIRS.read(value)) if type(value) is list else _OFFSETS.read(value)
    return found


@lazy_dataclass(slots=True)
class ResetOffsetBody(Body):
    """The offsets of 220 and of the answer to 222; both forms are read."""

    offset_table: dict[MessageQueue, int] = member(Kind(_read_either, _OFFSETS.write, dict))


@lazy_dataclass(slots=True)
class ResetOffsetBodyForC(Body):
    """The form of 220 for C++ clients."""

    offset_table: list[tuple[MessageQueue, int]] = member(_PAIRS)


@lazy_dataclass(slots=True)
class GetConsumerStatusBody(Body):
    """The offsets of one consumer (answer to 221), or of several consumers by client id (answer to 223)."""

    message_queue_table: dict[MessageQueue, int] | None = member(_OFFSETS, None)
    consumer_table: dict[str, dict[MessageQueue, int]] | None = member(map_of(_OFFSETS), None)


_NO_RESET_ON_SLAVE = SlaveAnswer(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")


def _clone_needs(ext: Mapping[str, Any] | None) -> list[Need]:
    return [need_group(text_of(ext, "srcGroup"), GET), need_group(text_of(ext, "destGroup"), UPDATE)]


# QUERY_NOT_FOUND: the group has no offset; the answer then has no fields.
QUERY_CONSUMER_OFFSET = Request(
    14,
    QueryConsumerOffsetRequestHeader,
    NOTHING,
    OffsetResponseHeader,
    NOTHING,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
    right=on_both(SUB_GET),
)
UPDATE_CONSUMER_OFFSET = Request(
    15,
    UpdateConsumerOffsetRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=on_both(SUB_UPDATE),
)
SEARCH_OFFSET_BY_TIMESTAMP = Request(
    29,
    SearchOffsetRequestHeader,
    NOTHING,
    OffsetResponseHeader,
    NOTHING,
    right=on_topic(SUB_GET),
)
GET_MAX_OFFSET = Request(
    30,
    GetMaxOffsetRequestHeader,
    NOTHING,
    OffsetResponseHeader,
    NOTHING,
    right=on_topic(SUB_GET),
)
GET_MIN_OFFSET = Request(
    31,
    QueueRequestHeader,
    NOTHING,
    OffsetResponseHeader,
    NOTHING,
    right=on_topic(SUB_GET),
)
GET_EARLIEST_MSG_STORETIME = Request(
    32,
    QueueRequestHeader,
    NOTHING,
    TimestampResponseHeader,
    NOTHING,
    right=on_topic(SUB_GET),
)
# Between Skylark and Skylark in pages, as are 21 and 201: see `PageRequestHeader`.
GET_ALL_CONSUMER_OFFSET = Request(
    43,
    GetAllConsumerOffsetRequestHeader,
    NOTHING,
    GetAllConsumerOffsetResponseHeader,
    ConsumerOffsetTable,
    right=GET_CLUSTER,
)
GET_ALL_DELAY_OFFSET = Request(
    45,
    NOTHING,
    NOTHING,
    GetAllDelayOffsetResponseHeader,
    DelayOffsetTable,
    right=GET_CLUSTER,
)
INVOKE_BROKER_TO_RESET_OFFSET = Request(
    222,
    ResetOffsetRequestHeader,
    NOTHING,
    NOTHING,
    ResetOffsetBody,
    right=on_both(UPDATE, "group"),
    on_slave=_NO_RESET_ON_SLAVE,
)
CLONE_GROUP_OFFSET = Request(
    314,
    CloneGroupOffsetRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=Right(_clone_needs),
    on_slave=_NO_RESET_ON_SLAVE,
)
QUERY_CORRECTION_OFFSET = Request(
    308,
    QueryCorrectionOffsetHeader,
    NOTHING,
    NOTHING,
    CorrectionOffsets,
    right=on_topic(GET),
)
