"""Transactions: 37 ends one, 323 has a given-up message checked again; open transactions are checked.

The Writer sends halves to their topic (writing/deferred.py). Only the master ends and checks transactions: on a slave
the log has one writer, the replica. RocketMQ's acting master can only pass halves on to another broker
(enableRemoteEscape), which this broker does not support. So halves wait until a master is back.
Neighbours: ledger.py, checks.py, replication/set_requests.py (37 on a slave).
"""

import logging
import math

import trio

from skylark.broker.cold_reads import reading
from skylark.broker.delivery.background import Background, Failures
from skylark.broker.delivery.message_ages import MessageAges
from skylark.broker.delivery.transaction import halves
from skylark.broker.delivery.transaction.checks import TransactionChecks
from skylark.broker.delivery.transaction.ledger import Ledger
from skylark.broker.observe.stats import TransactionCounts
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part, TopicCheck
from skylark.mqcommon.errors import OutOfDescriptors, ProtocolError, RequestRefused, StoreError
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from skylark.mqcommon.message.ids import split_offset_msg_id
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, RunInTask
from skylark.remoting.net.steps import Stepper, Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    RESUME_CHECK_HALF_MESSAGE,
    EndTransactionRequestHeader,
)

logger = logging.getLogger(__name__)

TICK_S = 0.1
# The pause while there is nothing to write.
IDLE_S = 0.5
SAVE_S = 5.0
_ENDS = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


class Transactions(Part):
    """Ends transactions (37), resumes given-up ones (323), and checks open ones."""

    reads_disk = (RESUME_CHECK_HALF_MESSAGE.code,)

    def __init__(
        self,
        background: Background,
        ledger: Ledger,
        checks: TransactionChecks,
        options: BrokerOptions,
        stepper: Stepper,
        counts: TransactionCounts,
        ages: MessageAges,
        may_send: TopicCheck = lambda channel, request, topic: None,
    ) -> None:
        self._store = background.store
        self._writer = background.writer
        self._ages = ages
        self._is_active = background.is_active
        self._flush = background.flush
        self._turned = background.turned
        self._durability = background.writer.durability
        self._ledger = ledger
        self._checks = checks
        self._options = options
        self._stepper = stepper
        self._counts = counts
        self._may_send = may_send
        self._failures = Failures(logger)
        self._stopping = False

    def handlers(self) -> dict[int, Handler]:
        return {
            END_TRANSACTION.code: self.end,
            RESUME_CHECK_HALF_MESSAGE.code: self.resume,
        }

    # --- requests

    def end(self, channel: Channel, request: Command, half: Record | None = None) -> Command | None:
        """37: commit or roll back. ``half``: the half at ``commit_log_offset``, if it has been read already."""
        header = END_TRANSACTION.header(request)
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
        if half is None:
            half = self._recent_half(header.commit_log_offset)
        if half is None:
            raise RunInTask(self._stepper.slow(self._end_old))
        # The request names the half by its place in the log, which a client may have invented: the half is checked.
        self._check(header, half)
        topic = halves.topic_of(half.properties)
        self._may_send(channel, request, topic)
        offset, first = self._ledger.open_offset(half), halves.first_offset(half.properties, half.queue_offset)
        if offset is None:
            raise _failed("Find prepared transaction message failed: the transaction has ended already")
        if how == TRANSACTION_ROLLBACK:
            self._counts.rolled_back(topic)
            self._ledger.finish(offset, first)
            return request.respond()
        try:
            message = halves.committed(half)
        except ValueError as error:
            raise _failed(f"Find prepared transaction message failed: {error}") from None
        self._writer.defer_if_asked(message)  # the delay of the message begins now
        # Store the message before ending the half: a kill in between leaves a message without its op message, which the
        # next start finds by its origin. The other order could leave an ended half without its message.
        put = self._writer.put_again(message, is_complete=True)
        self._counts.committed(topic, max(self._ages.of(half), 0))
        self._ledger.finish(offset, first)
        # The answer waits for the message, not for the op message that is written after the turn.
        return self._durability.answer_when_safe(channel, request, request.respond(), put.end, trio.current_time())

    def _end_old(self, channel: Channel, request: Command) -> Steps[Command | None]:
        """As `end`, for a half that may only be on disk, or whose queue entry may be wrong."""
        physical, era = END_TRANSACTION.header(request).commit_log_offset, self._ledger.era
        half = yield from reading(lambda: self._stored_half(physical))
        if self._ledger.era != era:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "the role of this broker has changed; try again soon")
        if half is None:
            raise _failed("Find prepared transaction message failed")
        response = self.end(channel, request, half)
        self._turned()
        return response

    def _recent_half(self, physical: int) -> Record | None:
        """The half at this place of the log, if it is in memory and the queue of halves has an entry for it.

        A message's body may contain bytes that look like a half, at a place that its sender can predict. With such
        bytes the sender could end the transaction of another producer. So only the queue decides what is a half.
        """
        half = self._looks_like_half(physical) if self._store.log.is_recent(physical) else None
        queue = self._store.queues.find(TRANS_HALF_TOPIC, 0)
        if half is None or queue is None or not queue.min_offset <= half.queue_offset < queue.next_offset:
            return None
        return half if queue.entry(half.queue_offset)[0] == physical else None

    def _stored_half(self, physical: int) -> Record | None:
        """As `_recent_half`, also for a half that is only on disk; a wrong entry is mended."""
        half = self._looks_like_half(physical)
        named = None if half is None else self._ledger.read_half(half.queue_offset)
        return named if named is not None and named.physical_offset == physical else None

    def _looks_like_half(self, physical: int) -> Record | None:
        raw = self._store.record_at(physical)
        try:
            record = None if raw is None else decode_record(raw, check_crc=False)
        except ProtocolError:
            return None
        return record if record is not None and record.topic == TRANS_HALF_TOPIC else None

    def _check(self, header: EndTransactionRequestHeader, half: Record) -> None:
        """RequestRefused when the request means another half, or may not end it any more."""
        if halves.group_of(half.properties) != header.producer_group:
            raise _failed("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise _failed("The transaction state table offset wrong")
        immune_ms = halves.immunity_ms(half.properties, self._options.transaction_time_out)
        # After this time the broker may have given the half up, so only an answer to its question is accepted.
        if immune_ms is not None and not header.from_transaction_check:
            age_ms = self._ages.of(half)
            if age_ms > immune_ms:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the transaction is {age_ms} ms old, and its CHECK_IMMUNITY_TIME_IN_SECONDS is over: it can only"
                    " be ended by an answer to a check",
                )

    @property
    def open_halves(self) -> int:
        """How many halves are not over, as far as this broker knows them."""
        return self._ledger.open_count

    @property
    def undelivered(self) -> int:
        """As `open_halves`; while this broker does not know them, all messages of the topic of halves count."""
        if self._ledger.is_ready:
            return self._ledger.open_count
        return self._ledger.half_end - self._store.shown_min_offset(TRANS_HALF_TOPIC, 0)

    def resume(self, channel: Channel, request: Command) -> Command:
        """323: make a given-up message a half again."""
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
        """Write an op message for the halves that have ended in this turn."""
        if self._ledger.has_ops_to_write:
            self._write_ops()

    def _write_ops(self) -> None:
        what = "op messages of transactions are not written"
        try:
            self._ledger.write_ops()
        except (RequestRefused, StoreError, OSError) as error:
            self._failures.failed(what, error)
        else:
            self._failures.succeeded(what)

    # --- tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check open halves and save the progress, until cancelled."""
        await self._follow_role()
        task_status.started()
        interval_s = self._options.transaction_check_interval / 1000
        checked_at, saved_at = trio.current_time(), -math.inf
        while not self._stopping:
            is_idle = self._ledger.is_ready and not self._ledger.has_ops_to_write
            left_s = checked_at + interval_s - trio.current_time()
            await trio.sleep(max(TICK_S, min(IDLE_S, left_s)) if is_idle else TICK_S)
            await self._follow_role()
            if not self._ledger.is_ready:
                continue
            # Write op messages that could not be written at the end of their turn, on a full disk for example.
            if self._ledger.has_ops_to_write:
                self._write_ops()
            now = trio.current_time()
            if now >= checked_at + interval_s:
                checked_at = now
                self._store.check_clock()
                await self._try("open transactions are not checked", self._checks.run())
            if now >= saved_at + SAVE_S:
                saved_at = now
                await self._save()

    async def stop(self) -> None:
        """End and check no more; the store is flushed next."""
        self._stopping = True

    async def close(self) -> None:
        """Write op messages for halves that have ended."""
        if self._ledger.is_ready and self._ledger.has_ops_to_write and self._is_active():
            self._write_ops()

    def forget(self) -> None:
        """Forget the halves, at a change of the role.

        Not left to `_follow_role`: before it runs, the role may change again and the log may be cut.
        """
        self._ledger.forget()

    async def _follow_role(self) -> None:
        """Recover the halves when this broker has become the master, forget them when it was demoted."""
        is_active = self._is_active() and not self._stopping
        if not is_active:
            if self._ledger.is_ready:
                self._ledger.forget()
        elif not self._ledger.is_ready:
            self._ages.begin()
            await self._try("transactions are not taken up", self._ledger.recover())

    async def _try(self, what: str, steps: Steps[object]) -> None:
        try:
            await self._stepper.run(steps)
        except Exception as error:
            self._failures.failed(what, error)
        else:
            self._failures.succeeded(what)
        self._turned()

    async def _save(self) -> None:
        progress = self._ledger.progress()
        if self._ledger.is_saved(progress):
            return
        what = "the progress of transactions is not saved"
        try:
            await self._flush()
        except OutOfDescriptors as error:
            self._failures.failed(what, error)
            return
        self._failures.succeeded(what)
        # The role may have changed during the fsync: this progress may then describe a log that was replaced.
        if self._ledger.is_ready and self._is_active():
            self._ledger.save(progress)


def _failed(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text)
