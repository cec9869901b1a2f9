"""The names of the rows of a table that changed lately, for readers that have an earlier state of it. Pure."""

from collections import deque
from itertools import islice

# The number of changes that are kept by name. A reader that missed more must read the whole table.
RECENT = 65_536


class RecentChanges:
    """A count of changes, and the names of the last ones."""

    def __init__(self, limit: int = RECENT) -> None:
        self._names: deque[str] = deque(maxlen=limit)
        self._since = 0
        #: How many changes there were; the argument for a later `since`.
        self.count = 0

    def note(self, name: str) -> None:
        """``name`` was made, changed or removed."""
        self._names.append(name)
        self.count += 1

    def note_all(self) -> None:
        """Any row may have changed."""
        self._names.clear()
        self.count += 1
        self._since = self.count

    def since(self, count: int) -> list[str] | None:
        """Names that changed since there were ``count`` changes, each once; None if the whole table must be read."""
        missed = self.count - count
        if count < self._since or not 0 <= missed <= len(self._names):
            return None
        return list(dict.fromkeys(islice(self._names, len(self._names) - missed, None)))
