"""Whether all queues of a topic can be read. A read is whole, or it says which brokers are missing.

Skylark's NameServers name the brokers that have queues of a topic and are away. RocketMQ's NameServers name none, so
with them the option `brokers` says which brokers must be present. A NameServer that was just restarted lacks brokers
for moments, so it is asked again before a read fails.
Neighbours: planning.py (batches, and where streams start), stream/driver.py, jobs/copy_topic.py.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Protocol

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.routes import TopicQueues, absent_text
from skylark.spark_connector.options.read import FAIL, ReadOptions
from skylark.spark_connector.reading.pulling import BrokersMissing, when_back

logger = logging.getLogger(__name__)

MAX_PAUSE_S = 10.0


class TopicDirectory(Protocol):
    """A source of the queues of topics."""

    def topic_queues(self, topic: str) -> TopicQueues: ...


def whole_queues(
    directory: TopicDirectory, options: ReadOptions, *, sleep: Callable[[float], None] = time.sleep
) -> list[MessageQueue]:
    """The queues of all topics of ``options``; waits for missing brokers as long as the options say.

    If brokers are still missing, raises BrokersMissing, or with `missingBrokers=skip` logs what is left out.
    """

    def ask() -> tuple[list[MessageQueue], str]:
        return find_queues(
            directory,
            options.topics,
            options.required,
            options.num_retries,
            options.retry_interval_ms,
            of_interest={queue.broker_name for queue in options.assigned} if options.assign else None,
            sleep=sleep,
        )

    def all_of_them() -> list[MessageQueue]:
        found, missing = ask()
        if missing:
            raise BrokersMissing(
                f'{missing}. Start the broker; or read without its messages: .option("missingBrokers", "skip"); or, if'
                " it is gone for good: mqadmin forgetBroker"
            )
        return found

    if options.missing_brokers == FAIL:
        return when_back(all_of_them, options.broker_wait_ms, sleep=sleep)
    found, missing = ask()
    if missing:
        logger.warning("missingBrokers=skip: what these brokers have is not read: %s", missing)
    return found


def find_queues(
    directory: TopicDirectory,
    topics: Sequence[str],
    required: Collection[str],
    num_retries: int,
    retry_interval_ms: float,
    *,
    of_interest: Collection[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[MessageQueue], str]:
    """The queues of ``topics``, and a text about the missing brokers; "" when none is missing.

    ``required``: brokers that must have queues of each topic. ``of_interest``: no other broker can be missing.
    """
    first_s = retry_interval_ms / 1000
    backoff = Backoff(first_s, max(first_s, MAX_PAUSE_S), Random())
    tries = 0
    while True:
        found = {topic: directory.topic_queues(topic) for topic in topics}
        missing = "; ".join(filter(None, (_missing(*one, required, of_interest) for one in found.items())))
        if not missing or tries == num_retries:
            return [queue for one in found.values() for queue in one.queues], missing
        tries += 1
        sleep(backoff.pause_s(tries))


def _missing(topic: str, found: TopicQueues, required: Collection[str], of_interest: Collection[str] | None) -> str:
    absent = [one for one in found.absent if of_interest is None or one.broker_name in of_interest]
    there = {queue.broker_name for queue in found.queues} | {one.broker_name for one in absent}
    lacking = sorted(set(required) - there)
    texts = [absent_text(absent)] if absent else []
    if lacking:
        texts.append(f"{', '.join(lacking)}, which option brokers names, is in no route of the topic")
    return f"topic {topic}: {', '.join(texts)}" if texts else ""
