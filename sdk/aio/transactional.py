"""`TransactionProducer` for asyncio."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.message import Message
from skylark.sdk.aio.facade import Client, Facade, call_of
from skylark.sdk.aio.handlers import in_tasks
from skylark.sdk.checked import GroupName, Milliseconds, NotNegative
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from skylark.sdk.producer.producer import MAX_MESSAGE_BYTES
from skylark.sdk.producer.transaction import Checker, Local, Transaction, TransactionState, check_state
from skylark.sdk.producer.transactional import TransactionProducer as TrioTransactionProducer
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace


class TransactionProducer(Facade[TrioTransactionProducer], of=TrioTransactionProducer):
    """`sdk.TransactionProducer` for asyncio.

    The checker is a coroutine function, or a plain function that does not block; it runs in the loop that opens the
    producer, for one message at a time.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        checker: Checker | None = None,
        topics: Sequence[str] = (),
        send_timeout_ms: Milliseconds = 3000,
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
        super().__init__(nameserver, locals() | {"checker": in_tasks(checker)})
        self.group = group

    # --- transactions

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction]:
        """``async with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when the block raises an exception;
        ``tx.rollback()`` and ``tx.commit()`` decide otherwise. A cancelled block leaves the transaction open: the
        checker is asked. While the block runs, this producer's checker is not asked. Raises SendFailed before the block
        when the message is not stored.
        """
        transaction = await self._begin_block(message)
        try:
            yield transaction
        except BaseException as error:
            await self.end(transaction, transaction.end_of_block(error))
            raise
        await self.end(transaction, transaction.end_of_block(None))

    async def send_in_transaction(self, message: Message, local: Local) -> Transaction:
        """Store the message, call ``local`` with it, and end the transaction with the state that ``local`` returns."""
        async with self.transaction(message) as transaction:
            found = local(message)
            state = found if isinstance(found, TransactionState) else await found
            transaction.state = check_state("the result of local", state)
        return transaction

    # --- messages without a transaction

    send = call_of(TrioTransactionProducer.send)
    send_many = call_of(TrioTransactionProducer.send_many)
    queues = call_of(TrioTransactionProducer.queues)

    # --- the steps of a transaction

    begin = call_of(TrioTransactionProducer.begin)
    _begin_block = call_of(TrioTransactionProducer._begin_block)
    end = call_of(TrioTransactionProducer.end)
