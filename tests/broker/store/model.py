"""The store as plain lists: what was put, what of it must be on disk, what must be read back."""

from dataclasses import dataclass

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import read_all

Queue = tuple[str, int]
# What one query returns at the most.
MAX_FOUND = 32
_ALL_TIME = 1 << 60


@dataclass(frozen=True)
class Sent:
    """One message that the store took, and where it said that it is."""

    queue: Queue
    queue_offset: int
    body: bytes
    keys: tuple[str, ...]
    physical_offset: int
    end: int
    #: The same message in its light queues.
    also: "tuple[Sent, ...]" = ()


class StoreModel:
    """`check` compares a store with it."""

    def __init__(self) -> None:
        #: All that the log ever held up to its end, in its order; deleted topics too.
        self.log: list[Sent] = []
        #: What is before it was cleaned away; a power loss may bring it back.
        self.log_start = 0
        self.queues: dict[Queue, list[Sent]] = {}
        #: The offset that the next message of a queue gets.
        self.next_offsets: dict[Queue, int] = {}
        #: All of the log before this place was said to be on disk.
        self.durable_end = 0
        #: Deleted, but no checkpoint since: after a crash their messages may be back, or some of them.
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        #: Some deletion was cut off: verifyStore may miss some of what is back.
        self.half_deleted = False
        self._haunted: set[str] = set()
        self._ends_are_lost = False

    def put(self, sent: Sent) -> None:
        last = self.log[-1] if self.log else None
        # The messages of an inner batch have one record.
        is_with_last = last is not None and (sent.physical_offset, sent.end) == (last.physical_offset, last.end)
        assert last is None or is_with_last or sent.physical_offset >= last.end, f"{sent} is not behind {last}"
        self.log.append(sent)
        for each in (sent, *sent.also):
            assert each.queue_offset == self.next_offsets.get(each.queue, 0), f"{each} has another queue offset"
            self.queues.setdefault(each.queue, []).append(each)
            self.next_offsets[each.queue] = each.queue_offset + 1

    def delete(self, topic: str) -> None:
        for queue in [queue for queue in self.queues if queue[0] == topic]:
            del self.queues[queue]
            del self.next_offsets[queue]
        self.deleting.add(topic)
        self.deleted.add(topic)

    def forget_ends(self) -> None:
        """A full disk had no room for the queues' ends: a start can't tell a deleted queue from a lost one then, and
        does not know where a queue was whose messages were all cleaned away."""
        self._haunted |= self.deleted
        self._ends_are_lost = True

    def clean(self, start: int) -> None:
        self.log_start = max(self.log_start, start)

    def cut(self, end: int) -> None:
        """After power loss the log ends at ``end``; all that was durable must be before it."""
        lost = [sent for sent in self.log if sent.end > end]
        assert all(sent.end > self.durable_end for sent in lost), f"the log ends at {end}, durable was more: {lost[0]}"
        for sent in reversed(lost):
            self.log.pop()
            for each in (sent, *sent.also):
                if each in self.queues.get(each.queue, ()):
                    self.queues[each.queue].remove(each)
                    self.next_offsets[each.queue] = each.queue_offset

    def reopened(self, store: MessageStore) -> None:
        """A half-deleted topic is taken as it was found, if no message in it is made up; the rest must be there."""
        known = {
            (each.physical_offset, each.queue, each.queue_offset): each
            for sent in self.log
            for each in (sent, *sent.also)
        }
        self.deleting |= self._haunted
        self.half_deleted |= bool(self.deleting)
        for topic in self.deleting:
            self.delete(topic)
            for queue_id in sorted(queue.queue_id for queue in store.queues if queue.topic == topic):
                queue = topic, queue_id
                self.queues[queue] = [
                    known[record.physical_offset, queue, record.queue_offset] for record in read_all(store, *queue)
                ]
                self.next_offsets[topic, queue_id] = store.max_offset(topic, queue_id)
        self.deleting.clear()
        if self._ends_are_lost:
            for queue in self.next_offsets:
                if not _kept(store, self.queues.get(queue, [])) and not store.max_offset(*queue):
                    self.queues[queue], self.next_offsets[queue] = [], 0
        self._ends_are_lost = False
        self.durable_end = max(self.durable_end, store.log.flushed)
        self.check(store)

    def check(self, store: MessageStore) -> None:
        """Every queue is dense and holds what was put, and each message is where its acknowledgement said."""
        assert {(queue.topic, queue.queue_id) for queue in store.queues if queue.next_offset} == {
            queue for queue, next_offset in self.next_offsets.items() if next_offset
        }
        assert store.log.start <= self.log_start, "more was removed than was asked for"
        for queue, next_offset in self.next_offsets.items():
            sent = _kept(store, self.queues.get(queue, []))
            low = sent[0].queue_offset if sent else next_offset
            assert (store.min_offset(*queue), store.max_offset(*queue)) == (low, next_offset), queue
            found = read_all(store, *queue)
            assert [_place(record) for record in found] == [(s.queue_offset, s.physical_offset, s.body) for s in sent]
            self._check_times(store, queue, found)

    def check_keys(self, store: MessageStore) -> None:
        """A query finds all that the log holds for a key, the newest first; of what was cleaned it may find some."""
        by_key: dict[tuple[str, str], list[bytes]] = {}
        for sent in reversed(self.log):
            for key in sent.keys if sent.physical_offset >= self.log_start else ():
                by_key.setdefault((sent.queue[0], key), []).append(sent.body)
        for (topic, key), bodies in by_key.items():
            raw = store.query(topic, key, MAX_FOUND, 0, _ALL_TIME).records
            found = [record.body for record in map(decode_record, raw) if record.physical_offset >= self.log_start]
            assert found == bodies[:MAX_FOUND], (topic, key)

    def _check_times(self, store: MessageStore, queue: Queue, found: list[Record]) -> None:
        for record in found[:: max(len(found) // 3, 1)]:
            offset = store.offset_by_time(*queue, record.store_timestamp)
            assert offset <= record.queue_offset
            assert store.store_time(*queue, offset) == record.store_timestamp


def _kept(store: MessageStore, sent: list[Sent]) -> list[Sent]:
    return [each for each in sent if each.physical_offset >= store.log.start]


def _place(record: Record) -> tuple[int, int, bytes]:
    return record.queue_offset, record.physical_offset, record.body
