"""The consume queues of a store: by topic and number, and which of them the next checkpoint must sync."""

from collections.abc import Iterator

from broker.store.consumequeue import ConsumeQueue
from broker.store.sound import is_storable
from mqcommon.errors import RequestRefused
from mqcommon.files import FileSystem
from mqcommon.message.record import PROPERTIES_LENGTH, record_head, topic_field

# Each mapped queue holds a file descriptor and some address space.
MAX_MAPPED = 2000
_ILLEGAL = 13


class Queues:
    """Made as their first messages come; ``store_host`` is that of the records that go in."""

    def __init__(self, fs: FileSystem, directory: str, segment_bytes: int, store_host: bytes) -> None:
        self._fs = fs
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._store_host = store_host
        self._emptied: list[str] = []
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._dirty: list[ConsumeQueue] = []
        self._mapped = 0

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self._by_topic.values():
            yield from queues.values()

    def load(self) -> Iterator[ConsumeQueue]:
        """The queues that have a directory, one after another; the caller loads each."""
        for topic in self._fs.listdir(self._directory):
            for name in self._fs.listdir(f"{self._directory}/{topic}"):
                if name.isdigit():
                    yield self._add(topic, int(name))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; it is made when it is not there. RequestRefused when no message can be stored under its name."""
        if self._mapped > MAX_MAPPED:
            self._release_half()
        try:
            return self._by_topic[topic][queue_id]
        except KeyError:
            if not is_storable(topic, queue_id):
                raise RequestRefused(
                    _ILLEGAL, f"no message can be stored in queue {queue_id} of a topic named {topic!r}"
                ) from None
            return self._add(topic, queue_id)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if any message ever went there."""
        queues = self._by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def topics(self) -> list[str]:
        """All topics that have queues."""
        return list(self._by_topic)

    def ids(self, topic: str) -> list[int]:
        """Numbers of the queues of ``topic``."""
        return sorted(self._by_topic.get(topic, ()))

    def remove(self, topic: str) -> list[ConsumeQueue]:
        """Forget the queues of ``topic`` and remove their files; returns them."""
        removed = list(self._by_topic.pop(topic, {}).values())
        for queue in removed:
            if queue.dirty:
                self._dirty.remove(queue)
            self.clear(queue)
        return removed

    def clear(self, queue: ConsumeQueue) -> None:
        """Remove the queue's files; the next checkpoint makes that durable."""
        if self._fs.is_dir(queue.chain.directory):
            self._emptied.append(queue.chain.directory)
        queue.remove()

    def touch(self, queue: ConsumeQueue) -> None:
        """The queue was written to."""
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)

    def take_dirty(self) -> list[ConsumeQueue]:
        """The queues that were written to since the last call."""
        dirty, self._dirty = self._dirty, []
        for queue in dirty:
            queue.dirty = False
        return dirty

    def take_emptied(self) -> list[str]:
        """Directories of the queues that were removed since the last call: synced, they stay removed."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def put_back(self, dirty: list[ConsumeQueue], emptied: list[str]) -> None:
        """What was taken for a checkpoint, which could not be written."""
        for queue in dirty:
            self.touch(queue)
        self._emptied += emptied

    def ends(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Topic -> queue -> (min offset, next offset), of all queues that ever had a message."""
        return {
            topic: {n: (queue.min_offset, queue.next_offset) for n, queue in queues.items() if queue.next_offset}
            for topic, queues in self._by_topic.items()
        }

    def close(self) -> None:
        for queue in self:
            queue.close()

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        magic, tail = topic_field(topic)
        overhead = record_head(bytes(8), self._store_host).size + len(tail) + PROPERTIES_LENGTH.size
        queue = ConsumeQueue(
            self._fs, self._directory, topic, queue_id, self._segment_bytes, magic, tail, overhead, self._note_map
        )
        self._by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def _note_map(self) -> None:
        self._mapped += 1

    def _release_half(self) -> None:
        """Unmap half of the queues; which of them are in use shows when they are mapped again."""
        mapped = [queue for queue in self if queue.is_mapped]
        for queue in mapped[: len(mapped) // 2]:
            queue.release()
        self._mapped = len(mapped) - len(mapped) // 2
