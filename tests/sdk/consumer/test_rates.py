"""What a consumer tells about each topic in its answer to request 307."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark.remoting.protocol.requests.clients import ConsumeStatus
from skylark.sdk.consumer.failures import Counters, Failures, HandlerErrors
from skylark.sdk.consumer.outcome import ConsumeResult
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import FlowControl, Ready
from skylark.sdk.consumer.rates import SAMPLE_S, Rates
from skylark.sdk.consumer.window import Window
from skylark.sdk.consumer.workers import Workers
from skylark.sdk.position import Position
from tests.sdk.consumer.test_workers import Bench, FakeFailures, FakeMessage, settings_of
from tests.sdk.fakes import queue
from tests.support.clock import ManualClock


def test_rates_are_those_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    rates = Rates()
    totals = rates.of("t", 0.0)
    assert rates.of("t", 5.0) is totals and rates.status("t", 0.0) == rates.status("other", 9.0) == ConsumeStatus()
    totals.pulls, totals.pull_s, totals.pulled = 2, 0.5, 60
    totals.add_calls(40, 30, 1.0, 3.0)
    totals.failed = 10
    status = ConsumeStatus(250.0, 6.0, 50.0, 3.0, 1.0, 10)
    assert rates.status("t", 10.0) == status
    now = 0.0
    for _ in range(7):
        now += SAMPLE_S
        rates.sample(now)
    # What was in the first ten seconds is past, but there were no other calls.
    assert rates.status("t", now) == ConsumeStatus(0.0, 0.0, 50.0, 0.0, 0.0, 10)
    totals.failed += 1
    for _ in range(60 * 7):
        now += SAMPLE_S
        rates.sample(now)
    assert rates.status("t", now) == ConsumeStatus()


async def test_workers_count_by_topic(autojump_clock: trio.testing.MockClock) -> None:
    """The handler of ``slow`` waits; the handler of ``fast`` does not, and its calls are recorded many at a time."""

    async def wait() -> None:
        await trio.sleep(2)

    def handle(message: Any) -> Any:
        if message.queue.topic == "slow":
            return wait()
        # Calls without a wait take no time of this clock.
        return ConsumeResult.LATER if message.queue_offset == 3 else None

    rates, ready, failures, counters = Rates(), Ready(), FakeFailures(), Counters()
    workers = Workers(
        settings_of(handle, consume_timeout_ms=60_000.0),
        ready,
        cast(Failures, failures),
        counters,
        HandlerErrors(Problems()),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        for topic, count in (("fast", 40), ("slow", 3), ("fast", 2)):
            mq = queue(0, topic)
            window = Window(mq, 0, totals=rates.of(topic, trio.current_time()))
            ready.put(window.add(cast(Any, [FakeMessage(n, queue=mq) for n in range(count)]), count, 1))
        await trio.sleep(20)
        workers.stop()
    fast, slow = rates.status("fast", trio.current_time()), rates.status("slow", trio.current_time())
    assert (slow.consume_rt, slow.consume_ok_tps) == (2_000.0, 3 / 20)
    assert (fast.consume_rt, fast.consume_ok_tps) == (0.0, 41 / 20)
    assert rates.of("fast", 0).calls == 42 and counters.consumed == 44


async def test_calls_elsewhere_are_counted_with_their_time(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        bench.put(3)
        await trio.testing.wait_all_tasks_blocked()
        for job in list(bench.handlers.jobs):
            job.took_s = 0.5
            bench.handlers.end(job)
        bench.handlers.jobs.clear()
        await trio.testing.wait_all_tasks_blocked()
        totals = bench.window.totals
        assert (totals.calls, totals.call_s, totals.consumed) == (3, pytest.approx(1.5), 3)
        bench.workers.stop()


async def test_a_queue_goes_on_when_a_part_of_its_batch_is_consumed() -> None:
    """Tools take a queue for stuck by that time, and the last message of a large batch may take long."""
    clock = ManualClock()
    flow = FlowControl(settings_of(None), clock, Rates())
    owned = flow.own(queue(0), "*", Position(0))
    batch = owned.window.add(cast(Any, [FakeMessage(number) for number in range(5)]), 5, 1)
    flow.added(batch)
    seen = []
    for finished in (0, 2, 2, 3):
        clock.advance(10_000)
        batch.finish(0, finished)
        flow.sample_progress()
        seen.append(clock.now_ms() - owned.consumed_ms)
    assert seen == [10_000, 0, 10_000, 0]
