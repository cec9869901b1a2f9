"""A cluster of ours for kombu, and names that no other test has."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from celery.signals import setup_logging
from kombu import Connection, pools

from skylark.sdk.testing import Cluster, cluster_fixture

NUMBERS = itertools.count()
# A worker's loop polls twice a second where it has nothing to do; a timed message waits for the wheel's next turn.
cluster = cluster_fixture(scope="package", options={"timerPrecisionMs": 100})


@setup_logging.connect
def leave_logging_alone(**_: object) -> None:
    """A worker in the process of a test would set the level of the root logger, for all tests that follow."""


@pytest.fixture(scope="package", autouse=True)
def pools_are_closed(cluster: Cluster) -> Iterator[None]:
    """An app that is closed leaves its connections to kombu's pools, which keep them for the next app."""
    yield
    pools.reset()


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
