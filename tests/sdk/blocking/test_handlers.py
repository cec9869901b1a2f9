"""PushConsumer in threads: handlers may block, run as many at once as it says, and finish before it closes."""

import threading
from typing import Any

import pytest

from sdk import MessageExt, blocking
from sdk.blocking import PushConsumer
from sdk.consumer.outcome import ConsumeFrom, ConsumeResult
from sdk.testing import Cluster, cluster_fixture
from tests.sdk.aio.test_handlers import committed, fill, rates_of
from tests.sdk.fakes import until
from tests.support.forks import in_child

cluster = cluster_fixture(scope="module")
WAIT_S = 30


def consumer_of(nameserver: str | blocking.Client, topic: str, **options: Any) -> PushConsumer:
    """A consumer of all messages of the topic."""
    return PushConsumer(
        nameserver, group=f"g-{topic}", subscriptions={topic: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET, **options
    )


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "skylark-handler"]


class Counted:
    """Bodies of messages, until there are so many."""

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes] = []
        self.threads: set[threading.Thread] = set()
        self.all = threading.Event()
        self._count = count

    def add(self, *messages: MessageExt) -> None:
        self.bodies += [message.body for message in messages]
        self.threads.add(threading.current_thread())
        if len(self.bodies) >= self._count:
            self.all.set()


def test_all_messages_are_handled_and_committed(cluster: Cluster) -> None:
    fill(cluster, "all", 700)
    one, batches = Counted(700), Counted(700)
    with consumer_of(cluster.nameserver, "all", handler=one.add, concurrency=4) as consumer:
        assert one.all.wait(WAIT_S)
        assert (
            len([queue for queue in consumer.queues if not queue.topic.startswith("%")]) == 2 and len(one.threads) <= 4
        )
        consumer._loop.call(lambda inner: until(lambda: inner.consumed == 700))
        rates = rates_of(cluster, "all")
        assert rates.consume_rt > 0 and rates.pull_tps >= rates.consume_ok_tps > 0
    assert not handler_threads() and committed(cluster, "all") == 700

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        batches.add(*messages)
        return ConsumeResult.SUCCESS

    options = {"group": "other", "subscriptions": {"all": "*"}, "consume_from": ConsumeFrom.FIRST_OFFSET}
    with PushConsumer(cluster.nameserver, batch_handler=handle, **options):  # type: ignore[arg-type]
        assert batches.all.wait(WAIT_S)
    assert sorted(one.bodies) == sorted(batches.bodies) == sorted(b"%d" % number for number in range(700))


def test_orderly_handlers_get_each_queue_in_order(cluster: Cluster) -> None:
    fill(cluster, "orderly", 60, queues=1)
    seen = Counted(60)
    with consumer_of(cluster.nameserver, "orderly", handler=seen.add, orderly=True):
        assert seen.all.wait(WAIT_S)
    assert seen.bodies == [b"%d" % number for number in range(60)]
    assert committed(cluster, "orderly") == 60 and not handler_threads()


def test_handlers_run_side_by_side(cluster: Cluster) -> None:
    fill(cluster, "side", 3)
    together, seen = threading.Barrier(3), Counted(3)

    def handle(message: MessageExt) -> None:
        together.wait(WAIT_S)
        seen.add(message)

    with consumer_of(cluster.nameserver, "side", handler=handle, concurrency=3):
        assert seen.all.wait(WAIT_S)
    assert len(seen.threads) == 3


def test_a_close_waits_for_handlers_that_run_and_begins_no_others(cluster: Cluster) -> None:
    fill(cluster, "closing", 10, queues=1)
    begun, go_on, handled = threading.Event(), threading.Event(), Counted(99)

    def handle(message: MessageExt) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        handled.add(message)

    consumer = consumer_of(cluster.nameserver, "closing", handler=handle, concurrency=1).open()
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    go_on.set()
    closing.join()
    assert handled.bodies == [b"%d" % number for number in range(len(handled.bodies))] and handled.bodies
    assert committed(cluster, "closing") == len(handled.bodies) and not handler_threads()


def test_a_handler_that_hangs_does_not_keep_others_waiting(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, "hanging", 2, queues=1)
    other, end = threading.Event(), threading.Event()

    def handle(message: MessageExt) -> None:
        if message.body == b"1":
            other.set()
        else:
            end.wait(WAIT_S)

    with consumer_of(cluster.nameserver, "hanging", handler=handle, concurrency=1, consume_timeout_ms=40) as consumer:
        assert other.wait(WAIT_S)
        assert consumer.failed
        end.set()
    assert "has worked on message" in caplog.text


def test_a_handler_that_raises_is_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, "raising", 2, queues=1)
    seen = Counted(2)

    def handle(message: MessageExt) -> None:
        seen.add(message)
        raise SystemExit if message.body == b"0" else ZeroDivisionError

    with consumer_of(cluster.nameserver, "raising", handler=handle):
        assert seen.all.wait(WAIT_S)
    assert caplog.text.count("the handler failed with message") >= 2
    assert "ZeroDivisionError" in caplog.text and "SystemExit" in caplog.text


def test_mistakes_are_told(cluster: Cluster) -> None:
    async def handle(message: MessageExt) -> None: ...

    with pytest.raises(TypeError, match=r"handlers of sdk\.blocking are plain functions"):
        consumer_of("127.0.0.1:1", "t", handler=handle)
    fill(cluster, "mistaken", 1)
    told: list[str] = []
    done = threading.Event()

    def close_myself(message: MessageExt) -> None:
        try:
            consumer.close()
        except RuntimeError as error:
            told.append(str(error))
        done.set()

    consumer = consumer_of(cluster.nameserver, "mistaken", handler=close_myself)
    with consumer:
        assert done.wait(WAIT_S)
    assert told == ["a handler cannot close its own consumer: let another thread do it"]


def test_a_child_of_a_fork_starts_with_no_threads(cluster: Cluster) -> None:
    fill(cluster, "forked", 5)
    seen = Counted(5)
    with consumer_of(cluster.nameserver, "forked", handler=seen.add) as consumer:
        assert seen.all.wait(WAIT_S)

        def child() -> str:
            # The first call opens a consumer of its own, as for all blocking classes.
            return f"{consumer.consumed} {len(handler_threads())}"

        assert in_child(child) == "0 0"
