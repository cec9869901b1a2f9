"""Finding messages: by key (12), by physical offset (33); and the entries of a queue (321)."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, INT, LONG, TEXT, Body, body_of, list_of, member
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.clients import SubscriptionData
from skylark.remoting.protocol.rights import GET, GET_CLUSTER, SUB_GET, on_topic
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class QueryMessageRequestHeader(Header):
    """12: messages with a key. With ``unique_key_query``, or index type U (5.x), the key is a UNIQ_KEY."""

    topic: str = required(read_text)
    key: str = required(read_text)
    max_num: int = required(read_int)
    begin_timestamp: int = required(read_long)
    end_timestamp: int = required(read_long)
    unique_key_query: bool | None = optional(read_flag, wire="_UNIQUE_KEY_QUERY")
    index_type: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class QueryMessageResponseHeader(Header):
    """The answer to 12: how far the index is.

    ``next_end_timestamp``, Skylark's own: the search ended early, and the same request with this end goes on with it.
    """

    index_last_update_timestamp: int = required(read_long)
    index_last_update_phyoffset: int = required(read_long)
    next_end_timestamp: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class ViewMessageRequestHeader(Header):
    """33: the message at a physical offset.

    ``takes_batches``, Skylark's own: the answer may be an inner batch. Clients without it get the first message of the
    batch.
    """

    offset: int = required(read_long)
    topic: str | None = optional(read_text)
    takes_batches: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class QueryConsumeQueueRequestHeader(Header):
    """321: ``count`` entries of a queue from ``index`` on; with a group, also whether its filter accepts each."""

    topic: str = required(read_text)
    queue_id: int = optional(read_int, 0)
    index: int = optional(read_long, 0)
    count: int = optional(read_int, 0)
    consumer_group: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ConsumeQueueData(Body):
    """One entry. ``eval``: whether the filter of the requested group accepts it; ``msg``: what is wrong with it.

    ``extend_data_json`` and ``bit_map`` come from Java brokers with extended consume queues only.
    """

    physic_offset: int = member(LONG, 0)
    physic_size: int = member(INT, 0)
    tags_code: int = member(LONG, 0)
    extend_data_json: str | None = member(TEXT, None)
    bit_map: str | None = member(TEXT, None)
    eval: bool = member(FLAG, False)
    msg: str | None = member(TEXT, None)


@lazy_dataclass(slots=True)
class ConsumeQueueEntries(Body):
    """Entries in the order of the queue, which has messages from ``min_queue_index`` to before ``max_queue_index``.

    ``subscription_data`` and ``filter_data`` belong to the requested group.
    """

    subscription_data: SubscriptionData | None = member(body_of(SubscriptionData), None)
    filter_data: str | None = member(TEXT, None)
    queue_data: list[ConsumeQueueData] = member(list_of(body_of(ConsumeQueueData)))
    max_queue_index: int = member(LONG, 0)
    min_queue_index: int = member(LONG, 0)


# QUERY_NOT_FOUND: no message has the key.
QUERY_MESSAGE = Request(
    12,
    QueryMessageRequestHeader,
    NOTHING,
    QueryMessageResponseHeader,
    bytes,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
    right=on_topic(SUB_GET),
)
VIEW_MESSAGE_BY_ID = Request(
    33,
    ViewMessageRequestHeader,
    NOTHING,
    NOTHING,
    bytes,
    right=GET_CLUSTER,
)
QUERY_CONSUME_QUEUE = Request(
    321,
    QueryConsumeQueueRequestHeader,
    NOTHING,
    NOTHING,
    ConsumeQueueEntries,
    right=on_topic(GET),
)
