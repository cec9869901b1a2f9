"""Pop consumption: 200050 to 200056, 200151. The body of 200050 and 200052 is stored messages, one after another."""

from remoting.protocol.bodies.pop import BatchAckMessageRequestBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

# There are no messages now.
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)

POP_MESSAGE = Request(
    RequestCode.POP_MESSAGE, PopMessageRequestHeader, NOTHING, PopMessageResponseHeader, bytes, accepts=_NO_MESSAGES
)
PEEK_MESSAGE = Request(
    RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader, NOTHING, PopMessageResponseHeader, bytes, accepts=_NO_MESSAGES
)
ACK_MESSAGE = Request(RequestCode.ACK_MESSAGE, AckMessageRequestHeader, NOTHING, NOTHING, NOTHING, may_be_oneway=True)
BATCH_ACK_MESSAGE = Request(
    RequestCode.BATCH_ACK_MESSAGE, NOTHING, BatchAckMessageRequestBody, NOTHING, NOTHING, may_be_oneway=True
)
CHANGE_MESSAGE_INVISIBLETIME = Request(
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequestHeader, NOTHING,
    ChangeInvisibleTimeResponseHeader, NOTHING,
)  # fmt: skip
NOTIFICATION = Request(
    RequestCode.NOTIFICATION, NotificationRequestHeader, NOTHING, NotificationResponseHeader, NOTHING
)
POLLING_INFO = Request(RequestCode.POLLING_INFO, PollingInfoRequestHeader, NOTHING, PollingInfoResponseHeader, NOTHING)
POP_ROLLBACK = Request(RequestCode.POP_ROLLBACK, NOTHING, NOTHING, NOTHING, NOTHING)
