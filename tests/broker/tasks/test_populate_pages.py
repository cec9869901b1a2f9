"""Pages of the log are ready before its end gets there, and not much earlier."""

from itertools import pairwise

import pytest
import trio
import trio.testing

from broker.store.log import commitlog
from broker.store.log.residency import Span
from broker.store.store import MessageStore
from broker.tasks.populate_pages import PopulatePages
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

AHEAD, STEP = 1_200, 300


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "AHEAD_BYTES", AHEAD)
    monkeypatch.setattr(commitlog, "POPULATE_BYTES", STEP)


def populated(fs: MemoryFiles) -> list[range]:
    """Offsets in the log, one range a call."""
    return [range(int(path[-20:]) + at, int(path[-20:]) + at + size) for path, at, size in fs.cold.populated]


async def put_and_wake(store: MessageStore, pages: PopulatePages, count: int) -> None:
    for _ in range(count):
        put(store, "t", 0, bytes(100))
        pages.after_turn()
        await until(lambda: store.log.end <= store.log.populate_at, "pages are ready")


async def test_the_pages_ahead_of_the_end_are_ready(nursery: trio.Nursery) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    pages = PopulatePages(store.log)
    nursery.start_soon(pages.run)
    pages.after_turn()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert populated(fs) == [], "not before something is written"
    await put_and_wake(store, pages, 60)
    assert len(store.log.chain.segments) > 2
    ready = populated(fs)
    assert all(len(piece) <= STEP for piece in ready)
    assert all(a.stop <= b.start for a, b in pairwise(ready)), "each page once, in order"
    for segment in store.log.chain.segments[:-1]:
        assert max(piece.stop for piece in ready if piece.start < segment.end) == segment.end, "to the end of the file"
    assert store.log.end + AHEAD // 2 - 200 <= ready[-1].stop or ready[-1].stop == store.log.chain.end
    assert ready[-1].stop <= store.log.end + AHEAD + STEP
    nursery.cancel_scope.cancel()


async def test_a_file_that_is_gone_does_no_harm(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    pages = PopulatePages(store.log)
    put(store, "t", 0, bytes(100))
    pages.after_turn()
    segment = store.log.chain.segments[0]
    file = segment.file
    monkeypatch.setattr(store.log, "span", lambda start, stop: Span(file, start, stop - start))
    segment.close()
    nursery.start_soon(pages.run)
    await until(lambda: store.log.end <= store.log.populate_at, "it has gone on")
    assert populated(fs) == []
    nursery.cancel_scope.cancel()
