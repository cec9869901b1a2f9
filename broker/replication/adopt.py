"""Topics of messages that a slave copied before it could copy the table of topics, when it becomes the master.

A topic that a send makes is in the master's table first, so a slave's table has all topics of the messages that its log
had when it last asked for the table, except those that were deleted. A queue that began later, and whose topic
is unknown, belongs to a new topic: without it nobody could read these messages. The journal has how far the log was
(`Metadata.topics_to`), so that this also holds when all brokers of the set die at once.
"""

import logging

from broker.meta.topics import Topics
from broker.store.store import MessageStore
from mqcommon.names import is_light, is_retry_topic
from remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)

# As many as RocketMQ's clients ask for, when a send makes a topic.
QUEUES = 4


def adopt_topics(store: MessageStore, topics: Topics, since: int) -> None:
    """Add the topics of queues that began at or after ``since`` in the log. Call it when this broker is the master."""
    found: dict[str, int] = {}
    for queue in store.queues:
        name = queue.topic
        if topics.get(name) is not None or queue.is_empty or is_light(name):
            continue
        if queue.bounds_search().find_end(since) <= queue.min_offset:
            found[name] = max(found.get(name, 1 if is_retry_topic(name) else QUEUES), queue.queue_id + 1)
    for name, queues in found.items():
        topics.put(TopicConfig(name, queues, queues))
        logger.warning("topic %s came from the former master with its messages only: made with %d queues", name, queues)
