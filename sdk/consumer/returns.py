"""Messages that a handler could not consume go back to the broker, which delivers them to the group again later.

The broker that stores the message is asked first (36). When it cannot, the message is sent to the retry topic of the
group on any broker, as RocketMQ's clients do. When that fails too, the caller keeps the message.
36 names a record of the log, so a message of an inner batch goes the second way at once.
"""

import logging

from mqcommon.clock import Clock
from mqcommon.errors import SkylarkError
from mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK
from mqcommon.message.message import MessageExt
from mqcommon.message.properties import DELAY, RETRY_TOPIC, encode_properties
from mqcommon.message.queue import MessageQueue
from mqcommon.names import DELAY_LEVELS
from remoting.net.call import call
from remoting.protocol.requests.sends import SEND_MESSAGE_V2, SendMessageRequestHeader
from sdk import broker_api
from sdk.consumer.problems import Problems
from sdk.consumer.replicas import Replicas
from sdk.consumer.settings import Settings
from sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC
from sdk.shared import ClientHandle

logger = logging.getLogger(__name__)

#: The delay level that makes a message a dead letter at once.
DEAD = -1
# RocketMQ's first retry is after the delay of level 3 (10 s).
FIRST_RETRY_LEVEL = 3
# The group under which RocketMQ's consumers send.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class Returns:
    """The way back of one group's messages."""

    def __init__(
        self, client: ClientHandle, replicas: Replicas, settings: Settings, problems: Problems, clock: Clock
    ) -> None:
        self._note = problems.noting("sending messages back to their brokers")
        self._client = client
        self._replicas = replicas
        self._group = settings.group
        self._retry_topic = settings.retry_topic
        self._max_reconsume_times = settings.max_reconsume_times
        self._clock = clock

    async def send_back(self, mq: MessageQueue, message: MessageExt, delay_level: int) -> bool:
        """Whether a broker has taken the message, which was read from ``mq``, for a later delivery."""
        if not message.is_inner and await self._ask_back(mq, message, delay_level):
            self._note(None)
            return True
        try:
            await self._resend(message, delay_level)
        except SkylarkError as error:
            logger.warning("%s cannot be sent to the retry topic, keeping it: %s", message.msg_id, error)
            self._note(error)
            return False
        self._note(None)
        return True

    async def _ask_back(self, mq: MessageQueue, message: MessageExt, delay_level: int) -> bool:
        """Whether the broker that stores the message has taken it back."""
        try:
            await self._replicas.ask_master(
                mq,
                lambda at: broker_api.send_back(
                    at, self._group, message.physical_offset, message.msg_id, self._topic_of(message), delay_level,
                    self._max_reconsume_times,
                ),
            )  # fmt: skip
        except SkylarkError as error:
            logger.warning("%s cannot be sent back, sending it to the retry topic: %s", message.msg_id, error)
            return False
        return True

    def _topic_of(self, message: MessageExt) -> str:
        return self._client.names.topic(message.topic)

    async def _resend(self, message: MessageExt, delay_level: int) -> None:
        """Send the message to the retry topic. The broker makes a dead letter of it after too many failures."""
        times = message.reconsume_times
        most = 0 if delay_level < 0 else self._max_reconsume_times
        level = delay_level if delay_level > 0 else min(FIRST_RETRY_LEVEL + times, DELAY_LEVELS)
        properties = dict(message.properties)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.msg_id)
        properties[RETRY_TOPIC] = self._topic_of(message)
        properties[DELAY] = str(level)
        # The body goes as it is stored: one that is compressed, or cannot be read, stays so.
        body, sys_flag = message.record.body, message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        header = SendMessageRequestHeader(
            INNER_PRODUCER, self._retry_topic, DEFAULT_TOPIC, AUTO_CREATE_TOPIC_QUEUES, 0, sys_flag,
            self._clock.now_ms(), message.flag, encode_properties(properties), times + 1, False, most,
        )  # fmt: skip
        route = await self._client.instance.refresh(self._retry_topic)
        error: SkylarkError | None = None
        for queue in route.writable:
            try:
                await self._replicas.ask_master(queue, lambda at: call(at, SEND_MESSAGE_V2, header, body))
            except SkylarkError as found:
                error = found
            else:
                return
        raise error or SkylarkError(f"topic {self._retry_topic} has no queue that can be written")
