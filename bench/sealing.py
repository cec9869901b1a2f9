"""What the sums of appended blocks cost: processor time for each GiB of log, and the part of a core at 10 MB/s.

    python -m bench.sealing [--json] [--mib 512] [--rounds N] [--dir DIRECTORY]

"ours" is the part of the broker that seals, with its hops to a thread; "limit" is the CRC of the same bytes, and
nothing else. The last row is the checkpoint's share: a file of sums is written every 10 s while messages come.
"""

from collections.abc import Iterator

import trio

from bench.backup import fill
from bench.harness import Row, processor_s, row, store_command
from bench.recovery import GIB, open_store
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.mqcommon.crc import large_crc32

RATE_BYTES = 10 * 10**6
WRITES = 20
CHECKPOINT_S = 10


def seal_all(store: MessageStore) -> None:
    store.log.sums.drop_from(0)
    sealing = BlockSealing(store.log, lambda: store.safe_end)
    store.log.sums.next_to_seal = 0

    async def seal() -> None:
        while sealing.due():
            await sealing.seal()

    trio.run(seal)


def sum_only(store: MessageStore) -> None:
    for segment in store.log.chain.segments:
        view = memoryview(segment.file.view)
        for block in store.log.sums.blocks(segment.base, min(segment.end, store.log.flushed)):
            at = block.start - segment.base
            large_crc32(view[at : at + block.size])


def write_sums(store: MessageStore) -> None:
    for number in range(WRITES):
        block = store.log.sums.block_at(0)
        store.log.sums.replace(block, number, is_attested=False)
        store.sum_files.write()


def rows(directory: str, mib: int, rounds: int) -> Iterator[Row]:
    fill(directory, mib << 20)
    store = open_store(directory)
    store.log.flush()
    seal_all(store)  # the first reading maps the pages
    ours, limit = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(processor_s(lambda: seal_all(store)) * GIB / store.log.end)
        limit.append(processor_s(lambda: sum_only(store)) * GIB / store.log.end)
    written = processor_s(lambda: write_sums(store)) / WRITES
    store.close()
    yield row("sealing, processor time a GiB", "s", ours, limit, mib, smaller_is_better=True)
    share = 100 * RATE_BYTES / GIB
    of_core, least = ([each * share for each in times] for times in (ours, limit))
    yield row("sealing 10 MB/s, part of a core", "%", of_core, least, mib, smaller_is_better=True)
    writing = [100 * written / CHECKPOINT_S]
    yield row("writing the sums each 10 s, part of a core", "%", writing, of_core, WRITES, smaller_is_better=True)


if __name__ == "__main__":
    store_command(__doc__, 512, 5, rows)
