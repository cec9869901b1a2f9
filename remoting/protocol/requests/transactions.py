"""Transactions (37, 39, 323)."""

from dataclasses import dataclass

from remoting.protocol.codes import RequestCode
from remoting.protocol.header import Header, optional, required
from remoting.protocol.request import NOTHING, Request
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class EndTransactionRequestHeader(Header):
    """37. The half is message ``tran_state_table_offset`` of its queue, and at ``commit_log_offset`` of the log."""

    producer_group: str = required(read_text)
    tran_state_table_offset: int = required(read_long)
    commit_log_offset: int = required(read_long)
    commit_or_rollback: int = required(read_int)
    msg_id: str | None = optional(read_text)
    from_transaction_check: bool | None = optional(read_flag)
    transaction_id: str | None = optional(read_text)
    topic: str | None = optional(read_text)


@dataclass(slots=True)
class CheckTransactionStateRequestHeader(Header):
    """39, whose body is the half as a message of its own topic."""

    tran_state_table_offset: int = required(read_long)
    commit_log_offset: int = required(read_long)
    topic: str | None = optional(read_text)
    msg_id: str | None = optional(read_text)
    transaction_id: str | None = optional(read_text)
    offset_msg_id: str | None = optional(read_text)


@dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    """323. ``msg_id``: the one with the broker's address and the offset in the log."""

    msg_id: str = required(read_text)
    topic: str | None = optional(read_text)


END_TRANSACTION = Request(
    RequestCode.END_TRANSACTION, EndTransactionRequestHeader, NOTHING, NOTHING, NOTHING, may_be_oneway=True
)
CHECK_TRANSACTION_STATE = Request(
    RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, bytes, NOTHING, NOTHING, may_be_oneway=True
)
RESUME_CHECK_HALF_MESSAGE = Request(
    RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader, NOTHING, NOTHING, NOTHING
)
