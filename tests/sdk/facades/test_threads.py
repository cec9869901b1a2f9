"""What only the blocking classes do: several threads use one producer, threads wait for results, handlers block."""

import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark import MessageExt, MessageQueue, blocking
from skylark.mqcommon.errors import BufferFull, SendFailed, SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.sdk.blocking.handlers import ThreadHandlers
from skylark.sdk.blocking.loop import ClientLoop
from skylark.sdk.consumer.outcome import ConsumeResult
from skylark.sdk.consumer.workers import Job
from skylark.sdk.runtime import SendsFailed
from tests.sdk.facades.adapter import Facades
from tests.sdk.facades.test_portals import Client
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.waiting import DEADLINE_S, until_true

THREADS = 8
EACH = 500
WAIT_S = 30
Consumers = Callable[..., Any]
Fill = Callable[..., MessageQueue]


@pytest.fixture
def api() -> Facades:
    return Facades("blocking")


def test_an_interrupt_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the thread that waits, not the loop."""
    client = Client()
    loop = ClientLoop(client.open)
    loop.open()
    real = trio.from_thread.run

    def interrupted(function: object, *args: object, trio_token: trio.lowlevel.TrioToken) -> None:
        started = threading.Event()

        async def run() -> None:
            started.set()
            await function(*args)  # type: ignore[operator]

        def in_thread() -> None:
            with pytest.raises(SkylarkError):
                real(run, trio_token=trio_token)

        threading.Thread(target=in_thread).start()
        started.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(trio.from_thread, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.call(lambda it: it.wait())
    assert client.cancelled.wait(DEADLINE_S)
    monkeypatch.undo()
    assert loop.call(lambda it: it.double(2)) == 4
    loop.close()


async def test_many_threads_send_and_each_ticket_has_its_own_result() -> None:
    def use(names: str) -> list[bytes]:
        called: Counter[int] = Counter()
        tickets: dict[int, list[blocking.Ticket]] = {}
        with blocking.Producer(names, buffer_count=700) as producer:

            def send(thread: int) -> None:
                mine = tickets[thread] = []
                for number in range(EACH):
                    message = Message("t", b"%d/%d" % (thread, number), sharding_key=f"key-{thread}")
                    while True:
                        try:
                            mine.append(
                                producer.send_nowait(message, on_delivery=lambda ticket: called.update([id(ticket)]))
                            )
                            break
                        except BufferFull as full:
                            assert "`producer.room()`" in str(full)
                            producer.room()
                    if number % 100 == 0:
                        producer.flush()

            threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            results = [ticket.result(0) for mine in tickets.values() for ticket in mine]
            assert len({(result.queue, result.queue_offset) for result in results}) == THREADS * EACH
            assert called == Counter(id(ticket) for mine in tickets.values() for ticket in mine)
            for mine in tickets.values():
                offsets = [ticket.result().queue_offset for ticket in mine]
                assert offsets == sorted(offsets), "a key keeps its order"
        return [ticket.message.body for mine in tickets.values() for ticket in mine]

    async with two_brokers() as (names, a, b):
        sent = await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == sorted(sent)


async def test_a_result_is_waited_for_as_long_as_the_caller_likes() -> None:
    def use(names: str) -> None:
        with pytest.raises(SendsFailed), blocking.Producer(names, send_timeout_ms=500) as producer:
            waiting = [producer.send_nowait(Message("t", b"x")) for _ in range(2)]
            with pytest.raises(TimeoutError, match="it goes on"):
                waiting[0].result(0.01)
            asked: list[object] = []
            told = threading.Event()

            def ask(ticket: blocking.Ticket) -> None:
                for other in (ticket, producer.send_nowait(Message("t"))):
                    try:
                        asked.append(other.result())
                    except (SendFailed, RuntimeError) as error:
                        asked.append(type(error))
                told.set()

            producer.send_nowait(Message("t"), on_delivery=ask, timeout_ms=50)
            assert told.wait(DEADLINE_S)
            assert asked == [SendFailed, RuntimeError], "the client's thread must not wait for itself"
            with pytest.raises(SendFailed):
                waiting[0].result()

    async with two_brokers() as (names, a, b):
        a.is_silent = b.is_silent = True
        await trio.to_thread.run_sync(use, names)


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "skylark-handler"]


@pytest.mark.parametrize("stuck", [False, True])
def test_handlers_may_block_side_by_side_and_their_threads_end(fill: Fill, consumer_of: Consumers, stuck: bool) -> None:
    fill(4)
    together, others, end = threading.Barrier(3), set[threading.Thread](), threading.Event()
    all_there = threading.Event()

    def handle(message: MessageExt) -> None:
        if message.body == b"0" and stuck:
            end.wait(WAIT_S)
        elif message.body != b"0":
            together.wait(WAIT_S)
            others.add(threading.current_thread())
            if len(others) == 3:
                all_there.set()

    # Whoever takes too long does not count any more.
    with consumer_of(handler=handle, concurrency=3, consume_timeout_ms=40 if stuck else 30_000)._inner:
        assert all_there.wait(WAIT_S)
        end.set()
    # A stop does not wait for the thread of a handler that takes too long.
    until_true(lambda: not handler_threads(), "the end of the handlers' threads")


def handled(handler: Callable[[int], object], sizes: list[int], concurrency: int) -> list[Job]:
    """The ended jobs of ``handler``, called with 0, 1, 2, ... in jobs of these sizes."""
    ended, all_ended, calls = list[Job](), threading.Event(), sum(sizes)

    def end(job: Job) -> None:
        ended.append(job)
        if sum(len(job.calls) for job in list(ended)) == calls:
            all_ended.set()

    handlers = ThreadHandlers(handler)
    handlers.concurrency = concurrency
    handlers._start()
    numbers = iter(range(calls))
    starts = [calls - sum(sizes[number:]) for number in range(len(sizes))]
    for start, size in zip(starts, sizes, strict=True):
        handlers.begin([Job(None, start, start + size, list(islice(numbers, size)), end, set())])
    assert all_ended.wait(WAIT_S)
    handlers.join()
    return ended


@given(st.lists(st.integers(1, 80), min_size=1, max_size=12), st.integers(1, 4), st.sets(st.integers(0, 400)))
def test_each_call_is_told_once_with_its_own_outcome(sizes: list[int], concurrency: int, wrong: set[int]) -> None:
    def handle(number: int) -> object:
        if number in wrong:
            raise ZeroDivisionError(number)
        return ConsumeResult.LATER if number % 50 == 7 else None

    jobs = handled(handle, sizes, concurrency)
    assert sorted(number for job in jobs for number in job.calls) == list(range(sum(sizes)))
    for job in jobs:
        assert job.was_called and list(job.calls) == list(range(job.start, job.end))
        if wrong & set(job.calls):
            assert str(job.error) == str(job.start) and len(job.calls) == 1
        else:
            assert job.error is None
            assert (job.result is ConsumeResult.LATER) == any(number % 50 == 7 for number in job.calls)


def test_handlers_that_begin_to_block_are_given_more_threads() -> None:
    """One thread makes all calls while they are short; these three need each other."""
    together = threading.Barrier(3)

    def handle(number: int) -> None:
        if number in (2_000, 2_001, 2_002):
            together.wait(WAIT_S)

    jobs = handled(handle, [64] * 50, 3)
    assert all(job.was_called and job.error is None for job in jobs)


def test_whatever_a_handler_raises_is_logged(
    fill: Fill, consumer_of: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fill(2)
    seen = {b"0": threading.Event(), b"1": threading.Event()}

    def handle(message: MessageExt) -> None:
        seen[message.body].set()
        raise SystemExit if message.body == b"0" else ZeroDivisionError

    with consumer_of(handler=handle)._inner:
        assert all(event.wait(WAIT_S) for event in seen.values())
    assert "ZeroDivisionError" in caplog.text and "SystemExit" in caplog.text


def test_mistakes_about_handlers_are_told(fill: Fill, consumer_of: Consumers) -> None:
    async def handle(message: MessageExt) -> None: ...

    with pytest.raises(TypeError, match=r"handlers of skylark\.blocking are plain functions"):
        blocking.PushConsumer("127.0.0.1:1", group="g", subscriptions={"t": "*"}, handler=handle)  # type: ignore[arg-type]
    fill(1)
    told: list[str] = []
    done = threading.Event()

    def close_myself(message: MessageExt) -> None:
        try:
            consumer.close()
        except RuntimeError as error:
            told.append(str(error))
        done.set()

    consumer = consumer_of(handler=close_myself)._inner
    with consumer:
        assert done.wait(WAIT_S)
    assert told == ["a handler cannot close its own consumer: let another thread do it"]


def test_what_nobody_waits_for_any_longer_is_not_called() -> None:
    called, begun, first_ends, all_ended = list[str](), threading.Event(), threading.Event(), threading.Semaphore(0)

    def handle(what: str) -> None:
        called.append(what)
        begun.set()
        first_ends.wait(WAIT_S)

    handlers = ThreadHandlers(handle)
    handlers._start()
    jobs = [Job(None, 0, 1, [what], lambda _: all_ended.release(), set()) for what in ("first", "given up", "last")]
    handlers.begin(jobs)
    assert begun.wait(WAIT_S)
    jobs[1].give_up()
    first_ends.set()
    assert all(all_ended.acquire(timeout=WAIT_S) for _ in jobs)
    handlers.join()
    assert called == ["first", "last"] and [job.was_called for job in jobs] == [True, False, True]
