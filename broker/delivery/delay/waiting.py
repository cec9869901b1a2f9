"""A message on its way into a delay level, and out of it again. Pure.

In its level a message has topic SCHEDULE_TOPIC_XXXX, queue level - 1, and its own topic and queue as the properties
REAL_TOPIC and REAL_QID. Delivered it has its own topic and queue again, and no DELAY. This is RocketMQ's form, so a
level that a Java broker filled is delivered, too.
Neighbours: delayed_delivery.py, writing/writer.py (calls `to_level`), store/queue/tags.py (due times).
"""

from broker.store.queue.delay_levels import DelayLevels, level_in
from broker.writing.writer import Incoming, Interceptor
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record
from mqcommon.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC

_DELAY, _REAL_TOPIC, _REAL_QUEUE = b"DELAY", b"REAL_TOPIC", b"REAL_QID"


def to_level(levels: DelayLevels) -> Interceptor:
    """An interceptor that puts messages with a level into its queue."""

    def intercept(message: Incoming) -> Incoming:
        level = min(level_in(find_property(message.properties, _DELAY)), levels.highest)
        if level and message.topic != TRANS_HALF_TOPIC:  # the delay of a transaction begins with its commit
            real = {
                _DELAY: b"%d" % level,
                _REAL_TOPIC: message.topic.encode(),
                _REAL_QUEUE: b"%d" % message.queue_id,
            }
            message.properties = replace_properties(message.properties, real)
            message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1
        return message

    return intercept


def from_level(record: Record) -> Incoming:
    """The message as it is delivered. ValueError when ``record`` does not say where."""
    properties = record.properties
    topic = (find_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_id = find_property(properties, _REAL_QUEUE) or b""
    if topic in ("", SCHEDULE_TOPIC, TRANS_HALF_TOPIC) or not queue_id.isdigit() or len(queue_id) > 9:
        raise ValueError(f"its properties name queue {queue_id!r} of topic {topic!r} as its own")
    return Incoming(
        topic, int(queue_id), record.body, replace_properties(properties, {_DELAY: None}), record.flag,
        record.sys_flag, record.born_timestamp, record.born_host, record.reconsume_times,
    )  # fmt: skip


def due_time(due_ms: int, now_ms: int, delay_ms: int) -> int:
    """When a message is due by its queue entry: now, if that is further away than the level's delay.

    Then the clock was set back since the message was stored, or the level had another delay.
    """
    return due_ms if due_ms <= now_ms + delay_ms else now_ms
