"""Sends: 10 with long names, 310 and 320 with short ones.

They are the hot path: broker/handlers/send.py reads ext by the names in headers/send.py and writes the answer's fields
itself, and sdk/producer/wire.py does so the other way round. A header object for each message would cost too much.
"""

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.send import SendMessageRequestHeader, SendMessageResponseHeader
from remoting.protocol.requests.request import NOTHING, Request

# The message is stored, but not as durably as the broker's options require.
_STORED = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

SEND_MESSAGE = Request(
    RequestCode.SEND_MESSAGE, SendMessageRequestHeader, bytes, SendMessageResponseHeader, NOTHING,
    accepts=_STORED, may_be_oneway=True,
)  # fmt: skip
SEND_MESSAGE_V2 = Request(
    RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeader, bytes, SendMessageResponseHeader, NOTHING,
    accepts=_STORED, may_be_oneway=True, has_short_names=True,
)  # fmt: skip
# With many messages a Skylark broker puts their offsets into the answer's body, see mqcommon/message/batch.py.
SEND_BATCH_MESSAGE = Request(
    RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestHeader, bytes, SendMessageResponseHeader, bytes,
    accepts=_STORED, may_be_oneway=True, has_short_names=True,
)  # fmt: skip
