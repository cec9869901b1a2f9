"""A broker with a bucket: uploads, what sends meet meanwhile, reads of what only the bucket has, and the way back.

    python -m bench.tier_broker [--json] [--gib 4] [--seconds 20] [--rate 500] [--store seaweedfs|moto|directory]

A store with messages of 1,000 bytes in files of 1 GiB is made. Without a bucket all is read by a consumer, dropped from
the page cache before, and sends come at a fixed rate; what a send takes counts from when it is due. Then the broker
gets a bucket and keeps one file: the same sends while the broker uploads, then the consumer again. The limits of
uploads and of files made again are obstore's own calls on the same server, with the same bytes. The limits of reads are
the disk and obstore's own calls; the limits of sends are the sends without a bucket. The loop's share is the processor
time of the broker's main thread, while sends come.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import trio

from bench.backup import Sends, fill
from bench.cold_read import read_queue, share
from bench.harness import BROKER, Cluster, Row, cluster_at, cpu_s, row, show
from bench.recovery import GIB
from bench.tier import PIECE_BYTES, RANGE_BYTES, READERS, Sides, opened
from skylark import Admin, Producer, PullConsumer
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.restore import restore_segment
from skylark.mqcommon.tier.segment_index import SegmentIndex

TOPIC = "bench"
POLL_S = 0.1
# How long to wait for uploads, and for the files to go.
MOST_S = 3600.0
FILE_BYTES = 1 << 30
OPTIONS = ("--mapped-file-size-commit-log", str(FILE_BYTES), "--flush-disk-type", "ASYNC_FLUSH")


class Sent(NamedTuple):
    """Sends at a fixed rate: ms of each, the shortest first, how long they went on, and the loop's share of a core."""

    times_ms: list[float]
    seconds: float
    loop_percent: float


async def sends_for(at: Cluster, rate: int, seconds: float, until_uploaded_to: int = 0) -> Sent:
    """Send for ``seconds``, or until the bucket has the log up to ``until_uploaded_to``."""
    async with (
        Admin(at.nameserver) as admin,
        Producer(at.nameserver, group="bench") as producer,
        trio.open_nursery() as nursery,
    ):
        sends = Sends(producer, rate)
        nursery.start_soon(sends.run)
        began, loop_began = trio.current_time(), cpu_s(at.broker_pid, only_main_thread=True)
        if not until_uploaded_to:
            await trio.sleep(seconds)
        else:
            with trio.fail_after(MOST_S):
                while (await admin.tier_status(at.broker)).uploaded_to < until_uploaded_to:  # noqa: ASYNC110 - in another process
                    await trio.sleep(POLL_S)
        took, loop_took = trio.current_time() - began, cpu_s(at.broker_pid, only_main_thread=True) - loop_began
        nursery.cancel_scope.cancel()
    return Sent(sends.take(), took, 100 * loop_took / took)


async def until_cleaned(at: Cluster, directory: Path) -> None:
    """Wait until the broker has only the files that it is to keep."""
    with trio.fail_after(MOST_S):
        while len(list((directory / "commitlog").iterdir())) > 3:  # noqa: ASYNC110 - in another process
            await trio.sleep(POLL_S)


async def read_all(at: Cluster, end: dict[int, int]) -> float:
    """MB/s of a consumer that reads the messages before ``end`` of all queues at once."""
    total = 0
    async with PullConsumer(at.nameserver, heartbeat=False) as consumer:
        queues = await consumer.message_queues(TOPIC)

        async def read(number: int) -> None:
            nonlocal total
            total += await read_queue(consumer, queues[number], end[queues[number].queue_id])

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(len(queues)):
                nursery.start_soon(read, number)
        return total / 1e6 / (time.perf_counter() - began)


async def queue_ends(at: Cluster) -> dict[int, int]:
    async with PullConsumer(at.nameserver, heartbeat=False) as consumer:
        return {mq.queue_id: await consumer.max_offset(mq) for mq in await consumer.message_queues(TOPIC)}


def drop_cache(directory: Path) -> None:
    """Let the kernel forget the log."""
    for path in (directory / "commitlog").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def bare(sides: Sides, files: list[Path]) -> tuple[float, float]:
    """(MB/s of puts, MB/s of ranged gets by some threads) of these files by the bare library."""

    def pieces(path: Path) -> Iterator[memoryview]:
        with path.open("rb", buffering=0) as file:
            while data := file.read(PIECE_BYTES):
                yield memoryview(data)

    size = sum(path.stat().st_size for path in files)
    began = time.perf_counter()
    for number, path in enumerate(files):
        sides.bare_put(f"bare-{number}", pieces(path))
    put_s = time.perf_counter() - began
    places = [(f"bare-{number}", at) for number in range(len(files)) for at in range(0, FILE_BYTES, RANGE_BYTES)]
    began = time.perf_counter()
    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(lambda place: sides.bare_get(*place), places))
    return size / 1e6 / put_s, size / 1e6 / (time.perf_counter() - began)


def restored(sides: Sides) -> float:
    """MB/s of the files of the log, made again and compared with their CRCs."""
    manifest = ManifestLog(sides.bucket, set_name(BROKER)).newest()
    assert manifest is not None
    began = time.perf_counter()
    for segment in manifest.segments:
        index = SegmentIndex.decode(sides.bucket.get(segment.index.name))
        restore_segment(sides.bucket, segment, index, memoryview(bytearray(segment.end - segment.start)))
    return (manifest.end - manifest.start) / 1e6 / (time.perf_counter() - began)


def slower(name: str, unit: str, ours: float, limit: float, n: int) -> Row:
    """A row whose figures are better when they are small."""
    return row(name, unit, [ours], [limit], n, smaller_is_better=True)


def rows(home: Path, store: str, gib: float, seconds: float, rate: int) -> Iterator[Row]:
    directory = home / BROKER
    fill(str(directory), int(gib * GIB))
    full = int(gib * GIB) // FILE_BYTES * FILE_BYTES
    files = sorted((directory / "commitlog").iterdir())[: full // FILE_BYTES]
    with opened(store, home) as sides:
        puts, gets = bare(sides, files)
        drop_cache(directory)
        with cluster_at(str(home), OPTIONS) as at:
            ends = trio.run(queue_ends, at)
            local = trio.run(read_all, at, ends)
            quiet = trio.run(sends_for, at, rate, seconds)
        with_bucket = (*OPTIONS, "--tier-path", sides.bucket.url, "--tier-local-bytes", "1")
        with cluster_at(str(home), (*with_bucket, "--clean-resource-interval", "500")) as at:
            busy = trio.run(sends_for, at, rate, 0, full)
            yield row("uploads, sorted and read back; limit: bare puts", "MB/s", [full / 1e6 / busy.seconds], [puts], 1)
            count = len(busy.times_ms)
            for percent in (50, 99, 99.9):
                ours, limit = (share(each.times_ms, percent / 100) for each in (busy, quiet))
                yield slower(f"sends meanwhile, {percent:g} %; limit: no bucket", "ms", ours, limit, count)
            ours, limit = busy.loop_percent, quiet.loop_percent
            yield slower("the broker's loop meanwhile; limit: no bucket", "% of core", ours, limit, count)
            trio.run(until_cleaned, at, directory)
            old = trio.run(read_all, at, ends)
        yield row("reads of old messages; limit: from the disk", "MB/s", [old], [local], 1)
        yield row("reads of old messages; limit: bare ranged gets", "MB/s", [old], [gets], 1)
        yield row("files made again; limit: bare ranged gets", "MB/s", [restored(sides)], [gets], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--gib", type=float, default=4, help="size of the log (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of sends without a bucket (%(default)s)")
    parser.add_argument("--rate", type=int, default=500, help="sends a second (%(default)s)")
    parser.add_argument(
        "--store", choices=("moto", "seaweedfs", "directory"), default="seaweedfs", help="(%(default)s)"
    )
    parser.add_argument("--dir", help="where all files are made; default: the system's directory for temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as home:
        show(rows(Path(home), given.store, given.gib, given.seconds, given.rate), given.json)


if __name__ == "__main__":
    main()
