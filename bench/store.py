"""Appends through the store alone, and what SYNC_FLUSH costs through a broker. Skylark and the limit in turn.

    python -m bench.store [--n 300000] [--rounds 5] [--sends 60000] [--only append|flush] [--store-dir DIR] [--json]

Append: 128-byte bodies with a unique key each, as a broker hands them to its store; files of the default sizes, new in
each round. A round ends when the consume queues and the index hold all of its messages. The limit copies ready-made
bytes of the same messages into such files: records, queue entries, index entries and slots.

Flush: the rate of SYNC_FLUSH; the limit is the rate of ASYNC_FLUSH. Then how many messages one fsync of the log made
durable, by the broker's count; the limit is all messages in flight.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import make_topic, requests
from skylark import Admin
from skylark.broker.store.index.index_file import SLOT_BYTES, SLOTS_AT, entries_at, index_file_bytes
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.queue.entry import ENTRY_BYTES
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.ids import UniqueKeys, encode_host
from skylark.mqcommon.message.layout import MIN_RECORD

TOPIC = "bench"
QUEUES = 4
BODY = b"x" * 128
BATCH = 100
# The index catches up after this many messages, as many as one turn of a busy broker's loop may store.
TURN = 1000
CLUSTER = b"CLUSTER\x01DefaultCluster\x02"
STORE_HOST = encode_host("127.0.0.1", 10911)
BORN_HOST = encode_host("127.0.0.1", 50001)
Batch = list[tuple[int, bytes, bytes]]


def batches(count: int) -> list[Batch]:
    """(flag, body, properties) rows of a producer that makes a hundred keys a millisecond."""
    keys = UniqueKeys("127.0.0.1", 4711, 1)
    now_ms = time.time_ns() // 1_000_000
    return [[(0, BODY, key) for key in keys.many(now_ms + n, BATCH)] for n in range(count // BATCH)]


@contextmanager
def new_store(parent: str | None) -> Iterator[MessageStore]:
    """An open, empty store that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        store = MessageStore(OsFiles(), StoreOptions(directory), SystemClock(), STORE_HOST)
        store.open()
        yield store
        store.close()


def put_singly(store: MessageStore, made: list[Batch]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for number, batch in enumerate(made):
        for _, body, properties in batch:
            store.put(TOPIC, number % QUEUES, body, properties, born_timestamp=now_ms, born_host=BORN_HOST)
        if number % (TURN // BATCH) == 0:
            store.build_index(TURN)


def put_batches(store: MessageStore, made: list[Batch]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for number, batch in enumerate(made):
        store.put_batch(
            TOPIC, number % QUEUES, RowBatch(batch), suffix=CLUSTER, born_timestamp=now_ms, born_host=BORN_HOST
        )
        if number % (TURN // BATCH) == 0:
            store.build_index(TURN)


def append(parent: str | None, made: list[Batch], put: Callable[[MessageStore, list[Batch]], None]) -> float:
    """Messages a second, until all of them are in the log, the queues and the index."""
    count = sum(map(len, made))
    with new_store(parent) as store:
        started = time.perf_counter()
        put(store, made)
        while store.index.position < store.log.end:
            store.build_index(TURN)
        elapsed = time.perf_counter() - started
        queued = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
        indexed = sum(file.count - 1 for file in store.index.files)
        if (queued, indexed) != (count, count):
            raise SystemExit(f"of {count} messages {queued} are in the queues and {indexed} in the index")
    return count / elapsed


def copy(parent: str | None, count: int, at_once: int) -> float:
    """Messages a second when their bytes are ready and only copied, ``at_once`` at a time."""
    record_bytes = MIN_RECORD + len(BODY) + len(TOPIC) + len("UNIQ_KEY\x01\x02") + 32 + len(CLUSTER)
    record, entry, slot = bytes(record_bytes * at_once), bytes(ENTRY_BYTES * at_once), bytes(SLOT_BYTES)
    options = StoreOptions("")
    slots = options.index_slots
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        sizes = (options.commitlog_segment_bytes, ENTRY_BYTES * count, index_file_bytes(slots, options.index_capacity))
        files = [OsFiles().open_map(f"{directory}/{n}", size, create=True) for n, size in enumerate(sizes)]
        log, queue, index = (file.view for file in files)
        entry_0_at = entries_at(slots)
        started = time.perf_counter()
        for first in range(0, count, at_once):
            at = first * record_bytes
            log[at : at + len(record)] = record
            at = first * ENTRY_BYTES
            queue[at : at + len(entry)] = entry
            index[entry_0_at + at : entry_0_at + at + len(entry)] = entry
            for number in range(first, first + at_once):
                at = SLOTS_AT + number % slots * SLOT_BYTES
                index[at : at + SLOT_BYTES] = slot
        elapsed = time.perf_counter() - started
        for file in files:
            file.close()
    return count / elapsed


def append_rows(n: int, rounds: int, parent: str | None) -> Iterator[Row]:
    made = batches(n)
    # As in the broker: the handler adds the broker's properties to a single message, the store to messages of a batch.
    single = [[(flag, body, properties + CLUSTER) for flag, body, properties in batch] for batch in made]
    n = len(made) * BATCH
    figures = in_turn(rounds, partial(append, parent, single, put_singly), partial(copy, parent, n, 1))
    yield row("append 128 B singly, queues and index kept up", "msg/s", *figures, n)
    figures = in_turn(rounds, partial(append, parent, made, put_batches), partial(copy, parent, n, BATCH))
    yield row("append 128 B in batches of 100, queues and index kept up", "msg/s", *figures, n)


async def syncs(at: Cluster) -> int:
    """How many fsyncs of the log the broker counts."""
    async with Admin(at.nameserver) as admin:
        return int((await admin.broker_runtime_info(at.broker))["commitLogSyncTimes"])


def sends(at: Cluster, count: int, window: int) -> float:
    """Messages a second, one request each, by a client that does what official clients do."""
    return trio.run(partial(requests, at.broker, BODY, count, window, 0))


def flush_rows(n: int, rounds: int, parent: str | None) -> Iterator[Row]:
    with (
        cluster(store_dir=parent, options=("--flush-disk-type", "SYNC_FLUSH")) as sync,
        cluster(store_dir=parent, options=("--flush-disk-type", "ASYNC_FLUSH")) as async_,
    ):
        for at in (sync, async_):
            trio.run(make_topic, at)
        served: dict[int, list[float]] = {1000: [], 64: []}

        def counted(window: int) -> float:
            before = trio.run(syncs, sync)
            rate = sends(sync, n, window)
            served[window].append(n / (trio.run(syncs, sync) - before))
            return rate

        for window, beside in ((1000, 1000), (64, 1000), (64, 64)):
            figures = in_turn(rounds, partial(counted, window), partial(sends, async_, n, beside))
            yield row(f"SYNC_FLUSH, {window:,} in flight; limit: ASYNC_FLUSH, {beside:,}", "msg/s", *figures, n)
        for window, found in served.items():
            yield row(f"SYNC_FLUSH, {window:,} in flight: messages per fsync", "msg", found, [window], n)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    if arguments.only != "flush":
        yield from append_rows(arguments.n, arguments.rounds, arguments.store_dir)
    if arguments.only != "append":
        yield from flush_rows(arguments.sends, arguments.rounds, arguments.store_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=300_000, help="messages of one round of appends")
    parser.add_argument("--sends", type=int, default=60_000, help="messages of one round of sends")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--only", choices=("append", "flush"), help="one half of it")
    parser.add_argument("--store-dir", help="where the stores are; default: the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
