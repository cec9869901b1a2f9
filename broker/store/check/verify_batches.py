"""Compares the entries of one batch queue with the records of the log, in the order of the log. Read only."""

from collections.abc import Iterator

from broker.store.log.segment import NAME_DIGITS
from broker.store.queue.batch_queue import BatchAt
from broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES
from broker.store.queue.inner import messages_in
from mqcommon.disk.files import FileSystem
from mqcommon.message.record import Record

# How many entries are read at once.
_READ = 4096


class BatchFiles:
    """The files in ``directory``, and the differences found so far."""

    def __init__(self, fs: FileSystem, directory: str, log_start: int) -> None:
        self._fs = fs
        self._log_start = log_start
        self.directory = directory
        names = [name for name in fs.listdir(directory) if len(name) == NAME_DIGITS and name.isdigit()]
        self.sizes = {int(name): fs.size(f"{directory}/{name}") for name in names}
        self.next_offset = 0
        self.wrong = 0
        self.first_wrong = ("", 0, "")
        self._entries = self._read()
        self._next = next(self._entries, None)

    def compare(self, record: Record, tags_code: int) -> None:
        """Check that the next entry is that of ``record``."""
        offset, physical, messages = record.queue_offset, record.physical_offset, messages_in(record)
        if offset == 0:
            # Earlier differences were of a topic that was deleted and made again.
            self.wrong = 0
        self.next_offset = offset + messages
        while self._next is not None and self._next[1].physical < physical:
            self._note_stray()
        if self._next is None or self._next[1].physical > physical:
            place = (self.directory, 0) if self._next is None else self._next[0]
            self._note_wrong(place, f"messages {offset} to {self.next_offset - 1} have no entry")
            return
        place, found = self._next
        self._next = next(self._entries, None)
        wanted = BatchAt(physical, record.size, tags_code, record.store_timestamp, offset, messages)
        if found[:6] != wanted[:6]:
            self._note_wrong(place, f"the entry of messages {offset} to {wanted.end - 1} is {found}, not {wanted}")

    def finish(self, log_end: int, *, is_known: bool) -> Iterator[tuple[str, int, str]]:
        """(path, offset in it, what is wrong). ``is_known``: the queue was there when the ends were last noted."""
        if not self.sizes and self.next_offset >= 0:
            if is_known:
                yield self.directory, 0, f"no file, but the log has messages up to {self.next_offset - 1}"
            return
        whole = max(self.sizes.values(), default=0)
        for base, size in self.sizes.items():
            if size < whole:
                yield self._path(base), size, f"the file ends after {size:,} of {whole:,} bytes"
        while self.next_offset >= 0 and self._next is not None and self._next[1].physical < log_end:
            self._note_stray()
        if self.wrong:
            path, offset, reason = self.first_wrong
            yield path, offset, reason + (f"; {self.wrong - 1:,} more are wrong" if self.wrong > 1 else "")

    def _note_stray(self) -> None:
        """The next entry points to no record of the queue: its message is gone with the log's start, or it is wrong."""
        assert self._next is not None
        place, entry = self._next
        if entry.physical >= self._log_start:
            self._note_wrong(place, f"messages {entry.base} to {entry.end - 1} are not in the log")
        self._next = next(self._entries, None)

    def _note_wrong(self, place: tuple[str, int], reason: str) -> None:
        if not self.wrong:
            self.first_wrong = (*place, reason)
        self.wrong += 1

    def _read(self) -> Iterator[tuple[tuple[str, int], BatchAt]]:
        """((path, offset in it), entry) of all entries."""
        for base, size in self.sizes.items():
            path, at = self._path(base), 0
            while at + BATCH_ENTRY_BYTES <= size:
                many = min(_READ, (size - at) // BATCH_ENTRY_BYTES)
                raw = self._fs.read_part(path, at, many * BATCH_ENTRY_BYTES)
                for entry in map(BatchAt._make, BATCH_ENTRY.iter_unpack(raw)):
                    if not entry.is_entry:
                        break
                    yield (path, at), entry
                    at += BATCH_ENTRY_BYTES
                else:
                    continue
                break

    def _path(self, base: int) -> str:
        return f"{self.directory}/{base:0{NAME_DIGITS}d}"
