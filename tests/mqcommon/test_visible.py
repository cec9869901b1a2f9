"""Text of others as it is printed."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.visible import visible


@given(st.text())
def test_visible_text_has_no_control_characters(text: str) -> None:
    shown = visible(text)
    assert not any((ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160 for char in shown)
    if text.isprintable():
        assert shown == text
