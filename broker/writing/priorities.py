"""Priorities as in RocketMQ 5.4: the number of a message chooses its queue. Pure.

A message with priority 7 goes to queue 7, or to the last queue of a topic with fewer queues, whatever queue the client
chose. Pops of topics whose attribute ``message.type`` is PRIORITY read urgent queues first: delivery/pop/pops.py.
"""

from skylark.broker.writing.stored_properties import TIMED, is_half
from skylark.mqcommon.message.properties import DELAY, PRIORITY, SHARDING_KEY, find_property, replace_properties

_PRIORITY = PRIORITY.encode()
# RocketMQ's rule: a message that waits for its time, or that has an order, is of another type and has no priority.
_OTHER_TYPES = (DELAY.encode(), *TIMED, SHARDING_KEY.encode())
# More digits stand for the last queue, too, and would be slow to read.
_MOST_DIGITS = 9


def placed(properties: bytes, queue_id: int, queue_nums: int) -> tuple[bytes, int]:
    """The properties and the queue of a message that was sent to ``queue_id`` of a topic with ``queue_nums`` queues.

    Only messages with the property of priorities are changed.
    """
    value = find_property(properties, _PRIORITY)
    if value is None:
        return properties, queue_id
    if is_half(properties) or any([find_property(properties, name) for name in _OTHER_TYPES]):
        return replace_properties(properties, {_PRIORITY: None}), queue_id
    if not value.isdigit():
        # As in RocketMQ, a text that is no number asks for nothing.
        return properties, queue_id
    return properties, max(min(int(value[:_MOST_DIGITS]), queue_nums - 1), 0)
