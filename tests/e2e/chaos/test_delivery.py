"""What the checks of a chaos run find."""

from tests.e2e.chaos.delivery import LOSS_NS, Delivery, Look, Member, out_of_order, parse, unexplained

QUEUE = ("b", 0)


def got(at_ns: int, offset: int, times: int = 0) -> Delivery:
    return Delivery(at_ns, *QUEUE, offset, times, f"m{offset}")


def test_a_line_is_read_back_and_part_of_one_is_left() -> None:
    assert parse(got(1, 2).line + got(3, 4).line[:-3]) == [got(1, 2)]


def test_what_was_committed_before_a_consumer_started_must_not_come_to_it() -> None:
    looks = [Look(5, QUEUE, 3), Look(20, QUEUE, 9)]
    assert unexplained([Member(10, [got(11, 3), got(12, 8)])], looks, {}) == []
    assert len(unexplained([Member(10, [got(11, 2)])], looks, {})) == 1
    assert unexplained([Member(10, [got(11, 2, times=1)])], looks, {}) == []


def test_a_kill_of_the_broker_may_lose_a_commit() -> None:
    looks, member = [Look(5, QUEUE, 3)], Member(8, [got(9, 2)])
    assert unexplained([member], looks, {"b": [6]}) == []
    assert len(unexplained([member], looks, {"b": [4], "a": [6]})) == 1
    assert len(unexplained([member], looks, {"b": [5 + LOSS_NS]})) == 1


def test_a_queue_in_order_may_repeat_its_last_message_and_go_back_with_a_new_consumer() -> None:
    first = Member(0, [got(1, 0), got(2, 0), got(3, 1), got(4, 2)])
    assert out_of_order([first, Member(5, [got(6, 1), got(7, 2), got(8, 3)])], {}) == []


def test_a_skipped_message_and_a_step_back_are_found() -> None:
    assert len(out_of_order([Member(0, [got(1, 0), got(2, 2)])], {})) == 1
    back = Member(0, [got(1, 0), got(2, 1), got(4, 0)])
    assert len(out_of_order([back], {})) == 1
    assert out_of_order([back], {"b": [3]}) == []
    assert len(out_of_order([back], {"b": [2 - LOSS_NS]})) == 1
