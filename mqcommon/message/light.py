r"""Light queues (RocketMQ's LMQ): a message is in its topic's queue, and in light queues that it names. Pure.

The record is stored once. Its property INNER_MULTI_DISPATCH names the light queues, as ``%LMQ%a,%LMQ%b``, and
INNER_MULTI_QUEUE_OFFSET its offset in each of them. Each is queue 0 of a topic of its name, which has no configuration.
The broker writes the offsets as the last property, after those that it adds to every message. Only the last property
counts: what a producer writes is always before it, so no producer can claim a place in a queue.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from skylark.mqcommon.arguments import check_text, shown, wrong_type
from skylark.mqcommon.errors import InvalidArgument, RequestRefused
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.properties import LIGHT_OFFSETS, LIGHT_QUEUES, find_property
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import LMQ_PREFIX, check_topic

QUEUES, OFFSETS = LIGHT_QUEUES.encode(), LIGHT_OFFSETS.encode()
MARK = b"\x02" + OFFSETS + b"\x01"
_DIGITS = b"0123456789"


class LightMessage(Message):
    """A message to send that is put into ``light_queues``, too; `PullConsumer` reads each as topic ``%LMQ%name``."""

    __slots__ = ()

    def __init__(self, topic: str, body: bytes = b"", *, light_queues: Iterable[str], **others: Any) -> None:
        super().__init__(topic, body, **others)
        if isinstance(light_queues, str | bytes) or not isinstance(light_queues, Iterable):
            raise wrong_type("light_queues", "an iterable of names", light_queues)
        names = [_light_name(number, name) for number, name in enumerate(light_queues)]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument(f"light_queues must name one queue or more, and each once, not {names}")
        self.properties = {**(self.properties or {}), LIGHT_QUEUES: ",".join(names)}


def _light_name(number: int, name: object) -> str:
    """The topic of a light queue, from its name with or without the prefix."""
    check_text(f"light_queues[{number}]", name)
    assert isinstance(name, str)
    topic = name if name.startswith(LMQ_PREFIX) else LMQ_PREFIX + name
    try:
        check_topic(topic)
    except RequestRefused as refused:
        raise InvalidArgument(f"light_queues[{number}] is {shown(name)}: {refused.remark}") from None
    if topic == LMQ_PREFIX:
        raise InvalidArgument(f"light_queues[{number}] is empty")
    return topic


def offsets_property(offsets: Sequence[int]) -> bytes:
    """The last property of a record in light queues."""
    return b"%s\x01%s\x02" % (OFFSETS, b",".join([b"%d" % offset for offset in offsets]))


def light_places(properties: bytes) -> list[tuple[str, int]]:
    """(topic, offset) of a record with these properties in each light queue; most records are in none."""
    if properties[-2:-1] not in _DIGITS or len(properties) < len(MARK):
        return []
    at = properties.rfind(MARK)
    if at < 0 or properties.find(b"\x02", at + 1) != len(properties) - 1:
        return []
    offsets = properties[at + len(MARK) : -1].split(b",")
    names = (find_property(properties[: at + 1], QUEUES) or b"").decode("utf-8", "replace").split(",")
    if len(names) != len(offsets) or not all(map(bytes.isdigit, offsets)):
        return []
    if not all(name.startswith(LMQ_PREFIX) for name in names):
        return []
    return [(name, int(offset)) for name, offset in zip(names, offsets, strict=True)]


def in_each_queue(on_record: Callable[[Record], None]) -> Callable[[Record], None]:
    """Calls ``on_record`` with a record, and with a copy that is in the queue for each of its light queues."""

    def each(record: Record) -> None:
        on_record(record)
        for topic, offset in light_places(record.properties):
            # Light queues are plain, also if the queue of the topic is a batch queue.
            sys_flag = record.sys_flag & ~INNER_BATCH
            on_record(record._replace(topic=topic, queue_id=0, queue_offset=offset, sys_flag=sys_flag))

    return each


def is_in(record: Record, topic: str, queue_id: int, offset: int) -> bool:
    """Whether ``record`` is the message with this offset in this queue."""
    if (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset):
        return True
    return queue_id == 0 and (topic, offset) in light_places(record.properties)
