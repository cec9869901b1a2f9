"""What a scrub costs: processor time for each GiB of log.

    python -m bench.scrub [--json] [--mib 1024] [--rounds N] [--dir DIRECTORY]

"ours" is the whole scrub, with its hops to a thread, as fast as it can; "limit" are the same reads past the page cache
with a CRC, and nothing else. The second row is for blocks without sums, whose records are read one by one (records of
some 1,100 bytes); its limit is the first row. The third row is the part of a core that a log of 10 TB needs, which is
read in 14 days.
"""

from collections.abc import Callable, Iterator, Sequence

import trio

from bench.backup import fill
from bench.harness import Row, processor_s, row, store_command
from bench.recovery import GIB, open_store
from skylark.broker.healing.figures import HealingFigures
from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.healing.scrub import Scrub
from skylark.broker.healing.scrub_cycle import cycle_rate
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.polling import poll_until

LARGE_BYTES, DAYS = 10 * 10**12, 14


class NoDamage:
    """Takes the place of the healer and of the checks of other files."""

    figures = HealingFigures()

    async def heal(self, blocks: Sequence[Block]) -> bool:
        raise AssertionError(f"damage where none is: {blocks}")

    async def check_next(self) -> CheckedFile | None:
        return None


async def scrub_once(store: MessageStore, directory: str) -> None:
    scrub = Scrub(
        OsFiles(), BrokerOptions(store_path_root_dir=directory), store, NoDamage(), NoDamage(), SystemClock(),
        sealed_to=lambda: store.log.flushed, is_held_up=lambda: False,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        await nursery.start(scrub.run)
        scrub.begin_now(1 << 50)
        await poll_until(lambda: not scrub.present().running, 3_600, 0.1)
        nursery.cancel_scope.cancel()


def read_only(store: MessageStore) -> None:
    fs = OsFiles()
    for segment in store.log.chain.segments:
        for block in store.log.sums.blocks(segment.base, min(segment.end, store.log.flushed)):
            large_crc32(fs.read_direct(segment.path, block.start - segment.base, block.size))


def seconds_a_gib(store: MessageStore, work: Callable[[], object]) -> float:
    return processor_s(work) * GIB / store.log.end


def rows(directory: str, mib: int, rounds: int) -> Iterator[Row]:
    fill(directory, mib << 20)
    store = open_store(directory)
    store.log.flush()

    def scrub() -> None:
        trio.run(scrub_once, store, directory)

    # Blocks without sums get them in each first scrub.
    by_record: list[float] = []
    by_sum: list[float] = []
    limit: list[float] = []
    for _ in range(rounds):
        store.log.sums.drop_from(0)
        by_record.append(seconds_a_gib(store, scrub))
        by_sum.append(seconds_a_gib(store, scrub))
        limit.append(seconds_a_gib(store, lambda: read_only(store)))
    store.close()
    yield row("scrub, processor time a GiB", "s", by_sum, limit, mib, smaller_is_better=True)
    yield row("scrub of blocks without sums, processor time a GiB", "s", by_record, by_sum, mib, smaller_is_better=True)
    rate = cycle_rate(LARGE_BYTES, DAYS) / GIB
    ours, least = ([each * rate * 100 for each in each_of] for each_of in (by_sum, limit))
    yield row("10 TB in 14 days, part of a core", "%", ours, least, mib, smaller_is_better=True)


if __name__ == "__main__":
    store_command(__doc__, 1_024, 3, rows)
