"""Options from the command line and environment variables; scripts/quickstart --help explains them."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.daemons import free_port
from scripts.rolling.clusters import MODES, SETS


@dataclass(frozen=True)
class Options:
    """One run of the quickstart."""

    namesrv_ports: tuple[int, ...]
    broker_ports: tuple[int, ...]
    directory: Path | None
    keep: bool
    tasks: int
    messages: int
    spark: bool
    controller: bool
    dledger: bool
    rolling: bool
    mode: str
    rounds: int
    console: bool
    console_port: int
    down_s: float


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options of this run; a mistake ends the program with a line that names it."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", add_help=False, allow_abbrev=False)
    env = os.environ.get
    parser.add_argument("--namesrv-ports", type=_ports, default=env("QUICKSTART_NAMESRV_PORTS", "9876,9886"))
    parser.add_argument("--broker-ports", type=_ports, default=env("QUICKSTART_BROKER_PORTS", "10911,10921"))
    parser.add_argument("--dir", type=Path, default=env("QUICKSTART_DIR"))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--tasks", type=_positive, default=env("QUICKSTART_TASKS", "1000"))
    parser.add_argument("--messages", type=_positive, default=env("QUICKSTART_MESSAGES", "60000"))
    parser.add_argument("--without-spark", action="store_true")
    shows = parser.add_mutually_exclusive_group()
    shows.add_argument("--controller", action="store_true")
    shows.add_argument("--dledger", action="store_true")
    shows.add_argument("--rolling", action="store_true")
    shows.add_argument("--console", action="store_true")
    parser.add_argument("--console-port", type=int, default=env("QUICKSTART_CONSOLE_PORT", "8088"))
    parser.add_argument("--mode", choices=(*MODES, "all"), default=env("QUICKSTART_MODE", SETS))
    parser.add_argument("--rounds", type=_positive, default=env("QUICKSTART_ROUNDS", "1"))
    parser.add_argument("--down", type=_seconds, default=env("QUICKSTART_DOWN", "4"))
    given = parser.parse_args(arguments)
    if len({*given.namesrv_ports, *given.broker_ports}) < 4:
        parser.error("the four ports must differ")
    return Options(
        given.namesrv_ports,
        given.broker_ports,
        given.dir,
        given.keep,
        given.tasks,
        given.messages,
        not given.without_spark,
        given.controller,
        given.dledger,
        given.rolling,
        given.mode,
        given.rounds,
        given.console,
        given.console_port,
        given.down,
    )


def _ports(text: str) -> tuple[int, ...]:
    try:
        ports = tuple(int(part) for part in text.split(","))
    except ValueError:
        ports = ()
    if len(ports) != 2 or not all(0 <= port <= 65_535 for port in ports):
        raise argparse.ArgumentTypeError(f"two port numbers, as in 9876,9886, are needed, not {text!r}")
    return tuple(port or free_port() for port in ports)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of seconds is needed, not {text!r}")
    return float(text)
