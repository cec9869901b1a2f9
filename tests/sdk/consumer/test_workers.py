"""Handlers in trio: what becomes of messages when one takes too long."""

from asyncio import CancelledError
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer import workers
from skylark.sdk.consumer.failures import Counters, Failures, HandlerErrors
from skylark.sdk.consumer.outcome import ConsumeFrom, ConsumeResult, Later
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import Ready, Takable
from skylark.sdk.consumer.retry_policy import Failure, RetryPolicy
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.window import Window
from skylark.sdk.consumer.workers import ForeignHandlers, ForeignWorkers, Job, Workers, make_workers
from tests.sdk.fakes import queue

QUEUE = queue(0)


@dataclass
class FakeMessage:
    queue_offset: int
    msg_id: str = "id"
    queue: MessageQueue = QUEUE


class FakeFailures:
    """Notes what is delivered again."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.running = 0
        # While it is not set, brokers do not answer.
        self.answers = trio.Event()
        self.answers.set()

    def readable(self, batch: Takable, start: int, end: int) -> dict[int, MessageExt]:
        return dict(enumerate(batch.messages[start:end], start))

    def what_next(self, message: MessageExt, error: BaseException | None) -> str:
        return "the message is delivered again"

    async def failed(self, batch: Takable, start: int, end: int, failure: Failure) -> None:
        self.running += 1
        await self.answers.wait()
        self.running -= 1
        self.seen.append((start, end, failure.delay_level))


class Scripted(ForeignHandlers):
    """The test is the other side: it looks at ``jobs`` and calls `end`."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.jobs: deque[Job] = deque()
        self.slow: list[Job] = []
        self.cancelled: list[Job] = []
        self.starts = 0
        self.is_stopped = False

    def _start(self) -> None:
        self.starts += 1

    def begin(self, jobs: Sequence[Job]) -> None:
        self.jobs.extend(job.part(number, number + 1) for job in jobs for number in range(len(job.calls)))

    def running(self) -> Sequence[Job]:
        return self.slow

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)

    def stop(self) -> None:
        self.is_stopped = True
        while self.jobs:
            self.give_back(self.jobs.popleft())

    def end(self, job: Job, result: object = None, error: BaseException | None = None) -> None:
        job.was_called = True
        job.result, job.error = result, error
        self.give_back(job)

    def give_back(self, job: Job) -> None:
        job.ended(job)


def settings_of(handlers: Any, **others: Any) -> PushSettings:
    defaults: dict[str, Any] = {
        "group": "g", "handler": handlers, "batch_handler": None, "batch_size": 4, "concurrency": 2, "orderly": False,
        "broadcast": False, "strategy": "averagely", "retry": RetryPolicy(), "consume_timeout_ms": 1_000.0,
        "suspend_ms": 1_000.0, "instance_name": "x", "local_offsets_dir": None, "stop_timeout_ms": 1_000.0,
    }  # fmt: skip
    fields = {name: 1 for name in PushSettings.__slots__} | {"consume_timestamp_ms": None}
    return PushSettings(**fields | {"consume_from": ConsumeFrom.LAST_OFFSET} | defaults | others)


class Bench:
    """Workers between messages that are ready and a scripted other side."""

    def __init__(self, **settings: Any) -> None:
        self.handlers = Scripted()
        self.ready = Ready()
        self.failures = FakeFailures()
        self.counters = Counters()
        self.window = Window(queue(0), 0)
        chosen = {"handler": None, "batch_handler": self.handlers} if "batch_size" in settings else {}
        self.workers = ForeignWorkers(
            settings_of(self.handlers, **chosen | settings), self.ready, cast(Failures, self.failures), self.counters,
            HandlerErrors(Problems()), self.handlers,
        )  # fmt: skip

    def put(self, count: int) -> None:
        start = self.window.next_offset
        messages = [FakeMessage(start + number) for number in range(count)]
        self.ready.put(self.window.add(cast(Any, messages), start + count, 1))


async def test_results_go_back_to_the_batch(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(3)
        bench.put(5)
        await trio.testing.wait_all_tasks_blocked()
        assert [job.calls[0].queue_offset for job in bench.handlers.jobs] == list(range(8))
        assert bench.handlers.starts == 1
        jobs = list(bench.handlers.jobs)
        bench.handlers.jobs.clear()
        for number, result in enumerate([None, ConsumeResult.SUCCESS, ConsumeResult.LATER, Later(3), "nonsense"]):
            bench.handlers.end(jobs[number], result)
        bench.handlers.end(jobs[5], error=ZeroDivisionError())
        bench.handlers.end(jobs[7])
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(bench.failures.seen) == [(0, 1, 3), (1, 2, 0), (2, 3, 0), (2, 3, 0)]
        assert bench.counters.consumed == 3 and bench.window.offset == 2
        bench.workers.stop()
        await trio.testing.wait_all_tasks_blocked()
        bench.handlers.end(jobs[6])
    assert bench.counters.consumed == 4


async def test_batches_are_cut_to_size() -> None:
    bench = Bench(batch_size=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(10)
        await trio.testing.wait_all_tasks_blocked()
        assert [[one.queue_offset for one in job.calls[0]] for job in bench.handlers.jobs] == [
            [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
        ]  # fmt: skip
        bench.workers.stop()
    assert bench.handlers.is_stopped and bench.window.offset == 0 and bench.counters.consumed == 0


async def test_no_more_cross_than_there_is_room_for() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(10_000)
        await trio.testing.wait_all_tasks_blocked()
        most = len(bench.handlers.jobs)
        assert most < 5_000
        for _ in range(most // 2):
            bench.handlers.end(bench.handlers.jobs.popleft())
        await trio.testing.wait_all_tasks_blocked()
        assert most // 2 <= len(bench.handlers.jobs) <= most
        bench.workers.stop()


async def test_as_many_messages_are_sent_back_at_once_as_handlers_run_and_the_others_leave_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "AHEAD", 8)
    bench = Bench(concurrency=2)
    bench.failures.answers = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(600)
        await trio.testing.wait_all_tasks_blocked()
        failed = len(bench.handlers.jobs)
        while bench.handlers.jobs:
            bench.handlers.end(bench.handlers.jobs.popleft(), ConsumeResult.LATER)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.failures.running == 2 and not bench.handlers.jobs
        bench.failures.answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.failures.seen) == failed and bench.handlers.jobs
        bench.workers.stop()


async def test_messages_of_other_queues_cross_after_a_queue_was_given_up() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        await trio.testing.wait_all_tasks_blocked()
        bench.ready.drop(bench.window)
        bench.window = Window(queue(1), 0)
        bench.put(2)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.handlers.jobs) == 2
        bench.workers.stop()


async def test_a_handler_that_takes_too_long_is_cancelled_once(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(2)
        await trio.testing.wait_all_tasks_blocked()
        slow, waiting = bench.handlers.jobs
        bench.handlers.slow.append(slow)
        await trio.sleep(10)
        assert bench.handlers.cancelled == [slow] and bench.failures.seen == [(0, 1, 0)]
        bench.handlers.end(slow)
        bench.handlers.end(waiting)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.counters.consumed == 1
        bench.handlers.jobs.clear()
        bench.workers.stop()


async def test_a_handler_may_end_after_its_consumer(autojump_clock: trio.testing.MockClock) -> None:
    """The consumer has given up waiting for the handler; other code may use the loop, too."""
    bench = Bench()
    with trio.move_on_after(1):
        bench.put(2)
        await bench.workers.run()
    late, later = bench.handlers.jobs
    bench.handlers.end(late, ConsumeResult.LATER)
    bench.handlers.end(later, error=ZeroDivisionError())
    await trio.testing.wait_all_tasks_blocked()
    assert bench.window.offset == 0 and not bench.failures.seen


def test_a_handler_may_end_after_the_loop() -> None:
    bench = Bench()

    async def run() -> None:
        with trio.move_on_after(1):
            bench.put(1)
            await bench.workers.run()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    bench.handlers.end(bench.handlers.jobs.popleft())
    assert bench.window.offset == 0


@given(st.integers(0, 1 << 32), st.integers(0, 30), st.integers(0, 30))
def test_every_message_is_consumed_or_failed_or_left(seed: int, first: int, second: int) -> None:
    """Whatever the other side does in whatever order, and whenever the consumer stops."""

    async def run() -> None:
        random, bench = Random(seed), Bench()
        told: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.workers.run)
            for count in (first, second):
                if count:
                    bench.put(count)
                await trio.testing.wait_all_tasks_blocked()
                jobs = list(bench.handlers.jobs)
                random.shuffle(jobs)
                for job in jobs[: random.randrange(len(jobs) + 1)]:
                    bench.handlers.jobs.remove(job)
                    outcome = random.choice([ConsumeResult.SUCCESS, ConsumeResult.LATER])
                    told[job.calls[0].queue_offset] = outcome.value
                    bench.handlers.end(job, outcome)
            bench.workers.stop()
        good = sum(outcome == "SUCCESS" for outcome in told.values())
        assert bench.counters.consumed == good and len(bench.failures.seen) == len(told) - good
        done = [offset for offset, outcome in told.items() if outcome == "SUCCESS"]
        assert bench.window.offset == next(n for n in range(first + second + 1) if n not in done)

    trio.run(run)


# --- one call, as orderly consumption makes it


async def test_one_call_returns_what_the_handler_returns_and_raises_errors_only() -> None:
    handlers = Scripted()

    async def call(expected: object) -> None:
        assert await handlers("what") == expected

    async with trio.open_nursery() as nursery:
        for result in (None, ConsumeResult.SUSPEND):
            nursery.start_soon(call, result)
            await trio.testing.wait_all_tasks_blocked()
            handlers.end(handlers.jobs.popleft(), result)
    errors = ((ZeroDivisionError(), ZeroDivisionError), (CancelledError(), RuntimeError), (SystemExit(), RuntimeError))
    for error, raised in errors:
        with pytest.RaisesGroup(raised):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, None)
                await trio.testing.wait_all_tasks_blocked()
                handlers.end(handlers.jobs.popleft(), error=error)


async def test_a_cancelled_call_is_cancelled_there(autojump_clock: trio.testing.MockClock) -> None:
    handlers = Scripted()
    with trio.move_on_after(1):
        await handlers("what")
    assert handlers.cancelled == list(handlers.jobs) and handlers.cancelled[0].is_overdue


async def test_a_call_that_was_not_made_is_an_error() -> None:
    handlers = Scripted()
    with pytest.RaisesGroup(SkylarkError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handlers, "what")
            await trio.testing.wait_all_tasks_blocked()
            handlers.stop()


def test_handlers_in_trio_have_workers_in_trio() -> None:
    parts = (Ready(), cast(Failures, FakeFailures()), Counters(), HandlerErrors(Problems()))
    assert isinstance(make_workers(settings_of(lambda _: None), *parts), Workers)
    handlers = Scripted()
    assert isinstance(make_workers(settings_of(handlers, concurrency=7), *parts), ForeignWorkers)
    assert handlers.concurrency == 7
    with pytest.raises(TypeError, match="handler must be a function"):
        ForeignHandlers.__init__(Scripted(), "x")  # type: ignore[arg-type]


async def test_a_handler_that_outlives_its_cancellation_takes_no_other_message_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A handler that waits for a thread outlives it: the next message must get a call that is not cancelled."""
    handled: list[int] = []

    async def handle(message: FakeMessage) -> None:
        await trio.lowlevel.checkpoint()
        if message.queue_offset == 0:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
        handled.append(message.queue_offset)

    ready, failures, window = Ready(), FakeFailures(), Window(queue(0), 0)
    workers = Workers(
        settings_of(handle, concurrency=1, consume_timeout_ms=1_000.0), ready, cast(Failures, failures), Counters(),
        HandlerErrors(Problems()),
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        await trio.testing.wait_all_tasks_blocked()
        messages: list[Any] = [FakeMessage(number) for number in range(3)]
        ready.put(window.add(messages, 3, 1))
        await trio.sleep(10)
        workers.stop()
    assert failures.seen == [(0, 1, 0)]
    assert handled == [0, 1, 2]


async def test_a_handler_that_does_not_end_is_logged_before_its_time_is_over(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_: MessageExt) -> None:
        await trio.sleep_forever()

    ready, window = Ready(), Window(queue(0), 0)
    settings = settings_of(never, consume_timeout_ms=900_000.0)
    working = Workers(settings, ready, cast(Failures, FakeFailures()), Counters(), HandlerErrors(Problems()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(working.run)
        ready.put(window.add(cast(Any, [FakeMessage(0), FakeMessage(1)]), 2, 1))
        await trio.sleep(448)
        assert not caplog.records
        await trio.sleep(448)
        nursery.cancel_scope.cancel()
    (line,) = caplog.messages
    assert line.startswith(
        "the handler test_a_handler_that_does_not_end_is_logged_before_its_time_is_over.<locals>.never"
    )
    assert " still works on message id of MessageQueue(" in line
    assert line.endswith(" and 1 more after 450 s; after 900 s (consume_timeout_ms) the call counts as failed")


async def test_a_handler_outside_of_trio_that_does_not_end_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(consume_timeout_ms=200_000.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(1)
        await trio.testing.wait_all_tasks_blocked()
        bench.handlers.slow = [job := bench.handlers.jobs.popleft()]
        await trio.sleep(95)
        assert not caplog.messages
        await trio.sleep(95)
        (line,) = caplog.messages
        assert "still works on message id" in line and line.endswith(
            "; after 200 s (consume_timeout_ms) the call counts as failed"
        )
        bench.handlers.slow = []
        bench.handlers.end(job)
        bench.workers.stop()


async def test_calls_that_are_slow_by_design_are_logged_rarely(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def render(_: MessageExt) -> None:
        await trio.sleep(250)

    ready, window = Ready(), Window(queue(0), 0)
    settings = settings_of(render, consume_timeout_ms=400_000.0, concurrency=1)
    working = Workers(settings, ready, cast(Failures, FakeFailures()), Counters(), HandlerErrors(Problems()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(working.run)
        ready.put(window.add(cast(Any, [FakeMessage(number) for number in range(6)]), 6, 1))
        await trio.sleep(6 * 250 - 1)
        assert len(caplog.messages) == 2, "the first, and one more 10 minutes later"
        working.stop()
