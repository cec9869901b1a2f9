"""Turns over brokers and queues, and brokers to leave alone."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mqcommon.backoff import Backoff
from mqcommon.message.queue import MessageQueue
from sdk.producer.faults import Faults, isolation_ms
from sdk.producer.pick import Turns, queue_of_key


def queues(broker: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", broker, number) for number in range(count))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 100))
def test_every_queue_gets_its_turn(brokers: int, each: int, start: int) -> None:
    at = {f"addr-{n}": queues(f"b{n}", each) for n in range(brokers)}
    turns = Turns(start)
    picked = [turns.next(at, lambda addr: True) for _ in range(brokers * each * 2)]
    counts = {queue: 0 for found in at.values() for queue in found}
    for chosen in picked:
        assert chosen is not None and chosen[1] in at[chosen[0]]
        counts[chosen[1]] += 1
    assert max(counts.values()) - min(counts.values()) <= 2


def test_brokers_that_failed_or_are_at_fault_come_last() -> None:
    at = {"a": queues("a", 2), "b": queues("b", 2)}
    turns = Turns()
    for _ in range(10):
        assert turns.next(at, lambda addr: addr != "a")[0] == "b"  # type: ignore[index]
        assert turns.next(at, lambda addr: True, avoid=("b",))[0] == "a"  # type: ignore[index]
        assert turns.next(at, lambda addr: False) is not None, "when nothing is left, anything will do"
    assert turns.next({}, lambda addr: True) is None


@given(st.text(min_size=1))
def test_a_key_has_one_queue(key: str) -> None:
    at = queues("a", 5)
    assert queue_of_key(at, key) is queue_of_key(at, key)


def test_slow_brokers_are_left_alone_for_a_while() -> None:
    assert isolation_ms(549) == 0
    assert isolation_ms(550) == 2_000
    assert isolation_ms(20_000) == 30_000
    faults = Faults(Backoff(0.05, 0.5, Random(0)))
    faults.answered("a", 600, now_ms=1_000)
    assert not faults.usable("a", 2_999) and faults.usable("a", 3_000)
    assert faults.usable("b", 0)


def test_a_suspect_is_unusable_until_it_answers() -> None:
    faults = Faults(Backoff(0.05, 0.5, Random(0)))
    faults.suspect("a", 5.0)
    assert faults.suspect_for_ms("a", 7.0) == 2.0
    assert not faults.usable("a", 1e12) and faults.suspects == ["a"]
    faults.cleared("a")
    assert faults.usable("a", 0) and not faults.suspects
