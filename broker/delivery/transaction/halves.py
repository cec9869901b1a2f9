"""A half message on its way into RMQ_SYS_TRANS_HALF_TOPIC, and out of it. Pure.

There it has its own topic and queue as the properties REAL_TOPIC and REAL_QID, and no bits of a transaction. Each check
puts a copy at the end of the half topic, with one check more in TRANSACTION_CHECK_TIMES and the queue offset of the
first half in TRAN_PREPARED_QUEUE_OFFSET. This is RocketMQ's form, so halves that a Java broker stored go on here.
"""

from broker.writing.writer import Incoming
from mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from mqcommon.message.ids import offset_msg_id
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record, encode_record, topic_field
from mqcommon.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from remoting.protocol.requests.transactions import CheckTransactionStateRequestHeader

_TRAN_MSG, _REAL_TOPIC, _REAL_QUEUE = b"TRAN_MSG", b"REAL_TOPIC", b"REAL_QID"
_CHECK_TIMES, _PREPARED = b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"
_IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
_UNIQ_KEY, _TRANSACTION_ID, _GROUP = b"UNIQ_KEY", b"__transactionId__", b"PGROUP"
# Left out of a committed message.
_OF_HALVES = {_TRAN_MSG: None, _REAL_TOPIC: None, _REAL_QUEUE: None, _CHECK_TIMES: None, _PREPARED: None}
MAX_DIGITS = 18


def is_half(properties: bytes) -> bool:
    """Whether a producer's message is the half of a transaction."""
    return properties.find(_TRAN_MSG) >= 0 and (find_property(properties, _TRAN_MSG) or b"").lower() == b"true"


def as_half(message: Incoming) -> Incoming:
    """A producer's message as it waits for its end; it is changed in place."""
    values: dict[bytes, bytes | None] = {
        _REAL_TOPIC: message.topic.encode(),
        _REAL_QUEUE: b"%d" % message.queue_id,
        _CHECK_TIMES: None,
        _PREPARED: None,
    }
    if (key := find_property(message.properties, _UNIQ_KEY)) is not None:
        values[_TRANSACTION_ID] = key
    message.properties = replace_properties(message.properties, values)
    message.topic, message.queue_id = TRANS_HALF_TOPIC, 0
    message.sys_flag &= ~TRANSACTION_MASK
    return message


def real_queue(properties: bytes) -> tuple[str, int]:
    """The topic and queue of the message. ValueError when the properties do not say."""
    topic = topic_of(properties)
    queue_id = find_property(properties, _REAL_QUEUE) or b""
    if topic in ("", TRANS_HALF_TOPIC) or not queue_id.isdigit() or len(queue_id) > 9:
        raise ValueError(f"its properties name queue {queue_id!r} of topic {topic!r} as its own")
    return topic, int(queue_id)


def topic_of(properties: bytes) -> str:
    """The topic of the message; empty when the properties do not say."""
    return (find_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")


def group_of(properties: bytes) -> str:
    """The producer group."""
    return (find_property(properties, _GROUP) or b"").decode("utf-8", "replace")


def checks_of(properties: bytes) -> int:
    """How often the producer was asked."""
    return _number(find_property(properties, _CHECK_TIMES), 0)


def first_offset(properties: bytes, offset: int) -> int:
    """The offset of the first half of the transaction, of which the one at ``offset`` may be a copy."""
    return _number(find_property(properties, _PREPARED), offset)


def immunity_ms(properties: bytes, default_ms: int) -> int | None:
    """How long the producer wants not to be asked; None when it does not say. RocketMQ's -1 stands for the default."""
    value = find_property(properties, _IMMUNITY)
    if value is None:
        return None
    seconds = _number(value, -1)
    return default_ms if seconds < 0 else seconds * 1_000


def committed(half: Record) -> Incoming:
    """The message, for its own queue."""
    topic, queue_id = real_queue(half.properties)
    return _message(half, topic, queue_id, replace_properties(half.properties, _OF_HALVES), TRANSACTION_COMMIT)


def put_back(half: Record) -> Incoming:
    """The copy of a half whose producer is asked."""
    values: dict[bytes, bytes | None] = {
        _CHECK_TIMES: b"%d" % (checks_of(half.properties) + 1),
        _PREPARED: b"%d" % first_offset(half.properties, half.queue_offset),
    }
    return _message(half, TRANS_HALF_TOPIC, 0, replace_properties(half.properties, values))


def given_up(half: Record) -> Incoming:
    """The copy of a half that was checked too often, for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _message(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, half.properties)


def resumed(record: Record) -> Incoming:
    """A new half of a message that was given up."""
    real_queue(record.properties)
    properties = replace_properties(record.properties, {_CHECK_TIMES: b"0", _PREPARED: None})
    return _message(record, TRANS_HALF_TOPIC, 0, properties)


def check_header(half: Record) -> CheckTransactionStateRequestHeader:
    """What the producer is told about the half, beside the message."""
    topic, _ = real_queue(half.properties)
    key = find_property(half.properties, _UNIQ_KEY)
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
        magic, topic_part, queue_id, half.queue_offset, half.physical_offset, half.body, half.properties, half.flag,
        half.sys_flag, half.born_timestamp, half.born_host, half.store_timestamp, half.store_host,
        half.reconsume_times, half.prepared_transaction_offset,
    )  # fmt: skip


def _message(half: Record, topic: str, queue_id: int, properties: bytes, bits: int = 0) -> Incoming:
    return Incoming(
        topic, queue_id, half.body, properties, half.flag, half.sys_flag & ~TRANSACTION_MASK | bits,
        half.born_timestamp, half.born_host, half.reconsume_times,
    )  # fmt: skip


def _number(value: bytes | None, default: int) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) <= MAX_DIGITS else default
