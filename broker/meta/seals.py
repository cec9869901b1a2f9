"""Queues whose consumers see no message from a certain offset on, so that these can be copied to other queues.

A topic gets fewer queues when the last ones are read to their ends. Where consumers are slow or away, an administrator
has the rest copied instead. It must not be read here, too, so first the queue is sealed: at the furthest offset that
any group has reached. Groups read on up to there; what comes after it nobody has read, and all of it is copied. A seal
is lifted when the queue gets messages again (the topic grows, or the drain of the broker ends). Groups then go on after
what was copied, so that no group gets it twice. Slaves do not know seals: after an election groups may read messages
here that were copied, too, and get them twice.
Neighbours: store/reader.py (hides the messages), admin/sealing.py (seals, reads, and notes what was copied).
"""

from collections.abc import Generator, Iterator

from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Change, JournalledTable, TableFormat
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import INT, LONG, TEXT, Body, member
from skylark.remoting.protocol.codes import ResponseCode


@lazy_dataclass(slots=True)
class Seal(Body):
    """Consumers see the messages before ``limit``; those up to ``moved_to`` have been copied to another queue."""

    topic: str = member(TEXT, "")
    queue_id: int = member(INT, 0)
    limit: int = member(LONG, 0)
    moved_to: int = member(LONG, 0)


def _key(topic: str, queue_id: int) -> str:
    return f"{topic}@{queue_id}"


FORMAT = TableFormat(
    "seal", "seal-gone", "seals-version", lambda seal: _key(seal.topic, seal.queue_id), Seal.to_wire, Seal.from_wire
)


class Seals(JournalledTable[Seal]):
    """The table of seals. Queues of the store must be told of them: `apply`, once the store is open."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, FORMAT)

    def state(self) -> Iterator[Change]:
        """See Journalled. Before the first seal there is no record, so an earlier Skylark opens such a store."""
        return super().state() if self.data_version.counter else iter(())

    def of(self, topic: str, queue_id: int) -> Seal | None:
        return self.get(_key(topic, queue_id))

    def of_topic(self, topic: str, first: int = 0) -> list[Seal]:
        """The seals of the topic's queues from number ``first`` on, by number."""
        return sorted(
            (seal for seal in self.all().values() if seal.topic == topic and seal.queue_id >= first),
            key=lambda seal: seal.queue_id,
        )

    def apply(self, store: MessageStore) -> None:
        """Seal the queues of the store that the table names."""
        for seal in self.all().values():
            queue = store.queues.find(seal.topic, seal.queue_id)
            if queue is not None:
                queue.sealed_at = seal.limit

    def drop(self, topic: str, first: int = 0) -> None:
        """Forget the seals of queues that are removed."""
        for seal in self.of_topic(topic, first):
            self.delete(_key(topic, seal.queue_id))

    def lift(
        self, topic: str, offsets: ConsumerOffsets, store: MessageStore, below: int | None = None
    ) -> Generator[None, None, None]:
        """Let consumers see all of the topic's sealed queues again, or of those below number ``below``.

        Groups at the seal go on after what was copied. RequestRefused, and nothing is changed, while a group has not
        come that far: it would get the copied messages twice.
        """
        seals = [seal for seal in self.of_topic(topic) if below is None or seal.queue_id < below]
        if not seals:
            return
        groups = yield from offsets.groups_of(topic)
        for seal in seals:
            if seal.moved_to == seal.limit:
                continue
            behind = [group for group in groups if 0 <= offsets.query(group, topic, seal.queue_id) < seal.limit]
            if behind:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queue {seal.queue_id} of topic {topic} is sealed at offset {seal.limit}, and what comes after it"
                    f" was copied to other queues. These groups must first read up to there: {', '.join(behind)}",
                )
        for seal in seals:
            for group in groups:
                if offsets.query(group, topic, seal.queue_id) >= seal.limit:
                    offsets.commit(group, topic, seal.queue_id, max(seal.moved_to, seal.limit))
            self.delete(_key(topic, seal.queue_id))
            queue = store.queues.find(topic, seal.queue_id)
            if queue is not None:
                queue.sealed_at = None
