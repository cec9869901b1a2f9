"""`TransactionProducer` whose methods block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.message import Message
from skylark.sdk.blocking.facade import Client, Facade, call_of
from skylark.sdk.blocking.handlers import PlainChecker, PlainLocal, in_threads
from skylark.sdk.checked import GroupName, Milliseconds, NotNegative
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from skylark.sdk.producer.producer import MAX_MESSAGE_BYTES
from skylark.sdk.producer.transaction import Transaction, check_state
from skylark.sdk.producer.transactional import TransactionProducer as TrioTransactionProducer
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace


class TransactionProducer(Facade[TrioTransactionProducer], of=TrioTransactionProducer):
    """`sdk.TransactionProducer` with methods that block.

    The checker is a plain function, which may block: it runs in a thread, for one message at a time. Transactions in
    several threads are sent together.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        checker: PlainChecker | None = None,
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
        super().__init__(nameserver, locals() | {"checker": in_threads(checker)})
        self.group = group

    # --- transactions

    @contextmanager
    def transaction(self, message: Message) -> Iterator[Transaction]:
        """``with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when the block raises an exception;
        ``tx.rollback()`` and ``tx.commit()`` decide otherwise. Ctrl-C leaves the transaction open: the checker is
        asked. While the block runs, this producer's checker is not asked. Raises SendFailed before the block when the
        message is not stored.
        """
        transaction = self._begin_block(message)
        try:
            yield transaction
        except BaseException as error:
            self.end(transaction, transaction.end_of_block(error))
            raise
        self.end(transaction, transaction.end_of_block(None))

    def send_in_transaction(self, message: Message, local: PlainLocal) -> Transaction:
        """Store the message, call ``local`` with it, and end the transaction with the state that ``local`` returns."""
        with self.transaction(message) as transaction:
            transaction.state = check_state("the result of local", local(message))
        return transaction

    # --- messages without a transaction

    send = call_of(TrioTransactionProducer.send)
    send_many = call_of(TrioTransactionProducer.send_many)
    queues = call_of(TrioTransactionProducer.queues)

    # --- the steps of a transaction

    begin = call_of(TrioTransactionProducer.begin)
    _begin_block = call_of(TrioTransactionProducer._begin_block)
    end = call_of(TrioTransactionProducer.end)
