"""Where a message is stored: topic, broker, number of the queue. Sorts as RocketMQ's allocation expects."""

from typing import NamedTuple, Self

from skylark.mqcommon.arguments import check_int, check_text


class _Fields(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int


class MessageQueue(_Fields):
    """One queue of a topic on one broker."""

    __slots__ = ()

    def __new__(cls, topic: str, broker_name: str, queue_id: int) -> Self:
        if type(topic) is not str or type(broker_name) is not str or type(queue_id) is not int:
            check_text("topic", topic)
            check_text("broker_name", broker_name)
            check_int("queue_id", queue_id)
        return super().__new__(cls, topic, broker_name, queue_id)
