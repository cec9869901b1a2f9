"""Cleaning on request: 306, 316, 329. tasks/clean.py has the rules, and cleans periodically.

Unlike in RocketMQ, 306 keeps the offset that a queue has reached. If the queue began again at 0, its consumers would
skip new messages.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from skylark.broker.meta.table import refused_when_not_stored
from skylark.broker.meta.topics import Topics
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.clean import Cleaner
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import is_light, is_system_topic
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
)

logger = logging.getLogger(__name__)

# Topics handled in one turn of the event loop.
TOPICS = 1_000


class CleanHandlers(Part):
    """Handles the requests of administrators to remove files at once.

    ``delete_queues`` removes the queues of a topic unless the topic exists; returns whether it removed them.
    """

    def __init__(
        self, store: MessageStore, topics: Topics, cleaner: Cleaner, delete_queues: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._store = store
        self._topics = topics
        self._cleaner = cleaner
        self._delete_queues = delete_queues

    def handlers(self) -> dict[int, Handler]:
        return {DELETE_EXPIRED_COMMITLOG.code: self.delete_expired}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            CLEAN_EXPIRED_CONSUMEQUEUE.code: self.clean_queues,
            CLEAN_UNUSED_TOPIC.code: self.clean_topics,
        }

    def delete_expired(self, channel: Channel, request: Command) -> Command:
        """329: begin to remove old commit log files; the answer does not wait for the removal, as in RocketMQ."""
        logger.info("removal of old commit log files requested by %s", channel.remote)
        self._cleaner.ask()
        return request.respond()

    async def clean_queues(self, channel: Channel, request: Command) -> Command:
        """306: remove files of queues and index whose messages are gone from the commit log."""
        try:
            await self._cleaner.follow_log()
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"a file could not be deleted: {error}") from error
        logger.info("consume queues cleaned by %s", channel.remote)
        return request.respond()

    async def clean_topics(self, channel: Channel, request: Command) -> Command:
        """316: remove the queues of topics that this broker does not have."""
        for number, topic in enumerate(self._store.queues.topics(), 1):
            if number % TOPICS == 0:
                await trio.lowlevel.checkpoint()
            if self._topics.get(topic) is not None or is_system_topic(topic) or is_light(topic):
                continue
            # `delete_queues` checks again under the lock of deletions: the topic may have been made since this check.
            with refused_when_not_stored():
                deleted = await self._delete_queues(topic)
            if deleted:
                logger.info("queues of topic %s, which does not exist, removed by %s", topic, channel.remote)
        return request.respond()
