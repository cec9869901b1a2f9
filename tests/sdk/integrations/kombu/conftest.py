"""A cluster of ours for kombu, and names that no other test has."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

from sdk.testing import Cluster, cluster_fixture

NUMBERS = itertools.count()
# A worker's loop polls twice a second where it has nothing to do; a timed message waits for the wheel's next turn.
cluster = cluster_fixture(scope="package", options={"timerPrecisionMs": 100})


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"rocketmq://{cluster.nameserver}/"


@pytest.fixture
def queue() -> str:
    return f"queue.{next(NUMBERS)}"


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with Connection(url) as made:
        yield made
