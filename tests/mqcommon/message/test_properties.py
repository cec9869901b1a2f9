"""Encoded properties of which one is taken out."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.properties import decode_properties, find_property, property_place

NAME = "KEY"
# Names that end or begin with the name, and values that look like it.
TEXTS = st.sampled_from([NAME, f"A{NAME}", f"{NAME}A", "A", ""])
PAIRS = st.lists(st.tuples(TEXTS, st.sampled_from(["\x01", ""]), TEXTS), max_size=6)


@given(PAIRS, st.sampled_from(["", "\x02"]))
def test_a_property_is_taken_out_of_the_others(pairs: list[tuple[str, str, str]], end: str) -> None:
    raw = "\x02".join(map("".join, pairs)) + end
    value = find_property(raw.encode(), NAME.encode())
    known = decode_properties(raw)
    assert (None if value is None else value.decode()) == known.pop(NAME, None)
    pair_at, start, end = property_place(raw.encode(), NAME.encode())
    assert raw[start:end] == (value or b"").decode()
    left = decode_properties(raw[:pair_at] + raw[end + 1 :])
    # Of two values the last one is taken out.
    left.pop(NAME, None)
    assert left == known
