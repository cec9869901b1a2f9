"""The sums of a log's blocks on disk: ``sums/<base>`` in the store's directory, one file for each file of the log.

crc of the rest 4 | CBOR [version, base, bytes of a log file, bytes of a block, CRCs, states]; a CRC is little-endian, 4
bytes, and a state is one byte (`FileSums`). RocketMQ does not know the directory.

A file is replaced as a whole, at a checkpoint; after a crash the sums of the last seconds may be missing. A file that
is missing, damaged or of another layout costs its sums only: a scrub makes them again.
Invariant: no file here has the sum of bytes that are not in the log any more. So a cut of the log removes files here
before it ends, and a start drops sums that may be stale, as another program may have used the store meanwhile.
"""

import sys
from array import array
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice

import cbor2

from skylark.broker.store.sums.block_sums import BLOCK_BYTES, CRC_CODE, Block, BlockSums, FileSums
from skylark.mqcommon.disk.atomic import read_with_crc, remove_all_leftovers, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles

#: In the store's directory.
DIRECTORY = "sums"
_VERSION = 1
_NAME_DIGITS = 20
# A start compares the newest sealed blocks with the log until one is right, and at most this many.
COMPARED_BLOCKS = 16


def _nobody_knows(bases: Collection[int]) -> None:
    """The default of `SumFiles`: nothing says which files there must be."""


class SumFiles:
    """The files of one store, whose directory is ``root``. All methods block.

    ``forget`` is called before files are removed, with their bases.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        sums: BlockSums,
        segment_bytes: int,
        forget: Callable[[Collection[int]], None] = _nobody_knows,
    ) -> None:
        self._fs = fs
        self._root = root
        self._directory = f"{root}/{DIRECTORY}"
        self._sums = sums
        self._segment_bytes = segment_bytes
        self._forget = forget
        #: The bases of the files that `load` has found damaged, or of another layout.
        self.damaged: list[int] = []
        #: The bases of the log files whose sums the start has missed; see `MessageStore.sums_lost`.
        self.lost: list[int] = []

    def load(self, bases: Collection[int], log_end: int, read: Callable[[Block], bytes], *, may_be_cut: bool) -> str:
        """Read the sums of the log files at ``bases``; drop those that may be stale. Returns why some were dropped.

        To be called before the log is written to. ``log_end``: where it ends. ``read`` reads a block; OSError if it
        cannot be read. ``may_be_cut``: another program may have cut the log, and appended other messages.
        """
        found = bases_in(self._fs, self._root)
        if not found:
            return ""
        remove_all_leftovers(self._fs, self._directory)
        self._remove(base for base in found if base not in bases)
        wrong, sums = self.read(), self._sums
        self.damaged = wrong
        self._remove(wrong)
        end = min(log_end, self._right_to(log_end, read, may_be_cut=may_be_cut))
        if any(block.end > end for block in islice(sums.newest(), 1)):
            sums.drop_from(end)
            # Durably, and now: the next checkpoint writes the others again, but it may fail before new messages come.
            self.cut(end)
            return f"the log after {end:,} is not as it was when they were made"
        return f"{path_in(self._root, wrong[0])} is damaged, or of another layout" if wrong else ""

    def read(self) -> list[int]:
        """Read the sums as they are; returns which files are damaged, or of another layout: their bases."""
        wrong = []
        for base in bases_in(self._fs, self._root):
            if (file := _read(self._fs, path_in(self._root, base), base, self._segment_bytes)) is None:
                wrong.append(base)
            else:
                self._sums.load(file)
        return wrong

    def drop(self, spans: Iterable[tuple[int, int]]) -> None:
        """Forget the sums of blocks with bytes of ``spans``, (from, to) in the log, durably: others are written there.

        For a store that is not open: `read` it before.
        """
        for start, end in spans:
            for block in self._sums.blocks(self._sums.block_at(start).start, end):
                self._sums.drop(block)
        self.write()

    def drop_all(self) -> bool:
        """Remove all files; returns whether there were any. Before `load`: a program without sums has used the store.

        Its ``verifyStore --repair`` may have changed any bytes.
        """
        found = bases_in(self._fs, self._root)
        self._remove(found)
        return bool(found)

    def write(self) -> None:
        """Write all sums that have changed, durably. One thread at a time. DiskFull, OSError: the next call does it."""
        for file in self._sums.take_changed():
            try:
                if file.is_empty:
                    self._remove([file.base])
                else:
                    self._fs.mkdirs(self._directory)
                    write_with_crc(self._fs, path_in(self._root, file.base), self._encoded(file))
            except BaseException:
                self._sums.write_again(file.base)
                raise

    def cut(self, offset: int) -> None:
        """Remove the files that may have sums of bytes from ``offset`` on, durably: the log is cut there.

        The next `write` brings back what is left of them in memory.
        """
        self._remove(base for base in bases_in(self._fs, self._root) if base + self._segment_bytes > offset)

    def remove_before(self, offset: int) -> None:
        """Remove the files of log files before ``offset``, which are removed."""
        self._remove(base for base in bases_in(self._fs, self._root) if base < offset)

    def _right_to(self, log_end: int, read: Callable[[Block], bytes], *, may_be_cut: bool) -> int:
        """Up to where the log is as it was when the sums were made, as far as the newest sealed blocks tell."""
        # A program that cuts the log at an offset writes other bytes after it: either the log ends there now, or no
        # block after the offset has its old bytes. So all before a block that is right was not cut.
        looked = 0
        for block in islice((each for each in self._sums.newest() if each.end <= log_end), COMPARED_BLOCKS):
            looked += 1
            try:
                is_right = self._sums.is_right(block, read(block))
            except OSError:
                is_right = False
            if is_right:
                # Where no other program has used the store, newer blocks that are not right are damaged.
                return block.end if may_be_cut else log_end
        return 0 if looked else log_end

    def _encoded(self, file: FileSums) -> bytes:
        fields = file.base, self._segment_bytes, BLOCK_BYTES, _swapped(file.crcs), file.states
        return cbor2.dumps([_VERSION, *fields])

    def _remove(self, bases: Iterable[int]) -> None:
        removed = [base for base in bases if self._fs.exists(path_in(self._root, base))]
        if removed:
            self._forget(removed)
        for base in removed:
            with suppress(FileNotFoundError):  # the cleaner and a checkpoint may remove a file at the same time
                self._fs.remove(path_in(self._root, base))
        if removed:
            self._fs.fsync_dir(self._directory)


def bases_in(fs: ReadableFiles, root: str) -> list[int]:
    """The first offsets of the log files that have sums, in the store whose directory is ``root``."""
    return [int(name) for name in fs.listdir(f"{root}/{DIRECTORY}") if name.isdigit() and len(name) == _NAME_DIGITS]


def path_in(root: str, base: int) -> str:
    """The file with the sums of the log file at ``base``."""
    return f"{root}/{DIRECTORY}/{base:0{_NAME_DIGITS}d}"


def _read(fs: ReadableFiles, path: str, base: int, segment_bytes: int) -> FileSums | None:
    try:
        data = read_with_crc(fs, path)
    except OSError:
        return None
    if data is None:
        return None
    version, *rest = cbor2.loads(data)
    if version != _VERSION:
        return None
    of_base, of_segment, block_bytes, crcs, states = rest
    if (of_base, of_segment, block_bytes) != (base, segment_bytes, BLOCK_BYTES):
        return None
    return FileSums(base, _swapped(crcs), states)


def _swapped(crcs: bytes) -> bytes:
    """From this machine's byte order to the file's, or back."""
    if sys.byteorder == "little":
        return crcs
    values = array(CRC_CODE, crcs)
    values.byteswap()
    return values.tobytes()
