"""Faults under load, and the page about them: scripts/faults --help says how it is used.

The faults are tests with the mark ``fault``. This module is a plugin of their pytest, too, which leaves out all others.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from textwrap import shorten
from types import FrameType

import pytest

from scripts.daemons import ROOT
from skylark.mqcommon.version import VERSION
from tests.conftest import fault_of
from tests.support.amounts import NIGHTLY_SEED, TEST_ROUNDS
from tests.support.rounds import Count, Fault, Table

MODES = ("single", "master-slave", "controller", "dledger", "2m-2s")
KINDS = ("kills", "freezes", "cuts", "clocks", "disks", "lies", "power", "members", "updates", "clients")
# In the environment of pytest: which faults are made.
ONLY_MODE, ONLY_KIND = "FAULTS_MODE", "FAULTS_KIND"
# There, too: when no test begins any more.
UNTIL = "FAULTS_UNTIL"
# How often a fault is made in one cluster, and the parameters of tests that say how much they try.
DEFAULT_ROUNDS = "3"
AMOUNTS, MOST = ("rounds", "seconds", "count"), 10
SINGLE_FAULTS = ("tests/e2e/faults/", "tests/e2e/test_disk_lies.py")
# pytest's exit codes: all passed, some failed, and not all were tried.
PASSED, FAILED, INTERRUPTED = 0, 1, 2
REASON_CHARS = 200
MARK = "pytest.mark.fault("

# mode, how it was set, what an acknowledged message survives, when sends go on
CLAIMS = (
    ("single", "SYNC_FLUSH", "all but the loss of the disk", "when the broker is back"),
    ("master-slave", "SYNC_MASTER, one slave", "the loss of either disk", "while both run"),
    (
        "controller",
        "three brokers, three Controllers, allAckInSyncStateSet, minInSyncReplicas=2",
        "the loss of any one disk",
        "while two brokers and two Controllers run and reach each other",
    ),
    ("dledger", "three members", "the loss of any one disk", "while two members run and reach each other"),
    ("2m-2s", "two masters with a slave each", "the loss of any one disk", "at the other master"),
)
KIND_TITLES = {
    "kills": "Kills (SIGKILL)",
    "freezes": "Freezes (SIGSTOP)",
    "cuts": "Cuts of the network",
    "clocks": "Clocks that are wrong",
    "disks": "Disks that are full, slow or lost",
    "lies": "Disks that lie",
    "power": "Power",
    "members": "Membership changes",
    "updates": "Updates and restarts",
    "clients": "Consumers and transactions that die with brokers",
}


# --- the plugin


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the faults of the wanted mode and kind; a pass over all faults repeats none of them very often."""
    mode, kind = os.environ.get(ONLY_MODE), os.environ.get(ONLY_KIND)
    kept, dropped = [], []
    for item in items:
        fault = fault_of(item)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        is_short = max(parameters.get(name, 0) for name in AMOUNTS) <= MOST
        is_wanted = fault is not None and is_short and mode in (None, fault.mode) and kind in (None, fault.kind)
        (kept if is_wanted else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    # One fault at a time first: it says most in the least time.
    items[:] = sorted(kept, key=lambda item: not item.nodeid.startswith(SINGLE_FAULTS))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the first Ctrl-C end the run after the present test: a test that is interrupted would count as failed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        os.environ[UNTIL] = "0"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout.write("\nends after this test; Ctrl-C again ends it now\n")

    signal.signal(signal.SIGINT, interrupt)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """No test begins when the hours are over."""
    if time.time() >= float(os.environ.get(UNTIL, "inf")):
        pytest.exit("the time is over", returncode=INTERRUPTED)


# --- the page


@dataclass(frozen=True)
class Run:
    """What was run: when it began, how long it took, and the seed of each pass over the faults."""

    began: datetime
    hours: float
    seeds: Sequence[int]
    command: str


def page(run: Run, faults: dict[Fault, Count]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(run, faults))


def _lines(run: Run, faults: dict[Fault, Count]) -> Iterator[str]:
    total = Count()
    for count in faults.values():
        total.add(count)
    yield "# Faults: what was tried, and what was lost\n"
    yield (
        "This page is written by `scripts/faults` and by nobody's hand: what Skylark claims, which faults were made in"
        " clusters of real processes under load, and what became of the messages.\n"
    )
    yield "## Claims\n"
    yield "| mode | as it was set | a message survives, once acknowledged | sends go on |"
    yield "| --- | --- | --- | --- |"
    yield from (f"| {' | '.join(claim)} |" for claim in CLAIMS)
    yield (
        "\nIn all modes: a reader gets each message as it was sent, at the offset that its acknowledgement named;"
        " replicas end with equal logs; a broker that cannot keep a promise refuses, and does not acknowledge.\n"
    )
    yield "## In short\n"
    yield (
        f"{total.rounds:,} rounds of {len(faults):,} faults, {total.acknowledged:,} acknowledged messages:"
        f" **{total.lost:,} lost, {total.wrong:,} wrong**. {_failed(faults)}\n"
    )
    yield (
        f"Skylark {VERSION}, {run.began:%Y-%m-%d %H:%M} UTC, {_duration(run.hours)} on {os.cpu_count()} cores,"
        f" {platform.system()} {platform.machine()}, Python {platform.python_version()}; one fault at a time, by"
        f" `{run.command}`. Seeds of the passes over all faults: {', '.join(map(str, run.seeds))}.\n"
    )
    yield "## How it is tried\n"
    yield (
        "Twenty producers send one message after the other. Readers follow all queues by the SDK, and ask each broker"
        " by itself, whatever its role. A round: all replicas are in sync, sends are acknowledged, the fault is made,"
        " sends are acknowledged meanwhile where the mode claims that (else the fault ends after two seconds without"
        " an acknowledgement), the fault is mended, replicas are in sync, sends are acknowledged. In the end, after"
        " several rounds:\n\n"
        "- **lost**: acknowledged messages that are not where their acknowledgements said;\n"
        "- **wrong**: messages that a reader got at an offset that now has other bytes, or none;\n"
        "- logs are compared byte for byte, and readers must have seen each queue without a gap;\n"
        "- **longest pause**: the longest time, in all rounds, in which no send was acknowledged. It has the fault's"
        " own time in it, and the pauses of a busy machine.\n\n"
        "Other tests of the same table make faults beside consumers, transactions or updates, and check more; a row"
        " without a pause comes from such a test. A seed decides the order of what a test does, and not the moments of"
        " processes.\n"
    )
    yield "## What was found\n"
    failing = [(fault, count) for fault, count in sorted(faults.items()) if count.reasons]
    if not failing:
        yield "Nothing: no test failed.\n"
    for fault, count in failing:
        for seed, reason in _with_seeds(count):
            said = shorten(reason.replace("|", "\\|").replace("`", "'"), REASON_CHARS)
            yield f"- {fault.mode}, {fault.what}, seed {seed}: `{said}`"
    if failing:
        yield ""
    yield "## Every fault\n"
    for kind in KINDS:
        rows = [(fault, count) for fault, count in faults.items() if fault.kind == kind]
        if rows:
            yield f"### {KIND_TITLES[kind]}\n"
            yield "| fault | mode | rounds | acknowledged | lost | wrong | longest pause, s | failing seeds |"
            yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
            yield from (_row(*row) for row in sorted(rows, key=lambda row: (row[0].what, MODES.index(row[0].mode))))
            yield ""
    untried = [kind for kind in KINDS if not any(fault.kind == kind for fault in faults)]
    if untried:
        yield f"Not tried in this run: {', '.join(untried)}.\n"
    yield "## Try it yourself\n"
    yield (
        "```sh\nscripts/setup --fast\nscripts/faults --list\nscripts/faults --hours 8\n"
        "scripts/faults --mode controller --only cuts\n```\n\n"
        "A failing seed is tried again by `TEST_SEED=SEED scripts/faults --mode MODE --only KIND`.\n"
    )


def _failed(faults: dict[Fault, Count]) -> str:
    failing = [fault for fault, count in faults.items() if count.reasons]
    if not failing:
        return "No test failed."
    return f"Tests of {len(failing)} faults failed, see [What was found](#what-was-found)."


def _with_seeds(count: Count) -> Iterable[tuple[object, str]]:
    seeds = [*count.failing_seeds, *["-"] * len(count.reasons)]
    return zip(seeds, count.reasons, strict=False)


def _row(fault: Fault, count: Count) -> str:
    numbers = [f"{number:,}" for number in (count.rounds, count.acknowledged, count.lost, count.wrong)]
    pause = f"{count.unavailable_s:.1f}" if count.unavailable_s else "-"
    seeds = ", ".join(map(str, count.failing_seeds))
    return f"| {' | '.join([fault.what, fault.mode, *numbers, pause, seeds])} |"


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"


# --- the run


def run_once(seed: int, folder: Path, arguments: Sequence[str]) -> int:
    """One pass over the faults: one test at a time, as a busy machine would make pauses longer."""
    options = ("-p", "scripts.faults", "--nightly", "--rounds", str(folder), "-vv", "--no-header", "-rN")
    command = [sys.executable, "-m", "pytest", *options, "--tb", "short", *arguments, *_files()]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, NIGHTLY_SEED: str(seed)}).returncode


def _files() -> Iterator[str]:
    """The files with faults: collecting all tests would take longer than many of them do."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if MARK in path.read_text(encoding="utf-8"):
            yield str(path.relative_to(ROOT))


def exit_code(results: Iterable[int], faults: dict[Fault, Count]) -> int:
    """0 when nothing was lost or wrong, and no test failed, also none that counted nothing before it failed.

    ``results``: pytest's exit code of each pass.
    """
    is_clean = not any(count.lost or count.wrong or count.reasons for count in faults.values())
    return 0 if is_clean and all(result in (PASSED, INTERRUPTED) for result in results) else 1


def main() -> None:
    """The command scripts/faults."""
    parser = argparse.ArgumentParser(prog="scripts/faults", add_help=False)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--page", type=Path, default=Path("build/faults/faults.md"))
    options = parser.parse_args()
    for name, value in ((ONLY_MODE, options.mode), (ONLY_KIND, options.only)):
        if value:
            os.environ[name] = value
    seed = int(os.environ.get(NIGHTLY_SEED) or Random().randrange(1 << 32))
    # At Ctrl-C the tests end by themselves, and say what they have; then the page is written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.list:
        sys.exit(run_once(seed, Path("build/faults"), ["--collect-only", "-q"]))
    began, start = datetime.now(UTC), time.monotonic()
    until = time.time() + options.hours * 3600
    if options.hours:
        os.environ[UNTIL] = str(until)
    os.environ.setdefault(TEST_ROUNDS, DEFAULT_ROUNDS)
    seeds: list[int] = []
    results: list[int] = []
    table = Table()
    with TemporaryDirectory(prefix="skylark-faults-") as name:
        while True:
            folder = Path(name, str(len(seeds)))
            seeds.append(seed + len(seeds))
            results.append(run_once(seeds[-1], folder, []))
            if (folder / "rounds.json").exists():
                table.merge(folder / "rounds.json")
            if results[-1] not in (PASSED, FAILED) or time.time() >= until:
                break
    if not table.faults:
        sys.exit(f"no fault was tried (pytest's exit code {results[-1]}): scripts/faults --list says which there are")
    chosen = {"--hours": options.hours, "--mode": options.mode, "--only": options.only}
    said = " ".join(["scripts/faults", *(f"{name} {value}" for name, value in chosen.items() if value)])
    where = ROOT / options.page
    where.parent.mkdir(parents=True, exist_ok=True)
    run = Run(began, (time.monotonic() - start) / 3600, seeds, said)
    where.write_text(page(run, table.faults), encoding="utf-8")
    print(f"{len(table.faults)} faults tried: the page is {where}")
    sys.exit(exit_code(results, table.faults))


if __name__ == "__main__":
    main()
