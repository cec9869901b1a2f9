"""A queue as RocketMQ's tool prints it."""

from typing import TYPE_CHECKING

from skylark.mqadmin.render import java_object

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue


def queue_text(queue: "MessageQueue") -> str:
    """RocketMQ's ``MessageQueue.toString``."""
    return java_object(
        "MessageQueue", {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    )
