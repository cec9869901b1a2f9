"""Light queues: a message that names some in INNER_MULTI_DISPATCH is put into them, too (mqcommon/message/light.py).

As in RocketMQ, this does not apply to messages of retry and system topics: a delayed message is put into its light
queues when it is due. The names are checked when the message is sent, while its producer can get an error. If the light
queues are not possible when the message is due, it is put only into its own topic: an error would hold up all messages
that wait with it.
"""

import logging
from typing import Any

from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.store import MessageStore, PutResult
from skylark.broker.writing.refusals import illegal
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.light import OFFSETS, QUEUES, offsets_property
from skylark.mqcommon.message.properties import LIGHT_QUEUES, find_property, replace_properties
from skylark.mqcommon.names import LMQ_PREFIX, check_topic, is_retry_topic, is_system_topic

logger = logging.getLogger(__name__)

# With more queues a message would take long to store, and its offsets would fill a good part of its properties.
MAX_QUEUES = 256
_SYSTEM_ERROR = 1


class LightQueues:
    """Puts messages into ``store``. At most ``most`` light queues are made, as each takes memory and a file."""

    def __init__(self, store: MessageStore, most: int) -> None:
        self._store = store
        self._most = most
        # An upper bound of the number of light queues; counted again when it reaches the limit.
        self._known = 0
        # Whether the last message of `put_accepted` was stored without its light queues.
        self._left_out = False

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes, **fields: Any) -> PutResult:
        """As `MessageStore.put`. RequestRefused when the light queues have wrong names, or there are too many."""
        store = self._store
        value = _value(topic, properties)
        if not value:
            return store.put(topic, queue_id, body, properties, **fields)
        names = _names(value, topic)
        self._known += self._new(names)
        if properties.find(OFFSETS) >= 0:  # left over from a former put: the message was consumed and is sent again
            properties = replace_properties(properties, {OFFSETS: None})
        # The record contains its offset in each light queue, so the offsets are read before the record is written. No
        # other put comes in between: all this runs in one turn of the loop.
        queues = [store.queues.get(name, 0) for name in names]
        properties += offsets_property([queue.next_offset for queue in queues])
        result = store.put(topic, queue_id, body, properties, **fields)
        code, size = store.tag_codes.of(properties), result.end - result.physical_offset
        for queue in queues:
            self._add(queue, result.physical_offset, size, code)
        return result

    def put_accepted(self, topic: str, queue_id: int, body: bytes, properties: bytes, **fields: Any) -> PutResult:
        """As `put`, for a message that was accepted before: without its light queues if they are not possible now."""
        try:
            result = self.put(topic, queue_id, body, properties, **fields)
        except RequestRefused as refused:
            if not _value(topic, properties):
                raise
            # Offsets of a former put would name places in queues that do not have the message.
            plain = replace_properties(properties, {OFFSETS: None})
            result = self._store.put(topic, queue_id, body, plain, **fields)
            if not self._left_out:
                logger.error("messages of topic %s are not put into their light queues: %s", topic, refused)
            self._left_out = True
        else:
            if self._left_out and _value(topic, properties):
                self._left_out = False
        return result

    def check(self, topic: str, properties: bytes) -> None:
        """RequestRefused when `put` would refuse a message with these properties because of its light queues."""
        if value := _value(topic, properties):
            self._new(_names(value, topic))

    def refuse_in_batch(self, rows: list[tuple[int, bytes, bytes]]) -> None:
        """RequestRefused when a message of a batch names light queues."""
        if any([properties.find(QUEUES) >= 0 and find_property(properties, QUEUES) for _, _, properties in rows]):
            raise illegal(f"a message in a batch names light queues ({LIGHT_QUEUES}); send such messages one by one")

    def _add(self, queue: ConsumeQueue, physical: int, size: int, code: int) -> None:
        store = self._store
        queue.append(physical, size, code)
        store.copies += 1
        if not queue.dirty:
            store.queues.touch(queue)
        if queue.is_awaited:
            store.arrived.add(queue)

    def _new(self, names: list[str]) -> int:
        """How many of these queues do not exist yet; RequestRefused when there would be too many."""
        find = self._store.queues.find
        new = sum([find(name, 0) is None for name in names])
        if not new:
            return 0
        if self._known + new > self._most:
            self._known = sum([topic.startswith(LMQ_PREFIX) for topic in self._store.queues.topics()])
        if self._known + new > self._most:
            raise RequestRefused(
                _SYSTEM_ERROR,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq consumeQueue num"
                f" exceed maxLmqConsumeQueueNum config num, which is {self._most}: raise it, or delete light queues"
                " with mqadmin deleteTopic",
            )
        return new


def _value(topic: str, properties: bytes) -> bytes | None:
    """The light queues that a message names, if it may be in some."""
    value = find_property(properties, QUEUES) if properties.find(QUEUES) >= 0 else None
    return None if not value or is_retry_topic(topic) or is_system_topic(topic) else value


def _names(value: bytes, topic: str) -> list[str]:
    names = value.decode("utf-8", "replace").split(",")
    if len(names) > MAX_QUEUES:
        raise illegal(f"{LIGHT_QUEUES} names {len(names)} queues, at most {MAX_QUEUES} are allowed")
    for name in names:
        if not name.startswith(LMQ_PREFIX) or name == LMQ_PREFIX:
            raise illegal(f"{LIGHT_QUEUES} names {name!r}; the names of light queues begin with {LMQ_PREFIX}")
        check_topic(name)
    if len(set(names)) < len(names) or topic in names:
        raise illegal(f"{LIGHT_QUEUES} names a queue twice, or the queue of the message itself: {value.decode()}")
    return names
