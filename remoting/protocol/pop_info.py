"""The texts of pop consumption: a message's handle (property POP_CK), and offsets by queue. Pure.

A handle is "startOffset popTime invisibleTime reviveQid retry broker queueId offset". Lists of offsets are "retry
queueId value;retry queueId value". ``retry`` says which topic was read: 0 the requested topic; 1 and 2 its retry topic
for the group, under its name of RocketMQ 5.0 or the unambiguous name of later versions.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from skylark.mqcommon.arguments import INT_MAX, LONG_MAX
from skylark.mqcommon.names import RETRY_PREFIX

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
#: The number of the revive queue in handles of messages that were popped in order.
ORDER_REVIVE_QUEUE: Final = 999
_V2_SEPARATOR = "+"
_SEPARATORS = {RETRY_V1: "_", RETRY_V2: _V2_SEPARATOR}
# The most digits of a number in a peer's text; more would be slow to parse.
_MAX_DIGITS = 19


class PopHandle(NamedTuple):
    """The parts of a handle. ``offset`` is None when the handle does not name it."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int | None = None

    def __str__(self) -> str:
        return " ".join(map(str, self if self.offset is not None else self[:-1]))


def parse_handle(text: str) -> PopHandle:
    """The parts of a handle; ValueError says what is wrong with it."""
    parts = text.split(" ")
    if not 7 <= len(parts) <= 8:
        raise ValueError(f"it has {len(parts)} parts, not 7 or 8")
    start, pop_time = _number("startOffset", parts[0]), _number("popTime", parts[1])
    invisible_time, revive_queue_id = _number("invisibleTime", parts[2]), _number("reviveQid", parts[3], INT_MAX)
    if parts[4] not in (NORMAL, RETRY_V1, RETRY_V2):
        raise ValueError(f"its retry flag is {parts[4][:20]!r}, not 0, 1 or 2")
    queue_id = _number("queueId", parts[6], INT_MAX)
    offset = _number("offset", parts[7]) if len(parts) == 8 else None
    return PopHandle(start, pop_time, invisible_time, revive_queue_id, parts[4], parts[5], queue_id, offset)


def _number(name: str, text: str, most: int = LONG_MAX) -> int:
    # Brokers refuse a whole body of acknowledgements for one number that is too large for its field.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and (number := int(text)) <= most):
        raise ValueError(f"its {name} is {text[:20]!r}, not a number up to {most}")
    return number


def pop_retry_topic(topic: str, group: str, retry: str = RETRY_V1) -> str:
    """The topic with the messages of ``topic`` that ``group`` popped and did not acknowledge.

    ``retry``: the form of its name, RETRY_V1 or RETRY_V2.
    """
    return f"{RETRY_PREFIX}{group}{_SEPARATORS[retry]}{topic}"


def read_topic(topic: str, group: str, retry: str) -> str:
    """The topic that a message with the flag ``retry`` was read from."""
    return topic if retry == NORMAL else pop_retry_topic(topic, group, retry)


def retry_flag(topic: str) -> str:
    """The flag of a topic that was read."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _V2_SEPARATOR in topic else RETRY_V1


def offset_info(entries: Iterable[tuple[str, int | str, object]]) -> str:
    """The text of (retry flag, queue, value) entries."""
    return ";".join([f"{retry} {queue} {value}" for retry, queue, value in entries])


def parse_offset_info(text: str) -> dict[tuple[str, str], str]:
    """(retry flag, queue) → value; ValueError when it cannot be read."""
    found: dict[tuple[str, str], str] = {}
    for entry in text.split(";") if text else ():
        parts = entry.split(" ")
        if len(parts) != 3:
            raise ValueError(f"{entry[:40]!r} has {len(parts)} parts, not 3")
        found[parts[0], parts[1]] = parts[2]
    return found


def message_key(queue_id: int, offset: int) -> str:
    """Names one message in lists of delivery counts, in the place where lists of offsets have a queue's number."""
    return f"qo{queue_id}%{offset}"
