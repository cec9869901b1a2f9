"""Where clients run: in trio only, and only in the process that opened them."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

import skylark
import skylark.aio
import skylark.blocking
from skylark.mqcommon.message.message import Message
from skylark.sdk.producer.routing import Turns
from skylark.sdk.runtime import (
    FORKS,
    Home,
    check_loop,
    log_blocked_loop,
    make_client_id,
    note_blocked_loop,
    off_loop,
    survived,
)
from tests.sdk.fakes import queue
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.forks import in_child
from tests.support.waiting import DEADLINE_S


@pytest.mark.parametrize("cls", ["Producer", "PullConsumer", "Admin"])
def test_in_asyncio_they_say_what_to_use(cls: str) -> None:
    made = getattr(skylark, cls)("127.0.0.1:1")

    async def use() -> None:
        with pytest.raises(RuntimeError, match=r"this is asyncio: use the classes of skylark\.aio"):
            async with made:
                pass

    asyncio.run(use())


def test_calls_of_what_was_not_opened_say_what_to_use_in_asyncio() -> None:
    producer, consumer = skylark.Producer("127.0.0.1:1"), skylark.PullConsumer("127.0.0.1:1")

    async def use() -> None:
        for call in (
            lambda: producer.send(Message("t", b"x")),
            lambda: producer.send_many("t", [b"x"]),
            lambda: producer.send_oneway(Message("t", b"x")),
            lambda: consumer.message_queues("t"),
            lambda: consumer.max_offset(queue()),
            lambda: consumer.pull(queue(), 0),
        ):
            with pytest.raises(RuntimeError, match=r"this is asyncio: use the classes of skylark\.aio"):
                await call()

    asyncio.run(use())


def test_with_no_loop_at_all_they_say_so() -> None:
    with pytest.raises(RuntimeError, match=r"this is no running event loop: use the classes of skylark\.blocking"):
        check_loop("trio")
    trio.run(trio.lowlevel.checkpoint)


def test_what_survived_swallows_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with survived("a thing"):
        raise ZeroDivisionError
    assert "a thing failed; the client goes on" in caplog.text and "ZeroDivisionError" in caplog.text
    with pytest.raises(KeyboardInterrupt), survived("a thing"):
        raise KeyboardInterrupt


@pytest.mark.process
def test_a_child_knows_that_it_is_one() -> None:
    home, forks = Home(), FORKS.count

    def child() -> str:
        with pytest.raises(
            RuntimeError, match=rf"opened in process {home.pid} before a fork.*in process {os.getpid()}"
        ):
            home.check()
        return f"{FORKS.count - forks} {home.is_here}"

    assert in_child(child) == "1 False"
    assert home.is_here
    home.check()


def step(coroutine: Any) -> None:
    """Run until it waits, as the parent's loop does not run in the child."""
    coroutine.send(None)


@pytest.mark.process
async def test_a_producer_of_the_parent_raises_in_the_child() -> None:
    async with two_brokers() as (names, a, b), skylark.Producer(names) as producer:
        queues = await producer.queues("t")
        await producer.send(Message("t", b"parent"))
        calls: list[Callable[[], Any]] = [
            lambda: producer.send(Message("t", b"child")),
            lambda: producer.send(Message("t", b"child"), queue=queues[0]),
            lambda: producer.send(Message("t", b"child", sharding_key="k")),
            lambda: producer.send_many("t", iter([b"child"])),
            lambda: producer.send_oneway(Message("t", b"child")),
            lambda: producer.queues("t"),
            lambda: producer.queues("u"),
        ]

        def child() -> str:
            for call in calls:
                with pytest.raises(RuntimeError, match="before a fork"):
                    step(call())
            return "all raised"

        assert in_child(child) == "all raised"
        await producer.send(Message("t", b"parent"))
        assert bodies(a, b) == [b"parent"] * 2


@pytest.mark.process
async def test_a_consumer_and_an_admin_of_the_parent_raise_in_the_child() -> None:
    async with two_brokers() as (names, _a, _b), skylark.PullConsumer(names) as consumer, skylark.Admin(names) as admin:
        await consumer.message_queues("t")
        calls: list[Callable[[], Any]] = [
            lambda: consumer.message_queues("t"),
            lambda: consumer.max_offset(queue(0)),
            lambda: consumer.pull(queue(0), 0),
            lambda: consumer.stream(queue(0), 0),
            lambda: admin.topic_route("t"),
            lambda: admin.broker_config("127.0.0.1:1"),
        ]

        def child() -> str:
            for call in calls:
                with pytest.raises(RuntimeError, match="before a fork"):
                    step(call())
            return "all raised"

        assert in_child(child) == "all raised"


@pytest.mark.process
async def test_what_is_opened_after_the_fork_has_ids_and_turns_of_its_own() -> None:
    """Also when it was made before."""
    producer = skylark.Producer("127.0.0.1:1", start_timeout_ms=None)

    def child() -> str:
        async def use() -> str:
            async with producer:
                at = {"a:1": [queue(number) for number in range(100)]}
                # Each starts its round at a queue by chance: two processes agree on all of them once in 10^20.
                starts = [Turns(producer._random).next(at, bool) for _ in range(10)]
                return f"{producer._client.instance.client_id} {producer.new_keys(1)[0].hex()} {starts}"

        found: list[str] = []
        # The thread in which the parent's loop runs takes no second loop.
        thread = threading.Thread(target=lambda: found.append(trio.run(use)))
        thread.start()
        thread.join()
        return found[0]

    first, second = in_child(child), in_child(child)
    for mine, other in zip(first.split(" ", 2), second.split(" ", 2), strict=True):
        assert mine != other
    assert f"@{os.getpid()}#" in make_client_id() and f"@{os.getpid()}#" not in first


async def test_it_runs_in_a_thread_and_raises_what_the_work_raises() -> None:
    assert await off_loop(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await off_loop(lambda: 1 // 0)


async def test_threads_are_as_many_as_processors_and_count_until_they_end() -> None:
    most = os.cpu_count() or 1
    running, goes_on = threading.Semaphore(0), threading.Event()
    counted: list[int] = []

    def work() -> None:
        counted.append(len(counted))
        running.release()
        goes_on.wait(DEADLINE_S)

    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(most):
                    nursery.start_soon(off_loop, work)
                for _ in range(most):
                    await trio.to_thread.run_sync(running.acquire)
                scope.cancel()
        # The callers were cancelled, but their threads go on: another one waits.
        with trio.move_on_after(0.01) as waiting:
            await off_loop(work)
        assert waiting.cancelled_caught
        assert len(counted) == most
    finally:
        goes_on.set()
    assert await off_loop(lambda: 5) == 5


@pytest.mark.parametrize("cls", ["Client", "Producer", "PullConsumer", "Admin"])
def test_a_plain_with_of_an_async_class_says_what_to_use(cls: str) -> None:
    for module in (skylark, skylark.aio):
        made = getattr(module, cls)("127.0.0.1:1")
        with pytest.raises(TypeError, match=f"open this {cls} by 'async with'; for threads there is skylark.blocking"):
            made.__enter__()


def test_the_classes_for_asyncio_say_in_trio_what_to_use() -> None:
    async def use() -> None:
        async with skylark.aio.Producer("127.0.0.1:1"):
            pass

    with pytest.raises(
        RuntimeError, match=r"the classes of skylark\.aio need asyncio, but this is trio: use the classes"
    ):
        trio.run(use)


def test_the_classes_for_threads_log_an_event_loop_that_they_block_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        note_blocked_loop()

    async def use_in_thread() -> None:
        await asyncio.to_thread(note_blocked_loop)

    caplog.set_level(logging.INFO)
    log_blocked_loop.cache_clear()
    note_blocked_loop()
    asyncio.run(use_in_thread())
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    asyncio.run(use())
    assert caplog.messages == [], "a thread may block, and a notebook has a loop that nobody else uses"
    monkeypatch.delitem(sys.modules, "ipykernel")
    for _ in range(2):
        asyncio.run(use())
        trio.run(use)
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "use the classes of skylark.aio there, which have the same methods",
        "use the classes of skylark there, which have the same methods",
    ]
