"""Sends: 10 with long names, 310 and 320 with short ones.

They are the hot path: broker/writing/send_handlers.py reads ext by the names `SHORT` and `LONG`, and writes the
answer's fields itself, and sdk/producer/wire.py does so the other way round. A header object for each message would
cost too much.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.properties import LIGHT_QUEUES, find_property
from skylark.mqcommon.names import is_retry_topic
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, header_fields, optional, required
from skylark.remoting.protocol.request import NOTHING, Request, SlaveAnswer
from skylark.remoting.protocol.rights import PUB, SUB, Need, Right, need_to_send, need_topic, on_topic, text_of
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class SendMessageRequestHeader(Header):
    """The fields that go with the body of a message. ``properties`` is the properties string."""

    producer_group: str = required(read_text, short="a")
    topic: str = required(read_text, short="b")
    default_topic: str = required(read_text, short="c")
    default_topic_queue_nums: int = required(read_int, short="d")
    queue_id: int = required(read_int, short="e")
    sys_flag: int = required(read_int, short="f")
    born_timestamp: int = required(read_long, short="g")
    flag: int = required(read_int, short="h")
    properties: str | None = optional(read_text, short="i")
    reconsume_times: int | None = optional(read_int, short="j")
    unit_mode: bool | None = optional(read_flag, short="k")
    max_reconsume_times: int | None = optional(read_int, short="l")
    batch: bool | None = optional(read_flag, short="m")
    broker_name: str | None = optional(read_text, short="n")

    @classmethod
    def from_short_ext(cls, ext: Mapping[str, Any] | None) -> Self:
        """The header of a 310 or 320."""
        return cls._read(ext, True)

    def to_short_ext(self) -> dict[str, Any]:
        """The ext of a 310 or 320."""
        return self._written(True)


@lazy_dataclass(slots=True)
class SendMessageResponseHeader(Header):
    """Where the message is stored. ``msg_id`` is a comma list for a batch."""

    msg_id: str = required(read_text)
    queue_id: int = required(read_int)
    queue_offset: int = required(read_long)
    transaction_id: str | None = optional(read_text)
    batch_uniq_id: str | None = optional(read_text)
    recall_handle: str | None = optional(read_text)
    msg_region: str | None = optional(read_text, wire="MSG_REGION")
    trace_on: bool | None = optional(read_flag, wire="TRACE_ON")


class SendFields(NamedTuple):
    """The wire names of a send's fields. The hot path reads ext by these names, without making a header object."""

    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    batch: str
    broker_name: str


def _names(*, short: bool) -> SendFields:
    wire = {each.attribute: each.wire for each in header_fields(SendMessageRequestHeader, short)}
    return SendFields(*(wire[name] for name in SendFields._fields))


SHORT = _names(short=True)
LONG = _names(short=False)


#: Codes of an answer: the message is stored, but not as durably as the broker's options require.
STORED = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

#: A slave's answer to a send: the text of RocketMQ before 5 (and of 5 with acting masters), which gives the reason.
NO_MESSAGES = SlaveAnswer(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now. It may be caused by one of the following reasons: messages are put to the slave",
)


def _right_to_send(topic_field: str, properties_field: str) -> Right:
    """The right to send to the topic, and to each named light queue. A retry topic needs Sub of its group."""

    def needs(ext: Mapping[str, Any] | None) -> list[Need]:
        name = text_of(ext, topic_field)
        found = [need_topic(name, SUB)] if is_retry_topic(name) else [need_to_send(name)]
        properties = text_of(ext, properties_field)
        if LIGHT_QUEUES in properties:
            names = find_property(properties.encode("utf-8", "replace"), LIGHT_QUEUES.encode()) or b""
            found += [need_to_send(each) for each in dict.fromkeys(names.decode().split(",")) if each]
        return found

    return Right(needs)


SEND_MESSAGE = Request(
    10,
    SendMessageRequestHeader,
    bytes,
    SendMessageResponseHeader,
    NOTHING,
    accepts=STORED,
    may_be_oneway=True,
    right=_right_to_send("topic", "properties"),
)
SEND_MESSAGE_V2 = Request(
    310,
    SendMessageRequestHeader,
    bytes,
    SendMessageResponseHeader,
    NOTHING,
    accepts=STORED,
    may_be_oneway=True,
    has_short_names=True,
    right=_right_to_send("b", "i"),
)
# With many messages a Skylark broker puts their offsets into the answer's body, see mqcommon/message/batch.py.
SEND_BATCH_MESSAGE = Request(
    320,
    SendMessageRequestHeader,
    bytes,
    SendMessageResponseHeader,
    bytes,
    accepts=STORED,
    may_be_oneway=True,
    has_short_names=True,
    right=_right_to_send("b", "i"),
)


#: A Skylark broker says with this field, when it accepts CBOR, that it takes batches in which messages have a delay
#: level or a time of delivery each. A client puts it into such a batch; RocketMQ's brokers would not see what the
#: messages ask for. The answer with this field has in its body the offsets in the log, then those in the queues, then
#: the slots of timed messages, as in their recall handles; 0 for other messages.
DEFERRED_BATCHES = "deferredBatches"

#: A Skylark producer puts this field into a send that another broker could store, too. A SYNC_MASTER without the slaves
#: that it needs then stores nothing, and answers SYSTEM_ERROR with `NOT_SAFE_HERE`. RocketMQ's brokers ignore it.
ONLY_IF_SAFE = "onlyIfSafe"
NOT_SAFE_HERE = "in-sync replicas not enough, so nothing is stored: another broker may have enough"


@lazy_dataclass(slots=True)
class RecallMessageRequestHeader(Header):
    """``recall_handle`` comes from the answer to the send."""

    topic: str = required(read_text)
    recall_handle: str = required(read_text)
    producer_group: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class RecallMessageResponseHeader(Header):
    """``msg_id``: the unique key of the message that was recalled."""

    msg_id: str = required(read_text)


RECALL_MESSAGE = Request(
    370,
    RecallMessageRequestHeader,
    NOTHING,
    RecallMessageResponseHeader,
    NOTHING,
    may_be_oneway=True,
    right=on_topic(PUB),
)


@lazy_dataclass(slots=True)
class ReplyMessageRequestHeader(Header):
    """326: the fields of the reply, which is the body. Hosts are texts, with a slash in front from Java brokers."""

    producer_group: str = required(read_text)
    topic: str = required(read_text)
    default_topic: str = required(read_text)
    default_topic_queue_nums: int = required(read_int)
    queue_id: int = required(read_int)
    sys_flag: int = required(read_int)
    born_timestamp: int = required(read_long)
    flag: int = required(read_int)
    born_host: str = required(read_text)
    store_host: str = required(read_text)
    store_timestamp: int = required(read_long)
    properties: str | None = optional(read_text)
    reconsume_times: int | None = optional(read_int)
    unit_mode: bool | None = optional(read_flag)


SEND_REPLY_MESSAGE = Request(
    324,
    SendMessageRequestHeader,
    bytes,
    SendMessageResponseHeader,
    NOTHING,
    may_be_oneway=True,
    right=_right_to_send("topic", "properties"),
)
SEND_REPLY_MESSAGE_V2 = Request(
    325,
    SendMessageRequestHeader,
    bytes,
    SendMessageResponseHeader,
    NOTHING,
    may_be_oneway=True,
    has_short_names=True,
    right=_right_to_send("b", "i"),
)
PUSH_REPLY_MESSAGE_TO_CLIENT = Request(326, ReplyMessageRequestHeader, bytes, NOTHING, NOTHING)
