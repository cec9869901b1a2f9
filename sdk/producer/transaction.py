"""`Transaction`: a message that consumers see when its transaction commits; how it ends, and who is asked about it."""

from collections.abc import Awaitable, Callable
from enum import Enum

from mqcommon.errors import InvalidArgument
from mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from mqcommon.message.message import Message, MessageExt
from sdk.producer.result import SendResult

#: RocketMQ's names of the states, in traces.
STATE_NAMES = {
    TRANSACTION_COMMIT: "COMMIT_MESSAGE", TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE", TRANSACTION_NONE: "UNKNOW",
}  # fmt: skip


class TransactionState(Enum):
    """How a transaction ends."""

    #: Consumers get the message.
    COMMIT = TRANSACTION_COMMIT
    #: Nobody gets it.
    ROLLBACK = TRANSACTION_ROLLBACK
    #: Not known yet: the broker asks the checker later.
    UNKNOWN = TRANSACTION_NONE


#: Says how the transaction of a stored message ended; the broker asks when it has not heard of its end.
Checker = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]
#: The local part of a transaction.
Local = Callable[[Message], TransactionState | Awaitable[TransactionState]]


class Transaction:
    """An open transaction, whose message is stored: ``result`` says where."""

    __slots__ = ("message", "result", "state")

    def __init__(self, message: Message, result: SendResult) -> None:
        self.message = message
        self.result = result
        #: How it ends; None until that is decided.
        self.state: TransactionState | None = None

    @property
    def transaction_id(self) -> str:
        """The unique key of the message; the checker sees it as ``msg_id``."""
        return self.result.msg_id

    def commit(self) -> None:
        """Let it commit at the end of the block, whatever happens until then."""
        self.state = TransactionState.COMMIT

    def rollback(self) -> None:
        """Let it roll back at the end of the block."""
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Do not end it with the block: the broker asks the checker later."""
        self.state = TransactionState.UNKNOWN

    def end_of_block(self, error: BaseException | None) -> TransactionState:
        """How it ends with its block, which raised ``error``.

        A cancellation, Ctrl-C or an exit of the program leave it open, as they may come at any point of the block.
        """
        if self.state is None:
            if error is None:
                self.state = TransactionState.COMMIT
            elif isinstance(error, Exception):
                self.state = TransactionState.ROLLBACK
            else:
                self.state = TransactionState.UNKNOWN
        return self.state

    def __repr__(self) -> str:
        return f"Transaction(transaction_id={self.transaction_id!r}, state={self.state and self.state.name})"


def check_state(what: str, state: object) -> TransactionState:
    """``state`` if it is a TransactionState, else InvalidArgument."""
    if isinstance(state, TransactionState):
        return state
    raise InvalidArgument(f"{what} must be a TransactionState, not {state!r}")
