"""Messages whose body cannot be decoded, sent to a topic of their own (badRows=deadLetter).

At least once: a micro-batch, a task or a query that is run again sends its dead letters again. The unique key of a dead
letter (column msgId) is made of where the message was, so that copies have the same. Dead letters are acknowledged
before the rows around them are given to Spark.
Neighbours: read_columns.py (finds bad rows).
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from skylark.mqcommon.errors import RouteNotFound
from skylark.mqcommon.message.message import Message, WithOwnKeys
from skylark.mqcommon.message.properties import RESERVED
from skylark.spark_connector.options.read import DEAD_LETTER, ReadOptions
from skylark.spark_connector.reading.pulling import when_back

if TYPE_CHECKING:
    from skylark.sdk.blocking import Producer

logger = logging.getLogger(__name__)

#: Properties of a dead letter: why the body was not decoded, and where the message was, as topic:broker:queue:offset.
REASON, ORIGIN = "BAD_ROW_REASON", "BAD_ROW_ORIGIN"
# All properties of a message together may have 32 KiB.
MAX_REASON = 500


class DeadLetter(NamedTuple):
    """A message that cannot be decoded: the parts of it that are sent, and the reason."""

    topic: str
    brokerName: str
    queueId: int
    queueOffset: int
    msgId: str
    tags: str | None
    keys: str | None
    flag: int
    properties: Sequence[tuple[str, str]]
    body: bytes
    reason: str

    def unique_key(self) -> str:
        """The unique key, equal for each copy of the dead letter; with ``msgId`` in it, as topics may be made again."""
        origin = f"{self.topic} {self.brokerName} {self.queueId} {self.queueOffset} {self.msgId}"
        return blake2b(origin.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def message(self, topic: str) -> Message:
        """The message that is sent to ``topic``."""
        own = {name: value for name, value in self.properties if name and value and name not in RESERVED}
        own[REASON] = self.reason.replace("\n", " ")[:MAX_REASON]
        own[ORIGIN] = f"{self.topic}:{self.brokerName}:{self.queueId}:{self.queueOffset}"
        return Message(topic, self.body, tags=self.tags, keys=self.keys, properties=own, flag=self.flag)


class RouteSource(Protocol):
    """The method of a consumer that checks of topics use."""

    def topic_queues(self, topic: str) -> object: ...


def check_dead_letter_topics(options: ReadOptions, consumer: RouteSource) -> None:
    """Raise RouteNotFound unless dead letters of the topics that are named have a topic to go to."""
    if options.bad_rows != DEAD_LETTER:
        return
    for topic in sorted({options.dead_letter_topic(topic) for topic in options.topics or ("",)}):
        try:
            when_back(partial(consumer.topic_queues, topic), options.broker_wait_ms)
        except RouteNotFound as error:
            if error.is_passing:
                raise
            raise _no_topic(topic) from None


def _no_topic(topic: str) -> RouteNotFound:
    return RouteNotFound(
        topic, "badRows=deadLetter needs it: create it with mqadmin updateTopic, or name another with badRowsTopic"
    )


class DeadLetters:
    """Sends the dead letters of one task; the producer starts with the first."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._producer: Producer | None = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._count:
            logger.warning("%d messages could not be decoded and are dead letters now", self._count)

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Returns when all ``letters`` are acknowledged."""
        by_topic: dict[str, list[DeadLetter]] = {}
        for letter in letters:
            by_topic.setdefault(self._options.dead_letter_topic(letter.topic), []).append(letter)
        for topic, some in by_topic.items():
            messages = WithOwnKeys([one.message(topic) for one in some], [one.unique_key() for one in some])
            when_back(partial(self._send, topic, messages), self._options.broker_wait_ms)
            self._count += len(some)

    def _send(self, topic: str, messages: WithOwnKeys) -> None:
        self._started().send_many(topic, messages)

    def _started(self) -> "Producer":
        if self._producer is None:
            from skylark.sdk.blocking import Producer

            producer = Producer(**self._options.client, group=self._options.consumer_group, start_timeout_ms=None)
            self._producer = self._stack.enter_context(producer)
        return self._producer
