"""Turns over brokers and queues, and brokers to leave alone."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mqcommon.backoff import Backoff
from mqcommon.message.queue import MessageQueue
from sdk.producer.brokers import Faults, isolation_ms
from sdk.producer.routing import Turns, queue_of_key


def queues(broker: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", broker, number) for number in range(count))


@given(st.integers(1, 4), st.integers(1, 5), st.integers())
def test_every_queue_gets_its_turn(brokers: int, each: int, seed: int) -> None:
    at = {f"addr-{n}": queues(f"b{n}", each) for n in range(brokers)}
    turns = Turns(Random(seed))
    picked = [turns.next(at, lambda addr: True) for _ in range(brokers * each)]
    assert sorted(picked) == sorted((addr, queue) for addr, found in at.items() for queue in found)  # type: ignore


@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1), st.integers())
def test_the_rounds_are_even_also_when_brokers_are_busy(free: list[set[str]], seed: int) -> None:
    """Of each broker all queues are used in turn, whichever brokers are left out meanwhile."""
    at = {name: queues(name, 3) for name in "abc"}
    turns = Turns(Random(seed))
    last: dict[str, int] = {}
    for names in free:
        found = turns.next({name: at[name] for name in sorted(names)}, lambda addr: True)
        assert found is not None and found[0] in names
        addr, queue = found
        assert queue.queue_id == (last[addr] + 1) % 3 if addr in last else True
        last[addr] = queue.queue_id


def test_new_processes_start_anywhere() -> None:
    """The first choice of many, each with a seed of its own, is spread over all queues."""
    at = {"a": queues("a", 4), "b": queues("b", 4)}
    first = Counter(Turns(Random(seed)).next(at, lambda addr: True) for seed in range(800))
    assert len(first) == 8
    assert min(first.values()) > 60 and max(first.values()) < 140


def test_brokers_that_failed_or_are_at_fault_come_last() -> None:
    at = {"a": queues("a", 2), "b": queues("b", 2)}
    turns = Turns(Random(0))
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
    faults = Faults(Backoff(0.05, 0.5, Random(0)), {})
    faults.answered("a", 600, now_ms=1_000)
    assert not faults.usable("a", 2_999) and faults.usable("a", 3_000)
    assert faults.usable("b", 0)


def test_a_suspect_is_unusable_until_it_answers() -> None:
    suspects = {"a": None}
    faults = Faults(Backoff(0.05, 0.5, Random(0)), suspects)
    faults.failed("a", 5.0)
    assert not faults.usable("a", 1e12)
    assert faults.rests_until("a") <= 55, "after that it is tried when nobody else is left"
    del suspects["a"]
    faults.cleared("a")
    assert faults.usable("a", 0)
