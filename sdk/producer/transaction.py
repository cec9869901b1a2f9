"""`Transaction`: a message that consumers see when its transaction commits; its end, and brokers' checks of it.

`TransactionChecks` answers brokers that ask how a transaction ended (39), with the user's checker. The answer is a
request 37 on the connection of the question. The question or the answer may be lost: then the broker asks again, and
perhaps asks another member of the group, so a checker must know transactions that other members began. While the block
of a transaction runs, its producer neither calls the checker nor answers, so the broker asks again later.
"""

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol
from weakref import WeakValueDictionary

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import InvalidArgument, RemotingError
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from skylark.sdk.namespaces import Names
from skylark.sdk.producer.result import SendResult

#: RocketMQ's names of the states, in traces.
STATE_NAMES = {
    TRANSACTION_COMMIT: "COMMIT_MESSAGE",
    TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE",
    TRANSACTION_NONE: "UNKNOW",
}


class TransactionState(Enum):
    """How a transaction ends."""

    #: Consumers get the message.
    COMMIT = TRANSACTION_COMMIT
    #: No consumer gets the message.
    ROLLBACK = TRANSACTION_ROLLBACK
    #: The outcome is not known yet: the broker asks the checker later.
    UNKNOWN = TRANSACTION_NONE


#: Says how the transaction of a stored message ended. The broker asks when it has not learned of the end.
Checker = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]
#: The local part of a transaction.
Local = Callable[[Message], TransactionState | Awaitable[TransactionState]]


class Transaction:
    """An open transaction, whose message is stored: ``result`` says where."""

    __slots__ = ("__weakref__", "in_block", "message", "result", "state")

    def __init__(self, message: Message, result: SendResult, *, in_block: bool = False) -> None:
        self.message = message
        self.result = result
        #: How the transaction ends; None until that is decided.
        self.state: TransactionState | None = None
        #: Whether the transaction belongs to a block that has not ended.
        self.in_block = in_block

    @property
    def transaction_id(self) -> str:
        """The unique key of the message; the checker sees it as ``msg_id``."""
        return self.result.msg_id

    def commit(self) -> None:
        """Let the transaction commit at the end of the block, whatever happens until then."""
        self.state = TransactionState.COMMIT

    def rollback(self) -> None:
        """Let the transaction roll back at the end of the block."""
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Do not end the transaction with the block: the broker asks the checker later."""
        self.state = TransactionState.UNKNOWN

    def end_of_block(self, error: BaseException | None) -> TransactionState:
        """How the transaction ends with its block, which raised ``error``.

        A cancellation, Ctrl-C or an exit of the program leaves the transaction open, as it may come at any point of the
        block.
        """
        self.in_block = False
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


logger = logging.getLogger(__name__)

# How many questions are answered at the same time. Further questions are dropped: the broker asks again.
MAX_RUNNING = 256
TIMEOUT_S = 60


def undo_half(remoting: RemotingClient, group: str, half: SendResult, wire_topic: str, addr: str) -> None:
    """Roll back a half at ``addr``: a safer copy at another broker counts instead.

    If the rollback is lost, the broker at ``addr`` asks the checker, and may commit this half as well as the copy.
    """
    header = EndTransactionRequestHeader(
        group, half.queue_offset, half.physical_offset, TRANSACTION_ROLLBACK, half.msg_id, False, None, wire_topic
    )
    try:
        remoting.push(addr, END_TRANSACTION.oneway(header))
    except RemotingError as error:
        logger.info("the second copy of half %s was not rolled back at %s: %s", half.msg_id, addr, error)


class NoteEnd(Protocol):
    """Called when the end of a transaction was sent to a broker."""

    def __call__(
        self, message: MessageExt, msg_id: str, addr: str, state: TransactionState, *, from_check: bool
    ) -> None: ...


class TransactionChecks:
    """Answers brokers' questions to one producer. ``group`` is its group's name as brokers know it."""

    def __init__(self, checker: Checker, group: str, names: Names) -> None:
        self._checker = checker
        self._group = group
        self._names = names
        self._running = 0
        # The producer's own transactions that somebody holds, by transaction id.
        self._begun = WeakValueDictionary[str, Transaction]()
        #: Set while the producer is open.
        self.nursery: trio.Nursery | None = None
        #: Called when the end of a transaction was sent to a broker.
        self.ended: NoteEnd | None = None

    def begun(self, transaction: Transaction) -> None:
        """Note that the message of ``transaction`` is stored: a broker may ask from now on."""
        self._begun[transaction.transaction_id] = transaction

    def check(self, channel: Channel, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Have the checker decide about ``message``, of which a broker asks, and send its answer on ``channel``."""
        if self.nursery is None:
            return
        begun = self._begun.get(message.msg_id)
        if begun is not None and begun.in_block:
            # No answer is as UNKNOWN. A checker would not find in the database what the block has not committed yet,
            # even if the block has already decided how the transaction ends.
            logger.info("%s asks about transaction %s, whose block still runs", channel.remote, message.msg_id)
            return
        if self._running >= MAX_RUNNING:
            logger.warning("%s asks about a transaction while %d are checked, dropped", channel.remote, MAX_RUNNING)
            return
        message.show_topic(self._names.plain(message.topic))
        self._running += 1
        self.nursery.start_soon(self._run, channel, header, message)

    @enable_ki_protection
    async def _run(self, channel: Channel, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        try:
            state = await self._ask(message)
            if state is not TransactionState.UNKNOWN:
                answer = EndTransactionRequestHeader(
                    self._group,
                    header.tran_state_table_offset,
                    header.commit_log_offset,
                    state.value,
                    header.msg_id,
                    True,
                    header.transaction_id,
                    header.topic,
                )
                channel.push(END_TRANSACTION.oneway(answer))
                if self.ended is not None:
                    self.ended(message, message.msg_id, channel.remote, state, from_check=True)
        except RemotingError as error:
            logger.info("the answer about transaction %s was not sent: %s", message.msg_id, error)
        finally:
            self._running -= 1

    async def _ask(self, message: MessageExt) -> TransactionState:
        """The checker's answer; UNKNOWN when the checker fails."""
        try:
            with trio.fail_after(TIMEOUT_S):
                found = self._checker(message)
                state = await found if hasattr(found, "__await__") else found
                return check_state("the result of a checker", state)
        except Exception as error:
            logger.error("the checker failed with transaction %s; it is asked again", message.msg_id, exc_info=error)
            return TransactionState.UNKNOWN
