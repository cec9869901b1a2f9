"""A slave's part in deletions of topics on its master: it drops their messages, even if the topics exist again.

The log has no record of a deletion. Without this a slave that was away while a topic was deleted and made again would
keep the old messages, and after a change of masters consumers of the new topic would get them.
A Skylark master sends with its topics the ends of their deletions (meta/topic_deletions.py): messages before that
offset of the log are old. The slave removes them once its own log has reached the offset. A Java master only leaves
the topic out: then all messages are old that the slave had before it asked.
"""

from collections.abc import Callable, Mapping

from skylark.broker.meta.topics import Topics
from skylark.broker.tasks.delete_topics import TopicRemoval
from skylark.mqcommon.polling import poll_until
from skylark.remoting.protocol.requests.topics import TopicConfig

# How long to wait for the log after a copy of the topics; then again after the next copy.
LOG_WAIT_S = 0.1


class CopiedDeletions:
    """The deletions that this slave must still do. ``log_end``: up to where queues have this slave's messages."""

    def __init__(self, topics: Topics, removal: TopicRemoval, log_end: Callable[[], int]) -> None:
        self._topics = topics
        self._removal = removal
        self._log_end = log_end
        # Topic -> end of its deletion, for deletions that the log has not reached or that are not done here.
        self._due: dict[str, int] = {}

    def forget(self) -> None:
        """Forget all deletions: another broker is the master, and its log may differ."""
        self._due.clear()

    def add(self, ends: Mapping[str, int]) -> None:
        """Add a Skylark master's finished deletions."""
        done = self._topics.deletions.finished()
        self._due = {name: end for name, end in ends.items() if done.get(name) != end}

    def add_one(self, name: str, end: int) -> None:
        """Add a finished deletion from the group's log."""
        if self._topics.deletions.finished().get(name) != end:
            self._due[name] = end

    def missing(self, table: Mapping[str, TopicConfig], log_end: int) -> None:
        """Add topics that a Java master's ``table`` lacks. Call this before the table is mirrored.

        ``log_end``: where this slave's log ended when it asked for the table.
        """
        gone = [name for name in self._topics.names() if name not in table and not self._topics.is_system(name)]
        self._due |= dict.fromkeys(gone, log_end)

    async def follow_log(self) -> None:
        """Remove the messages of all deletions that the log has reached."""
        if not self._due:
            return
        furthest = max(self._due.values())
        await poll_until(lambda: self._log_end() >= furthest, LOG_WAIT_S)
        for name, end in list(self._due.items()):
            if end <= self._log_end():
                await self._removal.follow(name, end)
                if self._due.get(name) == end:
                    del self._due[name]

    def lead(self, log_end: int) -> bool:
        """Begin the remaining deletions: this broker is the master now, and its log ends at ``log_end``.

        Returns whether there are any: until they are finished, no message may be stored.
        """
        for name, end in self._due.items():
            self._topics.deletions.begin(name, min(end, log_end))
        self._due.clear()
        return bool(self._topics.deletions.unfinished())
