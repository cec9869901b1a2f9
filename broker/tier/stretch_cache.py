"""Pieces of objects that were read from the bucket: in memory, then on disk. Thread-safe; reads block.

A piece is some stretches of records of a queue. It is in memory once, however many readers want it: the first reader
downloads the piece, the others wait. Room is made before a download begins, so memory holds no more than the cache's
bytes. A download ends in the cache even if its reader has left. The bytes of a download are never copied: its pieces
leave the memory together. Pieces that were read ahead take half of the memory at most: else readers of many queues
would drop each other's pieces. Pieces that leave the memory go to the disk, if the cache has a file there, which is
written round and round. Bytes from the file are compared with their CRC, and a start begins with an empty file.
Neighbours: reads.py (asks), mqcommon/tier/view.py (reads the bucket).
"""

import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import BucketAway

logger = logging.getLogger(__name__)

#: The most bytes of one download. Objects are written in parts of this size: a server has less work with whole parts.
DOWNLOAD_BYTES = 8 * 1024 * 1024
# What an entry takes besides its bytes.
_ENTRY_BYTES = 400
# How long a reader waits for room, or for the download of another reader.
_WAIT_S = 30.0


class Piece(NamedTuple):
    """``size`` bytes of object ``name``, from ``position`` on."""

    name: str
    position: int
    size: int


class PieceRun(NamedTuple):
    """Pieces that follow each other, and that one download has brought. ``position``: of ``data`` in the object."""

    position: int
    data: memoryview


#: Reads pieces that follow each other in their object, and compares their CRCs.
Download = Callable[[Sequence[Piece]], bytes]


@lazy_dataclass(slots=True)
class CacheFigures:
    """What the cache has done: pieces that were in memory or on disk, and pieces and bytes that were downloaded."""

    hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    downloaded_bytes: int = 0


class _Block:
    """What one download has brought: ``pieces`` that follow each other in ``data``."""

    __slots__ = ("counted", "data", "pieces")

    def __init__(self, data: bytes, pieces: Sequence[Piece]) -> None:
        self.data = memoryview(data)
        self.pieces = pieces
        self.counted = _counted(pieces)


class _Place(NamedTuple):
    """Where the bytes of a piece are."""

    block: _Block
    at: int


class _Flight:
    """A download of a piece by a thread. ``place``: None until the piece is in memory, and if the download failed."""

    __slots__ = ("is_over", "place")

    def __init__(self) -> None:
        self.place: _Place | None = None
        self.is_over = False


class StretchCache:
    """Pieces of at most ``max_bytes`` in memory, and further pieces in the file ``disk``."""

    def __init__(self, max_bytes: int, disk: "DiskRing | None" = None) -> None:
        self.figures = CacheFigures()
        self._max_bytes = max_bytes
        self._disk = disk
        self._places: dict[Piece, _Place] = {}
        # In the order of their last use.
        self._blocks: OrderedDict[_Block, None] = OrderedDict()
        # Read ahead, and not asked for yet.
        self._ahead: dict[Piece, None] = {}
        self._ahead_bytes = 0
        # Bytes that are being read ahead.
        self._ahead_coming = 0
        self._flights: dict[Piece, _Flight] = {}
        self._used = 0
        # Bytes for which room was made, and which are not in memory yet.
        self._coming = 0
        # Guards the fields above; notified when a download is over.
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Bytes in memory, and those that are being downloaded."""
        return self._used + self._coming

    def get(self, pieces: Sequence[Piece], download: Download) -> list[PieceRun]:
        """The bytes of ``pieces``, which follow each other. Raises what ``download`` raises, and BucketAway."""
        found: dict[Piece, _Place] = {}
        while len(found) < len(pieces):
            mine, others = self._look([piece for piece in pieces if piece not in found], found)
            self._fetch(mine, download, found)
            self._wait(others, found)
        return _runs(pieces, [found[piece] for piece in pieces])

    def has(self, pieces: Sequence[Piece]) -> bool:
        """Whether all ``pieces`` are in memory, or being downloaded."""
        with self._changed:
            return all(piece in self._places or piece in self._flights for piece in pieces)

    def read_ahead(self, pieces: Sequence[Piece], download: Download, on_begin: Callable[[], None]) -> bool:
        """Have ``pieces`` in memory soon; returns False if there is no room for them now.

        Calls ``on_begin`` when there is room, before the download: from then on readers of the pieces wait for it.
        """
        with self._changed:
            lacking = [piece for piece in pieces if piece not in self._places and piece not in self._flights]
            size = sum([piece.size for piece in lacking])
            # Threads that read ahead are here before one of them has made room.
            if max(self._ahead_bytes + self._ahead_coming, self._coming) + size > self._max_bytes // 2:
                return False
            self._flights.update((piece, _Flight()) for piece in lacking)
            self._ahead_coming += size
        try:
            on_begin()
        except BaseException:
            self._give_up(lacking, ahead=True)
            raise
        self._fetch(lacking, download, {}, ahead=True)
        return True

    def _look(
        self, wanted: Sequence[Piece], found: dict[Piece, _Place]
    ) -> tuple[list[Piece], list[tuple[Piece, _Flight]]]:
        """Add what is in memory to ``found``.

        Returns (pieces that the caller has to fetch, pieces that other threads fetch, with their downloads).
        """
        mine: list[Piece] = []
        others: list[tuple[Piece, _Flight]] = []
        with self._changed:
            for piece in wanted:
                place = self._places.get(piece)
                if place is not None:
                    self._blocks.move_to_end(place.block)
                    self._note_used(piece)
                    self.figures.hits += 1
                    found[piece] = place
                elif (flight := self._flights.get(piece)) is not None:
                    others.append((piece, flight))
                else:
                    self._flights[piece] = _Flight()
                    mine.append(piece)
        return mine, others

    def _fetch(
        self, pieces: list[Piece], download: Download, found: dict[Piece, _Place], *, ahead: bool = False
    ) -> None:
        """Fetch pieces of which the caller has the flights, run by run."""
        left = pieces
        try:
            while left:
                run = _first_run(left)
                self._fetch_run(run, download, found, ahead=ahead)
                left = left[len(run) :]
        finally:
            self._give_up(left, ahead=ahead)

    def _fetch_run(self, run: Sequence[Piece], download: Download, found: dict[Piece, _Place], *, ahead: bool) -> None:
        size = _counted(run)
        self._make_room(size)
        try:
            blocks = on_disk = self._from_disk(run)
            if blocks is None:
                blocks = [_Block(download(run), run)]
        except BaseException:
            with self._changed:
                self._coming -= size
            raise
        with self._changed:
            self._coming -= size
            self._used += size
            self._count(run, is_downloaded=on_disk is None)
            for block in blocks:
                self._blocks[block] = None
                at = 0
                for piece in block.pieces:
                    place = self._places[piece] = found[piece] = _Place(block, at)
                    at += piece.size
                    flight = self._flights.pop(piece)
                    flight.place, flight.is_over = place, True
                    if ahead:
                        self._ahead[piece] = None
                        self._ahead_bytes += piece.size
                        self._ahead_coming -= piece.size
            while self._used > self._max_bytes:  # one download is larger than the cache
                self._drop_oldest()
            self._changed.notify_all()

    def _from_disk(self, run: Sequence[Piece]) -> list[_Block] | None:
        """Blocks with the bytes of all pieces of ``run``; None if the disk lacks one of the pieces."""
        if self._disk is None:
            return None
        blocks: list[_Block] = []
        for piece in run:
            data = self._disk.get(piece)
            if data is None:
                return None
            blocks.append(_Block(data, [piece]))
        return blocks

    def _count(self, run: Sequence[Piece], *, is_downloaded: bool) -> None:
        figures = self.figures
        if is_downloaded:
            figures.misses += len(run)
            figures.downloaded_bytes += sum([piece.size for piece in run])
        else:
            figures.disk_hits += len(run)

    def _give_up(self, pieces: Sequence[Piece], *, ahead: bool) -> None:
        """The caller could not fetch these pieces: threads that wait for the pieces fetch them themselves."""
        with self._changed:
            for piece in pieces:
                self._flights.pop(piece).is_over = True
                if ahead:
                    self._ahead_coming -= piece.size
            self._changed.notify_all()

    def _wait(self, others: Sequence[tuple[Piece, _Flight]], found: dict[Piece, _Place]) -> None:
        with self._changed:
            for piece, flight in others:
                while not flight.is_over:
                    if not self._changed.wait(_WAIT_S):
                        raise BucketAway(f"another reader's download of {piece.name} takes longer than {_WAIT_S:.0f} s")
                self._note_used(piece)
                if flight.place is not None:
                    self.figures.hits += 1
                    found[piece] = flight.place

    def _make_room(self, size: int) -> None:
        """Drop the blocks that were used least lately, until ``size`` more bytes fit; waits while downloads have it."""
        dropped: list[_Block] = []
        with self._changed:
            while self._used + self._coming + size > self._max_bytes:
                if self._blocks:
                    dropped.append(self._drop_oldest())
                elif not self._coming:
                    break  # larger than the cache
                elif not self._changed.wait(_WAIT_S):
                    raise BucketAway("the memory of tierCacheBytes is in use by downloads")
            self._coming += size
        if self._disk is not None:
            for block in dropped:
                at = 0
                for piece in block.pieces:
                    self._disk.put(piece, block.data[at : at + piece.size])
                    at += piece.size

    def _drop_oldest(self) -> _Block:
        block, _ = self._blocks.popitem(last=False)
        self._used -= block.counted
        for piece in block.pieces:
            del self._places[piece]
            self._note_used(piece)
        return block

    def _note_used(self, piece: Piece) -> None:
        if piece in self._ahead:
            del self._ahead[piece]
            self._ahead_bytes -= piece.size

    def close(self) -> None:
        """Remove the file on disk."""
        if self._disk is not None:
            self._disk.close()


def open_ring(path: str, max_bytes: int) -> "DiskRing | None":
    """A `DiskRing`; None if the file cannot be made, which is logged."""
    try:
        return DiskRing(path, max_bytes)
    except OSError as error:
        logger.warning("nothing that was read from the bucket is kept on disk: %s", error)
        return None


def _counted(pieces: Sequence[Piece]) -> int:
    """What the cache counts for pieces."""
    return sum([piece.size + _ENTRY_BYTES for piece in pieces])


def _runs(pieces: Sequence[Piece], places: Sequence[_Place]) -> list[PieceRun]:
    found: list[PieceRun] = []
    first, size = 0, 0
    for number, (piece, place) in enumerate(zip(pieces, places, strict=True)):
        begin = places[first]
        if place.block is not begin.block or place.at != begin.at + size:
            found.append(PieceRun(pieces[first].position, begin.block.data[begin.at : begin.at + size]))
            first, size = number, 0
        size += piece.size
    if pieces:
        begin = places[first]
        found.append(PieceRun(pieces[first].position, begin.block.data[begin.at : begin.at + size]))
    return found


def _first_run(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The first pieces, which follow each other, up to `DOWNLOAD_BYTES`; always at least one."""
    size = pieces[0].size
    for number, (before, piece) in enumerate(pairwise(pieces), 1):
        size += piece.size
        if piece.position != before.position + before.size or size > DOWNLOAD_BYTES:
            return pieces[:number]
    return pieces


class DiskRing:
    """Pieces in a file of at most ``max_bytes``; the oldest are overwritten. For any thread.

    The bytes are lost with the process: `DiskRing` begins with an empty file, and `close` removes it.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        """Raises OSError."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # (place, CRC-32) of each piece in the file.
        self._places: dict[Piece, tuple[int, int]] = {}
        # (place of the piece in the file, piece), in the order in which pieces will be overwritten.
        self._order: deque[tuple[int, Piece]] = deque()
        self._at = 0
        self._lock = threading.Lock()
        self._is_failing = False

    def get(self, piece: Piece) -> bytes | None:
        """The bytes of a piece; None if the file does not have them, or the disk has changed them."""
        with self._lock:
            kept = self._places.get(piece)
            if kept is None or self._file < 0:
                return None
            at, crc = kept
            try:
                data = os.pread(self._file, piece.size, at)
            except OSError:
                return None
        return data if len(data) == piece.size and large_crc32(data) == crc else None

    def put(self, piece: Piece, data: memoryview) -> None:
        """Keep a piece, unless the file has it already. If a write fails, it is logged, and the piece is not kept."""
        with self._lock:
            if piece in self._places or piece.size > self._max_bytes or self._file < 0:
                return
            if self._at + piece.size > self._max_bytes:
                self._drop_between(self._at, self._max_bytes)
                self._at = 0
            end = self._at + piece.size
            self._drop_between(self._at, end)
            try:
                os.pwrite(self._file, data, self._at)
            except OSError as error:
                if not self._is_failing:
                    logger.warning("%s keeps nothing that was read from the bucket: %s", self._path, error)
                self._is_failing = True
                return
            self._is_failing = False
            self._places[piece] = self._at, large_crc32(data)
            self._order.append((self._at, piece))
            self._at = end

    def _drop_between(self, start: int, end: int) -> None:
        # The front of ``_order`` has the first place after the piece that was written last, round and round.
        while self._order and start <= self._order[0][0] < end:
            del self._places[self._order.popleft()[1]]

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
                os.remove(self._path)
