"""What changed lately: all of it, or the admission that it is not known."""

from hypothesis import given
from hypothesis import strategies as st

from broker.meta.changes import RecentChanges


@given(st.lists(st.sampled_from("abcd-"), max_size=30), st.integers(1, 10), st.integers(-2, 32))
def test_it_tells_all_changes_or_none(notes: str, limit: int, asked: int) -> None:
    changes = RecentChanges(limit)
    for note in notes:
        if note == "-":
            changes.note_all()
        else:
            changes.note(note)
    found = changes.since(asked)
    missed = notes[max(asked, 0) :]
    if 0 <= asked <= len(notes) and len(missed) <= limit and "-" not in missed:
        assert found == list(dict.fromkeys(missed))
    else:
        assert found is None
