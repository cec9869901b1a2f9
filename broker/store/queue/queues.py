"""All consume queues of a store, by topic and number, and which of them the next checkpoint must write.

A queue is plain or a batch queue (batch_queue.py), in one of two directories. Its topic decides the kind when the queue
is made; from then on its files and records show the kind. A queue of the wrong kind would be slower, but not wrong.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator

from skylark.broker.store.log.valid_record import is_storable
from skylark.broker.store.queue.batch_queue import BatchConsumeQueue
from skylark.broker.store.queue.consumequeue import ConsumeQueue, MendBlock, QueueFiles, TopicHead
from skylark.broker.store.queue.delay_levels import DelayLevels
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.queue.queue_maps import QueueMaps
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.layout import FIXED_BYTES
from skylark.mqcommon.message.record import topic_field

_ILLEGAL = 13


class Queues:
    """Queues are made when their first messages come. ``store_host``: the host in their records.

    ``batch_directory`` and ``batch_segment_bytes`` are for batch queues. ``mend``: see `QueueFiles`.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        segment_bytes: int,
        store_host: bytes,
        batch_directory: str,
        batch_segment_bytes: int,
        levels: DelayLevels,
        mend: MendBlock,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self.batch_directory = batch_directory
        #: The files that are mapped for reads.
        self.maps = QueueMaps()
        fs.on_shortage(self.maps.make_room)
        self._files = QueueFiles(fs, directory, segment_bytes, self.maps.add, mend)
        self._batch_files = QueueFiles(fs, batch_directory, batch_segment_bytes, self.maps.add, mend)
        self._levels = levels
        # Whether the queues of a topic are batch queues, see `use_kinds`.
        self._is_batch: Callable[[str], bool] = lambda topic: False
        self._head_bytes = FIXED_BYTES + len(store_host)
        # Directories of queues that were removed since the last checkpoint, and the directories among them that still
        # have files.
        self._emptied: list[str] = []
        self._unremoved: list[str] = []
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        # In the order in which they were touched.
        self._dirty: deque[ConsumeQueue] = deque()
        # Topics that were removed since the last checkpoint.
        self._gone: list[str] = []

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self._by_topic.values():
            yield from queues.values()

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def load(self) -> Iterator[ConsumeQueue]:
        """The queues that have a directory, one after another; the caller loads each."""
        # Batch queues first: where both kinds have files, the batch queue is the later one.
        for topic, queue_id in self._named_in(self.batch_directory):
            # A removed queue leaves its directory.
            if self._fs.listdir(f"{self.batch_directory}/{topic}/{queue_id}"):
                yield self._add(topic, queue_id, batch=True)
        for topic, queue_id in self._named_in(self.directory):
            if self.find(topic, queue_id) is None:
                yield self._add(topic, queue_id, batch=False)
                continue
            # The topic was deleted and made again with batch queues, and a power loss brought its old files back.
            self._empty(f"{self.directory}/{topic}/{queue_id}")
            self.remove_files()

    def _named_in(self, directory: str) -> Iterator[tuple[str, int]]:
        for topic in self._fs.listdir(directory):
            for name in self._fs.listdir(f"{directory}/{topic}"):
                if name.isdigit():
                    yield topic, int(name)

    def use_kinds(self, is_batch: Callable[[str], bool]) -> None:
        """Make the queues of topics for which ``is_batch`` says so batch queues, if they have no message yet."""
        self._is_batch = is_batch
        unused = [queue for queue in self if not queue.next_offset and is_batch(queue.topic) != queue.is_batch]
        for queue in unused:
            queue.dirty = False
            del self._by_topic[queue.topic][queue.queue_id]

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, to add messages to; it is made if it does not exist. Reads use `find`.

        RequestRefused if no message can be stored under its name.
        """
        try:
            return self._by_topic[topic][queue_id]
        except KeyError:
            return self._add_storable(topic, queue_id, batch=self._is_batch(topic))

    def of_record(self, topic: str, queue_id: int, sys_flag: int, offset: int) -> ConsumeQueue:
        """The queue of a stored record. A record of a batch queue makes it one.

        A plain queue is replaced then, and its files are removed, as in `clear`. Its messages are kept if ``offset`` is
        its next one: RocketMQ does not mark the single messages of batch queues. Else its topic was made again.
        """
        if not sys_flag & INNER_BATCH:
            return self.get(topic, queue_id)
        plain = self.find(topic, queue_id)
        if plain is None or plain.is_batch:
            return plain or self._add_storable(topic, queue_id, batch=True)
        # The entries are copied before the files are removed, and move into the new queue's memory. The log has the
        # records, so a crash in between loses nothing.
        kept: list[tuple[int, int, int]] = []
        low = plain.min_offset
        while plain.next_offset == offset > low + len(kept):
            kept += plain.entries(low + len(kept), offset)
        plain.dirty = False
        self.clear(plain)
        queue = self._add_storable(topic, queue_id, batch=True)
        for number, (physical, size, tags_code) in enumerate(kept, low):
            if size != BLANK_SIZE:
                queue.move_to(number)
                queue.append(physical, size, tags_code)
        if kept:
            self.touch(queue)
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue; None if it never had a message."""
        queues = self._by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def keeps_batches(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is a batch queue, or will be one when its first message comes."""
        queue = self.find(topic, queue_id)
        return self._is_batch(topic) if queue is None else queue.is_batch

    def topics(self) -> list[str]:
        """All topics that have queues."""
        return list(self._by_topic)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """The queues of ``topic`` that ever had a message, in no order."""
        return list(self._by_topic.get(topic, {}).values())

    def remove(self, topic: str, wanted: Callable[[ConsumeQueue], bool]) -> list[ConsumeQueue]:
        """Forget the ``wanted`` queues of ``topic``; returns them. `remove_files` removes their files."""
        queues = self.of_topic(topic)
        removed = [queue for queue in queues if wanted(queue)]
        gone = {queue.queue_id for queue in removed}
        kept = {queue.queue_id: queue for queue in queues if queue.queue_id not in gone}
        # All noted ends of the topic are removed: the next checkpoint notes the ends of the remaining queues again.
        self._gone.append(topic)
        self._by_topic.pop(topic, None)
        if kept:
            self._by_topic[topic] = kept
            for queue in kept.values():
                self.touch(queue)
        for queue in removed:
            queue.dirty = False
            self._forget(queue)
        return removed

    def clear(self, queue: ConsumeQueue) -> None:
        """Remove the queue's files; the next checkpoint makes that durable. Blocks; OSError as in `remove_files`."""
        self._forget(queue)
        self.remove_files()

    def _forget(self, queue: ConsumeQueue) -> None:
        queue.forget()
        self._empty(queue.directory)

    def _empty(self, directory: str) -> None:
        if self._fs.is_dir(directory):
            self._emptied.append(directory)
            self._unremoved.append(directory)

    @property
    def must_remove_files(self) -> bool:
        """Whether `remove_files` has something to do. No queue may be written before that."""
        return bool(self._unremoved)

    def remove_files(self) -> None:
        """Remove the files and directories of forgotten queues, including files after the last entry from a crash.

        Blocks: for any thread, one at a time. A queue of the same name that was made again has no files yet: only a
        checkpoint writes them, and it calls this first. After OSError the call can be repeated.
        """
        while self._unremoved:
            directory = self._unremoved[0]
            for name in self._fs.listdir(directory):
                self._fs.remove(f"{directory}/{name}")
            # Remove the directories, too. A later queue of the same name makes them again with its first file.
            if self._fs.is_dir(directory):
                self._fs.remove_empty_dir(directory)
                self._fs.remove_empty_dir(os.path.dirname(directory))
            del self._unremoved[0]

    def touch(self, queue: ConsumeQueue) -> None:
        """Have the next checkpoint write the queue."""
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)

    @property
    def dirty_count(self) -> int:
        return len(self._dirty)

    def take_dirty(self, limit: int) -> list[ConsumeQueue]:
        """Up to ``limit`` touched queues, the first touched first."""
        taken: list[ConsumeQueue] = []
        while self._dirty and len(taken) < limit:
            queue = self._dirty.popleft()
            # Queues of removed topics are no longer dirty.
            if queue.dirty:
                queue.dirty = False
                taken.append(queue)
        return taken

    def take_removed(self) -> tuple[list[str], list[str]]:
        """Topics removed since the last call, and the directories to sync so that their files stay removed."""
        gone, self._gone = self._gone, []
        emptied, self._emptied = self._emptied, []
        return gone, emptied

    def put_back_removed(self, gone: list[str], emptied: list[str]) -> None:
        """Undo `take_removed`: the removals were not made durable."""
        self._gone = gone + self._gone
        self._emptied = emptied + self._emptied

    def ends(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Topic -> queue -> (min offset, next offset), of all queues that ever had a message."""
        return {
            topic: {n: (queue.min_offset, queue.next_offset) for n, queue in queues.items() if queue.next_offset}
            for topic, queues in self._by_topic.items()
        }

    def close(self) -> None:
        for queue in self:
            queue.close()

    def _add_storable(self, topic: str, queue_id: int, *, batch: bool) -> ConsumeQueue:
        if not is_storable(topic, queue_id):
            raise RequestRefused(
                _ILLEGAL, f"no message can be stored in queue {queue_id} of a topic named {topic!r}"
            ) from None
        return self._add(topic, queue_id, batch=batch)

    def _add(self, topic: str, queue_id: int, *, batch: bool) -> ConsumeQueue:
        others = self._by_topic.get(topic)
        if others:
            # All queues of a topic share these objects, to save memory.
            like = next(iter(others.values()))
            head = TopicHead(like.topic, like.magic, like.topic_tail, like.record_overhead)
        else:
            others = self._by_topic[topic] = {}
            magic, tail = topic_field(topic)
            head = TopicHead(topic, magic, tail, self._head_bytes + len(tail))
        if batch:
            queue: ConsumeQueue = BatchConsumeQueue(self._batch_files, head, queue_id, self._levels)
        else:
            queue = ConsumeQueue(self._files, head, queue_id, self._levels)
        others[queue_id] = queue
        return queue
