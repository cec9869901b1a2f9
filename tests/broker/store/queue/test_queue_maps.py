"""However few files may be open, all queues can be read; those that are read often stay mapped."""

import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from skylark.broker.store.log.segment import Segment
from skylark.broker.store.queue.queue_maps import LEAST_MAPS, MOST_MAPS, OTHER_DESCRIPTORS, QueueMaps, most_maps
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.disk.files import OsFiles
from tests.broker.store.support import HOST, SMALL, bodies, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

QUEUES = 150


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """60 can be opened, however many are open and whatever their numbers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 60, None)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def store_at(directory: Path) -> MessageStore:
    options = replace(SMALL, directory=str(directory), index_enabled=False, commitlog_segment_bytes=1 << 20)
    store = MessageStore(OsFiles(spare_descriptors=4), options, ManualClock(), HOST)
    store.open()
    return store


def test_all_queues_are_read_though_few_files_may_be_open(tmp_path: Path, few_descriptors: None) -> None:
    store = store_at(tmp_path)
    for queue_id in range(QUEUES):
        put(store, "t", queue_id, b"%d" % queue_id)
    store.close()
    store = store_at(tmp_path)
    # A limit that is not known when the store is opened: connections may take descriptors at any time.
    store.queues.maps.most = MOST_MAPS
    for _ in range(2):
        for queue_id in range(QUEUES):
            assert bodies(store, "t", queue_id) == [b"%d" % queue_id]
    put(store, "t", 0, b"more")
    store.checkpoint()
    store.close()


def segment(fs: MemoryFiles, maps: QueueMaps, number: int) -> Segment:
    made = Segment(fs, f"/{number}", 0, 100, maps.add)
    made.allocate()
    return made


def is_mapped(one: Segment) -> bool:
    return one._file is not None


def test_the_files_that_were_used_last_stay_mapped() -> None:
    fs, maps = MemoryFiles(), QueueMaps()
    maps.most = 3
    often, *others = (segment(fs, maps, number) for number in range(10))
    assert sum(is_mapped(one) for one in (often, *others)) == 3
    for one in others:
        _ = often.file, one.file
        assert is_mapped(often) and is_mapped(one)
    file = others[0].file
    while maps.make_room():
        pass
    assert not any(is_mapped(one) for one in (often, *others))
    assert file.view[:1] == b"\0", "a reader goes on with what it has"


@pytest.mark.parametrize("limit", [64, 256, 1_024, 4_096, 8_192, 1 << 20])
def test_the_number_of_maps_follows_the_limit_of_open_files(limit: int) -> None:
    assert LEAST_MAPS <= most_maps(limit) <= MOST_MAPS
    assert most_maps(limit) == LEAST_MAPS or 2 * most_maps(limit) < min(limit // 2, OTHER_DESCRIPTORS)
    assert most_maps(1_024) == 208 and most_maps(1 << 20) == MOST_MAPS
