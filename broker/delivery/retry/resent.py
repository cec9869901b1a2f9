"""Sends to a group's retry topic: clients use them when request 36 fails, and for dead letters of orderly consumers.

RocketMQ's rule: with more deliveries than ``maxReconsumeTimes`` of the send, else of the group, the message goes to the
dead letter topic. So does any while a member of the group holds a queue lock: an orderly consumer tries again in place,
and sends a message to the retry topic only to get rid of it.
Neighbours: writing/send_handlers.py calls this, send_back.py.
"""

import logging
from collections.abc import Callable

from broker.delivery.retry.send_back import known_group, made_dlq_topic
from broker.meta.groups import Groups
from broker.meta.topics import Topics
from mqcommon.names import RETRY_PREFIX
from remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)


class Resent:
    """``is_ordered``: whether a member of a group holds a lock now."""

    def __init__(self, groups: Groups, topics: Topics, is_ordered: Callable[[str], bool]) -> None:
        self._groups = groups
        self._topics = topics
        self._is_ordered = is_ordered

    def dead_letter_topic(self, topic: str, reconsume_times: int, max_times: int | None) -> TopicConfig | None:
        """The topic for a message that is sent to the retry topic ``topic``; None when it may go there.

        RequestRefused when the group does not exist.
        """
        name = topic.removeprefix(RETRY_PREFIX)
        group = known_group(self._groups, name)
        most = group.retry_max_times if max_times is None or max_times < 0 else max_times
        ordered = self._is_ordered(name)
        if reconsume_times <= most and not ordered:
            return None
        logger.warning(
            "a message of group %s became a dead letter after %d deliveries%s",
            name, reconsume_times, " to an orderly consumer" if ordered else "",
        )  # fmt: skip
        return made_dlq_topic(self._topics, name)
