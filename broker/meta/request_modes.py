"""How groups consume topics: PULL or POP, as administrators have set it by group and topic.

RocketMQ's messageRequestMode.json: imported from a Java broker, exported to one, and copied by slaves. Groups without a
row consume by pull.
Before the first change the journal has no record of this table, so an earlier Skylark can open such a store.
Neighbours: table.py, delivery/queue_assignment.py (400, 401), replication/set_requests.py (402).
"""

from collections.abc import Iterable, Iterator, Mapping

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Change, JournalledTable, TableFormat
from skylark.mqcommon.clock import Clock
from skylark.remoting.protocol.requests.groups import MessageRequestMode

#: By topic, then by group.
Modes = Mapping[str, Mapping[str, MessageRequestMode]]


def _key(topic: str, group: str) -> str:
    return f"{topic}@{group}"


FORMAT = TableFormat(
    "request-mode",
    "request-mode-gone",
    "request-modes-version",
    lambda mode: _key(mode.topic, mode.consumer_group),
    MessageRequestMode.to_wire,
    MessageRequestMode.from_wire,
)


class RequestModes(JournalledTable[MessageRequestMode]):
    """The table of request modes, by group and topic."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, FORMAT)

    def mode_of(self, topic: str, group: str) -> MessageRequestMode | None:
        """The mode that was set for the group and topic; None: the group pulls."""
        return self.get(_key(topic, group))

    def by_topic(self) -> dict[str, dict[str, MessageRequestMode]]:
        """The table as RocketMQ writes it."""
        found: dict[str, dict[str, MessageRequestMode]] = {}
        for mode in self.all().values():
            found.setdefault(mode.topic, {})[mode.consumer_group] = mode
        return found

    def mirror(self, modes: Modes) -> Iterator[None]:
        """Make this table equal to the master's, see `mirror_rows`."""
        table = {_key(mode.topic, mode.consumer_group): mode for mode in rows_of(modes)}
        # The master's table has no version to adopt, so equal rows must not count as a change.
        if table != self.all():
            yield from self.mirror_rows(table)
            self._changed()

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return super().state() if self.data_version.counter else iter(())


def rows_of(modes: Modes) -> Iterable[MessageRequestMode]:
    """The rows of RocketMQ's table; each row gets the group and topic under which the table has it."""
    for topic, groups in modes.items():
        for group, mode in groups.items():
            yield MessageRequestMode(group, topic, mode.mode, mode.pop_share_queue_num)
