"""Compaction: replaces a long chain of journals by a snapshot of all tables.

The order of steps makes a crash at any point lose nothing: write ``.tmp``, fsync, rename, fsync the directory, and only
then remove the files that it replaces. A snapshot ends with a record that counts the others, so part of one is never
taken for the whole.
Neighbours: journal.py (begins a new journal first, which gets the changes that come meanwhile).
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from broker.meta.journal_format import Record, encode_header, encode_record, scan
from broker.meta.journal_paths import JournalPaths
from mqcommon.disk.files import FileSystem
from mqcommon.errors import StoreCorrupt, StoreError

END = "end"


class Compaction:
    """One attempt; ``snapshot_bytes`` stays 0 when it fails."""

    def __init__(self, fs: FileSystem, paths: JournalPaths, number: int) -> None:
        self._fs = fs
        self._paths = paths
        self._number = number
        self.snapshot_bytes = 0

    def write(self, state: Iterable[tuple[str, Any]]) -> None:
        """Write ``state``, then remove the files that it replaces. Blocks: call it in a thread."""
        fs, half, path = self._fs, self._paths.half_snapshot(self._number), self._paths.snapshot(self._number)
        try:
            size = self._write_half(half, state)
            # A snapshot without its journal counts as damage: the journal's name must be on disk first.
            fs.fsync_dir(self._paths.directory)
            fs.rename(half, path)
            fs.fsync_dir(self._paths.directory)
        except (OSError, StoreError) as error:
            with contextlib.suppress(OSError):
                if fs.exists(half):
                    fs.remove(half)
            raise StoreError(f"{path} cannot be written: {error}") from error
        self.snapshot_bytes = size
        for old in self._paths.older(self._paths.listing(fs), self._number):
            with contextlib.suppress(OSError):  # recovery removes a file that stays
                fs.remove(old)

    def _write_half(self, half: str, state: Iterable[tuple[str, Any]]) -> int:
        if self._fs.exists(half):
            self._fs.remove(half)
        file = self._fs.open_append(half)
        try:
            file.write(encode_header(self._number, 0))
            count = 0
            for kind, payload in state:
                file.write(encode_record(kind, payload, 0))
                count += 1
            file.write(encode_record(END, count, 0))
            file.sync()
            return file.size()
        finally:
            file.close()


def snapshot_records(fs: FileSystem, path: str, number: int) -> tuple[list[Record], int]:
    """The records of a snapshot and its size; StoreCorrupt if it is not whole."""
    data = fs.read(path)
    found = scan(data, number)
    if found.damage or not data:
        raise StoreCorrupt(path, found.good_bytes, found.damage or "the file is empty")
    if not found.records or found.records[-1][1:] != (END, len(found.records) - 1):
        raise StoreCorrupt(path, found.good_bytes, "its end is missing")
    return found.records[:-1], len(data)
