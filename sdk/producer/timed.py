"""Messages with a time of delivery: the arguments of `Producer.send` for them, and recalls."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from skylark.mqcommon.arguments import shown, wrong_type
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.ids import RecallHandle
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.properties import DELAY
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.broker_api import recall
from skylark.sdk.client import ClientHandle

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_property(message: Message, deliver_at: datetime | None, delay: timedelta | None) -> tuple[str, int]:
    """The property that asks for this delivery, and its value. InvalidArgument when the arguments do not fit."""
    if deliver_at is not None and delay is not None:
        raise InvalidArgument("deliver_at and delay both say when the message is delivered; give one of them")
    if message.properties is not None and DELAY in message.properties:
        raise InvalidArgument("message has a delay_level; leave it out, or give neither deliver_at nor delay")
    if delay is not None:
        if not isinstance(delay, timedelta):
            raise wrong_type("delay", "a timedelta", delay)
        if delay.days < 0:
            raise InvalidArgument(f"delay must not be negative, it is {shown(delay)}")
        return "TIMER_DELAY_MS", _whole_ms(delay)
    if not isinstance(deliver_at, datetime):
        raise wrong_type("deliver_at", "a datetime", deliver_at)
    if deliver_at.tzinfo is None:
        raise InvalidArgument(f"deliver_at has no time zone: {shown(deliver_at)}; datetime.now(UTC) has one")
    return "TIMER_DELIVER_MS", _whole_ms(deliver_at - _EPOCH)


def _whole_ms(time: timedelta) -> int:
    """The milliseconds, rounded up. A division of timedeltas would take four times as long."""
    return time.days * 86_400_000 + time.seconds * 1_000 - -time.microseconds // 1_000


def timed(message: Message, deliver_at: datetime | None, delay: timedelta | None) -> Message:
    """A copy of ``message`` with this time of delivery. InvalidArgument when the arguments do not fit."""
    name, value = time_property(message, deliver_at, delay)
    copy = Message(message.topic, message.body, flag=message.flag)
    copy.properties = {**(message.properties or {}), name: str(value)}
    return copy


def deferred_lane(topic: str) -> str:
    """The name of the lane of messages that are delivered later.

    RocketMQ's brokers take such messages one by one, so this lane has many requests in flight at them.
    """
    return f"{topic} deferred"


def recalling(client: ClientHandle, topic: str, group: str, text: str) -> Callable[[], Awaitable[str]]:
    """A function that asks the broker to recall the message of the handle ``text``, and returns its unique key.

    ``topic`` is the server's name. InvalidArgument when the text is no handle, or a handle of another topic.
    """
    try:
        handle = RecallHandle.decode(text)
    except ValueError:
        raise InvalidArgument(f"recall_handle is {shown(text)}, which no send returned") from None
    if handle.topic != topic:
        raise InvalidArgument(f"recall_handle is of a message of topic {handle.topic!r}, not of {topic!r}")
    queue = MessageQueue(topic, handle.broker_name, 0)
    return lambda: client.ask_master(queue, partial(recall, topic=topic, group=group, handle=text))
