"""Answers brokers that ask how a transaction ended (39), with the user's checker.

The answer is a 37 on the connection of the question. Broker and client may lose either: then the broker asks again, and
perhaps another member of the group, so a checker must be able to tell of transactions that others began.
"""

import logging
from typing import Protocol

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import RemotingError
from mqcommon.message.message import MessageExt
from remoting.net.channel import Channel
from remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from sdk.namespaces import Names
from sdk.producer.transaction import Checker, TransactionState, check_state

logger = logging.getLogger(__name__)

# Questions that are worked on at the same time. Others are dropped: the broker asks again.
MAX_RUNNING = 256
TIMEOUT_S = 60


class NoteEnd(Protocol):
    """See `Halves.ended`."""

    def __call__(
        self, message: MessageExt, msg_id: str, addr: str, state: TransactionState, *, from_check: bool
    ) -> None: ...


class TransactionChecks:
    """The questions to one producer. ``group`` is its name as brokers know it."""

    def __init__(self, checker: Checker, group: str, names: Names) -> None:
        self._checker = checker
        self._group = group
        self._names = names
        self._running = 0
        #: Set while the producer is open.
        self.nursery: trio.Nursery | None = None
        #: Called when a broker was told an end.
        self.ended: NoteEnd | None = None

    def check(self, channel: Channel, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """A broker asks about ``message``."""
        if self.nursery is None:
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
                    self._group, header.tran_state_table_offset, header.commit_log_offset, state.value,
                    header.msg_id, True, header.transaction_id, header.topic,
                )  # fmt: skip
                channel.push(END_TRANSACTION.oneway(answer))
                if self.ended is not None:
                    self.ended(message, message.msg_id, channel.remote, state, from_check=True)
        except RemotingError as error:
            logger.info("the answer about transaction %s was not sent: %s", message.msg_id, error)
        finally:
            self._running -= 1

    async def _ask(self, message: MessageExt) -> TransactionState:
        """What the checker says; UNKNOWN when it fails."""
        try:
            with trio.fail_after(TIMEOUT_S):
                found = self._checker(message)
                state = await found if hasattr(found, "__await__") else found
                return check_state("the result of a checker", state)
        except Exception as error:
            logger.error("the checker failed with transaction %s; it is asked again", message.msg_id, exc_info=error)
            return TransactionState.UNKNOWN
