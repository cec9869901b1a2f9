"""Encoded properties of which one is taken out."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.properties import decode_properties, find_property, split_property

NAME = "KEY"
# Names that end or begin with the name, and values that look like it.
TEXTS = st.sampled_from([NAME, f"A{NAME}", f"{NAME}A", "A", ""])
PAIRS = st.lists(st.tuples(TEXTS, st.sampled_from(["\x01", ""]), TEXTS), max_size=6)


@given(PAIRS, st.sampled_from(["", "\x02"]))
def test_a_property_is_taken_out_of_the_others(pairs: list[tuple[str, str, str]], end: str) -> None:
    raw = "\x02".join(map("".join, pairs)) + end
    value, others = split_property(raw.encode(), NAME.encode())
    known = decode_properties(raw)
    assert (None if value is None else value.decode()) == known.pop(NAME, None)
    assert find_property(raw.encode(), NAME.encode()) == value
    left = decode_properties(others.decode())
    # Of two values the last one is taken out.
    left.pop(NAME, None)
    assert left == known
