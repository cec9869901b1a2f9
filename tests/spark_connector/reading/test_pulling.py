import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import BrokerError, ConnectFailed, RequestTimeout, RouteNotFound, SkylarkError
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import LostRange, OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.pulling import (
    MAX_PAUSE_S,
    MOST_AT_ONCE,
    Buffer,
    FirstAnswers,
    ReadFailed,
    ahead,
    at_once,
    joined,
    pulls,
    when_back,
)
from tests.spark_connector.cluster import MemoryCluster, Pulled
from tests.support.waiting import DEADLINE_S

QUEUE = MessageQueue("t", "broker-a", 0)
OPTIONS = ReadOptions.parse({"topic": "t", "numRetries": "2", "retryIntervalMs": "100"})


def refuse(lost: LostRange) -> None:
    raise AssertionError(f"nothing should be lost: {lost}")


def offsets(buffers: Iterator[Buffer]) -> list[int]:
    return [message.queue_offset for buffer in buffers for message in decode_messages(buffer.data)]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), st.integers(1, 1000))
def test_pulls_bring_all_of_a_range(limit: int, start: int, size: int, min_bytes: int) -> None:
    cluster = MemoryCluster(limit)
    cluster.add(QUEUE, 80)
    wanted = OffsetRange(QUEUE, start, start + size)
    buffers = list(joined(pulls(cluster, wanted, OPTIONS, refuse), min_bytes))
    assert offsets(iter(buffers)) == list(range(start, start + size))
    assert all(decode_messages(buffer.data)[0].queue_offset == buffer.offset for buffer in buffers)
    assert all(len(buffer.data) >= min_bytes for buffer in buffers[:-1])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(1, 30)), max_size=80), st.integers(1, 90))
def test_ranges_that_are_asked_for_at_once_are_of_different_queues(
    wanted: list[tuple[int, int, int]], max_rows: int
) -> None:
    ranges = [OffsetRange(QUEUE._replace(queue_id=queue_id), start, start + rows) for queue_id, start, rows in wanted]
    found = list(at_once(ranges, max_rows))
    assert [one for some in found for one in some] == ranges
    for some in found:
        assert 0 < len({one.queue for one in some}) == len(some) <= MOST_AT_ONCE
        assert len(some) == 1 or sum(one.end - one.start for one in some) <= max_rows


def test_a_first_answer_that_failed_or_has_not_all_is_asked_for_again() -> None:
    cluster = MemoryCluster(limit=4)
    ranges = [OffsetRange(QUEUE._replace(queue_id=queue_id), 1, 7) for queue_id in range(3)]
    for wanted in ranges:
        cluster.add(wanted.queue, 10)
    cluster.failures = [ConnectFailed("a:1", "refused")]
    reader = FirstAnswers(cluster, ranges, OPTIONS)
    slept: list[float] = []
    for wanted in ranges:
        assert offsets(pulls(reader, wanted, OPTIONS, refuse, sleep=slept.append)) == [1, 2, 3, 4, 5, 6]
    assert len(slept) == 1
    asked = [(mq.queue_id, offset) for mq, offset in cluster.pulls]
    assert asked == [(0, 1), (1, 1), (2, 1), (0, 1), (0, 5), (1, 5), (2, 5)]


def test_a_failing_broker_is_asked_again_with_growing_delays() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 3)
    cluster.failures = [ConnectFailed("a:1", "refused"), RequestTimeout("a:1", 11, 3000)]
    slept: list[float] = []
    buffers = pulls(cluster, OffsetRange(QUEUE, 0, 3), OPTIONS, refuse, sleep=slept.append)
    assert offsets(buffers) == [0, 1, 2]
    assert len(slept) == 2
    assert 0.05 <= slept[0] <= 0.15
    assert 0.1 <= slept[1] <= 0.3


def test_retries_start_anew_after_a_pull_that_worked() -> None:
    cluster = MemoryCluster(limit=1)
    cluster.add(QUEUE, 2)
    found: list[int] = []
    cluster.failures = [ConnectFailed("a:1", "refused")] * 2
    for buffer in pulls(cluster, OffsetRange(QUEUE, 0, 2), OPTIONS, refuse, sleep=lambda _: None):
        found += offsets(iter([buffer]))
        cluster.failures = [ConnectFailed("a:1", "refused")] * 2
    assert found == [0, 1]


def test_a_broker_that_stays_away_is_named_with_the_place() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 3)
    cluster.failures = [ConnectFailed("10.0.0.1:10911", "refused")] * 3
    with pytest.raises(ReadFailed) as caught:
        list(pulls(cluster, OffsetRange(QUEUE, 1, 3), OPTIONS, refuse, sleep=lambda _: None))
    assert str(caught.value) == (
        "topic t, broker broker-a, queue 0 cannot be read at offset 1 (after 3 tries):"
        " cannot connect to 10.0.0.1:10911: refused"
    )


def test_a_stream_waits_for_a_broker_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 3)
    cluster.failures = [ConnectFailed("a:1", "refused")] * 8
    now_s = 0.0

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    options = replace(OPTIONS, broker_wait_ms=60_000)
    buffers = pulls(cluster, OffsetRange(QUEUE, 0, 3), options, refuse, sleep=sleep, now=lambda: now_s)
    assert offsets(buffers) == [0, 1, 2]
    assert caplog.messages == [
        "topic t, broker broker-a, queue 0 cannot be read at offset 0 (after 3 tries): cannot connect to a:1: refused;"
        " waits up to 60 s for it",
        "topic t, broker broker-a, queue 0 goes on at offset 0",
    ]


def test_and_gives_up_in_the_end() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 3)
    cluster.failures = [ConnectFailed("a:1", "refused")] * 100
    slept: list[float] = []
    options = replace(OPTIONS, broker_wait_ms=60_000)
    with pytest.raises(ReadFailed):
        list(pulls(cluster, OffsetRange(QUEUE, 0, 3), options, refuse, sleep=slept.append, now=lambda: sum(slept)))
    assert 60 <= sum(slept) < 70
    assert max(slept) <= MAX_PAUSE_S


def test_messages_deleted_since_the_plan_are_told() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 10)
    cluster.delete_before(QUEUE, 4)
    lost: list[LostRange] = []
    assert offsets(pulls(cluster, OffsetRange(QUEUE, 1, 8), OPTIONS, lost.append))[:4] == [4, 5, 6, 7]
    assert lost == [LostRange(QUEUE, 1, 4, "deleted: the queue goes on at 4")]


def test_a_range_deleted_as_a_whole_is_told_up_to_its_end() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 10)
    cluster.delete_before(QUEUE, 9)
    lost: list[LostRange] = []
    assert offsets(pulls(cluster, OffsetRange(QUEUE, 1, 5), OPTIONS, lost.append)) == []
    assert [(one.start, one.end) for one in lost] == [(1, 5)]


def test_messages_that_a_broker_lost_at_its_end_are_told() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 3)
    lost: list[LostRange] = []
    assert offsets(pulls(cluster, OffsetRange(QUEUE, 0, 9), OPTIONS, lost.append)) == [0, 1, 2]
    assert lost == [LostRange(QUEUE, 3, 9, "missing: the queue ends at 3")]


def test_an_answer_that_leads_nowhere_is_an_error_not_a_loop() -> None:
    class Stuck(MemoryCluster):
        def pull_bytes(self, mq: MessageQueue, offset: int, **wanted: Any) -> Pulled:
            pulled = super().pull_bytes(mq, offset, **wanted)
            return pulled._replace(next_offset=offset)

    cluster = Stuck(limit=2)
    cluster.add(QUEUE, 9)
    with pytest.raises(ReadFailed, match="the broker says that 0 follows offset 0"):
        list(pulls(cluster, OffsetRange(QUEUE, 0, 9), OPTIONS, refuse))


def test_ahead_gives_the_same_items_and_is_one_ahead() -> None:
    asked_for_second = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        asked_for_second.set()
        yield 2

    found = ahead(items())
    assert next(found) == 1
    assert asked_for_second.wait(DEADLINE_S)  # though nobody has called next() again
    assert list(found) == [2]


def test_ahead_raises_what_the_thread_did() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ReadFailed("broken")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ReadFailed, match="broken"):
        next(found)


class SlaveOnly(MemoryCluster):
    """Answers as a slave does whose master is away."""

    def pull_bytes(self, mq: MessageQueue, offset: int, **wanted: Any) -> Pulled:
        pulled = super().pull_bytes(mq, offset, **wanted)
        return pulled._replace(broker_id=1)


def test_what_a_slave_has_not_got_is_not_lost() -> None:
    cluster = SlaveOnly()
    cluster.add(QUEUE, 3)
    pauses: list[float] = []

    def catch_up(seconds: float) -> None:
        pauses.append(seconds)
        cluster.add(QUEUE, 5)

    found = offsets(pulls(cluster, OffsetRange(QUEUE, 0, 5), OPTIONS, refuse, sleep=catch_up))
    assert found == [0, 1, 2, 3, 4]
    assert len(pauses) == 1
    with pytest.raises(
        ReadFailed, match="the master is unreachable, and the slave with id 1 does not have the message"
    ):
        list(pulls(cluster, OffsetRange(QUEUE, 5, 9), OPTIONS, refuse, sleep=lambda _: None))


@given(st.sets(st.integers(0, 49)), st.integers(1, 9), st.integers(0, 20), st.integers(0, 30))
def test_what_a_filter_leaves_out_is_not_lost(passing: set[int], limit: int, minimum: int, start: int) -> None:
    """Whatever passes, only messages before the queue's first are lost."""
    cluster = MemoryCluster(limit)
    cluster.add(QUEUE, 50)
    cluster.delete_before(QUEUE, minimum)
    cluster.passes = passing.__contains__
    lost: list[LostRange] = []
    options = replace(OPTIONS, sub_expression="A")
    found = offsets(pulls(cluster, OffsetRange(QUEUE, start, 50), options, lost.append))
    assert found == sorted(n for n in passing if n >= max(start, minimum))
    assert [(one.start, one.end) for one in lost] == ([(start, minimum)] if start < minimum else [])


NO_RIGHT = BrokerError(16, "no permission for topic t", "b:1")


def test_a_refusal_ends_a_read_at_once_with_the_words_of_the_broker() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUE, 5)
    cluster.failures = [NO_RIGHT]
    waiting = replace(OPTIONS, broker_wait_ms=600_000)
    with pytest.raises(ReadFailed, match="no permission for topic t"):
        list(pulls(cluster, OffsetRange(QUEUE, 0, 5), waiting, refuse, sleep=_no_pause))
    assert len(cluster.pulls) == 1


def _no_pause(seconds: float) -> None:
    raise AssertionError("nothing is waited for")


@pytest.mark.parametrize(
    ("failures", "wait_ms", "pauses"),
    [
        ([ConnectFailed("b:1", "refused")] * 3, 60_000, 3),
        ([RouteNotFound("t", is_passing=True), BrokerError(2, "busy")], 60_000, 2),
        ([ConnectFailed("b:1", "refused")], 0, 0),
        ([ConnectFailed("b:1", "refused")] * 500, 2_000, None),
        ([NO_RIGHT], 60_000, 0),
        ([ConnectFailed("b:1", "refused"), NO_RIGHT], 60_000, 1),
        ([RouteNotFound("t")], 60_000, 0),
    ],
)
def test_questions_are_asked_again_while_servers_are_away(
    failures: list[SkylarkError], wait_ms: float, pauses: int | None
) -> None:
    """Asking again ends with the answer, with a refusal, or when the time is over."""
    left, slept = list(failures), [0.0]

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    def answer() -> str:
        return when_back(ask, wait_ms, sleep=slept.append, now=lambda: sum(slept))

    is_answered = pauses == len(failures)
    if is_answered:
        assert answer() == "answer"
    else:
        with pytest.raises(type(failures[pauses or 0])):
            answer()
    if pauses is None:
        assert wait_ms <= sum(slept) * 1000 <= wait_ms + 1_000
    else:
        assert len(slept) - 1 == pauses


def test_a_slave_that_has_another_topic_of_the_name_is_no_answer() -> None:
    cluster = SlaveOnly()
    cluster.make_again(QUEUE, 5, created_ms=1_000)
    wanted = OffsetRange(QUEUE, 0, 5, created_ms=2_000)
    with pytest.raises(ReadFailed, match="the slave with id 1 has another topic of this name"):
        offsets(pulls(cluster, wanted, OPTIONS, refuse, sleep=lambda seconds: None))

    def come_back(seconds: float) -> None:
        cluster.make_again(QUEUE, 5, created_ms=2_000)

    assert offsets(pulls(cluster, wanted, OPTIONS, refuse, sleep=come_back)) == [0, 1, 2, 3, 4]
