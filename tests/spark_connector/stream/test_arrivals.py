"""Pulls that wait at the ends of queues, against brokers that answer when the test wants it."""

import time
from collections import Counter
from threading import Event

import pytest

from skylark import Message
from skylark.mqcommon.errors import ConnectFailed
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.blocking import Producer, PullConsumer
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.testing import Cluster
from skylark.spark_connector.stream.arrivals import MOST_QUEUES, Arrivals
from tests.spark_connector.cluster import Pulled
from tests.spark_connector.query import A0, A1
from tests.support.waiting import DEADLINE_S


class Brokers:
    """Hold pulls until `answer` is set; then the queues end at ``end``, or ``error`` is raised."""

    def __init__(self) -> None:
        self.pulls: Counter[MessageQueue] = Counter()
        self.pulled = Event()
        self.answer = Event()
        self.end = 0
        self.error: Exception | None = None

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Pulled:
        self.pulls[mq] += 1
        self.pulled.set()
        assert self.answer.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return Pulled(b"", self.end, 0, self.end)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_a_message_ends_the_wait(brokers: Brokers) -> None:
    brokers.end = 8
    brokers.answer.set()
    arrivals = Arrivals(brokers)
    assert arrivals.wait({A0: 7}, DEADLINE_S)
    arrivals.close()


def test_a_real_broker_ends_the_wait() -> None:
    with Cluster() as cluster, Producer(cluster.nameserver) as producer:
        cluster.create_topic("t", queues=1)
        with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
            (queue,) = consumer.message_queues("t")
            arrivals = Arrivals(consumer)
            assert not arrivals.wait({queue: 0}, 0)
            producer.send(Message("t", b"x"))
            assert arrivals.wait({queue: 0}, DEADLINE_S)
            arrivals.close()


def test_pulls_that_are_held_outlive_the_wait(brokers: Brokers) -> None:
    brokers.end = 8
    arrivals = Arrivals(brokers)
    for _ in range(3):
        assert not arrivals.wait({A0: 7, A1: 7}, 0)
    brokers.answer.set()
    assert arrivals.wait({A0: 7, A1: 7}, DEADLINE_S)
    arrivals.close()
    assert set(brokers.pulls.values()) == {1}


def test_an_answer_without_a_message_does_not_end_the_wait(brokers: Brokers) -> None:
    """After an answer the next wait has another pull."""
    brokers.end = 7
    brokers.answer.set()
    arrivals = Arrivals(brokers)
    deadline_s = time.monotonic() + DEADLINE_S
    while brokers.pulls[A0] < 3 and time.monotonic() < deadline_s:
        assert not arrivals.wait({A0: 7}, 0.001)
    arrivals.close()
    assert brokers.pulls[A0] == 3


def test_errors_of_brokers_are_left_to_those_who_ask_and_others_are_raised(brokers: Brokers) -> None:
    brokers.error = ConnectFailed("a:1", "refused")
    brokers.answer.set()
    arrivals = Arrivals(brokers)
    deadline_s = time.monotonic() + DEADLINE_S
    while brokers.pulls[A0] < 2 and time.monotonic() < deadline_s:
        assert not arrivals.wait({A0: 7}, 0.001)
    brokers.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        while time.monotonic() < deadline_s:
            arrivals.wait({A0: 7}, 0.001)
    arrivals.close()


def test_no_pull_waits_for_too_many_queues(brokers: Brokers) -> None:
    ends = {MessageQueue("t", "a", number): 7 for number in range(MOST_QUEUES + 1)}
    arrivals = Arrivals(brokers)
    assert not arrivals.wait(ends, 0)
    assert not brokers.pulled.is_set()
    arrivals.close()
