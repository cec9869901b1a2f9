"""Each row is stored once, whatever fails and is run again."""

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import BrokerError, SendFailed
from skylark.spark_connector.writing.once import (
    CLOCKS_MS,
    INDEX_MS,
    LEASE_MS,
    RECENT_MS,
    SETTLE_MS,
    Claim,
    Once,
    Rows,
    SendLimits,
    Superseded,
    WriteFailed,
)
from skylark.spark_connector.writing.rows import RowKeys
from tests.spark_connector.memory_topic import Attempt, Fault, Killed, MemoryTopic, Times

LIMITS = SendLimits(send_timeout_ms=3_000, retries=3, wait_ms=12_000)
ROWS = [b"%d" % (number % 7) for number in range(20)]
LATE = st.sampled_from([0.0, 1.0, SETTLE_MS / 2])


def once(
    topic: MemoryTopic,
    name: str,
    *,
    epoch: str = "1",
    is_retry: bool = True,
    kind: type[Attempt] = Attempt,
    since_ms: int = 0,
) -> Once:
    keys = RowKeys("query", epoch, 0, "t")
    before = None if since_ms else RowKeys("query", str(int(epoch) - 1), 0, "t").claim(0)
    io = kind(topic, keys.scope)
    return Once(io, keys, name, LIMITS, topic.times, is_retry=is_retry, since_ms=since_ms, claim_before=before)


def run(attempt: Once, rows: Sequence[bytes], batch: int = 6) -> int:
    return sum(attempt.send(rows[at : at + batch], {}) for at in range(0, len(rows), batch))


def faults(*, is_killed: bool) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.integers(0, 6), LATE, st.just(is_killed), st.integers(0, 2))


@given(
    st.lists(st.lists(st.none() | faults(is_killed=False), max_size=3), max_size=4),
    st.lists(faults(is_killed=True), min_size=4, max_size=4),
    st.integers(1, 9),
    st.floats(0, SETTLE_MS / 2 - 1),
    st.randoms(),
)
def test_each_row_is_stored_once(
    before: list[list[Fault | None]], deaths: list[Fault], batch: int, index_ms: float, shuffled: random.Random
) -> None:
    """Attempts that are killed at any send, after failures of others; each gets the rows in another order."""
    topic = MemoryTopic(Times())
    topic.index_ms = index_ms
    for number, (faults_before, death) in enumerate(zip(before, deaths, strict=False)):
        topic.faults = [*faults_before, death]
        rows = list(ROWS)
        shuffled.shuffle(rows)
        with suppress(Killed):
            run(once(topic, f"a{number}"), rows, batch)
    topic.faults = []
    last = once(topic, "last")
    rows = list(ROWS)
    shuffled.shuffle(rows)
    run(last, rows, batch)
    assert topic.bodies == sorted(ROWS)
    sends = topic.sends
    assert run(once(topic, "again"), rows, batch) == 0
    assert topic.sends == sends


def test_another_epoch_is_other_rows() -> None:
    topic = MemoryTopic(Times())
    assert run(once(topic, "a"), ROWS) == len(ROWS)
    assert run(once(topic, "b", epoch="2"), ROWS) == len(ROWS)
    assert topic.bodies == sorted(ROWS * 2)


def test_a_task_is_searched_from_the_epoch_before_on() -> None:
    """A search of all that a topic ever had would be dear in each epoch."""
    times = Times(ms=10 * RECENT_MS)
    topic = MemoryTopic(times)
    assert run(once(topic, "a", epoch="5", is_retry=False), ROWS) == len(ROWS)
    # The epoch before was not seen here, so the first search, and only the first, is one of all messages.
    assert topic.searched_since[:2] == [9 * RECENT_MS, 0] and min(topic.searched_since[2:]) == 10 * RECENT_MS
    times.sleep_ms(RECENT_MS / 2)
    topic.searched_since.clear()
    assert run(once(topic, "b", epoch="6", is_retry=False), ROWS) == len(ROWS)
    assert topic.searched_since[1] == 10 * RECENT_MS
    # A run of the same epoch much later finds its claim all the same.
    times.sleep_ms(100 * RECENT_MS)
    topic.searched_since.clear()
    assert run(once(topic, "c", epoch="6", is_retry=False), ROWS) == 0
    assert topic.searched_since[1] == 0


def test_a_batch_is_searched_from_its_beginning_on() -> None:
    times = Times(ms=10 * RECENT_MS)
    topic = MemoryTopic(times)
    for name, sent in (("a", len(ROWS)), ("b", 0)):
        assert run(once(topic, name, is_retry=False, since_ms=10 * RECENT_MS), ROWS) == sent
        times.sleep_ms(100 * RECENT_MS)
    assert min(topic.searched_since) == 10 * RECENT_MS


def test_no_rows_ask_nobody() -> None:
    topic = MemoryTopic(Times())
    topic.away = 1
    assert once(topic, "a").send([], {}) == 0
    assert topic.away == 1


def test_nothing_but_the_claim_is_stored_before_it_is_found() -> None:
    times = Times()
    topic = MemoryTopic(times)
    topic.index_ms = 300
    seen: list[int] = []
    times.while_asleep.append(lambda: seen.append(len(topic.bodies)))
    run(once(topic, "a", is_retry=False), ROWS)
    assert set(seen) == {1}


def test_a_claim_is_not_sent_again_because_the_index_is_behind() -> None:
    topic = MemoryTopic(Times())
    topic.index_ms = INDEX_MS / 2
    topic.faults = [Fault(1, away=3), Fault(0)]
    run(once(topic, "a"), ROWS)
    assert topic.bodies == sorted(ROWS)


def test_without_an_index_the_remedy_is_named() -> None:
    topic = MemoryTopic(Times())
    topic.index_ms = 2 * INDEX_MS
    with pytest.raises(WriteFailed, match=r"messageIndexEnable.*dedup"):
        run(once(topic, "a"), ROWS)
    assert len(topic.bodies) == 1


def test_an_attempt_that_still_sends_is_waited_for() -> None:
    """The second attempt sends nothing while the first goes on; then all is there."""
    times = Times()
    topic = MemoryTopic(times)
    first = once(topic, "a", is_retry=False)
    rest = [ROWS[at : at + 2] for at in range(0, len(ROWS), 2)]
    first.send(rest.pop(0), {})

    def go_on() -> None:
        if rest:
            first.send(rest.pop(0), {})

    times.while_asleep.append(go_on)
    assert run(once(topic, "b"), ROWS) == 0
    assert topic.bodies == sorted(ROWS)


def test_an_attempt_that_slept_ends_when_another_has_taken_over() -> None:
    topic = MemoryTopic(Times())
    slow = once(topic, "slow")
    slow.send(ROWS[:5], {})
    assert run(once(topic, "quick"), ROWS) == len(ROWS) - 5
    with pytest.raises(Superseded):
        slow.send(ROWS[5:], {})
    assert topic.bodies == sorted(ROWS)


def test_an_attempt_that_slept_goes_on_when_it_is_alone() -> None:
    times = Times()
    topic = MemoryTopic(times)
    slow = once(topic, "slow")
    for at in range(0, len(ROWS), 5):
        times.sleep_ms(LEASE_MS + 1)
        slow.send(ROWS[at : at + 5], {})
    assert topic.bodies == sorted(ROWS)


def test_of_two_that_begin_together_one_ends() -> None:
    times = Times()
    topic = MemoryTopic(times)
    topic.index_ms = 10
    second = once(topic, "b", is_retry=False)
    ended: list[Superseded] = []

    def begin() -> None:
        times.while_asleep.clear()
        try:
            second.send(ROWS, {})
        except Superseded as error:
            ended.append(error)

    times.while_asleep.append(begin)
    run(once(topic, "a", is_retry=False), ROWS)
    assert len(ended) == 1
    assert len(topic.bodies) == len(ROWS) + 1  # the second claim, with the key of the first


def at_broker(clock_ms: float) -> type[Attempt]:
    """An attempt that sends to a broker whose clock differs by this much."""

    class AtBroker(Attempt):
        def send(self, rows: Rows) -> None:
            count = len(self._topic.stored)
            super().send(rows)
            new = self._topic.stored[count:]
            self._topic.stored[count:] = [one._replace(at_ms=one.at_ms + clock_ms) for one in new]

    return AtBroker


def test_of_two_that_begin_together_at_brokers_with_two_clocks_one_sends_at_a_time() -> None:
    times = Times()
    topic = MemoryTopic(times)
    first = once(topic, "a", is_retry=False)

    class Late(at_broker(-40)):  # type: ignore[misc]
        """The first attempt goes on while the claim of this one is on its way."""

        def send(self, rows: Rows) -> None:
            if rows.claim is not None and topic.sends < 2:
                first.send(ROWS[:5], {})
            super().send(rows)

    second = once(topic, "b", is_retry=False, kind=Late)
    sent = second.send(ROWS[:10], {})
    assert times.ms >= 1_000_000 + LIMITS.quiet_ms, "the first attempt may still send"
    with pytest.raises(Superseded):
        first.send(ROWS[5:], {})
    assert sent + second.send(ROWS[10:], {}) == len(ROWS) - 5 + 1
    assert topic.bodies == sorted([*ROWS, ROWS[0]])  # the second claim, with the key of the first


def test_a_claim_that_comes_in_the_midst_of_a_look_at_the_brokers_is_found_by_the_next() -> None:
    times = Times()
    topic = MemoryTopic(times)
    looks: list[int] = []

    class Looking(Attempt):
        def claims(self, key: str, since_ms: int) -> list[Claim]:
            found = super().claims(key, since_ms)
            looks.append(len(found))
            if len(topic.stored) == 1:
                # Its broker was asked before it came, and ours after that.
                Attempt(topic, self._scope).send(Rows([b"x"], ["x"], {}, claim=(key, "b")))
            return found

    attempt = once(topic, "a", is_retry=False, kind=Looking, since_ms=1)
    assert attempt.send(ROWS[:1], {}) == 1
    assert looks == [0, 1, 2]
    assert times.ms >= 1_000_000 + LIMITS.quiet_ms, "the other attempt may send"


@pytest.mark.parametrize("clock_ms", [LEASE_MS - CLOCKS_MS, -10_000])
def test_an_attempt_that_still_sends_is_waited_for_although_the_brokers_clocks_lag(clock_ms: float) -> None:
    times = Times()
    topic = MemoryTopic(times)
    first = once(topic, "a", is_retry=False, kind=at_broker(clock_ms))
    rest = [ROWS[at : at + 4] for at in range(0, len(ROWS), 4)]
    first.send(rest.pop(0), {})
    times.while_asleep.append(lambda: first.send(rest.pop(0), {}) if rest else None)
    assert run(once(topic, "b", is_retry=False, kind=at_broker(clock_ms)), ROWS) == 0
    assert topic.bodies == sorted(ROWS)


def test_sends_end_after_the_retries() -> None:
    topic = MemoryTopic(Times())
    topic.faults = [Fault(0)] * 4
    with pytest.raises(WriteFailed, match="not stored in time"):
        run(once(topic, "a"), ROWS)
    assert topic.sends == 4


def test_brokers_that_stay_away_end_the_wait() -> None:
    topic = MemoryTopic(Times())
    attempt = once(topic, "a")
    attempt.send(ROWS[:3], {})
    topic.faults = [Fault(1, away=10_000)]
    with pytest.raises(WriteFailed, match=r"cannot be seen what was stored: .*broker:1"):
        attempt.send(ROWS[3:], {})
    topic.away = 0
    run(once(topic, "b"), ROWS)
    assert topic.bodies == sorted(ROWS)


@pytest.mark.parametrize("error", [BrokerError(13, "illegal"), BrokerError(17, "no topic")])
def test_what_brokers_refuse_is_not_repeated(error: BrokerError) -> None:
    sends: list[Rows] = []

    class Refusing(Attempt):
        def send(self, rows: Rows) -> None:
            sends.append(rows)
            failed = SendFailed("refused")
            failed.__cause__ = error
            raise failed

    with pytest.raises(WriteFailed, match="refused"):
        run(once(MemoryTopic(Times()), "a", kind=Refusing), ROWS)
    assert len(sends) == 1


def test_brokers_are_away_for_a_while() -> None:
    topic = MemoryTopic(Times())
    attempt = once(topic, "a")
    attempt.send(ROWS[:3], {})
    topic.faults = [Fault(2, away=5)]
    attempt.send(ROWS[3:], {})
    assert topic.bodies == sorted(ROWS)


@pytest.mark.parametrize("is_retry", [False, True])
def test_servers_may_be_away_when_a_task_begins_or_asks_again(is_retry: bool) -> None:
    topic = MemoryTopic(Times())
    topic.away = 12  # 6 s
    attempt = once(topic, "a", is_retry=is_retry)
    attempt.send(ROWS[:3], {})
    # A task that was slow looks for a later claim first.
    topic.times.ms += 2 * LEASE_MS
    topic.away = 12
    attempt.send(ROWS[3:], {})
    assert topic.bodies == sorted(ROWS)
    # What another attempt has stored is read.
    topic.away = 12
    assert run(once(topic, "b"), ROWS) == 0
    topic.away = 10_000
    with pytest.raises(WriteFailed, match="cannot be seen what was stored"):
        run(once(topic, "c"), ROWS)


def test_a_refused_question_is_not_asked_again() -> None:
    class Refusing(Attempt):
        def claims(self, key: str, since_ms: int) -> list[Claim]:
            asked.append(key)
            raise BrokerError(16, "no permission", "b:1")

    asked: list[str] = []
    with pytest.raises(BrokerError, match="no permission"):
        run(once(MemoryTopic(Times()), "a", kind=Refusing), ROWS)
    assert len(asked) == 1


def test_an_attempt_whose_claim_is_not_found_ends_when_another_is() -> None:
    topic = MemoryTopic(Times())

    class Hidden(Attempt):
        """The index of the broker that stored our claim is behind for ever."""

        def claims(self, key: str, since_ms: int) -> list[Claim]:
            found = super().claims(key, since_ms)
            if len(topic.stored) == 1:
                Attempt(topic, self._scope).send(Rows([b"x"], ["x"], {}, claim=(key, "b")))
            return [claim for claim in found if claim.attempt != "a"]

    with pytest.raises(Superseded, match="another attempt of this task began"):
        once(topic, "a", is_retry=False, kind=Hidden, since_ms=1).send(ROWS, {})
    assert topic.times.ms >= 1_000_000 + INDEX_MS
    assert len(topic.stored) == 2, "no row but the claims"
