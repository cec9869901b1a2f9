"""Topics that are being deleted, or were deleted lately: the marks that carry a deletion over a kill.

A deletion has several steps (tasks/delete_topics.py). Its mark is written to the journal before the first step. While
the deletion is unfinished no topic of this name can be made, and a start that finds the mark repeats all steps.
A finished deletion keeps its mark with ``log_end``: messages of the topic before this offset of the log belong to the
deleted topic. A slave copies these marks from its master and drops these messages, even if a topic of the same name has
been made since, and even if the slave was away meanwhile. Once the log starts after ``log_end`` there are no such
messages, and the mark is removed.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Change, JournalledTable, TableFormat
from skylark.mqcommon.clock import Clock

# The most marks that are kept: as many as fit into a small frame. A slave that was away during more deletions keeps old
# messages.
MAX_MARKS = 4_000


class TopicDeletion(NamedTuple):
    """The mark of one deletion.

    ``log_end`` is -1 while the topic and all its messages are being deleted on this broker. While the deletion is
    unfinished and ``log_end`` is 0 or more, only messages before ``log_end`` are being removed; the topic itself is the
    master's present one.
    """

    name: str
    log_end: int
    is_finished: bool

    @classmethod
    def from_wire(cls, row: Any) -> "TopicDeletion":
        return cls(*row)


FORMAT = TableFormat[TopicDeletion](
    "topic-deletion",
    "topic-deletion-gone",
    "topic-deletions-version",
    attrgetter("name"),
    list,
    TopicDeletion.from_wire,
)


class TopicDeletions(JournalledTable[TopicDeletion]):
    """The marks, by topic."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, FORMAT)
        #: Called with the name of each topic whose deletion begins on this broker, with all its messages.
        self.on_begin: list[Callable[[str], None]] = []

    def state(self) -> Iterator[Change]:
        """See Journalled. The version is left out, as nobody asks for it: without marks a snapshot is unchanged."""
        return ((FORMAT.put, list(mark)) for mark in list(self._table.values()))

    def is_unfinished(self, name: str) -> bool:
        """Whether a topic of this name is being deleted now, so that no topic of this name may be made."""
        mark = self._table.get(name)
        return mark is not None and not mark.is_finished

    def covers(self, name: str, offset: int) -> bool:
        """Whether a message for this topic at ``offset`` of the log was sent to a topic that was deleted since."""
        mark = self._table.get(name)
        return mark is not None and (offset < mark.log_end or mark.log_end < 0)

    def unfinished(self) -> list[TopicDeletion]:
        """The deletions that must be finished."""
        return [mark for mark in self._table.values() if not mark.is_finished]

    def finished(self) -> dict[str, int]:
        """Topic -> ``log_end`` of the finished deletions, as slaves copy them."""
        return {mark.name: mark.log_end for mark in self._table.values() if mark.is_finished}

    def begin(self, name: str, log_end: int = -1) -> None:
        """Write the mark of a deletion that begins."""
        self.put(TopicDeletion(name, log_end, False))
        if log_end < 0:
            for callback in self.on_begin:
                callback(name)

    def finish(self, name: str, log_end: int) -> None:
        """Mark the deletion as finished; no effect if the mark was removed meanwhile, see `log_is_cut`."""
        if name in self._table:
            self.put(TopicDeletion(name, log_end, True))

    def log_is_cut(self, end: int) -> None:
        """Forget deletions after ``end``, where the log will be cut: they are not in the new master's history."""
        self._forget([mark.name for mark in self._table.values() if mark.log_end > end])

    def log_was_found(self, end: int) -> None:
        """Forget deletions after ``end``, where the log ends at a start.

        The log may have been longer before a power loss, or before `resyncSlave`. Messages that are stored after
        ``end`` from now on belong to no deleted topic.
        """
        for mark in [mark for mark in self._table.values() if mark.log_end > end]:
            self.put(mark._replace(log_end=end))

    def log_starts_at(self, start: int) -> None:
        """Forget marks whose messages are all gone from the log, which begins at ``start``; keep at most MAX_MARKS."""
        newest_first = sorted(self.finished().items(), key=itemgetter(1), reverse=True)
        self._forget([name for n, (name, log_end) in enumerate(newest_first) if n >= MAX_MARKS or log_end <= start])

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self.delete(name)
