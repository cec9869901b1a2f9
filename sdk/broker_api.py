"""Requests of producers and consumers to a broker, one function per request. Sends are in `skylark.sdk.producer`.

Each function raises BrokerError when the answer's code is an error, and ProtocolError when the answer lacks a required
field. The caller chooses the broker, and handles a broker that does not answer. Requests are described in
remoting/protocol/requests; requests that only admin tools use are sent by `skylark.sdk.admin.client`.
"""

from collections.abc import Callable, Sequence

from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests import consuming, offsets, query, topics
from skylark.remoting.protocol.requests.clients import (
    CHECK_CLIENT_CONFIG,
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    TAG,
    UNREGISTER_CLIENT,
    CheckClientRequestBody,
    HeartbeatData,
    SubscriptionData,
    UnregisterClientRequestHeader,
)
from skylark.remoting.protocol.requests.consuming import (
    ConsumerSendMsgBackRequestHeader,
    LockBatchRequestBody,
    UnlockBatchRequestBody,
)
from skylark.remoting.protocol.requests.groups import (
    QUERY_ASSIGNMENT,
    ConsumerGroupRequestHeader,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
)
from skylark.remoting.protocol.requests.offsets import (
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.pulls import (
    PULL_COMMIT_OFFSET,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PULL_UNWRAPS,
    PullMessageRequestHeader,
)
from skylark.remoting.protocol.requests.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from skylark.remoting.protocol.requests.sends import RECALL_MESSAGE, RecallMessageRequestHeader
from skylark.remoting.protocol.requests.topics import TopicStatsTable
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.position import Position

# For how long a broker may search its bucket for a key, before it answers.
BUCKET_SEARCH_MS = 10_000


@lazy_dataclass(frozen=True, slots=True)
class PullAnswer:
    """The answer to a pull. ``code`` is 0, 19, 20 or 21; ``data`` holds consecutive stored records.

    ``broker_id`` is the id of the broker that answered, if the caller knows it.
    """

    code: int
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    broker_id: int = MASTER_ID
    #: Of a logical queue: what to add to the offsets in the records, which are offsets of the broker's own queue.
    offset_delta: int | None = None
    #: The creation stamp of the topic, from a Skylark broker.
    created_ms: int | None = None
    #: The topic was made again since the reader's last pull, see `Trail`. The broker has not said this itself.
    is_made_again: bool = False


# --- messages and offsets


async def pull(
    broker: Endpoint,
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    max_count: int,
    max_bytes: int,
    expression: str = "*",
    expression_type: str = TAG,
    wait_ms: int = 0,
    commit_offset: int | None = None,
) -> PullAnswer:
    """Stored records from ``offset`` on. If there is no message, the broker waits up to ``wait_ms`` for one.

    ``commit_offset``: an offset of the group to commit with the same request; None commits none.
    """
    # Each flag says that a field of the header counts; PULL_UNWRAPS, that this client splits inner batches.
    flags = PULL_SUBSCRIPTION | PULL_UNWRAPS | (PULL_SUSPEND if wait_ms > 0 else 0)
    if commit_offset is not None:
        flags |= PULL_COMMIT_OFFSET
    header = PullMessageRequestHeader(
        group,
        topic,
        queue_id,
        offset,
        max_count,
        flags,
        commit_offset or 0,
        wait_ms,
        0,
        expression,
        expression_type,
        max_bytes,
    )
    answer = await call(broker, PULL_MESSAGE, header, wait_ms=wait_ms)
    fields = answer.header()
    return PullAnswer(
        answer.code,
        answer.body(),
        fields.next_begin_offset,
        fields.min_offset,
        fields.max_offset,
        fields.suggest_which_broker_id,
        offset_delta=fields.offset_delta,
        created_ms=fields.topic_created_ms,
    )


async def max_offset(broker: Endpoint, topic: str, queue_id: int) -> Position:
    """The offset that the queue's next message will get."""
    header = GetMaxOffsetRequestHeader(topic, queue_id, committed=True)
    return _position((await call(broker, offsets.GET_MAX_OFFSET, header)).header())


async def min_offset(broker: Endpoint, topic: str, queue_id: int) -> Position:
    """The offset of the queue's oldest message."""
    answer = await call(broker, offsets.GET_MIN_OFFSET, QueueRequestHeader(topic, queue_id))
    return _position(answer.header())


def _position(header: OffsetResponseHeader) -> Position:
    return Position(header.offset, header.topic_created_ms)


async def topic_offsets(broker: Endpoint, topic: str) -> TopicStatsTable:
    """The first and the next offset of each queue of the topic on the broker."""
    return (await call(broker, topics.GET_TOPIC_STATS_INFO, topics.TopicRequestHeader(topic))).body()


async def search_offset(
    broker: Endpoint, topic: str, queue_id: int, timestamp_ms: int, *, boundary: str = "LOWER"
) -> Position:
    """The offset of the first message stored at or after ``timestamp_ms``; UPPER: of the last one at or before it."""
    header = SearchOffsetRequestHeader(topic, queue_id, timestamp_ms, boundary)
    return _position((await call(broker, offsets.SEARCH_OFFSET_BY_TIMESTAMP, header)).header())


async def earliest_store_time(broker: Endpoint, topic: str, queue_id: int) -> int | None:
    """The store time of the queue's oldest message (ms); None when the queue is empty."""
    answer = await call(broker, offsets.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(topic, queue_id))
    timestamp = answer.header().timestamp
    return timestamp if timestamp >= 0 else None


async def committed_offset(
    broker: Endpoint, group: str, topic: str, queue_id: int, *, zero_if_new: bool = False
) -> Position | None:
    """The offset that the group has committed for the queue; None when there is none.

    ``zero_if_new``: 0 instead of None, when the queue still has its first message in memory.
    """
    header = QueryConsumerOffsetRequestHeader(group, topic, queue_id, set_zero_if_not_found=zero_if_new)
    answer = await call(broker, offsets.QUERY_CONSUMER_OFFSET, header)
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else _position(answer.header())


async def commit_offset(
    broker: Endpoint,
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    forward_only: bool = False,
    created_ms: int | None = None,
) -> None:
    """Set the group's offset for the queue. ``forward_only``: a Skylark broker ignores an offset that goes back.

    ``created_ms`` is the creation stamp of the topic that the offset belongs to: when the topic has another stamp now,
    a Skylark broker refuses the offset, see `is_of_another_queue`.
    """
    header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset, forward_only or None, created_ms)
    await call(broker, offsets.UPDATE_CONSUMER_OFFSET, header)


def is_of_another_queue(error: SkylarkError) -> bool:
    """Whether a commit was refused because its offset is not of this queue, as when the topic was made again."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.PULL_OFFSET_MOVED


async def query_messages(
    broker: Endpoint,
    topic: str,
    key: str,
    *,
    max_num: int,
    begin_ms: int,
    end_ms: int,
    unique: bool = False,
    goes_on: bool = False,
    broker_name: str = "",
    on_partial: Callable[[str], None] = lambda why: None,
) -> list[MessageExt]:
    """Messages that the broker's index has for ``key`` (``unique``: a unique key), including hash collisions.

    A broker searches its bucket for some seconds, then it answers with what it has found. ``goes_on``: while it has
    found nothing, let it search the rest. ``on_partial`` is told why the broker has not searched all messages of the
    time, if it has not.
    """
    while True:
        header = QueryMessageRequestHeader(topic, key, max_num, begin_ms, end_ms, unique_key_query=unique)
        answer = await call(broker, query.QUERY_MESSAGE, header, wait_ms=BUCKET_SEARCH_MS)
        messages = decode_messages(answer.body(), broker_name)
        # Code 22, no message, has a remark, too.
        if answer.command.code != ResponseCode.SUCCESS or not answer.command.remark:
            return messages
        left_ms = answer.header().next_end_timestamp if goes_on and not messages else None
        if left_ms is None or left_ms >= end_ms:
            on_partial(answer.command.remark)
            return messages
        end_ms = left_ms


async def view_messages(broker: Endpoint, physical_offset: int) -> list[MessageExt]:
    """The message stored at ``physical_offset``, or all messages of an inner batch; BrokerError when there is none."""
    header = ViewMessageRequestHeader(physical_offset, takes_batches=True)
    answer = await call(broker, query.VIEW_MESSAGE_BY_ID, header)
    messages = decode_messages(answer.body())
    if not messages:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message at offset {physical_offset}", broker.addr)
    return messages


# --- messages that were not consumed, and queues with one owner


async def send_back(
    at: Endpoint,
    group: str,
    message_physical_offset: int,
    message_id: str,
    topic: str,
    delay_level: int,
    max_reconsume_times: int,
    failure: FailureNote | None = None,
) -> None:
    """Let the broker that stores a message deliver it to the group again later.

    ``delay_level`` 0 lets the broker choose; below 0, or after ``max_reconsume_times``, the message becomes a dead
    letter. ``message_id`` and ``topic`` are the names that the consumer knows, for traces. A Skylark broker keeps
    ``failure`` with the message.
    """
    header = ConsumerSendMsgBackRequestHeader(
        message_physical_offset, group, delay_level, message_id, topic, False, max_reconsume_times
    )
    if failure is not None:
        header.fail_reason, header.fail_client, header.fail_time = failure.reason, failure.client, failure.time_ms
    await call(at, consuming.CONSUMER_SEND_MSG_BACK, header)


async def lock_queues(at: Endpoint, group: str, client_id: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Lock ``queues`` for 60 s, or renew the locks; returns the queues whose lock the client holds now."""
    body = LockBatchRequestBody(group, client_id, False, list(queues))
    return (await call(at, consuming.LOCK_BATCH_MQ, None, body)).body().lock_ok_mq_set


async def unlock_queues(at: Endpoint, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
    """Give up the client's locks of ``queues``."""
    await call(at, consuming.UNLOCK_BATCH_MQ, None, UnlockBatchRequestBody(group, client_id, False, list(queues)))


async def recall(broker: Endpoint, *, topic: str, group: str, handle: str) -> str:
    """Take back a timed message; returns its unique key. BrokerError when the message is delivered already."""
    header = RecallMessageRequestHeader(topic, handle, group)
    return (await call(broker, RECALL_MESSAGE, header)).header().msg_id


# --- membership


async def heartbeat(broker: Endpoint, data: HeartbeatData) -> dict[str, str]:
    """Tell the broker which groups this client is in.

    Returns the groups whose members have different subscriptions, with the differences; only Skylark brokers say so.
    """
    header = (await call(broker, HEART_BEAT, None, data)).header()
    lines = (header.subscription_differences or "").splitlines()
    return {group: text for group, _, text in (line.partition(" ") for line in lines) if text}


async def check_subscription(broker: Endpoint, client_id: str, group: str, subscription: SubscriptionData) -> None:
    """BrokerError when the broker cannot use the expression of this subscription."""
    await call(broker, CHECK_CLIENT_CONFIG, None, CheckClientRequestBody(client_id, group, subscription))


async def consumer_ids(broker: Endpoint, group: str) -> list[str]:
    """The client ids of the group's consumers that this broker knows. BrokerError when it knows none."""
    header = ConsumerGroupRequestHeader(group)
    return (await call(broker, GET_CONSUMER_LIST_BY_GROUP, header)).body().consumer_id_list


async def assigned_queues(
    broker: Endpoint, group: str, topic: str, client_id: str, strategy: str
) -> list[MessageQueueAssignment]:
    """The queues that the broker assigns to a member of a group, and how they are consumed."""
    body = QueryAssignmentRequestBody(topic, group, client_id, strategy)
    return (await call(broker, QUERY_ASSIGNMENT, None, body)).body().message_queue_assignments or []


async def unregister_client(
    broker: Endpoint, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Leave a group at once instead of after 120 s."""
    await call(broker, UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id, producer_group, consumer_group))
