"""What brokers have for a stream at this moment: topics, queues and their bounds, with some of the brokers away.

A broker that is away does not stop a stream: its queues are left out until it answers, which the log says once.
Topics, queues and brokers are looked up again from time to time, so that new ones are found.
Neighbours: reading/planning.py (bounds of a batch, where all must answer), reader.py (caller).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from spark_connector.offsets import QueueBounds
from spark_connector.options.read import ReadOptions
from spark_connector.reading.choosing import check_numbers, is_chosen, matching
from spark_connector.reading.planning import ask_all, check_masters
from spark_connector.reading.pulling import AWAY

if TYPE_CHECKING:
    from spark_connector.reading.batch_reader import Consumer, ListTopics

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The mean size of messages is that of the next ones of each queue, up to one of these limits.
SAMPLE_MESSAGES = 32
SAMPLE_BYTES = 64 * 1024
# Where no message could be looked at.
DEFAULT_BYTES = 1024.0


class StreamQueues:
    """The queues that the options choose; ``now`` is a clock in seconds."""

    def __init__(
        self, consumer: "Consumer", options: ReadOptions, list_topics: "ListTopics", now: Callable[[], float]
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._list_topics = list_topics
        self._now = now
        self._looked_s: float | None = None
        self._found: list[MessageQueue] = []
        #: Minimum offsets; asked for with each look only, since a query without a trigger asks all the time.
        self._lows: dict[MessageQueue, int] = {}
        #: What the last look did not find, with the reason.
        self._missing: dict[str, str] = {}
        #: Brokers that did not answer since then. They are asked again after the next look: each time may take seconds.
        self._silent: dict[str, str] = {}
        self._said: set[str] = set()

    @property
    def found(self) -> Sequence[MessageQueue]:
        """The queues that the last look found."""
        return self._found

    def bounds(self, *, look: bool = False) -> dict[MessageQueue, QueueBounds]:
        """The bounds of all queues whose brokers answer; ``look`` for new ones even if it is not time yet."""
        interval_s = self._options.discovery_interval_ms / 1000
        if look or self._looked_s is None or self._now() - self._looked_s >= interval_s:
            self._look()
            self._looked_s = self._now()
        here = [queue for queue in self._found if _broker(queue) not in self._silent]
        return self._answered(here, self._bounds_of)

    def confirmed(
        self, bounds: Mapping[MessageQueue, QueueBounds], read_to: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, QueueBounds]:
        """``bounds`` without those of slaves that have less than was read already; says which brokers are away."""
        short = [queue for queue, (_, high) in bounds.items() if high < read_to.get(queue, 0)]
        masters = self._answered(short, lambda queue: check_masters(self._consumer, [queue], bounds))
        gone = {_broker(queue) for queue in read_to} - {_broker(queue) for queue in self._found}
        self._say(dict.fromkeys(gone, "no NameServer lists it for the topics that are read"))
        return {queue: one for queue, one in bounds.items() if queue not in short or queue in masters}

    def _answered(self, queues: list[MessageQueue], ask: Callable[[MessageQueue], T]) -> dict[MessageQueue, T]:
        """The answers for those queues whose brokers answer."""
        answers: dict[MessageQueue, T] = {}
        for queue, answer in zip(queues, ask_all(lambda queue: _answer(ask, queue), queues), strict=True):
            if isinstance(answer, SkylarkError):
                self._silent[_broker(queue)] = str(answer)
            else:
                answers[queue] = answer
        return answers

    def mean_bytes(self, starts: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """The mean stored size of the next messages of each queue, from ``starts`` on."""
        queues = list(starts)
        sampled = dict(zip(queues, ask_all(lambda queue: self._sample(queue, starts[queue]), queues), strict=True))
        known = [size for size in sampled.values() if size]
        other = sum(known) / len(known) if known else DEFAULT_BYTES
        return {queue: size or other for queue, size in sampled.items()}

    def _look(self) -> None:
        """Find the queues. Those of a broker that is away are in no route."""
        queues: list[MessageQueue] = []
        self._missing, self._silent, self._lows = {}, {}, {}
        for topic in self._topics():
            try:
                queues += self._consumer.message_queues(topic)
            except AWAY as error:
                self._missing[f"topic {topic}"] = str(error)
        self._found = [queue for queue in queues if is_chosen(queue, self._options)]
        check_numbers(self._found, self._options)

    def _topics(self) -> Sequence[str]:
        if not self._options.topic_pattern:
            return self._options.topics
        try:
            return matching(self._options.topic_pattern, self._list_topics(self._options))
        except AWAY as error:
            self._missing["the list of topics"] = str(error)
            return list(dict.fromkeys(queue.topic for queue in self._found))

    def _bounds_of(self, queue: MessageQueue) -> QueueBounds:
        low, high = self._lows.get(queue), self._consumer.max_offset(queue)
        if low is None or high < low:
            low = self._consumer.min_offset(queue)
        self._lows[queue] = low
        return QueueBounds(low, max(low, high))

    def _sample(self, queue: MessageQueue, offset: int) -> float:
        """The mean size of the messages from ``offset`` on; 0 when there is none to look at."""
        try:
            pulled = self._consumer.pull_bytes(
                queue, offset, max_count=SAMPLE_MESSAGES, max_bytes=SAMPLE_BYTES, wait_ms=0
            )
        except AWAY:
            return 0
        return len(pulled.data) / max(pulled.next_offset - offset, 1)

    def _say(self, gone: Mapping[str, str]) -> None:
        """Log what is away, and what is back, once."""
        away = {**gone, **self._missing, **self._silent}
        for name in sorted(away.keys() - self._said):
            logger.warning("%s is away, its messages are read when it is back: %s", name, away[name])
        for name in sorted(self._said - away.keys()):
            logger.warning("%s is back", name)
        self._said = set(away)


def _answer(ask: Callable[[MessageQueue], T], queue: MessageQueue) -> T | SkylarkError:
    try:
        return ask(queue)
    except AWAY as error:
        return error


def _broker(queue: MessageQueue) -> str:
    return f"broker {queue.broker_name}"
