"""The tags code of a queue's entry: the hash of the message's tag, or the time when a delayed message is due.

A timed message has its slot (TIMER_OUT_MS), and a recall the slot of the message that it recalls, negative. So a start
need not read the messages that wait. RocketMQ's queues of timed messages have hashes, which are 32 bits.
"""

from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels
from skylark.broker.store.queue.entry import MIXED_TAGS
from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.mqcommon.message.flags import COMPRESSED, WRAPPED
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC

TAGS = b"TAGS"
DELAY = b"DELAY"
TIMER_OUT = b"TIMER_OUT_MS"
TIMER_DELETE = b"TIMER_DEL_UNIQKEY"
# 18 digits fit into 64 bits.
MAX_SLOT_DIGITS = 18
_MEMO_BYTES = 2 * 1024 * 1024


class TagCodes:
    """Java's hashes of tags, cached up to a size limit; and due times by ``levels``."""

    def __init__(self, levels: DelayLevels = DEFAULT) -> None:
        self._levels = levels
        self._codes: BoundedCache[bytes, int] = BoundedCache(_MEMO_BYTES)

    def of_record(self, record: Record) -> int:
        """The code for a stored message; for one in a delay level it is the time when it is due (ms)."""
        if record.topic == SCHEDULE_TOPIC:
            return self.of_delayed(record.properties, record.store_timestamp)
        if record.topic == TIMER_TOPIC:
            return self.of_timed(record.properties)
        if record.sys_flag & WRAPPED == WRAPPED:
            return self.of_batch(record.properties, record.body, record.sys_flag)
        return self.of(record.properties)

    def of_batch(self, properties: bytes, body: bytes, sys_flag: int) -> int:
        """The code for an inner batch: of the tag in its properties, which then is the tag of all its messages."""
        if find_property(properties, TAGS):
            return self.of(properties)
        return MIXED_TAGS if sys_flag & COMPRESSED or body.find(TAGS + b"\x01") >= 0 else 0

    def of_waiting(self, topic: str, properties: bytes, stored_ms: int) -> int:
        """The code of a message in a topic whose messages wait."""
        return self.of_timed(properties) if topic == TIMER_TOPIC else self.of_delayed(properties, stored_ms)

    def of_timed(self, properties: bytes) -> int:
        """The slot of a timed message (ms), negative for a recall."""
        slot = find_property(properties, TIMER_OUT) or b""
        if not slot.isdigit() or len(slot) > MAX_SLOT_DIGITS:
            return self.of(properties)
        is_recall = properties.find(TIMER_DELETE) >= 0 and find_property(properties, TIMER_DELETE) is not None
        return -int(slot) if is_recall else int(slot)

    def of_delayed(self, properties: bytes, stored_ms: int) -> int:
        """When a message in a delay level is due (ms). One without a level, which only RocketMQ stores, has a tag."""
        level = find_property(properties, DELAY) or b""
        if level.isdigit() and (number := int(level[:20])) > 0:
            return stored_ms + self._levels.delay_ms(number)
        return self.of(properties)

    def of(self, properties: bytes) -> int:
        """The code for a message with these properties; 0 without a tag."""
        # find, not "in": bytes.__contains__ first tries its operand as a number, which raises an exception.
        if properties.find(TAGS) < 0:
            return 0
        tag = find_property(properties, TAGS)
        if not tag:
            return 0
        code = self._codes.get(tag)
        if code is None:
            code = java_hash(tag.decode("utf-8", "replace"))
            self._codes.put(tag, code, len(tag))
        return code
