"""What producers and consumers ask of a broker: one function a request. Sends are the producer's, not here.

Each builds the ext fields and the body of its request (PROTOCOL.md names them), decodes the answer and raises
BrokerError for codes that are errors. Which broker to ask, and what to do when it does not answer, is the callers'
business. What only admin tools ask is in `sdk.admin.broker_admin_api`.
"""

from dataclasses import dataclass

from mqcommon.errors import BrokerError
from mqcommon.message.message import MessageExt, decode_messages
from mqcommon.names import MASTER_ID
from remoting.protocol.bodies.heartbeat import HeartbeatData
from remoting.protocol.codes import RequestCode, ResponseCode
from sdk.endpoint import Endpoint, int_field, int_field_or

PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
_PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """A pull's answer: ``code`` is 0, 19, 20 or 21; ``data`` is stored records one after another.

    ``broker_id`` is that of the broker which answered, as far as the caller knows it.
    """

    code: int
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    broker_id: int = MASTER_ID


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
    wait_ms: int = 0,
    commit_offset: int | None = None,
) -> PullAnswer:
    """Stored bytes from ``offset`` on; with ``wait_ms`` the broker holds the request until there is something."""
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms > 0 else 0)
    if commit_offset is not None:
        flags |= PULL_COMMIT_OFFSET
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": max_count,
        "sysFlag": flags,
        "commitOffset": commit_offset or 0,
        "suspendTimeoutMillis": wait_ms,
        "subscription": expression,
        "subVersion": 0,
        "expressionType": "TAG",
        "maxMsgBytes": max_bytes,
    }
    answer = await broker.ask(RequestCode.PULL_MESSAGE, ext, accept=_PULL_CODES, wait_ms=wait_ms)
    return PullAnswer(
        answer.code,
        answer.body,
        int_field(answer, "nextBeginOffset"),
        int_field(answer, "minOffset"),
        int_field(answer, "maxOffset"),
        int_field_or(answer, "suggestWhichBrokerId", 0),
    )


async def max_offset(broker: Endpoint, topic: str, queue_id: int) -> int:
    """The offset that the queue's next message will get."""
    ext = {"topic": topic, "queueId": queue_id, "committed": True}
    answer = await broker.ask(RequestCode.GET_MAX_OFFSET, ext)
    return int_field(answer, "offset")


async def min_offset(broker: Endpoint, topic: str, queue_id: int) -> int:
    """The offset of the queue's oldest message that is still there."""
    ext = {"topic": topic, "queueId": queue_id}
    answer = await broker.ask(RequestCode.GET_MIN_OFFSET, ext)
    return int_field(answer, "offset")


async def search_offset(
    broker: Endpoint, topic: str, queue_id: int, timestamp_ms: int, *, boundary: str = "LOWER"
) -> int:
    """The offset of the first message stored at ``timestamp_ms`` or later; UPPER: of the last one at it or before."""
    ext = {"topic": topic, "queueId": queue_id, "timestamp": timestamp_ms, "boundaryType": boundary}
    answer = await broker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
    return int_field(answer, "offset")


async def earliest_store_time(broker: Endpoint, topic: str, queue_id: int) -> int | None:
    """When the queue's oldest message was stored, ms; None when it has none."""
    ext = {"topic": topic, "queueId": queue_id}
    answer = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
    timestamp = int_field(answer, "timestamp")
    return timestamp if timestamp >= 0 else None


async def committed_offset(broker: Endpoint, group: str, topic: str, queue_id: int) -> int | None:
    """What the group has committed for the queue; None when nothing."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "setZeroIfNotFound": False}
    answer = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext, accept=_FOUND_OR_NOT)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return int_field(answer, "offset")


async def commit_offset(broker: Endpoint, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Set the group's offset for the queue."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


async def query_messages(
    broker: Endpoint,
    topic: str,
    key: str,
    *,
    max_num: int,
    begin_ms: int,
    end_ms: int,
    unique: bool = False,
    broker_name: str = "",
) -> list[MessageExt]:
    """Messages that the broker's index has under ``key`` (``unique``: a unique key); hash clashes included."""
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": max_num,
        "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
        "_UNIQUE_KEY_QUERY": unique,
    }
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, ext, accept=_FOUND_OR_NOT)
    return decode_messages(answer.body, broker_name)


async def view_message(broker: Endpoint, physical_offset: int) -> MessageExt:
    """The message stored at ``physical_offset``; BrokerError when there is none."""
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
    messages = decode_messages(answer.body)
    if not messages:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message at offset {physical_offset}", broker.addr)
    return messages[0]


# --- membership


async def heartbeat(broker: Endpoint, data: HeartbeatData) -> None:
    """Tell the broker which groups this client is in."""
    await broker.ask(RequestCode.HEART_BEAT, None, data)


async def unregister_client(
    broker: Endpoint, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Leave a group at once instead of after 120 s."""
    ext = {"clientID": client_id}
    if producer_group is not None:
        ext["producerGroup"] = producer_group
    if consumer_group is not None:
        ext["consumerGroup"] = consumer_group
    await broker.ask(RequestCode.UNREGISTER_CLIENT, ext)
