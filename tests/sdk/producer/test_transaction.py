"""How a transaction ends with its block."""

import pytest
import trio

from skylark import InvalidArgument, Transaction, TransactionProducer, TransactionState
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.producer.result import SendResult, SendStatus, StoredBatch
from skylark.sdk.producer.transaction import check_state
from skylark.sdk.producer.wire import Stored


def transaction() -> Transaction:
    where = Stored(0, bytes(8), 0, 0, (0,))
    batch = StoredBatch(where, SendStatus.SEND_OK, MessageQueue("t", "b", 0), [(0, b"", b"UNIQ_KEY\x01K\x02")])
    return Transaction(Message("t"), SendResult(batch, 0, 1))


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, TransactionState.COMMIT),
        (ValueError(), TransactionState.ROLLBACK),
        (ExceptionGroup("", [ValueError()]), TransactionState.ROLLBACK),
        (KeyboardInterrupt(), TransactionState.UNKNOWN),
        (SystemExit(), TransactionState.UNKNOWN),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ValueError()]), TransactionState.UNKNOWN),
    ],
)
def test_a_block_decides(error: BaseException | None, state: TransactionState) -> None:
    assert transaction().end_of_block(error) is state


def test_what_the_user_decided_counts_whatever_happens() -> None:
    committed, rolled_back, left = transaction(), transaction(), transaction()
    committed.commit()
    rolled_back.rollback()
    left.leave_open()
    assert committed.end_of_block(ValueError()) is TransactionState.COMMIT
    assert rolled_back.end_of_block(None) is TransactionState.ROLLBACK
    assert left.end_of_block(None) is TransactionState.UNKNOWN
    assert committed.transaction_id == "K" and "COMMIT" in repr(committed)


def test_a_state_is_a_transaction_state() -> None:
    assert check_state("x", TransactionState.COMMIT) is TransactionState.COMMIT
    with pytest.raises(InvalidArgument, match="the result of local must be a TransactionState, not True"):
        check_state("the result of local", True)


async def test_mistakes_of_users_are_raised_where_they_are_made() -> None:
    with pytest.raises(TypeError, match="checker"):
        TransactionProducer("127.0.0.1:9876", group="g", checker="check")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group"):
        TransactionProducer("127.0.0.1:9876", group="a b")
    with pytest.raises(ValueError, match="check_immunity_s"):
        TransactionProducer("127.0.0.1:9876", group="g", check_immunity_s=-1)
    with pytest.raises(ValueError, match="topics"):
        TransactionProducer("127.0.0.1:9876", group="g", topics=["a b"])
    async with TransactionProducer("127.0.0.1:9876", group="g", start_timeout_ms=None) as producer:
        with pytest.raises(TypeError, match="Message"):
            await producer.begin("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Transaction"):
            await producer.end("text", TransactionState.COMMIT)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="state"):
            await producer.end(transaction(), "COMMIT")  # type: ignore[arg-type]
    with trio.CancelScope() as scope:
        async with TransactionProducer(
            "127.0.0.1:1", group="g", start_timeout_ms=None, checker=lambda message: TransactionState.COMMIT
        ):
            scope.cancel()
            await trio.sleep_forever()
