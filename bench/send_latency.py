"""The slowest sends of a broker that does nothing else: the time that one send in a thousand exceeds.

    python -m bench.send_latency [--json] [--rounds 1] [--seconds 10]

Each round has a new cluster. The limit is the median of the same sends. Compared with a commit, in ten alternating
pairs, on a quiet machine (nine minutes):

    python -m bench.compare REVISION --same-bench --bench send_latency --rounds 10
"""

import argparse
import gc
from collections.abc import Iterator
from statistics import median

import trio

from bench.cold_read import RATE, Sends, at_a_rate, one_by_one, share
from bench.harness import Cluster, Row, cluster, row, show
from skylark import Producer

SLOWEST = 0.999
WARM_UP_S = 1.0


async def measure(at: Cluster, sends: Sends, seconds: float) -> list[float]:
    """The times of the sends, ms."""
    times: list[float] = []
    over = trio.Event()
    async with Producer(at.nameserver) as producer:
        with trio.move_on_after(WARM_UP_S):
            await sends(producer, [], trio.Event())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sends, producer, times, over)
            await trio.sleep(seconds)
            over.set()
    return times


def rows(rounds: int, seconds: float) -> Iterator[Row]:
    gc.disable()  # ours: the times are the broker's
    for name, sends in (("one in flight", one_by_one), (f"{RATE:,} a second", at_a_rate)):
        slowest, middle = list[float](), list[float]()
        count = 0
        for _ in range(rounds):
            with cluster() as at:
                times = trio.run(measure, at, sends, seconds)
            slowest.append(share(times, SLOWEST))
            middle.append(median(times))
            count += len(times)
        yield row(f"send 128 B, {name}, 99.9 %", "ms", slowest, middle, count, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="the median is shown (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of sends in each round (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    show(rows(given.rounds, given.seconds), given.json)


if __name__ == "__main__":
    main()
