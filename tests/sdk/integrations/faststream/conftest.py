"""A cluster for all tests of this folder, topics of it, and the two places where a service may run."""

from collections.abc import Iterator
from itertools import count

import pytest

from skylark import TopicConfig
from skylark.sdk.blocking import Admin
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.sdk.integrations.faststream.services import INNER, OUTER, Memory, Place

cluster = cluster_fixture(options={"enablePropertyFilter": True}, scope="package")

# A broker pauses after each registration with its NameServer, so topics are made many at a time.
MADE_AT_ONCE = 150


@pytest.fixture(scope="package")
def topics(cluster: Cluster) -> Iterator[str]:
    """Names of new topics with one queue each."""

    def made() -> Iterator[str]:
        for first in count(0, MADE_AT_ONCE):
            names = [f"{OUTER}{INNER}{number}" for number in range(first, first + MADE_AT_ONCE)]
            with Admin(cluster.nameserver) as admin:
                admin.create_topics(cluster.brokers[0].address, [TopicConfig(name, 1, 1) for name in names])
            cluster.create_topic(names[-1], 1)  # returns when the NameServer knows it, and with it the others
            yield from names

    return made()


@pytest.fixture
def in_memory() -> Place:
    return Memory()


@pytest.fixture
def in_cluster(cluster: Cluster, topics: Iterator[str]) -> Place:
    return Place(cluster.nameserver, topics)


@pytest.fixture(params=["memory", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where the test runs: a behaviour is the same in memory and against a cluster."""
    found: Place = request.getfixturevalue(f"in_{request.param}")
    return found
