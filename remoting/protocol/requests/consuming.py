"""Consumers: messages given back (36), queues locked and unlocked (41, 42)."""

from remoting.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.send_back import ConsumerSendMsgBackRequestHeader
from remoting.protocol.requests.request import NOTHING, Request

CONSUMER_SEND_MSG_BACK = Request(
    RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader, NOTHING, NOTHING, NOTHING, may_be_oneway=True
)
LOCK_BATCH_MQ = Request(RequestCode.LOCK_BATCH_MQ, NOTHING, LockBatchRequestBody, NOTHING, LockBatchResponseBody)
UNLOCK_BATCH_MQ = Request(
    RequestCode.UNLOCK_BATCH_MQ, NOTHING, UnlockBatchRequestBody, NOTHING, NOTHING, may_be_oneway=True
)
