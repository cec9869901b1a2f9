"""A note of a failure, as properties and back."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.failure import MAX_REASON_CHARS, FailureNote
from skylark.mqcommon.message.properties import decode_properties, encode_properties


def test_a_note_is_read_as_it_was_written() -> None:
    note = FailureNote("ValueError: 12 €", "10.0.0.1@77#5", 1_700_000_000_123)
    assert note.properties() == {
        "CONSUME_FAIL_REASON": "ValueError: 12 €",
        "CONSUME_FAIL_CLIENT": "10.0.0.1@77#5",
        "CONSUME_FAIL_TIME": "1700000000123",
    }
    assert FailureNote.of({"KEYS": "k", **note.properties()}) == note


def test_messages_without_a_note_and_with_a_strange_time() -> None:
    assert FailureNote.of({"KEYS": "k", "CONSUME_FAIL_TIME": "1"}) is None
    assert FailureNote.of({"CONSUME_FAIL_REASON": "x", "CONSUME_FAIL_TIME": "soon"}) == FailureNote("x", "", 0)


def test_lines_become_one_and_long_reasons_are_cut() -> None:
    assert FailureNote("one\ntwo\x01\x02three\r\n", "", 1).line == "one two three"
    cut = FailureNote("x" * 5_000, "", 1).line
    assert len(cut) == MAX_REASON_CHARS and cut.endswith("x...")


@given(st.text(alphabet=st.characters(), max_size=50), st.text(max_size=50))
def test_whatever_the_texts_are_the_properties_can_be_stored(reason: str, client: str) -> None:
    properties = FailureNote(reason, client, 7).properties()
    assert decode_properties(encode_properties(properties).encode().decode()) == properties


def test_a_surrogate_does_not_keep_a_reason_from_being_stored() -> None:
    assert FailureNote("bad \udcff byte", "", 1).line == "bad ? byte"
