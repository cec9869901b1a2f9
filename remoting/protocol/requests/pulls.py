"""Pulls: 11, and 361 of lite pull consumers. The body of the answer is stored messages, one after another.

Their answers are the hot path: broker/handlers/pull.py writes the fields itself, without a header object.
"""

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from remoting.protocol.requests.request import NOTHING, Request

# There are no messages; the fields say from which offset to go on.
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)

PULL_MESSAGE = Request(
    RequestCode.PULL_MESSAGE, PullMessageRequestHeader, NOTHING, PullMessageResponseHeader, bytes,
    accepts=_NO_MESSAGES,
)  # fmt: skip
LITE_PULL_MESSAGE = Request(
    RequestCode.LITE_PULL_MESSAGE, PullMessageRequestHeader, NOTHING, PullMessageResponseHeader, bytes,
    accepts=_NO_MESSAGES,
)  # fmt: skip
