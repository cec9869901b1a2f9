"""`LateStart`: tells users which messages a new group does not get, because they were stored before it began."""

import logging

from skylark.mqcommon.message.queue import MessageQueue

logger = logging.getLogger(__name__)


class LateStart:
    """What lies before the beginnings of ``group``, which has no offsets yet; each topic is logged once."""

    def __init__(self, group: str) -> None:
        self._group = group
        # Topic → how many messages, in the queues so far; None: the topic was logged.
        self._topics: dict[str, int | None] = {}

    def passes(self, mq: MessageQueue, count: int) -> None:
        """Note, for `log`, that the group begins at the end of ``mq``, after ``count`` messages."""
        known = self._topics.setdefault(mq.topic, 0)
        if known is not None:
            self._topics[mq.topic] = known + count

    def log(self) -> None:
        """Log the topics with messages that the group does not get, and how it gets them."""
        for topic, found in self._topics.items():
            if not found:
                continue
            self._topics[topic] = None
            logger.warning(
                "group %s has no offset of topic %s yet and begins at its end: it does not get the messages before that"
                " (%d or more); to get them: mqadmin resetOffsetByTime -g %s -t %s -s 0; the next new group gets all "
                "messages with consume_from=ConsumeFrom.FIRST_OFFSET",
                self._group,
                topic,
                found,
                self._group,
                topic,
            )
