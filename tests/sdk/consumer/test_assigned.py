"""`assign` and `poll`: exact positions, in order, no message twice and none left out."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from skylark.mqcommon.errors import BrokerError, ConnectionLost, InvalidArgument, SkylarkError, UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.assigned import CACHED_BYTES, STREAM_BYTES, AssignedQueues, share_out
from skylark.sdk.position import Position
from tests.sdk.consumer.assigning import QUEUES, A, B, C, Store, of, places, poll, run
from tests.sdk.fakes import queue


def test_begins_at_the_committed_offset_else_where_the_start_is() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.committed_offsets[A] = 3
        store.first = {A: 1, B: 2}
        store.put(A, 5)
        store.put(B, 5)
        queues.assign([A, B], "*")
        assert queues.position(A) is None
        await trio.sleep(1)
        assert (queues.position(A), queues.position(B)) == (3, 2)
        assert sorted(places(await poll(queues, 0, 100))) == of(A, 3, 4) + of(B, 2, 3, 4)
        assert (queues.position(A), queues.position(B)) == (5, 5)

    run(test)


def test_a_poll_waits_for_the_first_message_and_no_longer_than_it_may() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        queues.assign([A, B], "*")
        assert await poll(queues, 1000, 10) == []
        assert trio.current_time() == pytest.approx(1, abs=0.01)
        assert await poll(queues, 0, 10) == []

        @store.nursery.start_soon
        async def put_later() -> None:
            await trio.sleep(2)
            store.put(B, 1)

        assert places(await poll(queues, 10_000, 10)) == of(B, 0)
        assert trio.current_time() == pytest.approx(3, abs=0.1)

    run(test)


def test_queues_take_turns() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        for mq in QUEUES:
            store.put(mq, 4)
        queues.assign(QUEUES, "*")
        await trio.sleep(1)
        served = []
        for _ in range(6):
            (message,) = await poll(queues, 0, 1)
            served.append(message.queue)
        assert sorted(served[:3]) == sorted(served[3:]) == [A, B, C]
        assert [len(await poll(queues, 0, 2)) for _ in range(3)] == [2, 2, 2]
        assert await poll(queues, 0, 2) == []

    run(test)


def test_one_batch_is_fetched_ahead_of_each_queue_within_its_share() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        many = [queue(number) for number in range(200)]
        for mq in many:
            store.put(mq, 100)
        queues.assign(many, "*")
        await trio.sleep(100)
        assert len(store.pulls) == 200
        share = CACHED_BYTES // 400
        assert {max_bytes for _, _, max_bytes in store.pulls} == {share}
        await poll(queues, 0, 1000)
        await trio.sleep(100)
        assert len(store.pulls) == 400
        queues.assign(many[:1], "*")
        while await poll(queues, 100, 1000):
            pass
        assert store.pulls[-1][2] == STREAM_BYTES

    run(test)


def test_a_seek_drops_what_was_fetched() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.put(A, 20)
        queues.assign([A], "*")
        assert places(await poll(queues, 1000, 2)) == of(A, 0, 1)
        queues.seek(A, Position(10))
        assert queues.position(A) == 10
        assert places(await poll(queues, 1000, 2)) == of(A, 10, 11)
        queues.seek(A, Position(1))
        queues.seek(A, Position(11))
        assert places(await poll(queues, 1000, 2)) == of(A, 11, 12)
        assert (A, 1, STREAM_BYTES) not in store.pulls

    run(test)


def test_a_seek_before_the_first_offset_is_known() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.put(A, 20)
        queues.assign([A], "*")
        await wait_all_tasks_blocked()
        queues.seek(A, Position(7))
        assert queues.position(A) == 7
        assert places(await poll(queues, 1000, 1)) == of(A, 7)

    run(test)


def test_messages_that_do_not_match_move_the_position() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.skipped = 10
        store.put(A, 6)
        queues.assign([A], "*")
        await trio.sleep(1)
        assert queues.position(A) == 6
        await queues.commit()
        assert store.committed_offsets[A] == 6
        store.put(A, 6)
        assert places(await poll(queues, 1000, 9)) == of(A, 10, 11)

    run(test)


def test_paused_queues_keep_their_place() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        for mq in (A, B):
            store.put(mq, 8)
        queues.assign([A, B], "*")
        await trio.sleep(1)
        queues.pause([A], True)
        assert places(await poll(queues, 0, 100)) == of(B, 0, 1, 2, 3)
        assert queues.position(A) == 0
        pulled = [mq for mq, _, _ in store.pulls].count(A)
        assert places(await poll(queues, 1000, 100)) == of(B, 4, 5, 6, 7)
        assert await poll(queues, 1000, 100) == []
        assert [mq for mq, _, _ in store.pulls].count(A) == pulled

        @store.nursery.start_soon
        async def resume_later() -> None:
            await trio.sleep(1)
            queues.pause([A], False)

        assert places(await poll(queues, 10_000, 100)) == of(A, 0, 1, 2, 3)

    run(test)


def test_another_assignment_keeps_the_queues_of_both() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        for mq in QUEUES:
            store.put(mq, 4)
        queues.assign([A, B], "*")
        await trio.sleep(1)
        assert len(await poll(queues, 0, 2)) == 2
        queues.assign([C, B, B], "*")
        assert queues.queues() == (B, C)
        with pytest.raises(InvalidArgument, match="not assigned"):
            queues.position(A)
        await trio.sleep(1)
        assert sorted(places(await poll(queues, 0, 100))) == of(B, 1, 2, 3) + of(C, 0, 1, 2, 3)
        queues.assign([B], "TagA")
        await trio.sleep(1)
        assert queues.position(B) == 0  # another subscription begins anew
        queues.assign([], "*")
        assert await poll(queues, 10, 1) == []

    run(test)


def test_commits_are_the_positions_that_changed() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.put(A, 6)
        store.first[B] = 5
        queues.assign([A, B, C], "*")
        await queues.commit()  # no position is known yet
        assert store.committed_offsets == {}
        assert len(await poll(queues, 1000, 3)) == 3
        await trio.sleep(1)
        await queues.commit()
        assert store.committed_offsets == {A: 3, B: 5, C: 0}
        store.committed_offsets.clear()
        await queues.commit()
        assert store.committed_offsets == {}
        queues.seek(C, Position(9))
        store.errors[A] = [BrokerError(1, "not now", "b:1")]
        await poll(queues, 0, 1)
        with pytest.raises(BrokerError, match="not now"):
            await queues.commit()
        assert store.committed_offsets == {C: 9}
        await queues.commit()
        assert store.committed_offsets == {A: 4, C: 9}

    run(test)


def test_an_error_of_one_queue_names_it_and_spares_the_others() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.put(A, 2)
        store.put(B, 2)
        store.errors[A] = [BrokerError(17, "deleted", "b:1")]
        queues.assign([A, B], "*")
        await trio.sleep(1)
        with pytest.raises(BrokerError, match="deleted") as caught:
            await poll(queues, 0, 10)
        assert str(A) in caught.value.__notes__[0]
        assert places(await poll(queues, 0, 10)) == of(B, 0, 1)
        assert places(await poll(queues, 1000, 10)) == of(A, 0, 1)

    run(test)


def test_brokers_that_are_down_are_waited_for() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        store.put(A, 2)
        store.errors[A] = [ConnectionLost("b:1", "reset") for _ in range(5)]
        queues.assign([A], "*")
        assert places(await poll(queues, 60_000, 10)) == of(A, 0, 1)

    run(test)


def test_a_cancelled_poll_takes_nothing() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        queues.assign([A], "*")
        with trio.move_on_after(1):
            await poll(queues, 60_000, 10)
        store.put(A, 2)
        await trio.sleep(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await poll(queues, 60_000, 10)
        assert places(await poll(queues, 0, 10)) == of(A, 0, 1)

    run(test)


def test_what_cannot_be_asked() -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        with pytest.raises(UserError, match="assign"):
            await poll(queues, 0, 1)
        queues.assign([A], "*")
        for ask in (lambda: queues.seek(B, Position(0)), lambda: queues.pause([B], True), lambda: queues.check(B)):
            with pytest.raises(InvalidArgument, match="not assigned"):
                ask()
        with pytest.raises(InvalidArgument, match="use '\\*'"):
            queues.assign([B], "||")
        assert queues.queues() == (A,)
        store.is_open = False
        with pytest.raises(SkylarkError, match="closed"):
            await poll(queues, 0, 1)

    run(test)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(QUEUES), st.integers(1, 9)),
        st.tuples(st.just("poll"), st.sampled_from(QUEUES), st.integers(1, 9)),
        st.tuples(st.just("seek"), st.sampled_from(QUEUES), st.integers(0, 30)),
        st.tuples(st.just("pause"), st.sampled_from(QUEUES), st.integers(0, 1)),
        st.tuples(st.just("sleep"), st.sampled_from(QUEUES), st.integers(0, 3)),
        st.tuples(st.just("assign"), st.sampled_from(QUEUES), st.integers(0, 1)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_use_returns_each_message_from_the_position_on(steps: list[tuple[str, MessageQueue, int]]) -> None:
    async def test(store: Store, queues: AssignedQueues) -> None:
        expected: dict[MessageQueue, int] = dict.fromkeys(QUEUES, 0)
        paused: set[MessageQueue] = set()
        queues.assign(QUEUES, "*")

        async def poll_some(count: int) -> int:
            messages = await poll(queues, 50, count)
            assert len(messages) <= count
            for message in messages:
                assert message.queue in expected and message.queue not in paused
                assert message.queue_offset == expected[message.queue]
                expected[message.queue] += 1
            return len(messages)

        for step, mq, number in steps:
            if step == "put":
                store.put(mq, number)
            elif step == "poll":
                await poll_some(number)
            elif step == "sleep":
                await trio.sleep(number * 0.004)
            elif step == "assign":
                if number and mq not in expected:
                    expected[mq] = 0
                elif not number:
                    expected.pop(mq, None)
                    paused.discard(mq)
                queues.assign(list(expected), "*")
            elif mq in expected and step == "seek":
                expected[mq] = number
                queues.seek(mq, Position(number))
            elif mq in expected:
                queues.pause([mq], bool(number))
                (paused.add if number else paused.discard)(mq)
            for each in expected:
                assert queues.position(each) in (None, expected[each])
        queues.pause(list(expected), False)
        paused.clear()
        while await poll_some(5):
            pass
        assert all(expected[mq] >= store.sizes.get(mq, 0) for mq in expected)

    run(test)


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(1, 200))
def test_as_many_as_asked_and_as_equal_as_possible(waiting: list[int], most: int) -> None:
    shares = share_out(waiting, most)
    assert sum(shares) == min(most, sum(waiting))
    assert all(0 <= share <= count for share, count in zip(shares, waiting, strict=True))
    short = [share for share, count in zip(shares, waiting, strict=True) if share < count]
    # Whoever could have got more has at most one less than anybody.
    assert not short or max(shares) - min(short) <= 1


def test_the_first_ones_get_the_rest() -> None:
    assert share_out([9, 9, 9], 5) == [2, 2, 1]
    assert share_out([9, 9, 9], 2) == [1, 1, 0]
    assert share_out([1, 9, 0], 100) == [1, 9, 0]
    assert share_out([], 5) == []
