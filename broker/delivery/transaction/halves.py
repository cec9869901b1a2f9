"""The messages made of a half message that waits in RMQ_SYS_TRANS_HALF_TOPIC (see writing/deferred.py). Pure.

Each check puts a copy at the end of the half topic, with TRANSACTION_CHECK_TIMES raised by one and the queue offset of
the first half in TRAN_PREPARED_QUEUE_OFFSET. This is RocketMQ's form: a Java broker's halves continue on this broker.
"""

from skylark.broker.writing.deferred import CHECK_TIMES, PREPARED, REAL_QUEUE, REAL_TOPIC, UNIQ_KEY, real_queue
from skylark.broker.writing.stored_properties import Incoming
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.properties import find_property, replace_properties
from skylark.mqcommon.message.record import Record, encode_record, topic_field
from skylark.mqcommon.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from skylark.remoting.protocol.requests.transactions import CheckTransactionStateRequestHeader

_IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
_GROUP = b"PGROUP"
# Properties that a committed message loses.
_OF_HALVES = {b"TRAN_MSG": None, REAL_TOPIC: None, REAL_QUEUE: None, CHECK_TIMES: None, PREPARED: None}
MAX_DIGITS = 18


def topic_of(properties: bytes) -> str:
    """The topic of the message; empty when the properties do not say."""
    return (find_property(properties, REAL_TOPIC) or b"").decode("utf-8", "replace")


def group_of(properties: bytes) -> str:
    """The producer group."""
    return (find_property(properties, _GROUP) or b"").decode("utf-8", "replace")


def checks_of(properties: bytes) -> int:
    """How often the producer was asked."""
    return _number(find_property(properties, CHECK_TIMES), 0)


def first_offset(properties: bytes, offset: int) -> int:
    """The offset of the transaction's first half; the half at ``offset`` may be a copy of it."""
    return _number(find_property(properties, PREPARED), offset)


def immunity_ms(properties: bytes, default_ms: int) -> int | None:
    """How long the producer wants not to be asked; None when it does not say. RocketMQ's -1 means the default."""
    value = find_property(properties, _IMMUNITY)
    if value is None:
        return None
    seconds = _number(value, -1)
    return default_ms if seconds < 0 else seconds * 1_000


def committed(half: Record) -> Incoming:
    """The committed message, for its own queue. Its origin says which half it commits."""
    message = _without_bits(half, *real_queue(half.properties), replace_properties(half.properties, _OF_HALVES))
    message.sys_flag |= TRANSACTION_COMMIT
    message.origin = half.physical_offset
    return message


def put_back(half: Record) -> Incoming:
    """The copy of a half whose producer is asked."""
    values: dict[bytes, bytes | None] = {
        CHECK_TIMES: b"%d" % (checks_of(half.properties) + 1),
        PREPARED: b"%d" % first_offset(half.properties, half.queue_offset),
    }
    return _without_bits(half, TRANS_HALF_TOPIC, 0, replace_properties(half.properties, values))


def given_up(half: Record) -> Incoming:
    """The copy of a half that was checked too often, for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _without_bits(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, half.properties)


def resumed(record: Record) -> Incoming:
    """A new half of a message that was given up."""
    real_queue(record.properties)
    properties = replace_properties(record.properties, {CHECK_TIMES: b"0", PREPARED: None})
    return _without_bits(record, TRANS_HALF_TOPIC, 0, properties)


def check_header(half: Record) -> CheckTransactionStateRequestHeader:
    """The header of the question to the producer, which is sent with the message."""
    topic, _ = real_queue(half.properties)
    key = find_property(half.properties, UNIQ_KEY)
    name = None if key is None else key.decode("utf-8", "replace")
    return CheckTransactionStateRequestHeader(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        topic=topic,
        msg_id=name,
        transaction_id=name,
        offset_msg_id=offset_msg_id(half.store_host, half.physical_offset),
    )


def as_users(half: Record) -> bytes:
    """The half as a stored message of its own topic and queue."""
    topic, queue_id = real_queue(half.properties)
    magic, topic_part = topic_field(topic)
    return encode_record(
        magic,
        topic_part,
        queue_id,
        half.queue_offset,
        half.physical_offset,
        half.body,
        half.properties,
        half.flag,
        half.sys_flag,
        half.born_timestamp,
        half.born_host,
        half.store_timestamp,
        half.store_host,
        half.reconsume_times,
        half.prepared_transaction_offset,
    )


def _without_bits(half: Record, topic: str, queue_id: int, properties: bytes) -> Incoming:
    message = Incoming.of(half, topic, queue_id, properties)
    message.sys_flag &= ~TRANSACTION_MASK
    return message


def _number(value: bytes | None, default: int) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) <= MAX_DIGITS else default
