"""What a scrub costs: processor time for each GiB of log.

    python -m bench.scrub [--json] [--gib 1] [--rounds N] [--dir DIRECTORY]

"ours" is the whole scrub, with its hops to a thread, as fast as it can; "limit" are the same reads past the page cache
with a CRC, and nothing else. The second row is for blocks without sums, whose records are read one by one (records of
some 1,100 bytes); its limit is the first row. The third row is the part of a core that a log of 10 TB needs, which is
read in 14 days.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import trio

from bench.backup import fill
from bench.harness import Row, row, show
from bench.recovery import GIB, open_store
from skylark.broker.healing.figures import HealingFigures
from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.healing.scrub import Scrub
from skylark.broker.healing.scrub_cycle import cycle_rate
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.clock import SystemClock
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
            crc32(fs.read_direct(segment.path, block.start - segment.base, block.size))


def seconds_a_gib(store: MessageStore, work: Callable[[], object]) -> float:
    """Processor time of this process, user and system."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * GIB / store.log.end


def rows(directory: str, gib: float, rounds: int) -> Iterator[Row]:
    fill(directory, round(gib * GIB))
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
    n = round(gib * 1024)
    yield row("scrub, processor time a GiB", "s", by_sum, limit, n, smaller_is_better=True)
    yield row("scrub of blocks without sums, processor time a GiB", "s", by_record, by_sum, n, smaller_is_better=True)
    rate = cycle_rate(LARGE_BYTES, DAYS) / GIB
    ours, least = ([each * rate * 100 for each in each_of] for each_of in (by_sum, limit))
    yield row("10 TB in 14 days, part of a core", "%", ours, least, n, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1, help="size of the log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the median is shown (%(default)s)")
    parser.add_argument("--dir", help="where the store is made; default: the system's directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        show(rows(directory, given.gib, given.rounds), given.json)


if __name__ == "__main__":
    main()
