"""Topics of like retention share a class, and no message goes before its time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.tier.retention_classes import retention_class


@pytest.mark.parametrize(("text", "number"), [("", 0), ("-1", 0), ("0", 0), ("x", 0), ("72", 72), ("73", 120)])
def test_a_time_is_rounded_up_to_a_class(text: str, number: int) -> None:
    assert retention_class(text) == number


@given(st.integers(1, 10**18))
def test_no_class_is_shorter_than_the_time_nor_much_longer(hours: int) -> None:
    found = retention_class(str(hours))
    assert hours <= found < 3 * hours
    assert retention_class(str(found)) == found


def test_there_are_few_classes() -> None:
    assert len({retention_class(str(hours)) for hours in range(365 * 24)}) < 20
