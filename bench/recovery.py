"""Starts of large stores: after a crash, and after a clean stop with many files and queues.

    python -m bench.recovery [--json] [--rounds N] [--gib 2] [--unflushed-mib 64] [--segments 100] [--queues 10000]
                             [--dir DIRECTORY]

A crash: a process writes a store of 2 GiB with queues and index, then 64 MiB past the last checkpoint, and is killed.
Each round opens a copy that shares the old files' bytes. The limit is reading the unflushed bytes and their CRC.
A clean stop: 100 GiB of segments (all but the last are sparse) and 10,000 queues with messages. The limit is a start of
the same daemon on an empty store.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from bench.harness import Row, row, show
from bench.startup import start_and_ask
from scripts.daemons import free_port
from skylark.broker.store.checkpoint import ABORT, StoreCheckpoint
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.ids import UniqueKeys, encode_host
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG

GIB, MIB = 1 << 30, 1 << 20
HOST = encode_host("127.0.0.1", 10911)
BATCH = 100
QUEUES = 8
BODY = b"x" * 128


def open_store(directory: str) -> MessageStore:
    store = MessageStore(OsFiles(), StoreOptions(directory), SystemClock(), HOST)
    store.open()
    return store


def write_until(store: MessageStore, end: int) -> None:
    """Messages of 128 bytes with a unique key each, in batches to 8 queues."""
    keys = UniqueKeys("127.0.0.1", os.getpid(), 1)
    number = 0
    while store.log.end < end:
        now_ms = time.time_ns() // 1_000_000
        rows = [(0, BODY, b"UNIQ_KEY\x01%s\x02" % keys.next(now_ms).encode()) for _ in range(BATCH)]
        store.put_batch("bench", number % QUEUES, RowBatch(rows), born_timestamp=1, born_host=HOST)
        number += 1
        store.build_index(BATCH)


def make_crashed(directory: str, total: int, unflushed: int) -> None:
    """Write the store and be killed; runs in a process of its own."""
    store = open_store(directory)
    write_until(store, total - unflushed)
    store.checkpoint(with_ends=True)
    write_until(store, total)
    os.kill(os.getpid(), signal.SIGKILL)


def make_large(directory: str, segments: int, queues: int) -> None:
    """A store that was stopped cleanly; all its messages are in the last segment."""
    Path(directory, "commitlog").mkdir(parents=True)
    for number in range(segments - 1):
        with open(f"{directory}/commitlog/{number * GIB:020d}", "wb") as file:
            # Only the filler at the end of a file, which is enough for a start that reads all of a small log.
            file.write(SIZE_MAGIC.pack(GIB, BLANK_MAGIC))
            file.truncate(GIB)
    checkpoint = StoreCheckpoint(OsFiles(), f"{directory}/checkpoint")
    now_ms = int(time.time() * 1000)
    checkpoint.write((segments - 1) * GIB, now_ms, (now_ms, now_ms, now_ms), clean=True)
    checkpoint.close()
    store = open_store(directory)
    for number in range(queues):
        for _ in range(3):
            store.put(f"topic-{number // 8}", number % 8, BODY, b"", born_timestamp=1, born_host=HOST)
    store.close()


def start(directory: str) -> tuple[float, float]:
    """(seconds from exec to the first answer, resident MB when idle) of a broker on the store; it is stopped then."""
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "broker"),
        "--bind-address",
        "127.0.0.1",
        "--broker-ip1",
        "127.0.0.1",
        "--namesrv-addr",
        "127.0.0.1:1",
        "--store-path-root-dir",
        directory,
        "--listen-port",
        str(port),
    ]
    return start_and_ask(command, port, encode(Command(GET_BROKER_CONFIG.code, opaque=1)), directory)


def read_tail(directory: str, unflushed: int) -> float:
    """Seconds to read the last bytes of the log in pieces, with their CRC."""
    path = sorted(Path(directory, "commitlog").iterdir())[-1]
    started = time.perf_counter()
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - unflushed, 0))
        crc = 0
        while data := file.read(MIB):
            crc = crc32(data, crc)
    return time.perf_counter() - started


def copy_store(source: str, target: str) -> None:
    """Copy all files that a recovery may change; full commit log files are shared."""
    shutil.rmtree(target, ignore_errors=True)
    logs = sorted(Path(source, "commitlog").iterdir())
    shared = {str(path) for path in logs[:-1]}

    def link_or_copy(from_path: str, to_path: str) -> None:
        if from_path in shared:
            os.link(from_path, to_path)
        else:
            shutil.copy2(from_path, to_path)

    shutil.copytree(source, target, copy_function=link_or_copy)


def forget_pages(directory: str) -> None:
    """Sync the files and take them out of the page cache, as a power loss does."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def crash_rows(directory: str, total: int, unflushed: int, rounds: int) -> Iterator[Row]:
    made, copy = f"{directory}/made", f"{directory}/copy"
    subprocess.run([sys.executable, "-m", "bench.recovery", "--crash", made, str(total), str(unflushed)], check=False)
    what = f"{total / GIB:g} GiB, {unflushed >> 20} MiB unflushed"
    for name in ("killed", "power loss"):
        ours, limit = [], []
        for _ in range(rounds):
            copy_store(made, copy)
            if name == "power loss":
                Path(copy, ABORT).write_text("another boot\n")
                forget_pages(copy)
            ours.append(start(copy)[0])
            if name == "power loss":
                forget_pages(copy)
            limit.append(read_tail(copy, unflushed))
        yield row(f"start after a crash ({name}): {what}", "s", ours, limit, rounds, smaller_is_better=True)


def clean_rows(directory: str, segments: int, queues: int, rounds: int) -> Iterator[Row]:
    large, empty = f"{directory}/large", f"{directory}/empty"
    make_large(large, segments, queues)
    ours, limit = [], []
    for number in range(rounds):
        ours.append(start(large))
        limit.append(start(f"{empty}{number}"))
    what = f"clean start: {segments} GiB of segments, {queues:,} queues"
    yield row(what, "s", [s for s, _ in ours], [s for s, _ in limit], rounds, smaller_is_better=True)
    yield row(f"{what}: idle", "MB", [m for _, m in ours], [m for _, m in limit], rounds, smaller_is_better=True)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        total, unflushed = int(arguments.gib * GIB), arguments.unflushed_mib * MIB
        yield from crash_rows(f"{directory}/crash", total, unflushed, arguments.rounds)
        shutil.rmtree(f"{directory}/crash")
        yield from clean_rows(f"{directory}/clean", arguments.segments, arguments.queues, arguments.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Starts of large stores, after a crash and after a clean stop")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each; the median is shown")
    parser.add_argument("--gib", type=float, default=2, help="size of the crashed store")
    parser.add_argument("--unflushed-mib", type=int, default=64, help="how much of it is past the checkpoint")
    parser.add_argument("--segments", type=int, default=100, help="GiB of segments of the store that was stopped")
    parser.add_argument("--queues", type=int, default=10_000, help="its queues")
    parser.add_argument("--dir", help="where the stores are made; default: the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--crash", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.crash:
        directory, total, unflushed = arguments.crash
        make_crashed(directory, int(total), int(unflushed))
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
