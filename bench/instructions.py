"""How many processor instructions a send and a pull cost the broker, counted by valgrind whatever else runs.

    python -m bench.instructions [--json] [--n 8000] [--tree DIRECTORY] [--in-flight 64] [-- OPTION ...]

On a shared machine times vary by a third, instructions by a hundredth. Under valgrind the broker is some fifty times
slower, and so are the clocks that it reads: otherwise its periodic work, and turns that end by time, would count too
much. To compare two commits, `--tree` names another checkout, with a `.venv` of its own, whose broker is counted. The
daemon's own periodic work is counted, too. What follows `--` are options of the broker, as `--metrics-exporter-type
PROM`. The limit is bench/echo.py with the bytes of the send. Needs valgrind (Debian: apt-get install valgrind).
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import trio

from bench.harness import Row, row, show
from bench.traffic import QUEUES, TOPIC, pulls, requests
from scripts.daemons import HOST, ROOT, Daemon, broker_daemon, free_port, in_use, stop
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.command import FLAG_RESPONSE, Command
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC

WARM_UP = 2_000
# For the pulls: more than 32 in each queue.
STORED = 400
BODY = bytes(128)
# The name in the requests of bench/traffic.py.
BROKER = "bench"
START_TIMEOUT_S = 600
# How many times slower a process is under valgrind.
SLOWDOWN = 50
# Starts a broker whose clocks are that slow.
WITH_SLOW_CLOCKS = f"""
import sys
import time

def slowed(read):
    began = read()
    return lambda: began + (read() - began) / {SLOWDOWN}

for name in ("monotonic", "perf_counter", "time"):
    setattr(time, name, slowed(getattr(time, name)))
for name in ("monotonic_ns", "time_ns"):
    setattr(time, name, lambda read=slowed(getattr(time, name)): int(read()))
from skylark.broker.__main__ import main
sys.exit(main())
"""


async def make_topic(addr: str) -> None:
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    async with open_client() as client:
        answer = await client.invoke(addr, Command(UPDATE_AND_CREATE_TOPIC.code, fields), 30_000)
        if answer.code:
            raise SystemExit(f"the topic was not made: {answer.remark}")


def counted(daemon: Daemon, drive: Callable[[], object]) -> int:
    """Instructions of the daemon from start to stop; ``drive`` uses it meanwhile."""
    out = daemon.log.with_suffix(".callgrind")
    # With other seeds other keys of dictionaries collide.
    tool = ["env", "PYTHONHASHSEED=0", "valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    daemon.command = [*tool, *daemon.command]
    daemon.start()
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not in_use(daemon.port):
            if not daemon.runs or time.monotonic() > deadline:
                raise SystemExit(f"{daemon.name} does not serve:\n{daemon.log_end()}")
            time.sleep(0.1)
        drive()
    finally:
        stop([daemon])
    found = counted_in(out)
    if found is None:
        raise SystemExit(f"valgrind has counted nothing:\n{daemon.log_end()}")
    return found


def counted_in(out: Path) -> int | None:
    """The instructions that valgrind has written to its file ``out``; None if it has not."""
    found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE) if out.exists() else None
    return int(found[1]) if found else None


def require_valgrind() -> None:
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed: apt-get install valgrind (Debian, Ubuntu)")


def of_broker(tree: Path, options: list[str], in_flight: int, count: int) -> int:
    """Instructions of the broker in ``tree`` that stores ``count`` messages."""
    with tempfile.TemporaryDirectory() as home:
        daemon = _broker(Path(home), tree, options)

        def drive() -> None:
            trio.run(make_topic, daemon.addr)
            trio.run(requests, daemon.addr, BODY, count, in_flight, 0)

        return counted(daemon, drive)


def of_pulls(tree: Path, options: list[str], in_flight: int, count: int) -> int:
    """Instructions of the broker in ``tree`` that stores some messages, and answers ``count`` pulls of 32 of them."""
    with tempfile.TemporaryDirectory() as home:
        daemon = _broker(Path(home), tree, options)

        def drive() -> None:
            trio.run(make_topic, daemon.addr)
            trio.run(requests, daemon.addr, BODY, STORED, in_flight, 0)
            trio.run(pulls, daemon.addr, count, in_flight)

        return counted(daemon, drive)


def _broker(home: Path, tree: Path, options: list[str]) -> Daemon:
    daemon = broker_daemon(home, BROKER, f"{HOST}:1")
    # -P: otherwise Python would import the broker from the current directory, which is this tree.
    daemon.command = [str(tree / ".venv/bin/python"), "-P", "-c", WITH_SLOW_CLOCKS, *daemon.command[1:], *options]
    return daemon


def of_echo(in_flight: int, count: int) -> int:
    """Instructions of the echo server that answers ``count`` requests."""
    with tempfile.TemporaryDirectory() as home:
        port = free_port()
        command = [sys.executable, "-m", "bench.echo", str(port)]
        daemon = Daemon("echo", command, port, Path(home) / "echo.log")
        return counted(daemon, partial(trio.run, requests, daemon.addr, BODY, count, in_flight, FLAG_RESPONSE))


def rows(tree: Path, options: list[str], in_flight: int, n: int) -> Iterator[Row]:
    broker, echo = partial(of_broker, tree, options, in_flight), partial(of_echo, in_flight)
    ours = (broker(WARM_UP + n) - broker(WARM_UP)) / n
    limit = (echo(WARM_UP + n) - echo(WARM_UP)) / n
    name = f"send {len(BODY)} B, one request each, {in_flight} in flight, in the broker"
    yield row(name, "instr", [ours], [limit], n, smaller_is_better=True)
    pulled = partial(of_pulls, tree, options, in_flight)
    ours = (pulled(WARM_UP + n) - pulled(WARM_UP)) / n
    name = f"pull of 32 messages of {len(BODY)} B, {in_flight} in flight, in the broker"
    yield row(name, "instr", [ours], [limit], n, smaller_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=8_000, help="messages that are counted")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose broker is counted")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("options", nargs="*", help="options of the broker, after --")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    require_valgrind()
    show(rows(arguments.tree.resolve(), arguments.options, arguments.in_flight, arguments.n), arguments.json)


if __name__ == "__main__":
    main()
