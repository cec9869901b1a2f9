"""A timed message on its way into the topic where it waits, and out of it again. Pure.

As in RocketMQ it waits in queue 0 of rmq_sys_wheel_timer, with its own topic and queue as REAL_TOPIC and REAL_QID, and
its slot as TIMER_OUT_MS: the last multiple of ``precision_ms`` before its time. It is due ``precision_ms`` after that,
so it is never early.
Neighbours: timed_delivery.py, writing/stored_properties.py (which messages are timed), store/queue/tags.py (slots).
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.writing.refusals import illegal
from broker.writing.stored_properties import TIMED, is_timed
from broker.writing.writer import Incoming, Interceptor
from mqcommon.clock import Clock
from mqcommon.errors import RequestRefused
from mqcommon.message.flags import TRANSACTION_MASK
from mqcommon.message.ids import RecallHandle, UniqueKeys
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record
from mqcommon.names import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from remoting.protocol.codes import ResponseCode

DELETE = b"TIMER_DEL_UNIQKEY"
SLOT, UNIQ_KEY = b"TIMER_OUT_MS", b"UNIQ_KEY"
_DELAY_SEC, _DELAY_MS, *_ = TIMED
_REAL_TOPIC, _REAL_QUEUE = b"REAL_TOPIC", b"REAL_QID"
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class TimerRules:
    """What the options say. ``max_delay_ms`` may change."""

    is_enabled: bool
    precision_ms: int
    max_delay_ms: Callable[[], int]
    broker_name: str


def to_timer(rules: TimerRules, unique_keys: UniqueKeys, clock: Clock) -> Interceptor:
    """An interceptor that puts timed messages where they wait. A message whose time has passed stays as it is."""

    def intercept(message: Incoming) -> Incoming:
        properties = message.properties
        now_ms = clock.now_ms()
        # A delay level counts more than a time.
        if message.topic == SCHEDULE_TOPIC or not is_timed(properties, now_ms):
            return message
        if not rules.is_enabled:
            text = "accurate timer message is not enabled, timerWheelEnable is false"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        deliver_ms, is_recall = deliver_time(properties, now_ms), find_property(properties, DELETE) is not None
        if deliver_ms <= now_ms:
            if is_recall:
                raise illegal("a recall (TIMER_DEL_UNIQKEY) needs the time of a message that is not delivered yet")
            return message
        if deliver_ms - now_ms > rules.max_delay_ms():
            raise illegal(
                f"timer message illegal, the delay time should not be bigger than the max delay {rules.max_delay_ms()}"
                "ms (timerMaxDelaySec)"
            )
        if message.topic == TRANS_HALF_TOPIC:
            return message  # it waits from its commit on
        slot = slot_of(deliver_ms, rules.precision_ms)
        key = find_property(properties, UNIQ_KEY)
        if key is None:
            key = unique_keys.next(now_ms).encode()
        waiting = {
            SLOT: b"%d" % slot,
            _REAL_TOPIC: message.topic.encode(),
            _REAL_QUEUE: b"%d" % message.queue_id,
            UNIQ_KEY: key,
        }
        if not is_recall and not message.topic.startswith(RETRY_PREFIX):
            handle = RecallHandle(message.topic, rules.broker_name, slot + 1, key.decode("utf-8", "replace"))
            message.recall_handle = handle.encode()
        message.properties = replace_properties(properties, waiting)
        message.topic, message.queue_id = TIMER_TOPIC, 0
        return message

    return intercept


def deliver_time(properties: bytes, now_ms: int) -> int:
    """When the message is to be delivered (ms). RequestRefused when its property is not a number."""
    for name in TIMED:
        value = find_property(properties, name)
        if not value:
            continue
        digits = value.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > _MAX_DIGITS:
            raise illegal(f"timer message illegal, the property {name.decode()} is {value[:40]!r}, which is no time")
        if name == _DELAY_SEC:
            return now_ms + int(value) * 1_000
        return now_ms + int(value) if name == _DELAY_MS else int(value)
    return now_ms


def slot_of(deliver_ms: int, precision_ms: int) -> int:
    """The last multiple of ``precision_ms`` before the time of delivery."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def recall_names(properties: bytes) -> tuple[bytes, ...]:
    """How recalls name the message with these properties: ``topic+uniqueKey``, in RocketMQ before 5.3 the key alone."""
    key = find_property(properties, UNIQ_KEY)
    return () if key is None else (b"%s+%s" % (find_property(properties, _REAL_TOPIC) or b"", key), key)


def from_timer(record: Record) -> Incoming:
    """The message as it is delivered. ValueError when ``record`` does not say where.

    The bits of a committed transaction are dropped: with them the copy's mark would be that of a commit.
    """
    properties = record.properties
    topic = (find_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_id = find_property(properties, _REAL_QUEUE) or b""
    if topic in ("", TIMER_TOPIC, SCHEDULE_TOPIC, TRANS_HALF_TOPIC) or not queue_id.isdigit() or len(queue_id) > 9:
        raise ValueError(f"its properties name queue {queue_id!r} of topic {topic!r} as its own")
    return Incoming(
        topic, int(queue_id), record.body,
        replace_properties(properties, {_REAL_TOPIC: None, _REAL_QUEUE: None}), record.flag,
        record.sys_flag & ~TRANSACTION_MASK, record.born_timestamp, record.born_host, record.reconsume_times,
        origin=record.physical_offset + 1,
    )  # fmt: skip
