"""Transactions (37, 39, 323)."""

from collections.abc import Mapping
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request, SlaveAnswer
from skylark.remoting.protocol.requests.sends import NO_MESSAGES
from skylark.remoting.protocol.rights import PUB, TOPIC, UPDATE_CLUSTER, Need, Right, text_of
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class EndTransactionRequestHeader(Header):
    """37: end a transaction.

    The half is message ``tran_state_table_offset`` of its queue, and at ``commit_log_offset`` of the log.
    """

    producer_group: str = required(read_text)
    tran_state_table_offset: int = required(read_long)
    commit_log_offset: int = required(read_long)
    commit_or_rollback: int = required(read_int)
    msg_id: str | None = optional(read_text)
    from_transaction_check: bool | None = optional(read_flag)
    transaction_id: str | None = optional(read_text)
    topic: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class CheckTransactionStateRequestHeader(Header):
    """39: ask a producer how a transaction ended. The body is the half as a message of its own topic."""

    tran_state_table_offset: int = required(read_long)
    commit_log_offset: int = required(read_long)
    topic: str | None = optional(read_text)
    msg_id: str | None = optional(read_text)
    transaction_id: str | None = optional(read_text)
    offset_msg_id: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    """323: check a transaction again that was given up.

    ``msg_id``: the offset message id, with the broker's address and the offset in the log.
    """

    msg_id: str = required(read_text)
    topic: str | None = optional(read_text)


_NO_END_ON_SLAVE = SlaveAnswer(
    ResponseCode.SLAVE_NOT_AVAILABLE, "Message store is slave mode, so end transaction is forbidden."
)


def _end_needs(ext: Mapping[str, Any] | None) -> list[Need]:
    """The topic, if it is named; older clients name none. The handler asks for the right to the topic of the half."""
    topic = text_of(ext, "topic")
    return [Need(TOPIC, topic, PUB)] if topic else []


END_TRANSACTION = Request(
    37,
    EndTransactionRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=Right(_end_needs),
    on_slave=_NO_END_ON_SLAVE,
)
CHECK_TRANSACTION_STATE = Request(
    39,
    CheckTransactionStateRequestHeader,
    bytes,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
)
RESUME_CHECK_HALF_MESSAGE = Request(
    323,
    ResumeCheckHalfMessageRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=NO_MESSAGES,
)
