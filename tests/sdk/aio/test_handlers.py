"""PushConsumer in asyncio: handlers run in the application's loop, as many at once as it says, and are cancelled."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from remoting.protocol.requests.clients import ConsumeStatus
from sdk import Message, MessageExt, MessageQueue, blocking
from sdk.aio import Client, PushConsumer
from sdk.consumer.outcome import ConsumeFrom, ConsumeResult, Later
from sdk.testing import Cluster, cluster_fixture
from tests.sdk.fakes import until

cluster = cluster_fixture(scope="module")


def fill(cluster: Cluster, topic: str, count: int, queues: int = 2) -> None:
    cluster.create_topic(topic, queues)
    with blocking.Producer(cluster.nameserver) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)])


def consumer_of(nameserver: str | Client, topic: str, **options: Any) -> PushConsumer:
    """A consumer of all messages of the topic."""
    return PushConsumer(
        nameserver, group=f"g-{topic}", subscriptions={topic: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET, **options
    )


def committed(cluster: Cluster, topic: str) -> int:
    """The sum of the offsets that the group of `consumer_of` has committed."""
    with blocking.PullConsumer(cluster.nameserver, group=f"g-{topic}", heartbeat=False) as consumer:
        return sum(consumer.committed_offset(queue) or 0 for queue in consumer.message_queues(topic))


def rates_of(cluster: Cluster, topic: str) -> ConsumeStatus:
    """What the one member of the group of `consumer_of` says about the topic."""
    with blocking.Admin(cluster.nameserver) as admin:
        (member,) = admin.consumer_connection(f"g-{topic}").connection_set
        return admin.consumer_running_info(f"g-{topic}", member.client_id).status_table[topic]


class Counted:
    """Bodies of messages, until there are so many."""

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes] = []
        self.all = asyncio.Event()
        self._count = count

    def add(self, *messages: MessageExt) -> None:
        self.bodies += [message.body for message in messages]
        if len(self.bodies) >= self._count:
            self.all.set()


@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
def test_all_messages_are_handled_and_committed(cluster: Cluster, kind: str) -> None:
    topic = f"all-{kind}"
    fill(cluster, topic, 700)

    async def use() -> None:
        seen, loop = Counted(700), asyncio.get_running_loop()

        async def handle(message: MessageExt) -> None:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            seen.add(message)

        async def handle_batch(messages: list[MessageExt]) -> ConsumeResult:
            seen.add(*messages)
            return ConsumeResult.SUCCESS

        handlers: dict[str, dict[str, Callable[..., Any]]] = {
            "async": {"handler": handle},
            "plain": {"handler": seen.add},
            "batch": {"batch_handler": handle_batch},
        }
        async with consumer_of(cluster.nameserver, topic, **handlers[kind]) as consumer:
            await seen.all.wait()
            assert len([queue for queue in consumer.queues if not queue.topic.startswith("%")]) == 2
            await consumer._loop.call(lambda inner: until(lambda: inner.consumed == 700))
            rates = await asyncio.to_thread(rates_of, cluster, topic)
            assert rates.consume_rt > 0 and rates.pull_tps >= rates.consume_ok_tps > 0
        assert sorted(seen.bodies) == sorted(b"%d" % number for number in range(700))

    asyncio.run(use())
    assert committed(cluster, topic) == 700


def test_orderly_handlers_get_each_queue_in_order(cluster: Cluster) -> None:
    fill(cluster, "orderly", 60)

    async def use() -> None:
        seen, queues = Counted(62), dict[MessageQueue, list[int]]()
        suspended = {b"7": 2}

        async def handle(message: MessageExt) -> ConsumeResult | None:
            await asyncio.sleep(0)
            seen.add(message)
            if suspended.get(message.body):
                suspended[message.body] -= 1
                return ConsumeResult.SUSPEND
            queues.setdefault(message.queue, []).append(message.queue_offset)
            return None

        async with consumer_of(cluster.nameserver, "orderly", handler=handle, orderly=True, suspend_ms=1):
            await seen.all.wait()
        assert queues and all(offsets == list(range(len(offsets))) for offsets in queues.values())

    asyncio.run(use())
    assert committed(cluster, "orderly") == 60


def test_as_many_handlers_run_at_once_as_it_says(cluster: Cluster) -> None:
    fill(cluster, "at-once", 20)

    async def use() -> None:
        running, most, seen = 0, 0, Counted(20)
        third, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: MessageExt) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                third.set()
            await go_on.wait()
            running -= 1
            seen.add(message)

        async with consumer_of(cluster.nameserver, "at-once", handler=handle, concurrency=3):
            await third.wait()
            await asyncio.sleep(0)
            go_on.set()
            await seen.all.wait()
        assert most == 3

    asyncio.run(use())


def test_a_stop_finishes_what_runs_and_begins_nothing(cluster: Cluster) -> None:
    fill(cluster, "stopped", 10, queues=1)

    async def use() -> list[bytes]:
        handled: list[bytes] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: MessageExt) -> None:
            begun.set()
            await go_on.wait()
            handled.append(message.body)

        async with consumer_of(cluster.nameserver, "stopped", handler=handle, concurrency=1):
            await begun.wait()
            asyncio.get_running_loop().call_soon(go_on.set)
        return handled

    handled = asyncio.run(use())
    # Between the start of the stop and the moment when the handlers' side hears of it some more may have begun.
    assert handled == [b"%d" % number for number in range(len(handled))] and handled
    assert committed(cluster, "stopped") == len(handled)


def test_failures_are_counted_and_hurt_no_others(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, "failing", 6, queues=1)

    async def use() -> None:
        seen = Counted(6)

        async def handle(message: MessageExt) -> Any:
            seen.add(message)
            match message.body:
                case b"0":
                    raise ZeroDivisionError
                case b"1":
                    return ConsumeResult.LATER
                case b"2":
                    return Later(delay_level=18)
                case b"3":
                    return "nonsense"
                case b"4":
                    raise asyncio.CancelledError
            return None

        async with consumer_of(cluster.nameserver, "failing", handler=handle) as consumer:
            await seen.all.wait()
        assert (consumer.group, len(set(seen.bodies))) == ("g-failing", 6)

    asyncio.run(use())
    assert caplog.text.count("the handler failed with message") == 3
    assert "ZeroDivisionError" in caplog.text and "a handler returns None, a ConsumeResult or Later" in caplog.text


def test_a_handler_that_takes_too_long_is_cancelled(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, "too-long", 2, queues=1)

    async def use() -> None:
        cancelled, other = asyncio.Event(), asyncio.Event()

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                other.set()
                return
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with consumer_of(
            cluster.nameserver, "too-long", handler=handle, concurrency=1, consume_timeout_ms=40
        ) as consumer:
            await cancelled.wait()
            await other.wait()
            assert consumer.failed == 1

    asyncio.run(use())
    assert "has worked on message" in caplog.text


@pytest.mark.parametrize("tasks", [False, True])
def test_handlers_may_use_timeouts_groups_and_futures(cluster: Cluster, tasks: bool) -> None:
    topic = f"rich-{tasks}"
    fill(cluster, topic, 5, queues=1)

    async def use() -> None:
        loop, seen, raised = asyncio.get_running_loop(), Counted(5), []

        def plain(message: MessageExt) -> "asyncio.Future[None]":
            return loop.create_task(handle(message))

        async def handle(message: MessageExt) -> None:
            try:
                async with asyncio.timeout(0.001):
                    await loop.create_future()
            except TimeoutError:
                raised.append(message.body)
            async with asyncio.TaskGroup() as group:
                done = group.create_task(asyncio.sleep(0, message))
            await asyncio.sleep(0)
            seen.add(await done)

        async with consumer_of(cluster.nameserver, topic, handler=plain if tasks else handle):
            await seen.all.wait()
        assert sorted(raised) == sorted(seen.bodies) == [b"%d" % number for number in range(5)]

    asyncio.run(use())


def test_handlers_have_the_context_of_the_program(cluster: Cluster) -> None:
    fill(cluster, "context", 1)
    tenant = contextvars.ContextVar("tenant", default="nobody")

    async def use() -> None:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tenant.set("acme")

        async def handle(message: MessageExt) -> None:
            seen.set_result(tenant.get())

        async with Client(cluster.nameserver) as client, consumer_of(client, "context", handler=handle):
            assert await seen == "acme"

    asyncio.run(use())


def test_a_handler_may_send_with_the_same_client(cluster: Cluster) -> None:
    from sdk.aio import Producer

    fill(cluster, "requests", 3)
    cluster.create_topic("answers")

    async def use() -> None:
        async with Client(cluster.nameserver) as client, Producer(client) as producer:
            seen = Counted(3)

            async def handle(message: MessageExt) -> None:
                await producer.send(Message("answers", message.body))

            async with (
                consumer_of(client, "requests", handler=handle),
                consumer_of(client, "answers", handler=seen.add),
            ):
                await seen.all.wait()
            assert sorted(seen.bodies) == [b"0", b"1", b"2"]

    asyncio.run(use())


def test_a_cancelled_opening_leaves_no_task(cluster: Cluster) -> None:
    async def use() -> None:
        consumer = consumer_of(cluster.nameserver, "unopened", handler=lambda message: None)
        before = asyncio.all_tasks()
        opening = asyncio.create_task(consumer.__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert asyncio.all_tasks() == before

    asyncio.run(use())


def test_what_is_no_function_is_told() -> None:
    with pytest.raises(TypeError, match="handler must be a function, not str 'handle'"):
        consumer_of("127.0.0.1:1", "t", handler="handle")
