"""Transactions: 37 ends one, 323 lets a message that was given up be asked about again; open ones are checked.

Halves get into their topic by `half_messages`, an interceptor of the Writer. Only the master ends and checks: on a
slave the log has one writer, the replica, and RocketMQ's acting master passes halves on to another broker only
(enableRemoteEscape), which this broker does not have. They wait until a master is back.
Neighbours: ledger.py, checks.py, replication/set_requests.py (37 on a slave).
"""

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from broker.delivery.transaction import halves
from broker.delivery.transaction.checks import TransactionChecks
from broker.delivery.transaction.ledger import Ledger, resident
from broker.observe.stats import TransactionCounts
from broker.options import BrokerOptions
from broker.part import Part, TopicCheck
from broker.store.store import MessageStore, PutResult
from broker.writing.durability import Durability
from broker.writing.writer import Incoming, Interceptor, Writer
from mqcommon.clock import Clock
from mqcommon.errors import OutOfDescriptors, ProtocolError, RequestRefused, StoreError
from mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from mqcommon.message.ids import split_offset_msg_id
from mqcommon.message.record import Record, decode_record
from mqcommon.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from remoting.net.channel import Channel
from remoting.net.server import Handler, RunInTask
from remoting.net.steps import Stepper, Steps
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    RESUME_CHECK_HALF_MESSAGE,
    EndTransactionRequestHeader,
)

logger = logging.getLogger(__name__)

TICK_S = 0.1
SAVE_S = 5.0
_ENDS = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


def half_messages(options: BrokerOptions) -> Interceptor:
    """An interceptor that lets the halves of transactions wait."""

    def intercept(message: Incoming) -> Incoming:
        if not halves.is_half(message.properties):
            return message
        if options.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{options.broker_ip1}] sending transaction message is forbidden"
            )
        return halves.as_half(message)

    return intercept


class Transactions(Part):
    """See the module."""

    reads_disk = (RESUME_CHECK_HALF_MESSAGE.code,)

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        durability: Durability,
        ledger: Ledger,
        checks: TransactionChecks,
        options: BrokerOptions,
        stepper: Stepper,
        clock: Clock,
        is_active: Callable[[], bool],
        flush: Callable[[], Awaitable[None]],
        turned: Callable[[], None],
        counts: TransactionCounts,
        may_send: TopicCheck = lambda channel, request, topic: None,
    ) -> None:
        """``is_active``: whether this broker is the master. ``turned`` is called when messages were stored."""
        self._store = store
        self._writer = writer
        self._durability = durability
        self._ledger = ledger
        self._checks = checks
        self._options = options
        self._stepper = stepper
        self._clock = clock
        self._is_active = is_active
        self._flush = flush
        self._turned = turned
        self._counts = counts
        self._may_send = may_send
        self._stopping = False
        # What is failing, and was logged.
        self._failing: dict[str, None] = {}

    def handlers(self) -> dict[int, Handler]:
        return {
            END_TRANSACTION.code: self.end,
            RESUME_CHECK_HALF_MESSAGE.code: self.resume,
        }

    # --- requests

    def end(self, channel: Channel, request: Command) -> Command | None:
        """37."""
        header = END_TRANSACTION.header(request)
        if self._store.log.is_recent(header.commit_log_offset):
            return self._end(channel, request, header, self._store.record_at(header.commit_log_offset))
        raise RunInTask(self._stepper.slow(self._end_old))

    def _end_old(self, channel: Channel, request: Command) -> Steps[Command | None]:
        """As `end`, for a half that may be on disk only."""
        header = END_TRANSACTION.header(request)
        raw = yield from resident(lambda: self._store.record_at(header.commit_log_offset))
        response = self._end(channel, request, header, raw)
        self._turned()
        return response

    def _end(
        self, channel: Channel, request: Command, header: EndTransactionRequestHeader, raw: bytes | None
    ) -> Command | None:
        how = header.commit_or_rollback
        if how not in _ENDS:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"commitOrRollback is {how}; it must be {TRANSACTION_COMMIT} (commit), {TRANSACTION_ROLLBACK}"
                f" (rollback) or {TRANSACTION_NONE} (not known yet)",
            )
        if how == TRANSACTION_NONE:
            return request.respond()
        if not self._ledger.is_ready:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the broker still reads its transactions; try again soon")
        half = self._half(header, raw)
        topic = halves.topic_of(half.properties)
        self._may_send(channel, request, topic)
        offset = self._ledger.open_offset(half)
        if offset is None:
            raise _failed("Find prepared transaction message failed: the transaction has ended already")
        put = None
        if how == TRANSACTION_COMMIT:
            try:
                message = halves.committed(half)
            except ValueError as error:
                raise _failed(f"Find prepared transaction message failed: {error}") from None
            put = self._writer.put_committed(message, half.physical_offset)
            self._counts.committed(topic, max(self._clock.now_ms() - half.store_timestamp, 0))
        else:
            self._counts.rolled_back(topic)
        self._ledger.finish(offset, halves.first_offset(half.properties, half.queue_offset))
        if request.is_oneway:
            return None
        return self._answer(channel, request, put)

    def _half(self, header: EndTransactionRequestHeader, raw: bytes | None) -> Record:
        """The half that a request means; RequestRefused when there is none, or it is another."""
        try:
            half = None if raw is None else decode_record(raw, check_crc=False)
        except ProtocolError:
            half = None
        if half is None or half.topic != TRANS_HALF_TOPIC:
            raise _failed("Find prepared transaction message failed")
        if halves.group_of(half.properties) != header.producer_group:
            raise _failed("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise _failed("The transaction state table offset wrong")
        immune_ms = halves.immunity_ms(half.properties, self._options.transaction_time_out)
        if immune_ms is not None and not header.from_transaction_check:
            age_ms = self._clock.now_ms() - half.store_timestamp
            if age_ms > immune_ms:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the transaction is {age_ms} ms old, and its CHECK_IMMUNITY_TIME_IN_SECONDS is over: it can only"
                    " be ended by an answer to a check",
                )
        return half

    def _answer(self, channel: Channel, request: Command, put: PutResult | None) -> Command | None:
        """The answer, when the message is safe; it is the op message that is not needed for that."""
        response = request.respond()
        if put is None or not self._durability.waits:
            return response

        def done(code: int) -> None:
            response.code = code
            channel.reply(request, response)

        self._durability.when_safe(put.end, trio.current_time(), done)
        return None

    @property
    def open_halves(self) -> int:
        """Halves that are not over, as far as this broker knows them."""
        return self._ledger.open_count

    def resume(self, channel: Channel, request: Command) -> Command:
        """323: the message, which was given up, is a half again."""
        header = RESUME_CHECK_HALF_MESSAGE.header(request)
        try:
            _, physical = split_offset_msg_id(header.msg_id)
            raw = self._store.record_at(physical)
            if raw is None:
                raise ValueError("there is no message with this id")
            record = decode_record(raw)
            if record.topic != TRANS_CHECK_MAX_TIME_TOPIC:
                raise ValueError(f"it is a message of {record.topic}, not of {TRANS_CHECK_MAX_TIME_TOPIC}")
            message = halves.resumed(record)
        except (ValueError, ProtocolError) as error:
            raise _failed(f"Put message back to {TRANS_HALF_TOPIC} failed. {header.msg_id}: {error}") from None
        self._writer.put_again(message)
        self._turned()
        return request.respond()

    def after_turn(self) -> None:
        """Name the halves that have ended in this turn."""
        if self._ledger.has_unmarked:
            self._mark()

    def _mark(self) -> None:
        try:
            self._ledger.mark()
        except (RequestRefused, StoreError, OSError) as error:
            self._failed("op messages of transactions are not written", error)
        else:
            self._failing.clear()

    # --- tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check open halves and save the progress, until cancelled."""
        await self._follow_role()
        task_status.started()
        interval_s = self._options.transaction_check_interval / 1000
        checked_at, saved_at = trio.current_time(), -math.inf
        while not self._stopping:
            await trio.sleep(TICK_S)
            await self._follow_role()
            if not self._ledger.is_ready:
                continue
            if self._ledger.has_unmarked:
                self._mark()
            now = trio.current_time()
            if now >= checked_at + interval_s:
                checked_at = now
                await self._check()
            if now >= saved_at + SAVE_S:
                saved_at = now
                await self._save()

    async def stop(self) -> None:
        """End and check no more; the store is flushed next."""
        self._stopping = True

    async def close(self) -> None:
        """Name what has ended."""
        if self._ledger.is_ready and self._ledger.has_unmarked and self._is_active():
            self._mark()

    async def _follow_role(self) -> None:
        """Take up the halves when this broker has become the master, forget them when it is none."""
        is_active = self._is_active() and not self._stopping
        if not is_active:
            if self._ledger.is_ready:
                self._ledger.forget()
        elif not self._ledger.is_ready:
            try:
                await self._stepper.run(self._ledger.take_up())
            except Exception as error:
                self._failed("transactions are not taken up", error)
            else:
                self._failing.clear()
                self._turned()

    async def _check(self) -> None:
        try:
            await self._stepper.run(self._checks.run())
        except Exception as error:
            self._failed("open transactions are not checked", error)
        else:
            self._failing.clear()
        self._turned()

    async def _save(self) -> None:
        progress = self._ledger.progress()
        if self._ledger.is_saved(progress):
            return
        try:
            await self._flush()
        except OutOfDescriptors as error:
            self._failed("the progress of transactions is not saved", error)
            return
        if self._ledger.is_ready and self._is_active():
            self._ledger.save(progress)

    def _failed(self, what: str, error: Exception) -> None:
        if what in self._failing:
            return
        self._failing[what] = None
        is_bug = not isinstance(error, RequestRefused | StoreError | OSError | ProtocolError)
        logger.error("%s, still trying: %s", what, error, exc_info=error if is_bug else None)


def _failed(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text)
