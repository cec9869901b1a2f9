"""How the cost of a send and of a pull grows with the number of queues, the log, connections and held pulls.

    python -m bench.growth [--only NAME ...] [--out growth.svg] [--json] [--rounds 3] [--n 2000] [--dir DIRECTORY]

NAME is queues (1 to 50,000), log (1 to 100 GB in sparse files), connections (1 to 2,000, idle) or held (1 to 1,000
pulls). Each point has a broker of its own. One connection sends and pulls one message at a time, to and from queues
that are drawn at random: the figures are medians of the time until the answer, and processor time of the broker's loop
per request. The limit is the first point, measured in turns with each other point, so a ratio of 1 means flat. The last
rows are the slopes: the last point and the first. The picture shows each figure divided by the figure of the first
point.
"""

import argparse
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from bench.dearest_requests import pull_ext, send_ext, topic_ext
from bench.growth_picture import Panel, picture
from bench.harness import BROKER, Cluster, Row, cluster_at, row, show
from bench.many_queues import make_topics
from bench.recovery import BODY, make_large
from skylark.mqcommon.addresses import split_address
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC

SIZES = {
    "queues": (1, 10, 100, 1_000, 10_000, 50_000),
    "log": (1, 3, 10, 30, 100),
    "connections": (1, 10, 100, 500, 1_000, 2_000),
    "held": (1, 10, 100, 300, 1_000),
}
UNITS = {"queues": "queues", "log": "GB of log", "connections": "connections", "held": "held pulls"}
# The number of queues of each topic, as `make_large` makes them.
TOPIC_QUEUES = 8
# Where the number of queues is not what grows.
QUEUES = 64
HELD_TOPIC = "held"
HOLD_MS = 590_000
TIMEOUT_S = 60
SUSPEND = 2
# The share of the requests that warms up and does not count.
WARM = 10

Frames = Sequence[bytes]
# A cluster, and the sends and pulls to measure there.
Point = tuple[Cluster, Frames, Frames]


class Line:
    """A connection that waits for each answer."""

    def __init__(self, addr: str) -> None:
        self._socket = socket.create_connection(split_address(addr), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection()

    def push(self, frame: bytes) -> None:
        """Send a request whose answer nobody reads."""
        self._socket.sendall(frame)

    def exchange(self, frame: bytes) -> float:
        """Seconds until the answer came. Ends the bench if the answer is a refusal."""
        started = time.perf_counter()
        self._socket.sendall(frame)
        while True:
            data = self._socket.recv(1 << 16)
            took = time.perf_counter() - started
            if not data:
                raise SystemExit("the broker closed the connection")
            for answer in self._connection.receive_data(data):
                if answer.code:
                    raise SystemExit(f"the broker answered {answer.code}: {answer.remark}")
                return took

    def close(self) -> None:
        self._socket.close()


class Costs(NamedTuple):
    """The costs of a send and of a pull, in us: the time until the answer, and the broker's processor time."""

    send: float
    pull: float
    send_cpu: float
    pull_cpu: float


NAMES = ("send", "pull", "send: processor", "pull: processor")


def frames(queues: int, n: int, make: Callable[[str, int], Command]) -> Frames:
    """``n`` requests for queues that are drawn at random, the same in each run."""
    random = Random(queues)
    numbers = [random.randrange(queues) for _ in range(n)]
    return [encode(make(f"topic-{number // TOPIC_QUEUES}", number % TOPIC_QUEUES)) for number in numbers]


def send(topic: str, queue_id: int) -> Command:
    return Command(SEND_MESSAGE.code, send_ext(topic, queue_id), BODY, opaque=1)


def pull(topic: str, queue_id: int) -> Command:
    return Command(PULL_MESSAGE.code, pull_ext(topic=topic, queueId=str(queue_id), maxMsgNums="1"), opaque=1)


def held_pull(queue_id: int) -> Command:
    ext = pull_ext(topic=HELD_TOPIC, queueId=str(queue_id), sysFlag=str(4 | SUSPEND), suspendTimeoutMillis=str(HOLD_MS))
    return Command(PULL_MESSAGE.code, ext, opaque=queue_id + 2)


def processor_ns(pid: int) -> int:
    """The processor time of a daemon's loop so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def measure(made: Cluster, sends: Frames, pulls: Frames) -> Costs:
    """Once through all requests."""
    line = Line(made.broker)
    times: list[float] = []
    used: list[float] = []
    for requests in (sends, pulls):
        warm = len(requests) // WARM
        for frame in requests[:warm]:
            line.exchange(frame)
        before = processor_ns(made.broker_pid)
        taken = [line.exchange(frame) for frame in requests[warm:]]
        used.append((processor_ns(made.broker_pid) - before) / len(taken) / 1000)
        times.append(median(taken) * 1_000_000)
    line.close()
    return Costs(*times, *used)


@contextmanager
def broker_with(queues: int, gib: int, home: str) -> Iterator[Cluster]:
    """A cluster whose store has ``queues`` queues, and a log of ``gib`` GiB."""
    directory = f"{home}/{BROKER}"
    make_topics(directory, -(-queues // TOPIC_QUEUES), TOPIC_QUEUES)
    make_large(directory, gib, queues)
    with cluster_at(home) as made:
        yield made


@contextmanager
def idle_connections(addr: str, count: int) -> Iterator[None]:
    """Connections that have sent a request each."""
    lines: list[Line] = []
    try:
        for _ in repeat(None, count):
            lines.append(Line(addr))
            lines[-1].exchange(encode(Command(GET_BROKER_CONFIG.code, opaque=1)))
        yield
    finally:
        for line in lines:
            line.close()


@contextmanager
def held_pulls(addr: str, count: int) -> Iterator[None]:
    """Pulls of one connection that wait for messages, each at a queue of its own."""
    line = Line(addr)
    line.exchange(encode(Command(UPDATE_AND_CREATE_TOPIC.code, topic_ext(HELD_TOPIC, count), opaque=1)))
    for queue_id in range(count):
        line.push(encode(held_pull(queue_id)))
    # Requests of a connection are handled in their order, so that all pulls are held when this request is answered.
    line.exchange(encode(Command(GET_BROKER_CONFIG.code, opaque=1)))
    yield
    line.close()


@contextmanager
def at_size(kind: str, size: int, arguments: argparse.Namespace) -> Iterator[Point]:
    """One point, while its cluster runs."""
    queues, gib = size if kind == "queues" else QUEUES, size if kind == "log" else 1
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.dir))
        made = stack.enter_context(broker_with(queues, gib, home))
        if kind == "connections":
            stack.enter_context(idle_connections(made.broker, size))
        if kind == "held":
            stack.enter_context(held_pulls(made.broker, size))
        yield made, frames(queues, arguments.n, send), frames(queues, arguments.n, pull)


def medians(found: Sequence[Costs]) -> Costs:
    """The medians of all rounds at one point."""
    return Costs(*(median(each) for each in zip(*found, strict=True)))


def beside(point: Point, first: Point, rounds: int) -> tuple[Costs, Costs]:
    """The costs at both points, measured in turns."""
    sides: tuple[list[Costs], list[Costs]] = ([], [])
    for _ in range(rounds):
        for side, each in zip(sides, (point, first), strict=True):
            side.append(measure(*each))
    return medians(sides[0]), medians(sides[1])


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    panels: list[Panel] = []
    slopes: list[Row] = []
    for kind in arguments.only:
        sizes = SIZES[kind]
        ratios: list[list[float]] = []
        with at_size(kind, sizes[0], arguments) as first:
            for size in sizes:
                with at_size(kind, size, arguments) as point:
                    costs, limits = beside(point, first, arguments.rounds)
                ratios.append([cost / limit for cost, limit in zip(costs, limits, strict=True)])
                for name, cost, limit in zip(NAMES, costs, limits, strict=True):
                    label = f"{size:,} {UNITS[kind]}: {name}"
                    yield row(label, "us", [cost], [limit], arguments.n, smaller_is_better=True)
        for name, cost, limit in zip(NAMES, costs, limits, strict=True):
            slopes.append(row(f"{kind}: {name}, last over first", "us", [cost], [limit], arguments.n))
        panels.append(Panel(UNITS[kind], "over first", sizes, dict(zip(NAMES, zip(*ratios, strict=True), strict=True))))
    yield from slopes
    Path(arguments.out).write_text(picture(panels), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="What growth costs")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES), metavar="NAME", help=", ".join(SIZES))
    parser.add_argument("--out", default="growth.svg", help="where the picture goes")
    parser.add_argument("--rounds", type=int, default=3, help="of each point; medians are shown")
    parser.add_argument("--n", type=int, default=2_000, help="sends and pulls of a round")
    parser.add_argument("--dir", help="where the stores are made; default: the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
