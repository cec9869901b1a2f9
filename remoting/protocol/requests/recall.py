"""Producers: a timed message is taken back (370)."""

from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.recall import RecallMessageRequestHeader, RecallMessageResponseHeader
from remoting.protocol.requests.request import NOTHING, Request

RECALL_MESSAGE = Request(
    RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader, NOTHING, RecallMessageResponseHeader, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
