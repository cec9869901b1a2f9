"""``for message in consumer`` in threads."""

import threading

import pytest

from mqcommon.errors import InvalidArgument
from sdk.blocking.messages import StreamMessage
from sdk.testing import Cluster, cluster_fixture
from tests.sdk.aio.test_handlers import committed, fill
from tests.sdk.blocking.test_handlers import WAIT_S, consumer_of
from tests.sdk.fakes import until
from tests.support.forks import in_child

cluster = cluster_fixture(scope="module")


def test_what_is_acknowledged_is_committed(cluster: Cluster) -> None:
    fill(cluster, "streamed", 300, queues=1)
    bodies = []
    with consumer_of(cluster.nameserver, "streamed") as consumer:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) <= 200:
                message.ack()
                assert consumer.consumed == len(bodies)
            if len(bodies) == 300:
                break
    assert bodies == [b"%d" % number for number in range(300)]
    assert committed(cluster, "streamed") == 200


def test_several_threads_share_the_messages(cluster: Cluster) -> None:
    fill(cluster, "threads", 500)
    seen: list[bytes] = []
    enough = threading.Event()

    def read() -> None:
        for message in consumer:
            # First, as the consumer ends when the last message is seen, and others must have acknowledged by then.
            message.ack()
            seen.append(message.body)
            if len(seen) == 500:
                enough.set()

    with consumer_of(cluster.nameserver, "threads") as consumer:
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        assert enough.wait(WAIT_S)
    for reader in readers:
        reader.join(WAIT_S)
        assert not reader.is_alive()
    assert sorted(seen) == sorted(b"%d" % number for number in range(500))
    assert committed(cluster, "threads") == 500


def test_a_nack_counts_as_a_failure(cluster: Cluster) -> None:
    fill(cluster, "refused", 1, queues=1)
    with consumer_of(cluster.nameserver, "refused") as consumer:
        message = next(iter(consumer))
        assert isinstance(message, StreamMessage)
        with pytest.raises(InvalidArgument, match="delay_level must be from 0 to 18"):
            message.nack(delay_level=-1)
        message.nack()
        assert consumer.failed == 1


def test_what_is_not_acknowledged_in_time_is_given_back(cluster: Cluster) -> None:
    fill(cluster, "kept", 2, queues=1)
    with consumer_of(cluster.nameserver, "kept", consume_timeout_ms=100) as consumer:
        # The second message crosses to this thread, too. Its time has not begun.
        message = next(iter(consumer))
        consumer._loop.call(lambda inner: until(lambda: inner.failed > 0))
        message.ack()
        assert consumer.failed == 1


def test_a_consumer_with_a_handler_has_no_messages_to_iterate_over(cluster: Cluster) -> None:
    fill(cluster, "handled", 1)
    with (
        consumer_of(cluster.nameserver, "handled", handler=lambda message: None) as consumer,
        pytest.raises(InvalidArgument, match="leave it out to iterate"),
    ):
        iter(consumer)


def test_a_child_of_a_fork_does_not_return_its_parents_messages(cluster: Cluster) -> None:
    fill(cluster, "forked", 2, queues=1)
    with consumer_of(cluster.nameserver, "forked") as consumer:
        message = next(consumer)

        def child() -> str:
            with pytest.raises(RuntimeError, match="before a fork"):
                message.ack()
            # Its own consumer, a new member of the group; what the parent has taken stays with the parent.
            assert consumer.cached == 0
            return "apart"

        assert in_child(child) == "apart"
        assert next(consumer).body == b"1"
