"""Shared by the benches: daemons on loopback, medians, the table."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from scripts.daemons import broker_daemon, namesrv_daemon, serving

# The broker's name, which its store's directory has, too.
BROKER = "bench"


@dataclass(frozen=True)
class Row:
    """One figure, and its limit measured in the same run."""

    name: str
    unit: str
    ours: float
    limit: float
    ratio: float
    n: int


def row(name: str, unit: str, ours: list[float], limit: list[float], n: int, *, smaller_is_better: bool = False) -> Row:
    """Medians of both sides; the ratio is above 1 when ours is better than the limit."""
    a, b = median(ours), median(limit)
    return Row(name, unit, round(a, 4), round(b, 4), round(b / a if smaller_is_better else a / b, 3), n)


def show(rows: Iterator[Row], as_json: bool) -> None:
    """Print each row as soon as it is measured."""
    if not as_json:
        print(f"{'name':<58} {'unit':<10} {'ours':>12} {'limit':>12} {'ratio':>6} {'n':>9}")
    for each in rows:
        if as_json:
            print(json.dumps(asdict(each)), flush=True)
        else:
            print(
                f"{each.name:<58} {each.unit:<10} {each.ours:>12,.3f} {each.limit:>12,.3f}"
                f" {each.ratio:>6.2f} {each.n:>9}",
                flush=True,
            )


def command(about: str, rounds: int, rows: Callable[[int], Iterator[Row]]) -> None:
    """The command line of a bench that takes --rounds and --json only. ``rounds`` is the default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="of each side; the median is shown (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    show(rows(given.rounds), given.json)


def store_command(about: str, mib: int, rounds: int, rows: Callable[[str, int, int], Iterator[Row]]) -> None:
    """The command line of a bench that fills a store in a directory: ``rows`` gets the directory, --mib and --rounds.

    ``mib`` and ``rounds`` are the defaults.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=mib, help="size of the log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=rounds, help="of each side; the median is shown (%(default)s)")
    parser.add_argument("--dir", help="where the store is made; default: the system's directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        show(rows(directory, given.mib, given.rounds), given.json)


def cpu_s(pid: int, *, only_main_thread: bool = False) -> float:
    """Processor time of a process so far, or of its main thread, which runs the event loop of a daemon; in seconds."""
    folder = Path(f"/proc/{pid}/task/{pid}" if only_main_thread else f"/proc/{pid}")
    fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_s(work: Callable[[], object]) -> float:
    """Processor time of this process for the work, user and system."""
    began = time.process_time()
    work()
    return time.process_time() - began


@contextmanager
def echo_process() -> Iterator[tuple[str, int]]:
    """The limit's address and process id."""
    process = subprocess.Popen([sys.executable, "-m", "bench.echo"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def echo_server() -> Iterator[str]:
    """The limit's address."""
    with echo_process() as (addr, _):
        yield addr


@dataclass(frozen=True)
class Cluster:
    """One NameServer and one broker."""

    nameserver: str
    broker: str
    broker_pid: int


@contextmanager
def cluster(
    *, store_dir: str | None = None, options: tuple[str, ...] = (), of_both: tuple[str, ...] = ()
) -> Iterator[Cluster]:
    """A NameServer and a broker as separate processes on loopback, with a store that is removed afterwards.

    ``options`` are the broker's; ``of_both`` are for the NameServer, too.
    """
    with tempfile.TemporaryDirectory(dir=store_dir) as home, cluster_at(home, options, of_both) as made:
        yield made


@contextmanager
def cluster_at(home: str, options: tuple[str, ...] = (), of_both: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """As `cluster`, on the store in the directory `BROKER` of ``home``, which is created when missing."""
    namesrv = namesrv_daemon(Path(home), "namesrv", 0, *of_both)
    broker = broker_daemon(Path(home), BROKER, namesrv.addr, 0, *options, *of_both)
    with serving(namesrv, broker):
        yield Cluster(namesrv.addr, broker.addr, broker.pid)


T = TypeVar("T")


def turns(rounds: int, *measures: Callable[[], T]) -> list[list[T]]:
    """The figures of each side, measured in turns; a first round of each warms up and does not count."""
    found: list[list[T]] = [[] for _ in measures]
    for number in range(rounds + 1):
        for figures, measure in zip(found, measures, strict=True):
            figure = measure()
            if number:
                figures.append(figure)
    return found


def in_turn(rounds: int, ours: Callable[[], float], limit: Callable[[], float]) -> tuple[list[float], list[float]]:
    """As `turns`, of two sides."""
    of_ours, of_limit = turns(rounds, ours, limit)
    return of_ours, of_limit
