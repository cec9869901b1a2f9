"""Which halves are over, and which op messages are needed to know it."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.transaction.ledger import (
    MAX_BODY_BYTES,
    OPS_IN_A_ROW,
    EndedHalves,
    OpMessages,
    bodies,
    offsets_in,
)


@given(st.integers(0, 20), st.lists(st.integers(0, 60)))
def test_a_window_is_a_set_of_offsets(base: int, finished: list[int]) -> None:
    window, over = EndedHalves(base), set(range(base))
    for number, offset in enumerate(finished):
        window.finish(offset)
        over.add(offset)
        if number % 3 == 0:
            assert window.advance() == min(set(range(100)) - over)
        assert [at for at in range(70) if window.is_over(at)] == sorted(over)
    for at in range(70):
        assert window.first_open(at) == min(set(range(at, 100)) - over)


@given(st.integers(0, 20), st.lists(st.integers(0, 60)), st.integers(61, 80))
def test_open_halves_are_counted(base: int, finished: list[int], end: int) -> None:
    window = EndedHalves(base)
    for offset in finished:
        window.finish(offset)
    assert window.open_before(end) == len(set(range(base, end)) - set(finished))


def test_op_messages_are_needed_from_the_first_that_may_name_an_open_half() -> None:
    ops = OpMessages()
    for number in range(3 * OPS_IN_A_ROW):
        ops.add(100 + number, number)
    end = 100 + 3 * OPS_IN_A_ROW
    assert ops.needed_from(0, end) == 100
    assert ops.needed_from(OPS_IN_A_ROW + 5, end) == 100 + OPS_IN_A_ROW
    assert ops.needed_from(3 * OPS_IN_A_ROW, end) == end


@given(st.lists(st.integers(0, 1 << 62), max_size=1_000))
def test_bodies_of_op_messages_are_read_back(offsets: list[int]) -> None:
    made = list(bodies(offsets))
    assert [offset for body, _ in made for offset in offsets_in(body)] == offsets
    assert all(len(body) <= MAX_BODY_BYTES and max(offsets_in(body)) == highest for body, highest in made)


def test_bodies_of_java_brokers_are_read_and_junk_is_left_out() -> None:
    assert offsets_in(b"12") == [12]
    assert offsets_in(b"12,15,") == [12, 15]
    assert offsets_in(b",x,-1, 3,\xff," + b"9" * 40) == []
