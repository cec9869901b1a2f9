"""Consumers: messages given back (36), queues locked and unlocked (41, 42)."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import FLAG, TEXT, Body, Kind, list_of, member, read_queue, write_queue
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.sends import NO_MESSAGES
from skylark.remoting.protocol.rights import LARGE, SUB, Need, need_group, need_topic, of_body, on_both, on_group
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(Header):
    """36: a consumer sends a message back.

    ``offset`` is the message's physical one. ``delay_level``: 0 lets the broker choose, below 0 is a dead letter. The
    last three are Skylark's own, and RocketMQ's brokers ignore them: why the handler failed, in which client, when.
    """

    offset: int = required(read_long)
    group: str = required(read_text)
    delay_level: int = required(read_int)
    origin_msg_id: str | None = optional(read_text)
    origin_topic: str | None = optional(read_text)
    unit_mode: bool | None = optional(read_flag)
    max_reconsume_times: int | None = optional(read_int)
    fail_reason: str | None = optional(read_text)
    fail_client: str | None = optional(read_text)
    fail_time: int | None = optional(read_long)


_QUEUES = list_of(Kind(read_queue, write_queue))


@lazy_dataclass(slots=True)
class LockBatchRequestBody(Body):
    """41: a client locks queues, or renews its locks.

    ``only_this_broker``: do not ask the other members of the broker's set for the lock.
    """

    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    only_this_broker: bool = member(FLAG, False)
    mq_set: list[MessageQueue] = member(_QUEUES)


@lazy_dataclass(slots=True)
class UnlockBatchRequestBody(Body):
    """42: the queues whose locks a client gives up."""

    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    only_this_broker: bool = member(FLAG, False)
    mq_set: list[MessageQueue] = member(_QUEUES)


@lazy_dataclass(slots=True)
class LockBatchResponseBody(Body):
    """The queues of a 41 that its client owns now."""

    lock_ok_mq_set: list[MessageQueue] = member(_QUEUES, wire="lockOKMQSet")


def _queues_needs(body: LockBatchRequestBody | UnlockBatchRequestBody) -> list[Need]:
    topics = dict.fromkeys(queue.topic for queue in body.mq_set)
    return [need_group(body.consumer_group, SUB), *(need_topic(each, SUB, body.consumer_group) for each in topics)]


CONSUMER_SEND_MSG_BACK = Request(
    36,
    ConsumerSendMsgBackRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=on_group(SUB, "group"),
    on_slave=NO_MESSAGES,
)
LOCK_BATCH_MQ = Request(
    41,
    NOTHING,
    LockBatchRequestBody,
    NOTHING,
    LockBatchResponseBody,
    right=of_body(_queues_needs, like=on_both(SUB), limits=LARGE),
)
UNLOCK_BATCH_MQ = Request(
    42,
    NOTHING,
    UnlockBatchRequestBody,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=of_body(_queues_needs, like=on_both(SUB), limits=LARGE),
)
