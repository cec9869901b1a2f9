"""PushConsumer in both facades: handlers run as many at once as it says, and finish before it closes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skylark import MessageExt, MessageQueue, RetryPolicy, blocking
from skylark.sdk.consumer.outcome import ConsumeResult, Later
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio

Consumers = Callable[..., Any]
Fill = Callable[..., MessageQueue]
Committed = Callable[[], int]


class Counted:
    """Bodies of messages, until the wanted number has come."""

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes] = []
        self.all = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._count = count

    def add(self, *messages: MessageExt) -> None:
        """Add the bodies of messages. May be called in any thread."""
        self.bodies += [message.body for message in messages]
        if len(self.bodies) >= self._count:
            self._loop.call_soon_threadsafe(self.all.set)


@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
@in_asyncio
async def test_all_messages_are_handled_and_committed(
    api: Facades, cluster: Cluster, topic: str, fill: Fill, consumer_of: Consumers, committed: Committed, kind: str
) -> None:
    fill(700, queues=2)
    seen, loop = Counted(700), asyncio.get_running_loop()

    async def handle(message: MessageExt) -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        seen.add(message)

    async def handle_batch(messages: list[MessageExt]) -> ConsumeResult:
        seen.add(*messages)
        return ConsumeResult.SUCCESS

    def rates() -> Any:
        """The rates of the topic, from the only member of the group."""
        with blocking.Admin(cluster.nameserver) as admin:
            (member,) = admin.consumer_connection(f"g-{topic}").connection_set
            return admin.consumer_running_info(f"g-{topic}", member.client_id).status_table[topic]

    handlers: dict[str, dict[str, Callable[..., Any]]] = {
        "async": {"handler": handle},
        "plain": {"handler": seen.add},
        "batch": {"batch_handler": handle_batch},
    }
    async with consumer_of(concurrency=4, **handlers[kind]) as consumer:
        await seen.all.wait()
        assert len([queue for queue in consumer.queues if not queue.topic.startswith("%")]) == 2
        while consumer.consumed < 700:  # noqa: ASYNC110  what is waited for happens in the client's thread
            await asyncio.sleep(0.01)
        found = await asyncio.to_thread(rates)
        assert found.consume_rt > 0 and found.pull_tps >= found.consume_ok_tps > 0
    assert sorted(seen.bodies) == sorted(b"%d" % number for number in range(700))
    assert committed() == 700


@in_asyncio
async def test_orderly_handlers_get_each_queue_in_order(
    fill: Fill, consumer_of: Consumers, committed: Committed
) -> None:
    fill(60, queues=2)
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

    async with consumer_of(handler=handle, orderly=True, suspend_ms=1):
        await seen.all.wait()
    assert queues and all(offsets == list(range(len(offsets))) for offsets in queues.values())
    assert committed() == 60


@in_asyncio
async def test_as_many_handlers_run_at_once_as_it_says(fill: Fill, consumer_of: Consumers) -> None:
    fill(20, queues=2)
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

    async with consumer_of(handler=handle, concurrency=3):
        await third.wait()
        await asyncio.sleep(0)
        go_on.set()
        await seen.all.wait()
    assert most == 3


@in_asyncio
async def test_a_close_finishes_what_runs_and_begins_nothing(
    fill: Fill, consumer_of: Consumers, committed: Committed
) -> None:
    fill(10)
    handled: list[bytes] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        begun.set()
        await go_on.wait()
        handled.append(message.body)

    async with consumer_of(handler=handle, concurrency=1):
        await begun.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    # Between the start of the stop and the moment when the handlers' side hears of it some more may have begun.
    assert handled == [b"%d" % number for number in range(len(handled))] and handled
    assert committed() == len(handled)


@in_asyncio
async def test_what_the_policy_drops_is_counted(fill: Fill, consumer_of: Consumers) -> None:
    fill(3)

    async def handle(message: MessageExt) -> None:
        if message.body != b"1":
            raise KeyError

    async with consumer_of(handler=handle, retry=RetryPolicy(drop_on=KeyError)) as consumer:
        # What is waited for happens in the client's thread.
        while (consumer.consumed, consumer.dropped) != (1, 2):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert (consumer.failed, consumer.traces_dropped) == (0, 0)


@in_asyncio
async def test_failures_are_counted_and_hurt_no_others(
    fill: Fill, topic: str, consumer_of: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fill(6)
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

    async with consumer_of(handler=handle) as consumer:
        await seen.all.wait()
    assert (consumer.group, len(set(seen.bodies))) == (f"g-{topic}", 6)
    assert caplog.text.count("the handler failed with message") == 3
    assert "ZeroDivisionError" in caplog.text and "a handler returns None, a ConsumeResult or Later" in caplog.text


@in_asyncio
async def test_a_handler_that_takes_too_long_keeps_no_others_waiting(
    fill: Fill, consumer_of: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fill(2)
    other, end = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        if message.body == b"1":
            other.set()
        else:
            await end.wait()

    async with consumer_of(handler=handle, concurrency=1, consume_timeout_ms=40) as consumer:
        await other.wait()
        assert consumer.failed
        end.set()
    assert "has worked on message" in caplog.text


@in_asyncio
async def test_a_handler_may_send_with_the_same_client(
    api: Facades, cluster: Cluster, topic: str, fill: Fill, consumer_of: Consumers
) -> None:
    from skylark import Message

    fill(3)
    answers = f"{topic}-answers"
    cluster.create_topic(answers)
    async with api.Client(cluster.nameserver) as client, api.Producer(client) as producer:
        seen = Counted(3)

        async def handle(message: MessageExt) -> None:
            await producer.send(Message(answers, message.body))

        async with (
            consumer_of(client, handler=handle),
            consumer_of(client, group=answers, subscriptions={answers: "*"}, handler=seen.add),
        ):
            await seen.all.wait()
        assert sorted(seen.bodies) == [b"0", b"1", b"2"]


def test_what_is_no_function_is_told(consumer_of: Consumers) -> None:
    with pytest.raises(TypeError, match="handler must be a function, not str 'handle'"):
        consumer_of("127.0.0.1:1", handler="handle")
