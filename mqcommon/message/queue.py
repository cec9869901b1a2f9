"""Where a message lies: topic, broker, number of the queue. Sorts as RocketMQ's allocation expects."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int
