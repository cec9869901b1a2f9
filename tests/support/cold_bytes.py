"""Which bytes of a MemoryFiles are said to be on disk only, and what happens when they are read from there."""

from collections import defaultdict
from collections.abc import Callable


class ColdBytes:
    """Tests mark ranges as cold; a read from disk makes what it reads resident, as the page cache does."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[range]] = defaultdict(list)
        #: (path, at, size) of all reads from disk
        self.reads: list[tuple[str, int, int]] = []
        #: (path, at, size) of what was made ready to be written to
        self.populated: list[tuple[str, int, int]] = []
        #: called in the reading thread, before it reads
        self.before_read: Callable[[str], None] | None = None

    def mark(self, path: str, at: int = 0, size: int = 1 << 40) -> None:
        """Mark bytes of a file that from now on are on disk only."""
        self._ranges[path].append(range(at, at + size))

    def resident(self, path: str, at: int, size: int) -> bool:
        return not any(cold.start < at + size and at < cold.stop for cold in self._ranges[path])

    def read(self, path: str, at: int, size: int) -> None:
        """Somebody reads from disk."""
        if self.before_read is not None:
            self.before_read(path)
        self.reads.append((path, at, size))
        left: list[range] = []
        for cold in self._ranges[path]:
            if cold.start < at + size and at < cold.stop:
                left += [part for part in (range(cold.start, at), range(at + size, cold.stop)) if part]
            else:
                left.append(cold)
        self._ranges[path] = left
