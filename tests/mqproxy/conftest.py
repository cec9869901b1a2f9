import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from skylark import blocking
from skylark.remoting.protocol.requests.groups import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.conftest import CLIENTS_GOT
from tests.support.proxies import NODE, PYTHON, Proxy, official, proxy

EVERY_SECOND = GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1_000]))
# For tests in which both official clients make the same requests: the Node client makes them in nightly runs only.
NODE_AT_NIGHT = pytest.mark.parametrize(
    "language",
    [PYTHON, pytest.param(NODE, marks=[pytest.mark.needs("Node"), pytest.mark.nightly])],
    indirect=True,
)

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


@pytest.fixture
def make_group(cluster: Cluster, topic: str) -> Callable[..., str]:
    """Make a group that has read the topic from its beginning on; returns its name."""

    def made(
        *,
        most_retries: int = 16,
        is_ordered: bool = False,
        policy: GroupRetryPolicy = EVERY_SECOND,
    ) -> str:
        config = SubscriptionGroupConfig(
            f"group-{topic}"[-60:],
            consume_message_orderly=is_ordered,
            retry_max_times=most_retries,
            group_retry_policy=policy,
        )
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_group(cluster.brokers[0].address, config)
        # A group that begins to pop begins at the end of the topic.
        with blocking.SimpleConsumer(
            cluster.nameserver, group=config.group_name, subscriptions={topic: "*"}
        ) as consumer:
            consumer.receive(wait_ms=0)
        return config.group_name

    return made


@pytest.fixture(params=[PYTHON, pytest.param(NODE, marks=pytest.mark.needs("Node"))])
def language(request: pytest.FixtureRequest) -> str:
    """The language of the official client that a test runs with."""
    return str(request.param)


@pytest.fixture
def client(language: str) -> Callable[..., Any]:
    """Run a scenario with the official client: `official` for its language."""
    return partial(official, language=language)


@pytest.fixture
def got(record_property: Callable[[str, object], None], language: str) -> Callable[[str, str], None]:
    """Note what the client got; all that is noted is a table at the end of the run."""

    def noted(what: str, result: str) -> None:
        record_property(CLIENTS_GOT, (what, language, result))

    return noted
