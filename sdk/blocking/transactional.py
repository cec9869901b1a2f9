"""`TransactionProducer` whose methods block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mqcommon.clock import Clock
from mqcommon.message.message import Message
from sdk.blocking.client import Client
from sdk.blocking.facade import Facade, call_of, loop_of
from sdk.blocking.handlers import PlainChecker, PlainLocal, elsewhere
from sdk.checked import GroupName, Milliseconds, NotNegative
from sdk.credentials import GivenCredentials, GivenTls
from sdk.nameservers import NameServerSource
from sdk.namespaces import Namespace
from sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from sdk.producer.producer import MAX_MESSAGE_BYTES
from sdk.producer.transaction import Transaction, check_state
from sdk.producer.transactional import TransactionProducer as AsyncTransactionProducer
from sdk.starting import START_TIMEOUT_MS
from sdk.traces.sink import Trace


class TransactionProducer(Facade[AsyncTransactionProducer]):
    """``with TransactionProducer("127.0.0.1:9876", group="orders", checker=check) as producer: ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. ``checker`` is
    called with a stored message when a broker has not heard how its transaction ended, and returns a TransactionState;
    a broker may ask any member of ``group``, also about transactions of a member that died. Without a checker such
    messages wait until another member is asked, and go to TRANS_CHECK_MAX_TIME_TOPIC at last. The brokers of ``topics``
    may ask from the start, the others once something was sent to them. ``check_immunity_s``:
    brokers do not ask sooner; a transaction that takes longer can only be ended by the checker. ``trace`` records each
    transaction in RocketMQ's trace topic, ``trace_topic`` in another one; ``trace`` may be a sink. ``compression`` and
    what belongs to it, and ``start_timeout_ms``, are those of `Producer`.

    `send`, `send_many` and `queues` are those of `Producer`, for messages that belong to no transaction.

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
        checker_elsewhere = elsewhere(checker)
        super().__init__(
            loop_of(
                nameserver,
                lambda client: AsyncTransactionProducer(
                    client,
                    group=group,
                    checker=checker_elsewhere,
                    topics=topics,
                    send_timeout_ms=send_timeout_ms,
                    check_immunity_s=check_immunity_s,
                    max_message_bytes=max_message_bytes,
                    clock=clock,
                    namespace=namespace,
                    credentials=credentials,
                    tls=tls,
                    trace=trace,
                    trace_topic=trace_topic,
                    compression=compression,
                    compress_over_bytes=compress_over_bytes,
                    compression_level=compression_level,
                    start_timeout_ms=start_timeout_ms,
                ),
            ),
            checker_elsewhere,
        )
        self.group = group

    # --- transactions

    @contextmanager
    def transaction(self, message: Message) -> Iterator[Transaction]:
        """``with producer.transaction(message) as tx: ...``: store the message, and run the block.

        The message is committed at the end of the block, and rolled back when it raises an exception; ``tx.rollback()``
        and ``tx.commit()`` decide otherwise. Ctrl-C leaves the transaction open: the checker is asked. Raises
        SendFailed before the block when the message is not stored.
        """
        transaction = self.begin(message)
        try:
            yield transaction
        except BaseException as error:
            self.end(transaction, transaction.end_of_block(error))
            raise
        self.end(transaction, transaction.end_of_block(None))

    def send_in_transaction(self, message: Message, local: PlainLocal) -> Transaction:
        """Store the message, call ``local`` with it, and end the transaction as that says."""
        with self.transaction(message) as transaction:
            transaction.state = check_state("the result of local", local(message))
        return transaction

    # --- messages without a transaction

    send = call_of(AsyncTransactionProducer.send)
    send_many = call_of(AsyncTransactionProducer.send_many)
    queues = call_of(AsyncTransactionProducer.queues)

    # --- the steps of a transaction

    begin = call_of(AsyncTransactionProducer.begin)
    end = call_of(AsyncTransactionProducer.end)
