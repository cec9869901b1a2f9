"""Replies: sent by whoever handled a request (324 with long names, 325 with short ones), pushed to who asked (326)."""

from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.replies import ReplyMessageRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeader, SendMessageResponseHeader
from remoting.protocol.requests.request import NOTHING, Request

SEND_REPLY_MESSAGE = Request(
    RequestCode.SEND_REPLY_MESSAGE, SendMessageRequestHeader, bytes, SendMessageResponseHeader, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
SEND_REPLY_MESSAGE_V2 = Request(
    RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageRequestHeader, bytes, SendMessageResponseHeader, NOTHING,
    may_be_oneway=True, has_short_names=True,
)  # fmt: skip
PUSH_REPLY_MESSAGE_TO_CLIENT = Request(
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequestHeader, bytes, NOTHING, NOTHING
)
