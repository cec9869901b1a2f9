"""Transactions (37, 39, 323)."""

from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.transaction import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

END_TRANSACTION = Request(
    RequestCode.END_TRANSACTION, EndTransactionRequestHeader, NOTHING, NOTHING, NOTHING, may_be_oneway=True
)
CHECK_TRANSACTION_STATE = Request(
    RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, bytes, NOTHING, NOTHING, may_be_oneway=True
)
RESUME_CHECK_HALF_MESSAGE = Request(
    RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader, NOTHING, NOTHING, NOTHING
)
