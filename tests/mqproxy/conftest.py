import re
from collections.abc import Callable, Iterator

import pytest

from remoting.protocol.requests.topics import TopicConfig
from sdk import blocking
from sdk.testing import Cluster, cluster_fixture
from tests.support.proxies import Proxy, proxy

cluster = cluster_fixture(scope="module", options={"enablePropertyFilter": True})


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy for the cluster, which this module's tests share."""
    with proxy(cluster.nameserver) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic of this test's own; `make_topic` makes it."""
    return re.sub(r"\W+", "-", request.node.name)[-60:].strip("-")


@pytest.fixture
def make_topic(cluster: Cluster, topic: str) -> Callable[..., str]:
    """Make the topic, for messages of one type; returns its name."""

    def made(message_type: str = "NORMAL", queues: int = 2) -> str:
        cluster.create_topic(topic, queues)
        with blocking.Admin(cluster.nameserver) as admin:
            attributes = {"+message.type": message_type}
            admin.create_topic(cluster.brokers[0].address, TopicConfig(topic, queues, queues, attributes=attributes))
        return topic

    return made
