"""How fast a broker's threads read old messages from a bucket, against the bare library and against the log on disk.

    python -m bench.tier_reads [--json] [--mib 256] [--rounds N] [--store moto|seaweedfs|directory] [--dir DIRECTORY]

A store is filled with messages of 1 KiB and uploaded. "from the bucket" reads a whole topic as a bulk reader does, with
an empty cache. Its limit is obstore's own ranged gets of the same object, 4 MiB each, by as many threads as read ahead.
"against the log" has as its limit the same reads of the same store's log, which is in the page cache.
"one topic of 100" are the bytes that are read from the bucket for a byte of a topic that is 1 % of the log.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import trio

from bench.harness import Row, row, show, turns
from bench.tier import MIB, RANGE_BYTES, Sides, mib_per_s, opened
from skylark.broker.store.filter import ALL
from skylark.broker.store.reader import read_queue
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.tier.reads import AHEAD_THREADS, OlderReads
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.tier.manifest import Manifest
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.view import TierView

SET = "bench"
FILE_BYTES = 64 * MIB
BODY = bytes(1024)
HOST = bytes(8)
BULK = "bulk"
# Of 100 messages one is of the topic "small".
SHARE = 100
CACHE_BYTES = 256 * MIB


def filled(directory: str, mib: int) -> MessageStore:
    """A store with ``mib`` MiB of full files."""
    store = MessageStore(OsFiles(), StoreOptions(directory, FILE_BYTES), SystemClock(), HOST)
    store.open()
    number = 0
    while store.log.end < mib * MIB + 1:
        topic = "small" if number % SHARE == 0 else BULK
        store.put(topic, 0, BODY, b"", born_timestamp=1, born_host=HOST)
        number += 1
        if number % 10_000 == 0:
            store.checkpoint()
    store.checkpoint()
    return store


def uploaded(sides: Sides, store: MessageStore) -> Manifest:
    """The manifest after all full files of the log were uploaded."""
    log = ManifestLog(sides.bucket, SET)
    manifest = log.claim(1, bytes(16), 1, FILE_BYTES)
    for segment in store.log.chain.segments[:-1]:
        before = manifest.segments[-1].index if manifest.segments else None
        task = UploadTask(SET, segment.base, segment.size, 1, "b", {}, before, {}, 0, 1, ())
        manifest = manifest.successor(1).with_segment(upload(sides.bucket, segment.file.view, task))
        log.append(manifest)
    return manifest


def read_older(reads: OlderReads, topic: str, end: int) -> int:
    """Read a topic from its first message on, in the thread of a request; returns the bytes of its records."""
    offset = size = 0
    while offset < end:
        found = reads.read(topic, 0, offset, end, 32_768, RANGE_BYTES, ALL, False)
        offset, size = found.next_offset, size + len(found.records)
    return size


async def from_bucket(reads: OlderReads, topic: str, end: int) -> int:
    async with trio.open_nursery() as nursery:
        await nursery.start(reads.run)
        size = await trio.to_thread.run_sync(read_older, reads, topic, end)
        nursery.cancel_scope.cancel()
    return size


def from_log(store: MessageStore, end: int) -> None:
    offset, queue = 0, store.queues.get(BULK, 0)
    while offset < end:
        offset = read_queue(store.log, queue, offset, 32_768, RANGE_BYTES).next_offset


def rows(sides: Sides, store: MessageStore, rounds: int) -> Iterator[Row]:
    manifest = uploaded(sides, store)
    view = TierView(sides.bucket, SET, CACHE_BYTES)
    view.use(manifest)
    ends = {topic: bounds[1] for topic in (BULK, "small") if (bounds := view.bounds(topic, 0))}

    def new_reads() -> OlderReads:
        return OlderReads(view, store, SystemClock(), cache_bytes=CACHE_BYTES)

    size = trio.run(from_bucket, new_reads(), BULK, ends[BULK])
    ours = lambda: mib_per_s(size // MIB, partial(trio.run, from_bucket, new_reads(), BULK, ends[BULK]))  # noqa: E731

    def bare() -> float:
        ranges = [
            (stored.name, at)
            for segment in manifest.segments
            for _, stored in segment.classes
            for at in range(0, stored.size - RANGE_BYTES, RANGE_BYTES)
        ]
        with ThreadPoolExecutor(AHEAD_THREADS) as threads:
            get: Callable[[tuple[str, int]], object] = lambda each: sides.bare_get(*each)  # noqa: E731
            return mib_per_s(len(ranges) * RANGE_BYTES // MIB, lambda: list(threads.map(get, ranges)))

    found, limit = turns(rounds, ours, bare)
    yield row("from the bucket", "MiB/s", found, limit, size // MIB)
    local = lambda: mib_per_s(size // MIB, partial(from_log, store, ends[BULK]))  # noqa: E731
    found, limit = turns(rounds, ours, local)
    yield row("against the log", "MiB/s", found, limit, size // MIB)
    reads = new_reads()
    small = trio.run(from_bucket, reads, "small", ends["small"])
    read = reads.cache.figures.downloaded_bytes / small
    yield row("one topic of 100", "bytes a byte", [read], [1.0], small, smaller_is_better=True)
    store.log.older = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("moto", "seaweedfs", "directory"), default="moto", help="(%(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="of the log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each side; the median is shown (%(default)s)")
    parser.add_argument("--dir", help="where store and bucket have their files; default: that of temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as home, opened(given.store, Path(home)) as sides:
        store = filled(f"{home}/store", given.mib)
        show(rows(sides, store, given.rounds), given.json)
        store.close()


if __name__ == "__main__":
    main()
