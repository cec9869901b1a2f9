"""All tests in full with new seeds, and then the random tests again and again with other seeds, until the time is over.

    scripts/test --nightly [--hours H] [--rounds FOLDER] [arguments of pytest]

Without --hours everything runs once. What tests with faults counted is one table at the end: rounds, acknowledged and
lost messages, failing seeds. It is printed, and written to FOLDER/rounds.md and FOLDER/rounds.json.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from scripts.daemons import ROOT
from tests.support.amounts import NIGHTLY_SEED
from tests.support.rounds import Table

WORKERS = ("-n", "4")
# pytest's exit codes: all passed, some failed, and no test was left.
PASSED, FAILED, NO_TESTS = 0, 1, 5


def run_once(seed: int, folder: Path, arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *WORKERS, "--nightly", "--rounds", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, NIGHTLY_SEED: str(seed)}).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--hours", type=float, default=0, metavar="H", help="how long random tests are repeated")
    parser.add_argument("--rounds", default="build/nightly", metavar="FOLDER", help="default build/nightly")
    options, arguments = parser.parse_known_args()
    # A run prints its seed; the runs after it count on from there.
    seed = int(os.environ.get(NIGHTLY_SEED) or Random().randrange(1 << 32))
    until = time.time() + options.hours * 3600
    results: list[int] = []
    table = Table()
    with TemporaryDirectory(prefix="skylark-nightly-") as name:
        while True:
            folder = Path(name, str(len(results)))
            again = ["--until", f"{until:.0f}"] if results else []
            results.append(run_once(seed + len(results), folder, [*again, *arguments]))
            if results[-1] not in (PASSED, FAILED, NO_TESTS):
                break
            table.merge(folder / "rounds.json")
            if time.time() >= until or results[-1] == NO_TESTS:
                break
    written = table.write(ROOT / options.rounds)
    print(f"\n{len(results)} runs; rounds of tests with faults, also in {' and '.join(map(str, written))}:\n")
    print(table.markdown())
    sys.exit(next((result for result in results if result not in (PASSED, NO_TESTS)), 0))


if __name__ == "__main__":
    main()
