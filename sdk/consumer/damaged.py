"""Messages that arrive damaged: readers leave them out, log them, and go on with their neighbours.

Brokers send no damage that they notice. They do not notice it in stores without sums of blocks, such as RocketMQ's; and
memory or a network may change bytes on the way.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue

logger = logging.getLogger(__name__)

#: What happens to a damaged message of a pop.
SHOWN_AGAIN = "its broker delivers it again, unless it finds it damaged, too"
#: What happens to a damaged message of a pull.
PASSED_BY = "its readers go on after it"

M = TypeVar("M", bound=MessageExt)


# A message that is met again is not logged again: this many are remembered.
@lru_cache(maxsize=1_024)
def log_left_out(mq: MessageQueue, offset: int, reason: str, what_next: str) -> None:
    """Log, once, that the message at ``offset`` of ``mq`` is left out for ``reason``."""
    logger.warning(
        "message %d of queue %d of topic %s at broker %s is damaged and left out, %s: %s. To examine the"
        " broker's store, stop the broker and run: broker verifyStore",
        offset,
        mq.queue_id,
        mq.topic,
        mq.broker_name,
        what_next,
        reason,
    )


def is_damaged(message: MessageExt, mq: MessageQueue) -> bool:
    """Whether ``message``, which was pulled from ``mq``, cannot be read; it is logged then."""
    try:
        _ = message.record
    except ProtocolError as error:
        log_left_out(mq, message.queue_offset, str(error), PASSED_BY)
        return True
    return False


def undamaged(messages: Iterable[M], mq: MessageQueue) -> list[M]:
    """The readable messages of ``messages``, which were pulled from ``mq``; damaged messages are logged."""
    return [message for message in messages if not is_damaged(message, mq)]


def described(message: MessageExt) -> str:
    """``message`` and its queue, for the log; a damaged message by its offset."""
    try:
        return f"{message.msg_id} of {message.queue}"
    except ProtocolError as error:
        return f"at offset {message.queue_offset} of queue {message.queue_id}, which is damaged ({error})"
