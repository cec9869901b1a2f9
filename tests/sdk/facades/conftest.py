import re
from collections.abc import Callable
from typing import Any

import pytest

from skylark import MessageQueue, blocking
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.sdk.facades.adapter import Facades

cluster = cluster_fixture(scope="module")


@pytest.fixture(params=["aio", "blocking"])
def api(request: pytest.FixtureRequest) -> Facades:
    return Facades(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own: `fill` makes it."""
    return re.sub(r"\W+", "-", request.node.name)[-60:].strip("-")


@pytest.fixture
def fill(cluster: Cluster, topic: str) -> Callable[..., MessageQueue]:
    """Make the topic, with ``count`` messages, ``0``, ``1`` and so on. Returns its first queue."""

    def made(count: int = 0, queues: int = 1) -> MessageQueue:
        cluster.create_topic(topic, queues)
        with blocking.Producer(cluster.nameserver) as producer:
            if count:
                producer.send_many(topic, [b"%d" % number for number in range(count)])
            return producer.queues(topic)[0]

    return made


@pytest.fixture
def consumer_of(api: Facades, cluster: Cluster, topic: str) -> Callable[..., Any]:
    """Makes a PushConsumer of all messages of the topic."""

    def made(nameserver: Any = None, **options: Any) -> Any:
        options = {"group": f"g-{topic}", "subscriptions": {topic: "*"}, **options}
        return api.PushConsumer(nameserver or cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, **options)

    return made


@pytest.fixture
def committed(cluster: Cluster, topic: str) -> Callable[[], int]:
    """The sum of the offsets that the group of `consumer_of` has committed."""

    def found() -> int:
        with blocking.PullConsumer(cluster.nameserver, group=f"g-{topic}", heartbeat=False) as consumer:
            return sum(consumer.committed_offset(queue) or 0 for queue in consumer.message_queues(topic))

    return found
