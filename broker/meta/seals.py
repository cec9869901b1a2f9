"""Sealed queues: consumers see no message from the seal on, so that these messages can be copied to other queues.

A topic can get fewer queues once the last queues are read to their ends. Where consumers are slow or away, an
administrator has the remaining messages copied instead. Groups must not read these messages here, too. So the queue is
first sealed at the highest offset that any group has reached: groups read on up to the seal, no group has read any
message after it, and all messages after it are copied. A seal is lifted when the queue gets messages again (the topic
grows, or the drain of the broker ends). Groups then continue after the copied messages, so that no group gets a message
twice. Slaves do not know seals: after an election groups may read copied messages here, too, and get them twice.
Neighbours: store/reader.py (hides the messages), admin/sealing.py (seals, reads, and records what was copied).
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
    """Consumers see the messages before ``limit``; later messages up to ``moved_to`` were copied to another queue."""

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
    """The table of seals. Call `apply` once the store is open, so that its queues are sealed."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, FORMAT)

    def state(self) -> Iterator[Change]:
        """See Journalled. Before the first seal there is no record, so an earlier Skylark can open such a store."""
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
        """Forget the seals of the topic's queues from number ``first`` on, which are removed."""
        for seal in self.of_topic(topic, first):
            self.delete(_key(topic, seal.queue_id))

    def lift(
        self, topic: str, offsets: ConsumerOffsets, store: MessageStore, below: int | None = None
    ) -> Generator[None, None, None]:
        """Let consumers see all messages of the topic's sealed queues again; with ``below`` of queues below that id.

        Groups at the seal continue after the copied messages. RequestRefused, without any change, while a group has not
        reached the seal: it would get the copied messages twice.
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
