"""The tags code of a queue's entry: the hash of the message's tag, or the time when a delayed message is due."""

from mqcommon.bounded_cache import BoundedCache
from mqcommon.message.javahash import java_hash
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record
from mqcommon.names import SCHEDULE_TOPIC

TAGS = b"TAGS"
DELAY = b"DELAY"
# RocketMQ's default messageDelayLevel: 1s 5s 10s 30s 1m ... 2h, in seconds; the first is level 1.
DELAY_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_MEMO_BYTES = 2 * 1024 * 1024


class TagCodes:
    """Java's hashes of tags, cached up to a size limit."""

    def __init__(self) -> None:
        self._codes: BoundedCache[bytes, int] = BoundedCache(_MEMO_BYTES)

    def of_record(self, record: Record) -> int:
        """The code for a stored message; for one in a delay level it is the time when it is due (ms)."""
        if record.topic == SCHEDULE_TOPIC:
            level = find_property(record.properties, DELAY) or b""
            if level.isdigit() and int(level) > 0:
                return record.store_timestamp + DELAY_SECONDS[min(int(level), len(DELAY_SECONDS)) - 1] * 1000
        return self.of(record.properties)

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
