"""The figures that users notice, in one table of one run: this tree, another commit, the limits, and Redis Streams.

    python -m bench.table [--before REVISION] [--rounds 5] [--only NAME ...]

Each row comes from the bench that its first column names. With ``--before`` the same bench, as it is in this tree, runs
on the other commit's product right before it; commits whose import root is not ``skylark`` are for bench.compare. A
ratio above 1 is better than the limit, a gain above 1 than before. It takes some 10 minutes, and twice that with
``--before``. The load that the machine had before is printed first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.compare import LESS_IS_BETTER, Side, checkout, give_benches
from scripts.daemons import ROOT

#: The benches with their options.
BENCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("peers", ("--n", "15000")),
    ("facades", ("--messages", "200000")),
    ("timed_sends", ("--messages", "40000")),
    ("java_batches", ("--batches", "300")),
    ("send_pull", ("--n", "20000")),
    ("guard_tls", ("--messages", "100000")),
    ("spark_read", ()),
    ("startup", ()),
)


def rows_of(side: Side, bench: str, options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of one run of a bench on the product of a tree.

    On another commit it may fail: the bench may be newer.
    """
    command = [str(side.python), "-m", f"bench.{bench}", "--json", *options]
    run = subprocess.run(command, cwd=side.tree, env=side.env, capture_output=True, text=True)
    if run.returncode:
        reason = " / ".join(run.stderr.strip().splitlines()[-3:]) or "it gave no reason"
        failed = f"bench.{bench} failed in {side.tree}, and its other rows are missing: {reason}"
        if side.tree == ROOT:
            raise SystemExit(failed)
        print(failed, file=sys.stderr, flush=True)
    for line in run.stdout.splitlines():
        yield json.loads(line)


def gain(unit: str, ours: float, before: float) -> float:
    """How much better than before; above 1 is better."""
    return before / ours if unit in LESS_IS_BETTER else ours / before


def show(bench: str, ours: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> None:
    """Print the rows of a bench."""
    earlier = {row["name"]: row["ours"] for row in before}
    for row in ours:
        name, unit, figure, limit, ratio = (row[key] for key in ("name", "unit", "ours", "limit", "ratio"))
        old = earlier.get(name)
        told = "|  |  |" if old is None else f"| {old:,.3f} | {gain(unit, figure, old):.2f} |"
        print(f"| {bench} | {name} | {unit} | {figure:,.3f} | {limit:,.3f} | {ratio:.2f} {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", help="a commit to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--only", nargs="*", choices=[name for name, _ in BENCHES], help="some of the benches")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = Side(ROOT, home / "ours")
        before: Side | None = None
        if arguments.before:
            other = stack.enter_context(checkout(arguments.before))
            if not (other / "skylark").is_dir():
                raise SystemExit(f"{arguments.before} has no import root skylark: use bench.compare")
            # The same measurement of both: the benches of this tree, on the other product.
            give_benches(other)
            before = Side(other, home / "before")
        print(f"load before: {', '.join(f'{each:.2f}' for each in os.getloadavg())}\n")
        print("| bench | what | unit | ours | limit | ratio | before | gain |")
        print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for bench, options in BENCHES:
            if arguments.only and bench not in arguments.only:
                continue
            given = (*options, "--rounds", str(arguments.rounds))
            earlier = [] if before is None else list(rows_of(before, bench, given))
            show(bench, list(rows_of(ours, bench, given)), earlier)


if __name__ == "__main__":
    main()
