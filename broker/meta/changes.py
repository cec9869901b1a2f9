"""What changed of a table lately, by name: for those who have all of it up to some point. Pure."""

from collections import deque
from itertools import islice

# So many of the last changes are told one by one; who missed more gets the whole table.
RECENT = 65_536


class RecentChanges:
    """A count of changes, and the names of the last ones."""

    def __init__(self, limit: int = RECENT) -> None:
        self._names: deque[str] = deque(maxlen=limit)
        self._since = 0
        #: How many changes there were; what `since` is asked with later.
        self.count = 0

    def note(self, name: str) -> None:
        """``name`` was made, changed or removed."""
        self._names.append(name)
        self.count += 1

    def note_all(self) -> None:
        """Any of them may be different."""
        self._names.clear()
        self.count += 1
        self._since = self.count

    def since(self, count: int) -> list[str] | None:
        """Names that changed since there were ``count`` changes, each once; None when only the whole will do."""
        missed = self.count - count
        if count < self._since or not 0 <= missed <= len(self._names):
            return None
        return list(dict.fromkeys(islice(self._names, len(self._names) - missed, None)))
