"""Finding messages: by key (12), by physical offset (33); and the entries of a queue (321)."""

from remoting.protocol.bodies.consume_queue import ConsumeQueueEntries
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.query import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

# QUERY_NOT_FOUND: no message has the key.
QUERY_MESSAGE = Request(
    RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader, NOTHING, QueryMessageResponseHeader, bytes,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)  # fmt: skip
VIEW_MESSAGE_BY_ID = Request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader, NOTHING, NOTHING, bytes)
QUERY_CONSUME_QUEUE = Request(
    RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader, NOTHING, NOTHING, ConsumeQueueEntries
)
