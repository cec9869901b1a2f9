"""The committed offset of each group in each queue: nested dicts under RocketMQ's key ``topic@group``.

A commit sets a dict entry and marks it as changed. tasks/persist.py appends the changed entries to the journal each
``flushConsumerOffsetInterval`` and at a stop. So a crash loses the commits since the last interval, and consumers get
some messages twice. Removals are journalled at once: an older offset must not undo them.
Methods that go through all keys, of which there may be millions, yield between slices.
This is not a JournalledTable: commits are too frequent for a record each, a record has many keys with only the changed
queues, and rows are changed in place. Kinds of records and the version are declared as in a JournalledTable.
Neighbours: table.py, tasks/persist.py, offset_handlers.py and delivery/pull_handlers.py (commits).
"""

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Applier, Change, JournalledVersion
from skylark.remoting.protocol.body import DataVersion

PUT, GONE, VERSION = "offsets", "offsets-gone", "offsets-version"
# Offsets per journal record: encoding and appending them takes well under a millisecond.
SLICE = 500
# Keys that one step looks at: some milliseconds.
KEYS = 20_000
# The number of changes that are kept. A slave that missed more gets the whole table.
RECENT = 65_536

Changed = tuple[str, int]


class ConsumerOffsets:
    """All committed offsets of a broker."""

    def __init__(self, journal: Journal, run_ms: int) -> None:
        """``run_ms``: the present time, which identifies this run in versions."""
        self._journal = journal
        self._run_ms = run_ms
        self._table: dict[str, dict[int, int]] = {}
        # an ordered set
        self._changed: dict[Changed, None] = {}
        self._version = JournalledVersion(journal, VERSION)
        #: How many keys were removed in this run.
        self.removals = 0
        #: Raised by each change, whether the journal has the change yet or not.
        self.changes = 0
        # The key and queue of each of the last changes, and the count of changes at which this list begins.
        self._recent: deque[Changed] = deque(maxlen=RECENT)
        self._recent_since = 0

    @property
    def data_version(self) -> DataVersion:
        """The version of the journalled offsets, which a Java broker that imports them, and its slaves, compare."""
        return self._version.value

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset; -1 if there is none."""
        queues = self._table.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue → committed offset."""
        return self._table.get(f"{topic}@{group}", {})

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, forward or back. Negative offsets, which some clients send, are ignored."""
        if offset < 0:
            return
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        elif queues.get(queue_id) == offset:
            return
        queues[queue_id] = offset
        self._mark_changed((key, queue_id))

    def commit_now(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """As `commit`, for an offset that must survive a kill of this process from now on."""
        self.commit(group, topic, queue_id, offset)
        self.append_changed([(f"{topic}@{group}", queue_id)])

    def table(self) -> dict[str, dict[int, int]]:
        """The table itself, for reading."""
        return self._table

    def topics_of(self, group: str) -> Generator[None, None, list[str]]:
        """The topics in which a group has committed offsets."""
        end = f"@{group}"
        found: list[str] = []
        for keys in self._slices():
            # endswith first: it rejects most keys at the least cost.
            parts = [key.partition("@") for key in keys if key.endswith(end)]
            found += [topic for topic, _, name in parts if name == group]
            yield
        return found

    def topics_by_group(self) -> Generator[None, None, dict[str, list[str]]]:
        """Group → the topics in which it has committed offsets."""
        found: dict[str, list[str]] = {}
        for keys in self._slices():
            for key in keys:
                topic, _, group = key.partition("@")
                found.setdefault(group, []).append(topic)
            yield
        return found

    def groups_of(self, topic: str) -> Generator[None, None, list[str]]:
        """Groups that have committed offsets of a topic."""
        start = f"{topic}@"
        found: list[str] = []
        for keys in self._slices():
            found += [key[len(start) :] for key in keys if key.startswith(start)]
            yield
        return found

    def remove_group(self, group: str) -> Generator[None, None, None]:
        """Remove all offsets of a group."""
        topics = yield from self.topics_of(group)
        yield from self._remove([f"{topic}@{group}" for topic in topics])

    def remove_topic(self, topic: str) -> Generator[None, None, None]:
        """Remove all offsets of a topic."""
        groups = yield from self.groups_of(topic)
        yield from self._remove([f"{topic}@{group}" for group in groups])

    def _slices(self) -> Iterator[list[str]]:
        """All present keys, in slices; some may be removed before their slice is read."""
        keys = list(self._table)
        return (keys[start : start + KEYS] for start in range(0, len(keys), KEYS))

    def _remove(self, keys: Sequence[str]) -> Generator[None, None, None]:
        """Remove keys, with a record per SLICE keys: one record for all could be too large for the journal to read."""
        for start in range(0, len(keys), SLICE):
            self._remove_some([key for key in keys[start : start + SLICE] if key in self._table])
            yield

    def _remove_some(self, keys: list[str]) -> None:
        if not keys:
            return
        self._journal.append(GONE, keys)
        for key in keys:
            del self._table[key]
        self.removals += len(keys)
        # The list of changes cannot express removals. Clear it: slaves that know an older count get the whole table.
        self.changes += 1
        self._recent.clear()
        self._recent_since = self.changes
        self._version.advance()

    def _mark_changed(self, changed: Changed) -> None:
        self._changed[changed] = None
        self._recent.append(changed)
        self.changes += 1

    # --- slaves

    @property
    def live_version(self) -> DataVersion:
        """Changes with each commit and removal, journalled or not."""
        return DataVersion(0, self._run_ms, self.changes)

    def changed_since(self, version: DataVersion, most: int = RECENT) -> dict[str, dict[int, int]] | None:
        """The present values of offsets that changed since `live_version` was ``version``.

        None if the whole table must be sent, as after more than ``most`` changes.
        """
        count = self.changes - version.counter
        if version.timestamp != self._run_ms or version.counter < self._recent_since:
            return None
        if not 0 <= count <= min(most, RECENT):
            return None
        # Every queue in the list is still in the table, since a removal clears the list.
        found: dict[str, dict[int, int]] = {}
        for key, queue_id in islice(reversed(self._recent), count):
            found.setdefault(key, {})[queue_id] = self._table[key][queue_id]
        return found

    def keep_only(self, keys: Container[str]) -> Generator[None, None, None]:
        """Remove all keys that are not among a master's ``keys``."""
        for own in self._slices():
            yield from self._remove([key for key in own if key not in keys])
            yield

    def mirror(self, table: Mapping[str, Mapping[int, int]], *, is_whole: bool) -> None:
        """Copy the keys of ``table`` from a master; ``is_whole``: with all queues of each key, not only changed ones.

        Offsets that differ count as changed: append them, then call `adopt_version`.
        """
        if is_whole:
            # A key with fewer queues than before (its topic was made again) is removed first, as records can only add
            # queues.
            own = self._table
            self._remove_some([key for key, queues in table.items() if key in own and own[key].keys() - queues])
        for key, queues in table.items():
            known = self._table.get(key)
            for queue_id, offset in queues.items():
                if offset >= 0 and (known is None or known.get(queue_id) != offset):
                    if known is None:
                        known = self._table[key] = {}
                    known[queue_id] = offset
                    self._mark_changed((key, queue_id))

    def advance(self, table: Mapping[str, Mapping[int, int]], end_of: Callable[[str, int], int]) -> None:
        """Commit the offsets that are higher in ``table``, which is from a slave that acted for this master.

        Offsets past the ends of this master's queues (``end_of``) are left out: they belong to a topic that this master
        has deleted and made again before the slave copied the deletion.
        """
        for key, queues in table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                if self.query(group, topic, queue_id) < offset <= end_of(topic, queue_id):
                    self.commit(group, topic, queue_id, offset)

    def adopt_version(self, version: DataVersion) -> None:
        """Set the master's version, after the journal has got the master's offsets of this version."""
        self._version.put(version)

    # --- journal

    @property
    def dirty(self) -> bool:
        """Whether there are changed offsets that the journal does not have."""
        return bool(self._changed)

    def pop_changed(self) -> list[Changed]:
        """The changes since the last call; give them to `append_changed` in slices of SLICE."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def append_changed(self, changed: Sequence[Changed]) -> None:
        """Append the present values. If that fails, they count as changed again, and the error is raised."""
        # Offsets that were removed since `pop_changed` are left out: a record would bring them back.
        payload: dict[str, dict[int, int]] = {}
        for key, queue_id in changed:
            queues = self._table.get(key)
            if queues is not None and queue_id in queues:
                payload.setdefault(key, {})[queue_id] = queues[queue_id]
        if not payload:
            return
        try:
            self._journal.append(PUT, payload)
        except BaseException:
            self.put_back(changed)
            raise
        self._version.advance()

    def put_back(self, changed: Sequence[Changed]) -> None:
        """Count ``changed`` as changed again: these offsets were popped but not appended."""
        self._changed.update(dict.fromkeys(changed))

    def appliers(self) -> list[Applier]:
        """See Journalled."""
        return [(PUT, self._apply_put), (GONE, self._apply_gone), *self._version.appliers()]

    def _apply_put(self, payload: Any) -> None:
        for key, queues in payload.items():
            self._table.setdefault(key, {}).update(queues)
        self._version.advance()

    def _apply_gone(self, payload: Any) -> None:
        for key in payload:
            self._table.pop(key, None)
        self._version.advance()

    def state(self) -> Iterator[Change]:
        """See Journalled.

        Copying all offsets at once would block the event loop. So each key is copied when its record is made, with one
        call that no other thread can interrupt. Changes made before that copy are also in the new journal, which is
        replayed after the snapshot.
        """
        return chain(offset_records(self._present(list(self._table))), self._version.state())

    def _present(self, keys: list[str]) -> Iterator[tuple[str, dict[int, int]]]:
        for key in keys:
            queues = self._table.get(key)
            if queues is not None:
                yield key, queues.copy()


def offset_records(table: Iterable[tuple[str, dict[int, int]]]) -> Iterator[Change]:
    """The items of a table as records of about SLICE offsets each."""
    rows: dict[str, dict[int, int]] = {}
    count = 0
    for key, queues in table:
        rows[key] = queues
        count += len(queues)
        if count >= SLICE:
            yield PUT, rows
            rows, count = {}, 0
    if rows:
        yield PUT, rows
