"""Very many queues: the rate of first messages to new queues, and the resources of a broker with all of them.

    python -m bench.many_queues [--json] [--rounds N] [--topics 20000] [--queues 8] [--dir DIRECTORY]

The store gets one message for each queue, put as the broker's loop does; the limit is as many messages to one queue.
Then each round starts a broker on the store, sends a request, reads the broker's memory use and stops it. The limit is
the same daemon on an empty store.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, row, show
from bench.recovery import BODY, HOST, open_store
from scripts.daemons import free_port
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.names import PERM_READ_WRITE
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.topics import TopicConfig

STOP_TIMEOUT_S = 120


def make_topics(directory: str, topics: int, queues: int) -> None:
    """The metadata of a store with these topics."""
    metadata = Metadata(OsFiles(), f"{directory}/config", SystemClock(), BrokerOptions(store_path_root_dir=directory))
    metadata.open()
    for number in range(topics):
        metadata.topics.put(TopicConfig(f"topic-{number}", queues, queues, PERM_READ_WRITE))
    metadata.journal.sync()
    metadata.journal.close()


def make_store(directory: str, topics: int, queues: int) -> tuple[float, float]:
    """Messages per second: each the first of its queue; and as many messages to one queue."""
    make_topics(directory, topics, queues)
    store = open_store(directory)
    rates = []
    for spread in (queues, 1):
        started = time.perf_counter()
        for number in range(topics * queues):
            topic = number // queues if spread > 1 else 0
            store.put(f"topic-{topic}", number % spread, BODY, b"", born_timestamp=1, born_host=HOST)
        rates.append(topics * queues / (time.perf_counter() - started))
    store.build_index(2 * topics * queues)
    store.close()
    return rates[0], rates[1]


def start_and_stop(directory: str) -> tuple[float, float, float]:
    """(seconds to the first answer, resident MB then, seconds to stop)."""
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "broker"),
        "--bind-address",
        "127.0.0.1",
        "--broker-ip1",
        "127.0.0.1",
        "--namesrv-addr",
        "127.0.0.1:1",
        "--store-path-root-dir",
        directory,
        "--listen-port",
        str(port),
    ]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "HOME": directory}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _answers(port):
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with exit code {process.returncode}")
            time.sleep(0.005)
        start_s = time.perf_counter() - started
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    finally:
        stopping = time.perf_counter()
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
    return start_s, resident / 1024, time.perf_counter() - stopping


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), STOP_TIMEOUT_S) as connection:
            connection.sendall(encode(Command(GET_BROKER_CONFIG.code, opaque=1)))
            return bool(connection.recv(65_536))
    except OSError:
        return False


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        first, more = make_store(f"{directory}/many", arguments.topics, arguments.queues)
        count = arguments.topics * arguments.queues
        yield row(f"first messages of {count:,} queues", "msg/s", [first], [more], count)
        ours = [start_and_stop(f"{directory}/many") for _ in range(arguments.rounds)]
        limit = [start_and_stop(f"{directory}/empty{number}") for number in range(arguments.rounds)]
        for at, (name, unit) in enumerate((("start", "s"), ("resident", "MB"), ("stop", "s"))):
            yield row(
                f"{count:,} queues: {name}",
                unit,
                [each[at] for each in ours],
                [each[at] for each in limit],
                arguments.rounds,
                smaller_is_better=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="A broker with very many queues")
    parser.add_argument("--rounds", type=int, default=3, help="starts; the median is shown")
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--dir", help="where the stores are made; default: the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
