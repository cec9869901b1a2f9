"""From exec to ready of `skylark dev`, its memory, and its files after the first message.

    python -m bench.dev_start [--json] [--rounds N]

Ready is the line that it prints once all four ports have answered a request. There are two limits, each in turn with
ours: a process that imports trio, quart and hypercorn, from exec to its end, and the same until its imports are done.
Memory and files have the bars of `skylark dev` as their limits, 90 and 20 MB.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Row, command, row, turns
from skylark import Message
from skylark.blocking import Producer

MOST_MEMORY_MB = 90.0
MOST_DISK_MB = 20.0
READY = "Skylark is ready."
DEV = [sys.executable, "-m", "skylark", "dev", "--port=0", "--broker-port=0", "--grpc-port=0", "--console-port=0"]
IMPORTS = "import trio, quart, hypercorn"
LIMIT = [sys.executable, "-c", f"{IMPORTS}; print({READY!r}, flush=True)"]


def environment() -> dict[str, str]:
    """Both sides keep what they have compiled, whatever the environment says."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def ready(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A process that has said that it is ready, and the seconds from its start until then."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if said != READY:
                raise SystemExit(f"{' '.join(command)} says {said!r}")
            yield process, time.perf_counter() - began
        finally:
            process.terminate()


def start(command: list[str]) -> float:
    """Seconds until ready."""
    with ready(command) as (_, seconds):
        return seconds


def whole(command: list[str]) -> float:
    """Seconds until a process that ends by itself has ended."""
    began = time.perf_counter()
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def size(home: str) -> tuple[float, float]:
    """(resident MB, MB of files) of `skylark dev` with its files in ``home``, after a message."""
    with ready([*DEV, "--data", home]) as (process, _):
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("  NameServer"))
        with Producer(address) as producer:
            producer.send(Message("orders", b"hello"))
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        blocks = sum(file.stat().st_blocks for file in Path(home).rglob("*"))
    return resident_kb / 1024, blocks * 512 / 1024**2


def rows(rounds: int) -> Iterator[Row]:
    ours, process, imports = turns(rounds, lambda: start(DEV), lambda: whole(LIMIT), lambda: start(LIMIT))
    yield row("skylark dev ready; a process that imports", "s", ours, process, rounds, smaller_is_better=True)
    yield row("skylark dev ready; imports are done", "s", ours, imports, rounds, smaller_is_better=True)
    with tempfile.TemporaryDirectory() as home:
        memory, disk = size(home)
    yield row("skylark dev: resident after a message", "MB", [memory], [MOST_MEMORY_MB], 1, smaller_is_better=True)
    yield row("skylark dev: files after a message", "MB", [disk], [MOST_DISK_MB], 1, smaller_is_better=True)


if __name__ == "__main__":
    command(__doc__ or "", 9, rows)
