"""The cache of pieces: one download for all readers, no more memory than its bytes, and what the disk keeps."""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.tier.stretch_cache import DOWNLOAD_BYTES, DiskRing, Piece, StretchCache, open_ring
from skylark.mqcommon.tier.bucket import BucketAway
from tests.support.amounts import amount
from tests.support.waiting import DEADLINE_S

SIZE = 1_000
#: What the cache counts for a piece of SIZE bytes.
COUNTED = 1_400


def content(name: str, position: int, size: int = SIZE) -> bytes:
    return random.Random(f"{name} {position}").randbytes(size)


def piece(number: int, name: str = "a", size: int = SIZE) -> Piece:
    return Piece(name, number * size, size)


class Downloads:
    """Downloads pieces, and counts; waits for ``gate`` first."""

    def __init__(self) -> None:
        self.runs: list[list[Piece]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.on_begin: Callable[[], None] = lambda: None

    def __call__(self, pieces: Sequence[Piece]) -> bytes:
        self.runs.append(list(pieces))
        self.on_begin()
        assert self.gate.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure
        return b"".join(content(each.name, each.position, each.size) for each in pieces)


def got(cache: StretchCache, pieces: Sequence[Piece], downloads: Downloads) -> list[bytes]:
    """The bytes of each piece, also when several pieces are in one run."""
    found: list[bytes] = []
    for position, data in cache.get(pieces, downloads):
        assert position == pieces[len(found)].position
        size = pieces[0].size
        found += [bytes(data[at : at + size]) for at in range(0, len(data), size)]
    return found


def nothing() -> None:
    """What is called when a download ahead begins."""


def failing() -> None:
    raise RuntimeError


def expected(pieces: Sequence[Piece]) -> list[bytes]:
    return [content(each.name, each.position, each.size) for each in pieces]


@settings(max_examples=amount(40, 1_000))
@given(
    reads=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.booleans()), max_size=40),
    room=st.integers(0, 12),
    on_disk=st.integers(0, 8),
)
def test_any_reads_get_their_bytes_within_the_memory_of_the_cache(
    tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[int, int, bool]], room: int, on_disk: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / "stretches"
    cache = StretchCache(room * COUNTED, DiskRing(str(path), on_disk * SIZE + 500) if on_disk else None)
    downloads = Downloads()
    for first, count, ahead in reads:
        pieces = [piece(number) for number in range(first, first + count)]
        if ahead:
            cache.read_ahead(pieces, downloads, nothing)
        else:
            assert got(cache, pieces, downloads) == expected(pieces)
        assert cache.used_bytes <= room * COUNTED
        if on_disk:
            assert path.stat().st_size <= on_disk * SIZE + 500
    figures = cache.figures
    assert figures.downloaded_bytes == sum(len(run) for run in downloads.runs) * SIZE == figures.misses * SIZE
    cache.close()
    assert not path.exists()


def test_what_is_in_memory_is_not_downloaded_again_and_the_rest_in_few_requests() -> None:
    cache, downloads = StretchCache(100 * COUNTED), Downloads()
    cache.get([piece(2)], downloads)
    pieces = [piece(number) for number in range(5)]
    assert got(cache, pieces, downloads) == expected(pieces)
    assert [[each.position // SIZE for each in run] for run in downloads.runs] == [[2], [0, 1], [3, 4]]
    assert got(cache, pieces, downloads) == expected(pieces) and len(downloads.runs) == 3


def test_a_download_has_an_end() -> None:
    cache, downloads = StretchCache(1 << 30), Downloads()
    size = DOWNLOAD_BYTES // 3
    pieces = [piece(number, size=size) for number in range(7)]
    assert got(cache, pieces, downloads) == expected(pieces)
    assert [len(run) for run in downloads.runs] == [3, 3, 1]


def test_many_readers_of_a_stretch_share_one_download() -> None:
    cache, downloads = StretchCache(100 * COUNTED), Downloads()
    downloads.gate.clear()
    begun = threading.Event()
    downloads.on_begin = begun.set
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(got(cache, [piece(1)], downloads))) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(DEADLINE_S)
    downloads.gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == [expected([piece(1)])] * 6 and len(downloads.runs) == 1


def test_a_download_that_fails_is_tried_by_the_next_reader() -> None:
    cache, downloads = StretchCache(100 * COUNTED), Downloads()
    downloads.failure = BucketAway("slow")
    with pytest.raises(BucketAway):
        cache.get([piece(1), piece(2)], downloads)
    assert cache.used_bytes == 0
    downloads.failure = None
    assert got(cache, [piece(1)], downloads) == expected([piece(1)])


def test_room_is_made_before_a_download_begins() -> None:
    cache, downloads = StretchCache(4 * COUNTED), Downloads()
    for number in range(3):
        cache.get([piece(number)], downloads)
    used: list[int] = []
    downloads.on_begin = lambda: used.append(cache.used_bytes)
    cache.get([piece(10), piece(11)], downloads)
    assert used == [4 * COUNTED]


def test_what_came_by_one_download_is_not_copied_and_leaves_the_memory_together() -> None:
    cache, downloads = StretchCache(4 * COUNTED), Downloads()
    pieces = [piece(0), piece(1), piece(2)]
    (run,) = cache.get(pieces, downloads)
    (again,) = cache.get(pieces[1:], downloads)
    assert again.data.obj is run.data.obj and again.position == SIZE and len(again.data) == 2 * SIZE
    cache.get([piece(10), piece(11)], downloads)
    assert cache.used_bytes == 2 * COUNTED and not any(cache.has([each]) for each in pieces)


def test_what_is_read_ahead_takes_half_of_the_memory_at_most() -> None:
    cache, downloads = StretchCache(10 * COUNTED), Downloads()
    pieces, later = [piece(number) for number in range(5)], [piece(number) for number in range(10, 15)]
    assert cache.read_ahead(pieces, downloads, nothing)
    assert not cache.read_ahead(later, downloads, lambda: pytest.fail("there is no room"))
    cache.get(pieces, downloads)
    assert cache.read_ahead(later, downloads, nothing)
    assert cache.figures.hits == 5


def test_what_is_still_being_read_ahead_counts_for_that_half() -> None:
    cache, downloads = StretchCache(8 * COUNTED), Downloads()
    first, second, third = ([piece(at), piece(at + 1)] for at in (0, 10, 20))
    assert cache.read_ahead(first, downloads, nothing)
    answers: list[bool] = []

    def another() -> None:
        downloads.on_begin = nothing
        answers.append(cache.read_ahead(third, downloads, nothing))

    def begin() -> None:
        another()
        downloads.on_begin = another

    assert cache.read_ahead(second, downloads, begin)
    assert answers == [False, False] and downloads.runs == [first, second]
    cache.get(first, downloads)
    another()
    assert answers[-1], "the reader has come"


def test_a_failed_download_ahead_takes_no_room() -> None:
    cache, downloads = StretchCache(10 * COUNTED), Downloads()
    pieces = [piece(number) for number in range(5)]
    downloads.failure = BucketAway("slow")
    for _ in range(2):
        with pytest.raises(BucketAway):
            cache.read_ahead(pieces, downloads, nothing)
        with pytest.raises(RuntimeError):
            cache.read_ahead(pieces, downloads, failing)
    downloads.failure = None
    assert cache.read_ahead(pieces, downloads, nothing)


def test_readers_of_what_is_read_ahead_wait_for_it_from_the_beginning_on() -> None:
    cache, downloads = StretchCache(10 * COUNTED), Downloads()

    def begin() -> None:
        assert not downloads.runs and cache.has([piece(1)])

    assert cache.read_ahead([piece(1)], downloads, begin)
    assert got(cache, [piece(1)], downloads) == expected([piece(1)]) and len(downloads.runs) == 1
    with pytest.raises(RuntimeError):
        cache.read_ahead([piece(2)], downloads, failing)
    assert got(cache, [piece(2)], downloads) == expected([piece(2)]), "the reader downloads it itself"


def test_what_leaves_the_memory_comes_from_the_disk_until_that_is_full(tmp_path: Path) -> None:
    cache, downloads = StretchCache(COUNTED, DiskRing(str(tmp_path / "c" / "ring"), 3 * SIZE)), Downloads()
    for number in range(5):
        cache.get([piece(number)], downloads)
    downloads.runs.clear()
    for number in (3, 2, 1, 0):
        assert got(cache, [piece(number)], downloads) == expected([piece(number)])
    assert [run[0].position // SIZE for run in downloads.runs] == [1, 0]
    assert cache.figures.disk_hits == 2


def test_bytes_that_the_disk_has_changed_are_downloaded_again(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    cache, downloads = StretchCache(COUNTED, DiskRing(str(path), 10 * SIZE)), Downloads()
    cache.get([piece(0)], downloads)
    cache.get([piece(1)], downloads)
    path.write_bytes(bytes(SIZE))
    assert got(cache, [piece(0)], downloads) == expected([piece(0)]) and len(downloads.runs) == 3


def test_a_start_begins_with_an_empty_file_and_goes_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ring"
    path.write_bytes(b"of the last run")
    ring = open_ring(str(path), SIZE)
    assert ring is not None and path.stat().st_size == 0
    ring.close()
    (tmp_path / "file").write_bytes(b"")
    assert open_ring(str(tmp_path / "file" / "ring"), SIZE) is None
    assert "nothing that was read from the bucket is kept on disk" in caplog.text
