"""`TransactionProducer`: messages that consumers see when a transaction of the program commits.

The message of an open transaction is a half: brokers keep it until its transaction ends. A `Producer` without batching
sends halves, as brokers take no batches of them; halves that are ready together leave together. A half that a broker
may have stored is not sent again: both copies could be committed. A half that a broker did store, with less safety than
it should, is sent again: the place of the first copy is known, so that copy is rolled back. Neighbour: transaction.py
(how a transaction ends, and answers to brokers that ask).
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.arguments import INT_MAX, check_int, wrong_type
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.errors import RemotingError, SkylarkError
from skylark.mqcommon.message.flags import TRANSACTION_PREPARED
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION, EndTransactionRequestHeader
from skylark.sdk.checked import GroupName, Milliseconds, NotNegative, TopicName, check_topic_name, checked
from skylark.sdk.client import Client, ClientHandle, sharing
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.producer.lanes import Selector
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from skylark.sdk.producer.producer import MAX_MESSAGE_BYTES, Producer
from skylark.sdk.producer.result import BulkResult, SendResult, StoredBatch
from skylark.sdk.producer.transaction import (
    STATE_NAMES,
    Checker,
    Local,
    Transaction,
    TransactionChecks,
    TransactionState,
    check_state,
    undo_half,
)
from skylark.sdk.producer.wire import DEFAULT_TOPIC
from skylark.sdk.retry import is_transient
from skylark.sdk.routes import TopicRoute
from skylark.sdk.runtime import survived
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace

logger = logging.getLogger(__name__)

# The pause before a topic's route is requested again.
ROUTE_PAUSE_S = 1.0


class TransactionProducer:
    """``async with TransactionProducer("127.0.0.1:9876", group="orders", checker=check) as producer: ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. ``checker`` is
    called with a stored message when a broker has not heard how its transaction ended, and returns a TransactionState;
    a broker may ask any member of ``group``, also about transactions of a member that died. Without a checker such
    messages wait until another member is asked, and at last go to TRANS_CHECK_MAX_TIME_TOPIC. The brokers of ``topics``
    may ask from the start, other brokers once a message was sent to them. ``check_immunity_s``: brokers do not ask
    sooner; a transaction that takes longer can only be ended by the checker. ``trace`` records each transaction in
    RocketMQ's trace topic, ``trace_topic`` in another one; ``trace`` may be a sink. ``compression`` with its options,
    and ``start_timeout_ms``, are as in `Producer`.

    `send`, `send_many` and `queues` are as in `Producer`, for messages that belong to no transaction.
    """

    @checked
    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        checker: Checker | None = None,
        topics: Sequence[str] = (),
        send_timeout_ms: Milliseconds = 3_000,
        check_immunity_s: int | None = None,
        max_message_bytes: NotNegative = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: str | None = None,
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression_level: int = COMPRESSION_LEVEL,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
    ) -> None:
        if checker is not None and not callable(checker):
            raise TypeError(f"checker must be a function, not {checker!r}")
        for topic in topics:
            check_topic_name("a topic of topics", topic)
        if check_immunity_s is not None:
            check_int("check_immunity_s", check_immunity_s, 0, INT_MAX)
        self._client = ClientHandle(nameserver, namespace=namespace, credentials=credentials, tls=tls)
        self._names = names = self._client.names
        make = partial(
            Producer,
            sharing(self._client.instance),
            group=group,
            send_timeout_ms=send_timeout_ms,
            max_message_bytes=max_message_bytes,
            clock=clock,
            namespace=names.namespace,
            trace=trace,
            trace_topic=trace_topic,
            compression=compression,
            compress_over_bytes=compress_over_bytes,
            compression_level=compression_level,
        )
        # One producer sends halves, the other sends messages that belong to no transaction.
        self._halves = make(retries=0, batching=False, start_timeout_ms=start_timeout_ms)
        self._plain = make(start_timeout_ms=None)
        self._topics = (DEFAULT_TOPIC, *map(names.topic, topics))
        self._checks = None if checker is None else TransactionChecks(checker, self._halves.wire_group, names)
        immunity = "" if check_immunity_s is None else f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{check_immunity_s}\x02"
        self._halves.sys_flag = TRANSACTION_PREPARED
        self._halves.mark = f"TRAN_MSG\x01true\x02PGROUP\x01{self._halves.wire_group}\x02{immunity}".encode()
        self._halves.checking = self._checks
        self._halves.undo_copy = self._undo_half
        self._clock = clock or SystemClock()
        if self._checks is not None:
            self._checks.ended = self._note_end
        self._timeout_s = send_timeout_ms / 1000
        self.group = group

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._halves.__aenter__()
            await self._plain.__aenter__()
        except BaseException:
            # Closing the client ends its producers, too: their tasks run in the client's nursery.
            await self._client.__aexit__(None, None, None)
            raise
        if self._checks is not None:
            self._checks.nursery = self._client.nursery
            for topic in self._topics:
                self._client.nursery.start_soon(self._make_known, topic)
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        if self._checks is not None:
            self._checks.nursery = None
        # Each step must run, whatever the previous step raises: the connections are closed last.
        try:
            await self._plain.__aexit__(*error)
        finally:
            try:
                await self._halves.__aexit__(*error)
            finally:
                await self._client.__aexit__(*error)

    # --- used by programs in trio: skylark.aio and skylark.blocking have their own

    def transaction(self, message: Message) -> AbstractAsyncContextManager[Transaction]:
        """``async with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when the block raises an exception;
        ``tx.rollback()`` and ``tx.commit()`` decide otherwise. A cancelled block leaves the transaction open: the
        checker is asked. While the block runs, this producer's checker is not asked. Raises SendFailed before the block
        when the message is not stored.
        """
        return _Block(self, message)

    @checked
    async def send_in_transaction(self, message: Message, local: Local) -> Transaction:
        """Store the message, call ``local`` with it, and end the transaction with the state that ``local`` returns."""
        async with _Block(self, message) as transaction:
            found = local(message)
            state = found if isinstance(found, TransactionState) else await found
            transaction.state = check_state("the result of local", state)
        return transaction

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._halves.traces_dropped + self._plain.traces_dropped

    # --- messages without a transaction

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """Store one message that belongs to no transaction: consumers see it at once. See `Producer.send`."""
        return await self._plain.send(
            message, queue=queue, selector=selector, timeout_ms=timeout_ms, deliver_at=deliver_at, delay=delay
        )

    async def send_many(self, topic: TopicName, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages that belong to no transaction. See `Producer.send_many`."""
        return await self._plain.send_many(topic, messages)

    async def queues(self, topic: TopicName) -> tuple[MessageQueue, ...]:
        """The topic's writable queues, sorted."""
        return await self._plain.queues(topic)

    # --- the steps of a transaction

    async def begin(self, message: Message) -> Transaction:
        """Store the message, invisible to consumers. End the transaction with `end`, else the checker is asked."""
        return await self._begin(message, in_block=False)

    async def _begin_block(self, message: Message) -> Transaction:
        """As `begin`, for the transaction of a block: the checker is not called before `Transaction.end_of_block`."""
        return await self._begin(message, in_block=True)

    async def _begin(self, message: Message, *, in_block: bool) -> Transaction:
        transaction = Transaction(message, await self._halves.send(message), in_block=in_block)
        if self._checks is not None:
            self._checks.begun(transaction)
        return transaction

    async def end(self, transaction: Transaction, state: TransactionState) -> None:
        """End a transaction. Brokers do not answer this request: if it is lost, they ask the checker."""
        if not isinstance(transaction, Transaction):
            raise wrong_type("transaction", "a Transaction", transaction)
        transaction.state = check_state("state", state)
        if state is TransactionState.UNKNOWN:
            return
        halves, result = self._halves, transaction.result
        queue = result.queue
        topic = self._names.topic(queue.topic)
        command = END_TRANSACTION.oneway(
            EndTransactionRequestHeader(
                halves.wire_group,
                result.queue_offset,
                result.physical_offset,
                state.value,
                result.msg_id,
                False,
                None,
                topic,
            )
        )
        route = halves.route_of(topic)
        addr = None if route is None else _place_of(route, queue._replace(topic=topic), result.offset_msg_id)
        try:
            if addr is not None:
                # A oneway request, as in RocketMQ. A lost end loses no message: the broker asks the checker.
                halves.remoting.push(addr, command)
                self._note_end(transaction.message, result.msg_id, addr, state, from_check=False)
                return
        except RemotingError:
            pass  # the connection is lost: a new one is made
        await self._end_later(addr, command, transaction, state)

    async def _end_later(
        self, addr: str | None, command: Command, transaction: Transaction, state: TransactionState
    ) -> None:
        with trio.move_on_after(self._timeout_s):
            try:
                if addr is not None:
                    await self._halves.remoting.oneway(addr, command)
                    self._note_end(transaction.message, transaction.transaction_id, addr, state, from_check=False)
                    return
            except RemotingError as error:
                logger.info("the end of transaction %s was not sent: %s", transaction.transaction_id, error)
        logger.info("transaction %s stays open, the checker will be asked", transaction.transaction_id)

    def _undo_half(self, batch: StoredBatch, addr: str) -> None:
        halves = self._halves
        undo_half(halves.remoting, halves.wire_group, batch[0], batch.wire_topic, addr)

    def _note_end(
        self, message: Message | MessageExt, msg_id: str, addr: str, state: TransactionState, *, from_check: bool
    ) -> None:
        """The end of a transaction was sent to the broker at ``addr``: record it in the trace."""
        if (traces := self._halves.traces) is not None:
            name = STATE_NAMES[state.value]
            traces.ended(message, msg_id, addr, name, self._clock.now_ms(), from_check=from_check)

    @enable_ki_protection
    async def _make_known(self, topic: str) -> None:
        """Read the route of ``topic``: its brokers get heartbeats, and can ask about a dead member's transactions."""
        with survived(f"reading the route of topic {topic}"):
            while True:
                try:
                    await self._client.instance.refresh(topic)
                    return
                except SkylarkError as error:
                    if not is_transient(error):
                        return
                    await trio.sleep(ROUTE_PAUSE_S)


def _place_of(route: TopicRoute, queue: MessageQueue, half_id: str) -> str | None:
    """The address of the broker that has the half message. (A static topic's queue may have moved since.)"""
    if route.leaders:
        ip, port, _ = parse_offset_msg_id(half_id)
        stored_at = format_address(ip, port)
        if any(stored_at in addrs.values() for addrs in route.brokers.values()):
            return stored_at
    return route.master_of(queue)


class _Block:
    """What `TransactionProducer.transaction` returns."""

    __slots__ = ("_message", "_producer", "_transaction")

    def __init__(self, producer: TransactionProducer, message: Message) -> None:
        self._producer = producer
        self._message = message

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._producer._begin_block(self._message)
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.end(self._transaction, self._transaction.end_of_block(error))
