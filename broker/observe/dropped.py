"""Counts messages that are not delivered at their time because their topic was deleted after they had been stored."""

import logging

from mqcommon.message.ids import offset_msg_id
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record

logger = logging.getLogger(__name__)

_UNIQUE_KEY = b"UNIQ_KEY"


class DroppedMessages:
    """How many there were in this run. The first one of each deleted topic is logged."""

    def __init__(self) -> None:
        self.count = 0
        self._told: set[str] = set()

    def note(self, topic: str, record: Record) -> None:
        """``record``, which waited for its delivery to ``topic``, is dropped."""
        self.count += 1
        if topic not in self._told:
            self._told.add(topic)
            key = find_property(record.properties, _UNIQUE_KEY)
            logger.warning(
                "messages that waited to be delivered to %s are dropped, as it was deleted after they had been stored;"
                " the first is %s", topic,
                key.decode(errors="replace") if key else offset_msg_id(record.store_host, record.physical_offset),
            )  # fmt: skip

    def drop_topic(self, topic: str) -> None:
        """The topic is deleted once more: the first message that is dropped because of that is logged again."""
        self._told.discard(topic)
