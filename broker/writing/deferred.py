"""Deferred messages: each waits in a system topic, and is delivered to its own topic and queue later. Pure.

A message is deferred for one of three reasons, and may pass from one to the next:
- It is the half of a transaction: it waits in RMQ_SYS_TRANS_HALF_TOPIC until its producer ends the transaction. Its
  delay, if it has one, begins with the commit.
- It has a delay level (DELAY): it waits in queue level - 1 of SCHEDULE_TOPIC_XXXX.
- It has a time of delivery: it waits in queue 0 of rmq_sys_wheel_timer, with its slot as TIMER_OUT_MS, the last
  multiple of ``timerPrecisionMs`` before its time. It is due one precision after that, so it is never early.

Meanwhile its own topic and queue are in the properties REAL_TOPIC and REAL_QID. These forms are RocketMQ's, so messages
that a Java broker deferred are delivered here, and messages deferred here are delivered by a Java broker.
Neighbours: writer.py calls `Deferral`. The parts that deliver: delivery/transaction/, delivery/delayed_delivery.py,
delivery/timed_delivery.py. store/queue/tags.py has the due times of queue entries.
"""

from collections.abc import Callable

from skylark.broker.options import BrokerOptions
from skylark.broker.store.queue.delay_levels import level_in
from skylark.broker.writing.refusals import illegal
from skylark.broker.writing.stored_properties import TIMED, Incoming, is_half, is_timed
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.flags import TRANSACTION_MASK
from skylark.mqcommon.message.ids import RecallHandle, UniqueKeys
from skylark.mqcommon.message.layout import MAX_PROPERTIES
from skylark.mqcommon.message.properties import find_property, replace_properties
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from skylark.remoting.protocol.codes import ResponseCode

REAL_TOPIC, REAL_QUEUE = b"REAL_TOPIC", b"REAL_QID"
#: Properties of halves: how often the producer was asked; the queue offset of the transaction's first half.
CHECK_TIMES, PREPARED = b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"
#: What these two may add to the properties of a half, with numbers of 64 bits.
CHECK_BYTES = sum(len(name) + len(b"\x01\x02") + 19 for name in (CHECK_TIMES, PREPARED))
UNIQ_KEY, TRANSACTION_ID = b"UNIQ_KEY", b"__transactionId__"
#: Properties of timed messages: the message that a recall names; the slot.
DELETE, SLOT = b"TIMER_DEL_UNIQKEY", b"TIMER_OUT_MS"
_DELAY = b"DELAY"
_DELAY_SEC, _DELAY_MS, *_ = TIMED
_MAX_DIGITS = 18
_PAIR_END = 2
_KEY_MARK, _TIME_MARK = UNIQ_KEY + b"\x01", b"TIMER_DELIVER_MS\x01"


class Deferral:
    """Redirects messages to the topics where they wait: changes them in place, or leaves them unchanged."""

    def __init__(self, options: BrokerOptions, unique_keys: UniqueKeys, clock: Clock) -> None:
        self._options = options
        self._levels = options.delay_levels
        self._unique_keys = unique_keys
        self._clock = clock

    @property
    def precision_ms(self) -> int:
        """The distance between two slots."""
        return self._options.timer_precision_ms

    @property
    def max_delay_ms(self) -> int:
        """How far in the future a time of delivery may be."""
        return self._options.timer_max_delay_sec * 1_000

    def now_ms(self) -> int:
        """The time of the broker's clock."""
        return self._clock.now_ms()

    def defer(self, message: Incoming) -> None:
        """Redirect ``message`` to the topic where it waits, if its properties ask for it.

        RequestRefused when a property is invalid. The order counts: a half first waits for its commit, whatever other
        properties it has, and a delay level takes precedence over a time of delivery.
        """
        self.to_half(message)
        self.to_level(message)
        self.to_timer(message)

    def to_half(self, message: Incoming) -> None:
        """Let the half of a transaction wait for its end. RequestRefused when this broker takes no transactions."""
        if not is_half(message.properties):
            return
        if self._options.reject_transaction_message:
            text = f"the broker[{self._options.broker_ip1}] sending transaction message is forbidden"
            raise RequestRefused(ResponseCode.NO_PERMISSION, text)
        # A half that was sent again, for example by its consumer, still has properties of its former transaction.
        values = _real(message) | {CHECK_TIMES: None, PREPARED: None}
        if (key := find_property(message.properties, UNIQ_KEY)) is not None:
            values[TRANSACTION_ID] = key
        message.properties = replace_properties(message.properties, values)
        message.topic, message.queue_id = TRANS_HALF_TOPIC, 0
        message.sys_flag &= ~TRANSACTION_MASK

    def to_level(self, message: Incoming) -> None:
        """Let a message with a delay level wait in the level's queue; a level above the highest means the highest."""
        level = min(level_in(find_property(message.properties, _DELAY)), self._levels.highest)
        # The delay of a half begins with its commit.
        if level and message.topic != TRANS_HALF_TOPIC:
            values = {_DELAY: b"%d" % level} | _real(message)
            message.properties = replace_properties(message.properties, values)
            message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1

    def to_timer(self, message: Incoming) -> None:
        """Let a timed message wait in its slot, unless its time has passed. RequestRefused when its time is wrong."""
        properties, options, now_ms = message.properties, self._options, self._clock.now_ms()
        # A delay level takes precedence over a time of delivery.
        if message.topic == SCHEDULE_TOPIC or not is_timed(properties, now_ms):
            return
        if not options.timer_wheel_enable:
            text = "accurate timer message is not enabled, timerWheelEnable is false"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        deliver_ms, recalled = deliver_time(properties, now_ms), find_property(properties, DELETE)
        if deliver_ms <= now_ms:  # a message whose time has passed is not a timed one, see `is_timed`
            raise illegal("a recall (TIMER_DEL_UNIQKEY) needs the time of a message that is not delivered yet")
        if deliver_ms - now_ms > self.max_delay_ms:
            raise illegal(
                f"timer message illegal, the delay time should not be bigger than the max delay {self.max_delay_ms}"
                "ms (timerMaxDelaySec)"
            )
        if message.topic == TRANS_HALF_TOPIC:
            return  # checked now, so that its producer gets the error; the wait begins with the commit
        slot = slot_of(deliver_ms, options.timer_precision_ms)
        values = {SLOT: b"%d" % slot} | _real(message)
        if recalled is not None:
            values[DELETE] = _recall_in(message.topic, recalled)
        key = find_property(properties, UNIQ_KEY)
        if key is None:
            key = self._unique_keys.next(now_ms).encode()
        if recalled is None and not message.topic.startswith(RETRY_PREFIX):
            handle = RecallHandle(message.topic, options.broker_name, slot + 1, key.decode("utf-8", "replace"))
            message.recall = handle
        message.properties = replace_properties(properties, values | {UNIQ_KEY: key})
        message.topic, message.queue_id = TIMER_TOPIC, 0


def _recall_in(topic: str, recalled: bytes) -> bytes:
    """``topic+key``, which names the message to recall; ``recalled`` is that, or the key alone.

    RequestRefused when ``recalled`` names a message of another topic than ``topic``.

    A right to send to one topic must not be enough to recall messages of another topic.
    """
    named, plus, _ = recalled.partition(b"+")
    if plus and named != topic.encode():
        raise illegal(f"a message that is sent to {topic} cannot recall (TIMER_DEL_UNIQKEY) one of another topic")
    # RocketMQ before 5.3 names the key alone.
    return recalled if plus else topic.encode() + b"+" + recalled


def check_room(properties: bytes) -> None:
    """RequestRefused for a half with these stored properties if the copies that its checks store could be too large."""
    most = MAX_PROPERTIES - CHECK_BYTES
    if len(properties) > most:
        raise illegal(f"a half message has {len(properties)} bytes of properties, at most {most}: its checks add some")


#: Where a message of a batch goes (topic, queue), its stored properties, and the slot in its recall handle or 0.
PlacedRow = tuple[tuple[str, int], bytes, int]


class AlikeRows:
    """Places the messages of one batch, which mostly differ only in their unique keys and times.

    The result for the first of several alike messages is reused for the others, with the unique key and the time of
    each: that takes a fifth of the time.
    """

    def __init__(self, place: Callable[[bytes], PlacedRow], deferral: Deferral) -> None:
        self._place = place
        self._precision_ms = deferral.precision_ms
        self._soonest = deferral.now_ms() + 1
        self._latest = self._soonest + deferral.max_delay_ms - 1
        # By the properties before the unique key: the queue of such messages, the stored properties before and after
        # the value of the key, and the slot. None: each such message is placed by itself.
        self._alike: dict[bytes, tuple[tuple[str, int], bytes, bytes, int] | None] = {}
        # By the properties before a time that comes right before the unique key: the queue, and the parts of the stored
        # properties around time, slot and key.
        self._timed: dict[bytes, tuple[tuple[str, int], bytes, bytes, bytes, bytes] | None] = {}

    def place(self, given: bytes) -> PlacedRow:
        """Place one message, given its properties. RequestRefused as for a message that comes alone."""
        head, _, end = given.rpartition(_KEY_MARK)
        if not end[:-1].isalnum() or end[-1] != _PAIR_END:
            return self._place(given)
        known = self._alike.get(head)
        if known is None:
            if head.find(_TIME_MARK) >= 0:
                return self._place_timed(given, head, end)
            if head not in self._alike:
                known = self._alike[head] = self._learn(given, head, end)
            if known is None:
                return self._place(given)
        place, before, after, slot_ms = known
        return place, before + end + after, slot_ms

    def _place_timed(self, given: bytes, head: bytes, end: bytes) -> PlacedRow:
        before, _, text = head.rpartition(_TIME_MARK)
        digits = text[:-1]
        time = int(digits) if digits.isdigit() and text[-1] == _PAIR_END and len(digits) < _MAX_DIGITS else 0
        if not self._soonest <= time <= self._latest:
            return self._place(given)
        if before not in self._timed:
            self._timed[before] = self._learn_timed(given, before, digits, end)
        known = self._timed[before]
        if known is None:
            return self._place(given)
        place, a, b, c, d = known
        slot = slot_of(time, self._precision_ms)
        return place, b"%s%s%s%d%s%s%s" % (a, digits, b, slot, c, end, d), slot + 1

    def _learn(self, given: bytes, head: bytes, end: bytes) -> tuple[tuple[str, int], bytes, bytes, int] | None:
        """What `place` needs for messages with ``head``; None if they may be stored otherwise than this message."""
        place, properties, slot_ms = self._place(given)
        before, mark, after = properties.partition(_KEY_MARK + end)
        if head.find(UNIQ_KEY) >= 0 or (head and head[-1] != _PAIR_END) or not mark or after.find(UNIQ_KEY) >= 0:
            return None
        return place, before + _KEY_MARK, after, slot_ms

    def _learn_timed(
        self, given: bytes, before: bytes, digits: bytes, end: bytes
    ) -> tuple[tuple[str, int], bytes, bytes, bytes, bytes] | None:
        known = self._learn(given, given[: -len(_KEY_MARK + end)], end)
        # If there may be a property that takes precedence over the time, each message is checked by itself.
        if known is None or known[0][0] != TIMER_TOPIC or before.find(_DELAY) >= 0:
            return None
        if before and before[-1] != _PAIR_END:
            return None
        place, start, rest, slot_ms = known
        a, time_mark, middle = start.partition(_TIME_MARK + digits)
        b, slot_mark, c = middle.partition(b"%s\x01%d" % (SLOT, slot_ms - 1))
        if not (time_mark and slot_mark and c.startswith(b"\x02")):
            return None
        return place, a + _TIME_MARK, b + SLOT + b"\x01", c, rest


def _real(message: Incoming) -> dict[bytes, bytes | None]:
    return {REAL_TOPIC: message.topic.encode(), REAL_QUEUE: b"%d" % message.queue_id}


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


# --- out again

# Topics that cannot be a message's own topic.
_NEVER_REAL = ("", SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC)


def real_queue(properties: bytes) -> tuple[str, int]:
    """The topic and queue of a deferred message. ValueError when the properties do not say."""
    topic = (find_property(properties, REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_id = find_property(properties, REAL_QUEUE) or b""
    if topic in _NEVER_REAL or not queue_id.isdigit() or len(queue_id) > 9:
        raise ValueError(f"its properties name queue {queue_id!r} of topic {topic!r} as its own")
    return topic, int(queue_id)


def from_level(record: Record) -> Incoming:
    """A message of a delay level in the form for delivery, without its level. ValueError as `real_queue`."""
    return Incoming.of(record, *real_queue(record.properties), replace_properties(record.properties, {_DELAY: None}))


def from_timer(record: Record) -> Incoming:
    """A timed message in the form for delivery. ValueError as `real_queue`.

    Its origin marks the copy, see delivery/timed_delivery.py. The bits of a committed transaction are dropped: with
    these bits the mark would mean a commit.
    """
    properties = replace_properties(record.properties, {REAL_TOPIC: None, REAL_QUEUE: None})
    message = Incoming.of(record, *real_queue(record.properties), properties)
    message.sys_flag &= ~TRANSACTION_MASK
    message.origin = record.physical_offset + 1
    return message
