"""Asks producers about halves that stay open, and gives up a half after too many checks.

Each check first stores a copy of the half at the end of the half topic, as RocketMQ does: so the count of checks
survives, and the first open half moves forward. The producer is asked about the copy; an answer about an older copy is
accepted, too.
"""

import logging
from collections import deque
from enum import Enum

from skylark.broker.delivery.message_ages import MessageAges
from skylark.broker.delivery.transaction import halves
from skylark.broker.delivery.transaction.halves import checks_of, immunity_ms
from skylark.broker.delivery.transaction.ledger import Ledger
from skylark.broker.meta.clients import Clients, Member
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Callers
from skylark.broker.store.store import PutResult
from skylark.broker.writing.deferred import real_queue
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import FrameTooLarge, RequestRefused
from skylark.mqcommon.message.record import Record
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.transactions import CHECK_TRANSACTION_STATE

logger = logging.getLogger(__name__)


class Due(Enum):
    """What has to be done for a half."""

    #: Nothing yet; nor for later halves, except copies.
    NEW = "new"
    #: Nothing yet: its producer has asked not to be asked so early.
    IMMUNE = "immune"
    CHECK = "check"
    GIVE_UP = "give up"


def due(half: Record, now_ms: int, timeout_ms: int, max_checks: int) -> Due:
    """What has to be done for ``half`` now. Its age counts from its store time.

    Only the first check waits until the half is old enough: ``timeout_ms``, unless its producer wants another time.
    After ``max_checks`` checks it is given up. The copy that a check has made is checked in each round, as in RocketMQ.
    """
    if checks := checks_of(half.properties):
        return Due.GIVE_UP if checks >= max_checks else Due.CHECK
    age_ms = now_ms - half.store_timestamp
    immune_ms = immunity_ms(half.properties, timeout_ms)
    if age_ms < (timeout_ms if immune_ms is None else immune_ms):
        return Due.NEW if immune_ms is None else Due.IMMUNE
    return Due.CHECK if max_checks > 0 else Due.GIVE_UP


# Halves that are examined in one step: a millisecond or two.
SLICE = 32
# A producer whose connection has this many unsent bytes is asked later.
MAX_WAITING_BYTES = 4 << 20


class TransactionChecks:
    """Checks the open halves of a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        writer: Writer,
        clients: Clients,
        options: BrokerOptions,
        clock: Clock,
        ages: MessageAges,
        callers: Callers | None = None,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._clients = clients
        self._options = options
        self._clock = clock
        self._ages = ages
        self._callers = callers
        # Cached answers of `Callers.may_send` in this step, by user, host and topic: there are many members and halves.
        self._may_see: dict[tuple[str, str, str], bool] = {}
        # The producers of a group take turns.
        self._turn = 0

    def run(self) -> Steps[int]:
        """Examine all halves that were open at the beginning; returns how many checks were made.

        RequestRefused on a full disk, for example: the next round continues.
        """
        ledger = self._ledger
        timeout_ms, max_checks = self._options.transaction_time_out, self._options.transaction_check_max
        end, count, checked = ledger.half_end, 0, 0
        self._may_see.clear()
        # Once a half is too young: the copies after it, whose first halves are older and which must still be examined.
        copies: deque[int] | None = None
        try:
            offset = ledger.first_open(0)
            while offset < end and ledger.is_ready:
                half = yield from ledger.half_at(offset)
                if not ledger.is_ready:
                    break
                wanted = Due.IMMUNE
                # The half may have ended while a thread read it.
                if ledger.first_open(offset) == offset:
                    if half is None:
                        logger.warning("half message %d was removed from the log before its transaction ended", offset)
                        ledger.finish(offset)
                    else:
                        wanted = due(self._ages.dated(half), self._clock.now_ms(), timeout_ms, max_checks)
                        if wanted is Due.NEW and copies is None:
                            copies = deque(ledger.copies_between(offset, end))
                        checked += self._examine(half, wanted)
                if copies is None:
                    offset = ledger.first_open(offset + 1)
                elif copies:
                    offset = copies.popleft()
                else:
                    break
                count += 1
                if count % SLICE == 0:
                    ledger.write_ops()
                    yield None
                    self._may_see.clear()
        finally:
            if ledger.is_ready:
                ledger.write_ops()
        return checked

    def _examine(self, half: Record, wanted: Due) -> bool:
        try:
            real_queue(half.properties)
        except ValueError as error:
            logger.error("half message %d has no queue, it is dropped: %s", half.queue_offset, error)
            self._ledger.finish(half.queue_offset)
            return False
        if wanted is Due.CHECK:
            return self._check(half)
        if wanted is Due.GIVE_UP:
            self._give_up(half)
        return False

    def _check(self, half: Record) -> bool:
        channels = self._channels(halves.group_of(half.properties), halves.topic_of(half.properties))
        ready = [channel for channel in channels if channel.buffered_bytes < MAX_WAITING_BYTES]
        if channels and not ready:
            return False  # not the producers' fault, so this does not count as a check
        # Store the copy before ending the half: a kill in between leaves two open halves of one transaction, which a
        # start links again. The other order would lose the transaction.
        message = halves.put_back(half)
        put = self._put(half, message)
        if put is not None:
            self._ledger.replaced(half, put.queue_offset)
            half = half._replace(
                queue_offset=put.queue_offset, physical_offset=put.physical_offset, properties=message.properties
            )
        if ready:
            self._ask(ready[self._turn % len(ready)], half)
        # If `ready` is empty, no connected producer of the group may send to the topic; the next check may find one.
        return True

    def _ask(self, channel: Channel, half: Record) -> None:
        self._turn += 1
        command = CHECK_TRANSACTION_STATE.oneway(halves.check_header(half))
        command.body = halves.as_users(half)
        try:
            channel.push(command)
        except FrameTooLarge as error:
            logger.warning("producer %s is not asked about a half message: %s", channel.remote, error)

    def _give_up(self, half: Record) -> None:
        # Store the message in its last topic before the half is ended.
        if self._put(half, halves.given_up(half)) is None:
            return
        self._ledger.finish(half.queue_offset, halves.first_offset(half.properties, half.queue_offset))
        topic, _ = real_queue(half.properties)
        logger.warning(
            "a transaction of group %s for topic %s was checked %d times without an answer: its message goes to"
            " TRANS_CHECK_MAX_TIME_TOPIC",
            halves.group_of(half.properties),
            topic,
            halves.checks_of(half.properties),
        )

    def _put(self, half: Record, copy: Incoming) -> PutResult | None:
        """Store a copy of ``half``; None when it would be too large to be stored.

        Halves with such long properties come from a Java broker, or from a time when this broker's own properties were
        shorter. Such a half stays open, and its checks are not counted, until its producer ends it or its part of the
        log is removed. An error here would stop the checks of all halves after it.
        """
        try:
            return self._writer.put_again(copy)
        except RequestRefused as refused:
            if refused.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            logger.warning("half message %d stays open, as no copy can be stored: %s", half.queue_offset, refused)
            return None

    def _channels(self, group: str, topic: str) -> list[Channel]:
        """The connections of those producers of ``group`` that may send to ``topic``.

        A heartbeat needs no right to join a producer group, and a check shows the whole message.
        """
        members = [member for member in self._clients.producers(group) if member.channel.closed_reason is None]
        if (callers := self._callers) is not None:
            members = [member for member in members if self._may_ask(callers, member, topic)]
        return [member.channel for member in members]

    def _may_ask(self, callers: Callers, member: Member, topic: str) -> bool:
        asked = member.user, split_address(member.channel.remote)[0], topic
        may = self._may_see.get(asked)
        if may is None:
            may = self._may_see[asked] = callers.may_send(*asked)
        return may
