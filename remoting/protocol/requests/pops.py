"""Pop consumption: 200050 to 200056, 200151. The body of 200050 and 200052 is stored messages, one after another."""

import binascii
from base64 import b64decode, b64encode
from typing import Any, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import INT, LONG, TEXT, Body, Kind, body_of, list_of, member
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.sends import STORED
from skylark.remoting.protocol.rights import (
    LARGE,
    SUB,
    SUB_GET,
    UPDATE_CLUSTER,
    Need,
    need_group,
    need_topic,
    of_body,
    on_both,
)
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text

#: ``queue_id`` of a request for all queues of a topic.
ANY_QUEUE: Final = -1
#: ``init_mode``: where a group begins in a queue for which it has no offset.
INIT_MIN: Final = 0
INIT_MAX: Final = 1
#: The most messages of one request.
MAX_POP_COUNT: Final = 32


@lazy_dataclass(slots=True)
class PopMessageRequestHeader(Header):
    """200050: pop messages.

    Times in ms: ``poll_time`` is how long the broker may hold the request that was sent at ``born_time``.
    """

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    max_msg_nums: int = required(read_int)
    invisible_time: int = required(read_long)
    poll_time: int = required(read_long)
    born_time: int = required(read_long)
    init_mode: int = required(read_int)
    exp_type: str | None = optional(read_text)
    exp: str | None = optional(read_text)
    order: bool | None = optional(read_flag)
    attempt_id: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class PopMessageResponseHeader(Header):
    """The answer to 200050 and 200052. For the texts see remoting/protocol/pop_info.py."""

    pop_time: int = required(read_long)
    invisible_time: int = required(read_long)
    revive_qid: int = required(read_int)
    rest_num: int = required(read_long)
    start_offset_info: str | None = optional(read_text)
    msg_offset_info: str | None = optional(read_text)
    order_count_info: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class AckMessageRequestHeader(Header):
    """200051: one message is consumed. ``extra_info`` is its handle."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    extra_info: str = required(read_text)
    offset: int = required(read_long)


@lazy_dataclass(slots=True)
class PeekMessageRequestHeader(Header):
    """200052: messages as a pop would return them, which stay visible."""

    topic: str = required(read_text)
    queue_id: int = required(read_int)
    max_msg_nums: int = required(read_int)
    consumer_group: str = required(read_text)


@lazy_dataclass(slots=True)
class ChangeInvisibleTimeRequestHeader(Header):
    """200053: the message becomes visible ``invisible_time`` ms from now."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    extra_info: str = required(read_text)
    offset: int = required(read_long)
    invisible_time: int = required(read_long)


@lazy_dataclass(slots=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """The parts of the message's new handle, which begins at the offset of the message."""

    pop_time: int = required(read_long)
    invisible_time: int = required(read_long)
    revive_qid: int = required(read_int)


@lazy_dataclass(slots=True)
class NotificationRequestHeader(Header):
    """200054: asks whether there is a message to pop, and waits for one."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)
    poll_time: int = required(read_long)
    born_time: int = required(read_long)
    order: bool | None = optional(read_flag)
    attempt_id: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class NotificationResponseHeader(Header):
    """``polling_full``: too many requests wait already."""

    has_msg: bool = required(read_flag)
    polling_full: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class PollingInfoRequestHeader(Header):
    """200055: the queue whose waiting pops are counted."""

    consumer_group: str = required(read_text)
    topic: str = required(read_text)
    queue_id: int = required(read_int)


@lazy_dataclass(slots=True)
class PollingInfoResponseHeader(Header):
    """How many requests of the group wait for the queue."""

    polling_num: int = required(read_int)


def _read_bits(value: Any) -> int:
    """Java's BitSet as fastjson writes it: base64 of its bytes, the lowest first; here as the bits of an int."""
    try:
        return int.from_bytes(b64decode(read_text(value), validate=True), "little")
    except binascii.Error:
        raise ValueError("not base64") from None


def _write_bits(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


BITS = Kind(_read_bits, _write_bits, int)


@lazy_dataclass(slots=True)
class BatchAck(Body):
    """Messages of one check point. Bit n of ``bits`` is the message at ``start_offset`` + n.

    ``retry``: "0", or the kind of retry topic of ``topic`` that the messages were popped from.
    """

    bits: int = member(BITS, 0, wire="b")
    consumer_group: str = member(TEXT, "", wire="c")
    invisible_time: int = member(LONG, 0, wire="it")
    pop_time: int = member(LONG, 0, wire="pt")
    queue_id: int = member(INT, 0, wire="q")
    retry: str = member(TEXT, "0", wire="r")
    revive_queue_id: int = member(INT, 0, wire="rq")
    start_offset: int = member(LONG, 0, wire="so")
    topic: str = member(TEXT, "", wire="t")


@lazy_dataclass(slots=True)
class BatchAckMessageRequestBody(Body):
    """200151: the messages that are acknowledged, by the pop that gave them out."""

    acks: list[BatchAck] = member(list_of(body_of(BatchAck)))
    broker_name: str = member(TEXT, "")


# There are no messages now.
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)


def _batch_ack_needs(body: BatchAckMessageRequestBody) -> list[Need]:
    acks = dict.fromkeys((ack.consumer_group, ack.topic) for ack in body.acks)
    return [need for group, topic in acks for need in (need_group(group, SUB), need_topic(topic, SUB, group))]


POP_MESSAGE = Request(
    200050,
    PopMessageRequestHeader,
    NOTHING,
    PopMessageResponseHeader,
    bytes,
    accepts=_NO_MESSAGES,
    right=on_both(SUB),
)
PEEK_MESSAGE = Request(
    200052,
    PeekMessageRequestHeader,
    NOTHING,
    PopMessageResponseHeader,
    bytes,
    accepts=_NO_MESSAGES,
    right=on_both(SUB),
)
ACK_MESSAGE = Request(
    200051,
    AckMessageRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=on_both(SUB),
)
BATCH_ACK_MESSAGE = Request(
    200151,
    NOTHING,
    BatchAckMessageRequestBody,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=of_body(_batch_ack_needs, like=on_both(SUB), limits=LARGE),
)
CHANGE_MESSAGE_INVISIBLETIME = Request(
    200053,
    ChangeInvisibleTimeRequestHeader,
    NOTHING,
    ChangeInvisibleTimeResponseHeader,
    NOTHING,
    # Once the change is stored the message has a new handle, and the former one is void.
    accepts=STORED,
    right=on_both(SUB),
)
NOTIFICATION = Request(
    200054,
    NotificationRequestHeader,
    NOTHING,
    NotificationResponseHeader,
    NOTHING,
    right=on_both(SUB),
)
POLLING_INFO = Request(
    200055,
    PollingInfoRequestHeader,
    NOTHING,
    PollingInfoResponseHeader,
    NOTHING,
    right=on_both(SUB_GET),
)
POP_ROLLBACK = Request(200056, NOTHING, NOTHING, NOTHING, NOTHING, right=UPDATE_CLUSTER)
