"""Files of equal size that form one long array of bytes, each named by the offset of its first byte (20 digits).

Old segments are mapped at their first read. A new one is allocated on disk before it is mapped, so that a full disk is
an error here, and not a SIGBUS at some later write.

Threads: the list of segments belongs to the event loop. A thread gets a copy of it, or a `Segment`. Only `prepare`,
`sync` and `remove_retired` may run in a thread: they touch nothing that the event loop changes without a lock.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from skylark.mqcommon.disk.atomic import unshare
from skylark.mqcommon.disk.files import FileSystem, MappedFile, ReadableFiles
from skylark.mqcommon.disk.loading import read, used_size
from skylark.mqcommon.errors import FileClosed, StoreCorrupt

NAME_DIGITS = 20
# How much of a file is read at once.
PIECE_BYTES = 1024 * 1024

OnMap = Callable[["Segment"], None]


def file_names(fs: ReadableFiles, directory: str) -> list[str]:
    """The names of a chain's files in ``directory``, in their order."""
    return [name for name in fs.listdir(directory) if len(name) == NAME_DIGITS and name.isdigit()]


def file_path(directory: str, base: int) -> str:
    """The file of a chain in ``directory`` whose first byte is at ``base``."""
    return f"{directory}/{base:0{NAME_DIGITS}d}"


class Segment:
    """Bytes ``base`` to ``base + size`` of a chain."""

    __slots__ = ("_file", "_fs", "_on_map", "base", "path", "size", "was_used")

    def __init__(self, fs: FileSystem, path: str, base: int, size: int, on_map: OnMap) -> None:
        self._fs = fs
        self._file: MappedFile | None = None
        self._on_map = on_map
        self.path = path
        self.base = base
        self.size = size
        #: Whether the map was used again since it was made, or since its owner has reset this.
        self.was_used = False

    @property
    def file(self) -> MappedFile:
        """The mapped file; the first use maps it."""
        # Another thread may let the file go at any moment.
        file = self._file
        if file is None:
            file = self._file = self._fs.open_map(self.path, self.size, create=False)
            self._on_map(self)
        else:
            self.was_used = True
        return file

    def let_go(self) -> None:
        """Unmap the file as soon as nobody reads it any more. Only for files that their owner syncs without the map."""
        self._file = None

    @property
    def end(self) -> int:
        return self.base + self.size

    def read_part(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``; does not map the file."""
        at = offset - self.base
        file = self._file
        return read(file, at, size) if file else self._fs.read_part(self.path, at, size)

    def allocate(self, allocated: int | None = None) -> None:
        """Give the file its full size, and blocks for its first ``allocated`` bytes (None: all). Raises DiskFull."""
        self._file = self._fs.open_map(self.path, self.size, create=True, allocated=allocated)
        self._on_map(self)

    def clear_from(self, offset: int) -> None:
        """Cut the file at ``offset``; `allocate` then extends it with zeros to its full size."""
        self.close()
        unshare(self._fs, self.path)
        file = self._fs.open_append(self.path)
        try:
            file.truncate(offset - self.base)
            file.sync()
        finally:
            file.close()

    def zero_from(self, offset: int, *, sync: bool) -> None:
        """Make all bytes from ``offset`` on zeros without blocks; ``sync``: durably."""
        self.close()
        unshare(self._fs, self.path)
        file = self._fs.open_append(self.path)
        try:
            file.truncate(offset - self.base)
            file.truncate(self.size)
            if sync:
                file.sync()
        finally:
            file.close()

    def sync(self) -> None:
        """Make all written bytes durable. Does nothing if the file is not mapped."""
        file = self._file
        if file is not None:
            with suppress(FileClosed):  # the cleaner has removed this file from the front of the log
                file.sync()

    def remove(self) -> None:
        """Remove the file from disk if it is still there. Readers that have its descriptor open can go on."""
        if self._fs.exists(self.path):
            self._fs.remove(self.path)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SegmentChain:
    """The segments of one directory, without gaps. The directory appears with the first segment.

    ``durable_files``: a new file is synced before it is used, so that a power loss leaves no gap. Without it there may
    be a gap after a power loss; the files after it are then dropped, and the owner must be able to make them again.
    ``allocated``: how many bytes of a new file get blocks at once; the owner allocates the rest as needed.
    ``on_map`` is called after each mapping of a segment.
    """

    __slots__ = (
        "_allocated",
        "_durable_files",
        "_fs",
        "_is_cut",
        "_making",
        "_next",
        "_on_map",
        "directory",
        "loaded_end",
        "retired",
        "segment_bytes",
        "segments",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        segment_bytes: int,
        *,
        durable_files: bool,
        allocated: int | None = None,
        on_map: OnMap = lambda segment: None,
    ) -> None:
        self._fs = fs
        self._durable_files = durable_files
        self._allocated = allocated
        self._on_map = on_map
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        # Where the files ended when they were loaded, before a short one was extended to its full size.
        self.loaded_end = 0
        # Removed from the chain but not yet from disk; oldest first.
        self.retired: list[Segment] = []
        # The segment made ahead by `prepare`, not yet in the chain.
        self._next: Segment | None = None
        # Files after the end are being removed by their names, so none may be made there.
        self._is_cut = False
        self._making = threading.Lock()

    def load(self, durable_end: int = 0) -> bool:
        """Find the segments on disk. With ``durable_files``, StoreCorrupt if one is missing or of a wrong size.

        Without ``durable_files`` the first such file and all later ones are dropped, and the result is False.
        ``durable_end``: all before it is known to have been on disk.
        """
        names = file_names(self._fs, self.directory)
        for number, name in enumerate(names):
            path = f"{self.directory}/{name}"
            problem = self._problem(path, int(name), last=number == len(names) - 1)
            if problem and self._durable_files:
                raise StoreCorrupt(path, 0, problem)
            if problem:
                for dropped in names[number:]:
                    self._fs.remove(f"{self.directory}/{dropped}")
                return False
            segment = Segment(self._fs, path, int(name), self.segment_bytes, self._on_map)
            size = self._fs.size(path)
            if size < min(durable_end - segment.base, self.segment_bytes):
                raise StoreCorrupt(path, size, f"the file ends here, and all before {durable_end} was on disk")
            self.loaded_end = segment.base + size
            if size < self.segment_bytes:
                # A crash came before the file was allocated, or between the cut of a torn tail and the next allocation.
                self._allocate(segment)
            self.segments.append(segment)
        if self.segments and self.end < durable_end:
            missing = f"the file is missing, and all before {durable_end} was on disk"
            raise StoreCorrupt(file_path(self.directory, self.end), 0, missing)
        return True

    def _problem(self, path: str, base: int, *, last: bool) -> str:
        size = self._fs.size(path)
        if size > self.segment_bytes or (size < self.segment_bytes and not last):
            return f"the file has {size} bytes, not the configured {self.segment_bytes}"
        if self.segments and base != self.segments[-1].end:
            return f"the file before it ends at {self.segments[-1].end}"
        return ""

    def _allocate(self, segment: Segment) -> None:
        segment.allocate(self._allocated)
        if self._durable_files:
            segment.sync()

    @property
    def fs(self) -> FileSystem:
        """The disk that the files are on."""
        return self._fs

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """Where the last file ends, at its full size; 0 without files."""
        return self.segments[-1].end if self.segments else 0

    def at(self, offset: int) -> Segment | None:
        """The segment that holds ``offset``."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def read_file(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``, read from the file and not from a map; for any thread. Empty if not there."""
        segment = self.at(offset)
        return b"" if segment is None else self._fs.read_part(segment.path, offset - segment.base, size)

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that hold bytes from ``start`` to ``end``."""
        return [segment for segment in self.segments if segment.base < end and segment.end > start]

    def last_written(self, offset: int, gap: int) -> int:
        """Where the bytes after ``offset`` end; ``offset`` if all are zeros. Zeros for ``gap`` bytes are the end."""
        end, at = offset, offset
        while at < min(end + gap, self.end) and (segment := self.at(at)) is not None:
            start = at - segment.base
            piece = read(segment.file, start, min(PIECE_BYTES, segment.size - start))
            if written := used_size(piece):
                end = at + written
            at += len(piece)
        return end

    def extend(self, base: int | None = None) -> Segment:
        """Add a segment at the end (the first one at ``base``). Raises DiskFull."""
        if not self.segments:
            self._fs.mkdirs(self.directory)
        at = self.end if self.segments else (base or 0)
        with self._making:
            # Under the lock, so that `prepare` sees the new end of the chain.
            segment, self._next = self._next or self._new_segment(at), None
            self.segments.append(segment)
        return segment

    def cover(self, start: int, end: int) -> None:
        """Add to the chain the files that hold ``start`` to ``end``, which the owner has made."""
        at = self.end if self.segments else start // self.segment_bytes * self.segment_bytes
        while at < end:
            self.segments.append(Segment(self._fs, file_path(self.directory, at), at, self.segment_bytes, self._on_map))
            at += self.segment_bytes

    @property
    def is_prepared(self) -> bool:
        """Whether the file that `extend` will need is made already."""
        return self._next is not None

    def prepare(self, end: int) -> None:
        """Make the file after the chain's ``end``, so that `extend` need not wait for the disk. For any thread.

        Does nothing if the chain has grown past ``end`` meanwhile, or is being cut. Raises DiskFull.
        """
        with self._making:
            if self.segments and self._next is None and self.end == end and not self._is_cut:
                self._next = self._new_segment(end)

    def _new_segment(self, at: int) -> Segment:
        segment = Segment(self._fs, file_path(self.directory, at), at, self.segment_bytes, self._on_map)
        try:
            self._allocate(segment)
        except BaseException:
            segment.close()
            raise
        return segment

    def clear_from(self, offset: int) -> None:
        """Make all bytes from ``offset`` on zero, and remove the segments after it."""
        # Remove newer files first: after a crash in between, the log must not have a gap before sound records.
        self.cut_after(offset)
        segment = self.at(offset)
        if segment is not None:
            segment.clear_from(offset)
            self._allocate(segment)

    def zero_from(self, offset: int, *, sync: bool) -> None:
        """Make all bytes from ``offset`` on zero, in files that keep their size; ``sync``: durably."""
        for segment in self.between(offset, self.end):
            segment.zero_from(max(offset, segment.base), sync=sync)

    def cut_after(self, offset: int) -> None:
        """Remove the segments that begin at or after ``offset``, but never the first one."""
        while self.segments and self.segments[-1].base >= offset and self.segments[-1].base > self.start:
            self._remove(self.segments.pop())

    def leave_after(self, offset: int) -> list[Segment]:
        """Take the segments that begin at or after ``offset`` out of the chain, but never the first, and return them.

        The caller removes all files from ``offset`` on, and then calls `cut_ended`. So a file that `prepare` made is
        removed here, also when it would still be the next one, and no other is made meanwhile.
        """
        with self._making:
            self._is_cut = True
            # A new list: other threads may be iterating over the old one.
            kept = [segment for number, segment in enumerate(self.segments) if not number or segment.base < offset]
            left, self.segments = self.segments[len(kept) :], kept
            if self._next is not None:
                self._remove(self._next)
                self._next = None
        return left

    def map_last_anew(self) -> None:
        """Let the map of the last segment go: the file under its name may be another one, with the same bytes."""
        if self.segments:
            self.segments[-1].let_go()

    def cut_ended(self) -> None:
        """Let `prepare` make files again: the files after the end are removed."""
        with self._making:
            self._is_cut = False

    def retire_before(self, offset: int) -> int:
        """Take the segments wholly before ``offset`` out of the chain, but never the last one; returns how many.

        `remove_retired` removes them from disk.
        """
        segments = self.segments
        count = max(min((offset - self.start) // self.segment_bytes, len(segments) - 1), 0)
        if count:
            self.retired += segments[:count]
            # A new list: other threads may be iterating over the old one.
            self.segments = segments[count:]
        return count

    def remove_retired(self) -> None:
        """Remove retired segments from disk. Blocks: for any thread, one at a time. Can be repeated after OSError.

        Oldest first, and each removal is durable before the next one, so that no crash leaves a gap.
        """
        while self.retired:
            self.retired[0].remove()
            self._fs.fsync_dir(self.directory)
            del self.retired[0]

    def remove_all(self) -> None:
        """Remove every segment."""
        while self.segments:
            self._remove(self.segments.pop())
        self.remove_retired()

    def forget(self) -> None:
        """Unmap all segments and take them out of the chain; the caller removes the files."""
        self.close()
        self.segments, self.retired = [], []

    def _remove(self, segment: Segment) -> None:
        segment.close()
        self._fs.remove(segment.path)
        if self._durable_files:
            # Sync after each one: if a power loss brought only some of them back, there could be a gap.
            self._fs.fsync_dir(self.directory)

    def close(self) -> None:
        with self._making:
            if self._next is not None:
                self._remove(self._next)
                self._next = None
        for segment in self.segments:
            segment.close()
