"""Names that are like the name of a topic that does not exist: it may be a typing mistake. Pure."""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

# Comparing takes some microseconds a name, and happens in the event loop.
MAX_NAMES = 2_000
_MOST_NEAR, _LIKENESS = 3, 0.75


def near_names(topic: str, names: Sequence[str]) -> str:
    """The end of a sentence about the missing ``topic``: which of ``names`` are like it; "" if none is."""
    known = islice((name for name in names if not name.startswith("%")), MAX_NAMES)
    near = get_close_matches(topic, list(known), _MOST_NEAR, _LIKENESS)
    return f". There is {' and '.join(map(repr, near))}: is the name right?" if near else ""
