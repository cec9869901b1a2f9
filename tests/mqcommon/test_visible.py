"""Text of others as it is printed."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.visible import visible, visible_json

# Hypothesis would rarely draw these among all characters: some of each kind, and letters.
FOREIGN = st.text(
    st.characters()
    | st.sampled_from("\x00\x1b\x7f\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069ab\n\t")
)
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"


def is_safe(char: str) -> bool:
    """Whether a terminal shows the character, or none, and the text after it stays as it is."""
    if char in "\t\n":
        return True
    kind = unicodedata.category(char)
    turns = char in MARKS or unicodedata.bidirectional(char) in TURNING
    return kind not in ("Cc", "Zl", "Zp") and not turns


@given(FOREIGN)
def test_visible_text_cannot_control_a_terminal(text: str) -> None:
    shown = visible(text)
    assert all(map(is_safe, shown))
    if text.isprintable():
        assert shown == text


@given(FOREIGN)
def test_visible_json_means_the_same(text: str) -> None:
    shown = visible_json(json.dumps([text], ensure_ascii=False, indent=2))
    assert all(map(is_safe, shown))
    assert json.loads(shown) == [text]
