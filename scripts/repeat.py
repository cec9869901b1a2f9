"""Run files of tests again and again, also beside load: a test that fails once in a hundred runs is a fault.

    scripts/test --repeat N PATH... [--busy K]

Each file runs N times in a process of its own, then the next one; a folder stands for all of its files. K processes
without end compete for the processors meanwhile. Prints a table, and ends with exit code 1 when a run has failed.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scripts.daemons import ROOT
from scripts.run_watcher import Watched

# pytest's exit codes for tests that passed, and for a file in which nothing is left after -k or the like.
PASSED, NO_TESTS = 0, 5
TIMEOUT_S = 600
# After SIGINT pytest says where the test hangs.
INTERRUPT_TIMEOUT_S = 20
# A line of pytest's summary: what failed, and the reason. A name with parameters may have spaces.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)
STARTED = re.compile(r"^(tests/\S+::\S.*?) *(?:\x1b|$)", re.MULTILINE)


class Failure(NamedTuple):
    """The first failure of a run."""

    test: str
    reason: str


@dataclass
class Row:
    """The results of the runs of one file; the first failing test is from the first run that failed."""

    file: str
    runs: int = 0
    failures: int = 0
    first: Failure | None = None

    def add(self, failure: Failure | None) -> None:
        self.runs += 1
        if failure is not None:
            self.first = self.first or failure
            self.failures += 1


def failure_of(exit_code: int, output: str) -> Failure | None:
    """The first failure in the output of a run of pytest; None when all tests passed."""
    if exit_code in (PASSED, NO_TESTS):
        return None
    found = FAILED.search(output)
    if found:
        return Failure(found[1], found[2] or "")
    last = [line for line in output.splitlines() if line.strip()][-1:]
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return Failure("-", f"{ended}: {''.join(last)}"[:300])


def hang_of(output: str, timeout_s: float) -> Failure:
    """The test that ran when the time was over: with -v pytest names a test before it starts."""
    started = STARTED.findall(output)
    return Failure(started[-1].split(" ")[0] if started else "-", f"no end after {timeout_s:g} s")


def table(rows: Iterable[Row]) -> str:
    lines = [("file", "runs", "failures", "first failing test", "reason")]
    for row in rows:
        test, reason = row.first or ("", "")
        test = test.removeprefix(row.file).removeprefix("::")
        lines.append((row.file, str(row.runs), str(row.failures), test, reason))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def files_of(paths: Sequence[str]) -> list[str]:
    """Each path, and for a folder the files of tests in it. Raises FileNotFoundError."""
    found = []
    for path in paths:
        if os.path.isdir(path):
            found += sorted(str(file) for file in Path(path).rglob("test_*.py"))
        elif os.path.exists(path.partition("::")[0]):
            found.append(path)
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
    return found


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """``count`` processes that compute without end; each ends by itself when this process does."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(100_000):\n        pass"
    loops = [subprocess.Popen([sys.executable, "-IS", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(file: str, more: Sequence[str], folder: Path, timeout_s: float) -> tuple[Failure | None, Path]:
    """Run pytest on the file; the path is the file with its output."""
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-rfE", file, *more]
    # pytest cuts the lines of its summary to the width of a terminal.
    environment = {**os.environ, "COLUMNS": "500", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    log = folder / "output"
    with open(log, "wb") as output:
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            exit_code = run.wait(timeout_s)
        except subprocess.TimeoutExpired:
            failure = hang_of(log.read_text(errors="replace"), timeout_s)
            interrupt(run)
            return failure, log
        finally:
            run.kill()
            run.wait()
    return failure_of(exit_code, log.read_text(errors="replace")), log


def interrupt(run: "subprocess.Popen[bytes]") -> None:
    run.send_signal(signal.SIGINT)
    try:
        run.wait(INTERRUPT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        run.kill()


def repeat(files: Sequence[str], options: argparse.Namespace, more: Sequence[str], folder: Path) -> list[Row]:
    rows = []
    try:
        for file in files:
            rows.append(row := Row(file))
            for number in range(1, options.repeat + 1):
                began = time.monotonic()
                failure, log = run_once(file, more, folder, options.timeout)
                row.add(failure)
                told = f"{file} {number}/{options.repeat}: {'failed' if failure else 'passed'}"
                print(f"{told} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
                if failure:
                    print(f"  {failure.test}: {failure.reason}", file=sys.stderr, flush=True)
                    if options.keep:
                        kept = Path(options.keep, f"{file.replace('/', '-').replace(':', '-')}-{number}.txt")
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(log, kept)
    except KeyboardInterrupt:
        print("interrupted: the table has the runs until now", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeat", type=int, required=True, metavar="N", help="how often each file runs")
    parser.add_argument("--busy", type=int, default=0, metavar="K", help="busy loops beside the tests; default 0")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help=f"for a run; default {TIMEOUT_S} s"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="write the output of each failed run there")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files and folders of tests; what follows -- is for pytest"
    )
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])
    try:
        files = files_of(options.paths)
    except FileNotFoundError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Watched()
    try:
        with busy_loops(options.busy):
            rows = repeat(files, options, arguments[cut + 1 :], run.folder)
    finally:
        run.end(now=True)
    print(table(rows))
    sys.exit(any(row.failures for row in rows))


if __name__ == "__main__":
    main()
