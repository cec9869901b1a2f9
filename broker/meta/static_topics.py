"""This broker's part in static topics: which of its queues are stretches of which logical queues.

RocketMQ's topicQueueMapping.json: imported from a Java broker, exported to one, and copied by slaves. Administrators'
tools set it (513). Each change must build on the present mapping: an old epoch, or a change of a stretch that is fixed
already, is refused.
Before the first change the journal has no record of this table, so an earlier Skylark can open such a store.
Neighbours: remoting/protocol/logical_queues.py, delivery/logical_queues.py (serves them), admin/topics.py (513).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Change, JournalledTable, TableFormat
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.logical_queues import check_follows, check_stretches, led_by
from skylark.remoting.protocol.requests.topics import TopicQueueMappingDetail, TopicQueueMappingInfo

FORMAT = TableFormat(
    "static-topic",
    "static-topic-gone",
    "static-topics-version",
    attrgetter("topic"),
    TopicQueueMappingDetail.to_wire,
    TopicQueueMappingDetail.from_wire,
)


class StaticTopics(JournalledTable[TopicQueueMappingDetail]):
    """The mappings of static topics, by topic. A row is replaced, never changed in place."""

    def __init__(self, journal: Journal, clock: Clock, broker_name: str) -> None:
        super().__init__(journal, clock, FORMAT)
        self._broker_name = broker_name

    def registered(self, topics: Mapping[str, object]) -> dict[str, TopicQueueMappingInfo]:
        """The static topics among ``topics``, as registered with NameServers."""
        table = self.all()
        if not table:
            return {}
        return {
            name: TopicQueueMappingInfo(name, row.scope, row.total_queues, row.bname, row.epoch, row.dirty, led_by(row))
            for name in topics
            if (row := table.get(name)) is not None
        }

    def merged(self, new: TopicQueueMappingDetail, *, force: bool) -> TopicQueueMappingDetail:
        """An administrator's mapping ``new``, completed by the present row's queues that ``new`` does not name.

        Raises RequestRefused when ``new`` cannot follow the present row; with ``force`` only a mapping that is invalid
        by itself is refused.
        """
        if new.bname != self._broker_name:
            raise _bad(f"it is a mapping of broker {new.bname}, and this is broker {self._broker_name}")
        for queue_id, stretches in new.hosted_queues.items():
            with _refused(queue_id):
                check_stretches(stretches)
        known = self.get(new.topic)
        if known is None:
            return new
        if not force:
            _check_follows(known, new)
        return replace(new, hosted_queues={**known.hosted_queues, **new.hosted_queues})

    def mirror(self, rows: Mapping[str, TopicQueueMappingDetail]) -> Iterator[None]:
        """Make this table equal to the master's, see `mirror_rows`."""
        # The topics' version covers this table, so equal rows must not count as a change.
        if rows != self.all():
            yield from self.mirror_rows(rows)
            self._changed()

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return super().state() if self.data_version.counter else iter(())


def _check_follows(known: TopicQueueMappingDetail, new: TopicQueueMappingDetail) -> None:
    if new.epoch < known.epoch:
        raise _bad(f"its epoch {new.epoch} is older than {known.epoch}, which is here")
    if new.scope != known.scope:
        raise _bad(f"its scope {new.scope} is another one than {known.scope}, which is here")
    same_epoch = new.epoch == known.epoch
    for queue_id, stretches in known.hosted_queues.items():
        now = new.hosted_queues.get(queue_id)
        if now is not None:
            with _refused(queue_id):
                check_follows(stretches, now, same_epoch=same_epoch)
        elif same_epoch:
            raise _bad(f"it lacks logical queue {queue_id}, and its epoch is the same")


@contextmanager
def _refused(queue_id: int) -> Iterator[None]:
    """Refuse the mapping if checks of logical queue ``queue_id`` in the block raise ValueError."""
    try:
        yield
    except ValueError as error:
        raise _bad(f"logical queue {queue_id}: {error}") from None


def _bad(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"the mapping is refused: {reason}")
