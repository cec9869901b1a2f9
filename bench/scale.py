"""What one NameServer carries: very many brokers, topics and clients, and its restart.

    python -m bench.scale [--json] [--brokers N] [--topics N] [--copies N] [--clients N] [--pictures DIRECTORY]

One real NameServer process; its brokers and clients are simulated in another one (bench/scale_load.py) with real frames
on real connections. ``--topics`` are the topics of all brokers together, each on ``--copies`` brokers. The limits are the
targets, or an echo in bare trio where the row says so. CPU is the NameServer's own.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Row, echo_server, row, show
from bench.scale_load import Broker, Load, Peer, Probed, check, probing, route_query, topic_name
from remoting.protocol.command import CBOR, JSON
from scripts.daemons import Daemon, namesrv_daemon, serving, wait_ready

MB = 1_000_000
ROUNDS = 3
QUERY_SECONDS = 2.0
SAMPLE = 2_000
# The bars.
MEMORY_MB, HEARTBEAT_US, RESTART_S, QUERIES_A_SECOND = 1_000.0, 50.0, 60.0, 25_000.0
MANY_CLIENTS, POLL_S = 64, 30.0


def cpu_ns(pid: int) -> int:
    """The processor time of a process so far."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def cpu_us_each(pid: int, count: int, work: Callable[[], object]) -> float:
    """The processor time that process ``pid`` needs for each of ``count`` requests."""
    before = cpu_ns(pid)
    work()
    return (cpu_ns(pid) - before) / count / 1000


class Cluster:
    """One NameServer and its simulated brokers, all registered."""

    def __init__(self, namesrv: Daemon, brokers: Sequence[Broker]) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.frames = [each.register(1, each.topics) for each in brokers]
        self.load = Load(namesrv.addr)
        self.peers: list[Peer] = []

    def register(self) -> float:
        """All brokers connect and register at once. Returns the seconds until the last one has its answer."""
        started = time.perf_counter()
        self.peers = self.load.connect(len(self.brokers))
        answers = self.load.at_once(self.peers, self.frames)
        took = time.perf_counter() - started
        check(answers)
        return took

    def restart(self, topics: Sequence[str]) -> tuple[float, Probed]:
        """The NameServer dies and starts empty; all brokers register again, while a client asks for routes."""
        self.load.close()
        self.namesrv.kill()
        self.namesrv.start()
        wait_ready([self.namesrv])
        self.load = Load(self.namesrv.addr)
        with probing(self.namesrv.addr, topics) as probed:
            took = self.register()
        return took, probed[0]


@contextmanager
def cluster(brokers: int, topics: int, copies: int) -> Iterator[Cluster]:
    """``brokers`` brokers with ``topics`` topics in all, each on ``copies`` of them."""
    made = [Broker.numbered(number, brokers, topics, copies) for number in range(brokers)]
    with tempfile.TemporaryDirectory() as home:
        namesrv = namesrv_daemon(Path(home))
        with serving(namesrv):
            found = Cluster(namesrv, made)
            try:
                yield found
            finally:
                found.load.close()


def queries(topics: int, codec: int) -> list[bytes]:
    """Route queries for topics at random."""
    chosen = random.Random(1)
    return [route_query(topic_name(chosen.randrange(topics)), codec) for _ in range(20_000)]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    brokers, topics, copies = arguments.brokers, arguments.topics, arguments.copies
    with cluster(brokers, topics, copies) as made:
        yield from _registered(made, topics, copies)
        yield from _heartbeats(made)
        yield from _queries(made, topics)
        yield from _clients(made, topics, arguments.clients)
    with cluster(brokers, topics, copies) as made:
        made.register()
        yield from _restart(made, topics)


def _registered(made: Cluster, topics: int, copies: int) -> Iterator[Row]:
    before = made.namesrv.rss_bytes()
    spent = cpu_us_each(made.namesrv.pid, 1, lambda: made.register()) / 1e6
    rss = made.namesrv.rss_bytes()
    n = len(made.brokers)
    what = f"{n:,} brokers, {topics:,} topics, each on {copies}"
    yield row(f"memory: {what}", "MB", [rss / MB], [MEMORY_MB], n, smaller_is_better=True)
    yield row("  of it, without brokers", "MB", [before / MB], [MEMORY_MB], n, smaller_is_better=True)
    yield row("CPU of all registrations", "s", [spent], [RESTART_S], n, smaller_is_better=True)


def _heartbeats(made: Cluster) -> Iterator[Row]:
    pid, load, peers, n = made.namesrv.pid, made.load, made.peers, len(made.peers)
    for name, frames in (
        ("322", [each.ask_version(1) for each in made.brokers]),
        ("904", [each.heartbeat() for each in made.brokers]),
    ):
        check(load.at_once(peers, frames))
        alone = [cpu_us_each(pid, n, lambda: load.one_by_one(peers, frames)) for _ in range(ROUNDS)]
        together = [cpu_us_each(pid, n, lambda: load.at_once(peers, frames)) for _ in range(ROUNDS)]
        yield row(f"CPU of a heartbeat ({name}), one at a time", "us", alone, [HEARTBEAT_US], n, smaller_is_better=True)
        yield row(f"CPU of a heartbeat ({name}), all at once", "us", together, [HEARTBEAT_US], n, smaller_is_better=True)
    whole = [cpu_us_each(pid, n, lambda: load.one_by_one(peers, made.frames)) for _ in range(ROUNDS)]
    yield row("CPU of a heartbeat with all topics (103 in JSON)", "us", whole, [HEARTBEAT_US], n, smaller_is_better=True)
    changes = []
    for version in range(1, ROUNDS + 1):
        frames = [each.register(version + 1, each.topics[:1], base=version) for each in made.brokers]
        changes.append(cpu_us_each(pid, n, lambda: check(load.one_by_one(peers, frames))))  # noqa: B023  # called now
    yield row("CPU of a changed topic (103 with one)", "us", changes, [HEARTBEAT_US], n, smaller_is_better=True)


def _queries(made: Cluster, topics: int) -> Iterator[Row]:
    with echo_server() as echo:
        bare = Load(echo)
        for name, codec in (("Skylark's clients", CBOR), ("RocketMQ's clients", JSON)):
            frames = queries(topics, codec)
            ours, cpu, limit = [], [], []
            of_limit = bare.connect(MANY_CLIENTS)
            peers = made.load.connect(MANY_CLIENTS)
            check(made.load.at_once(peers, frames[:MANY_CLIENTS]))
            for number in range(ROUNDS + 1):
                before = cpu_ns(made.namesrv.pid)
                count, seconds = made.load.for_seconds(peers, frames, QUERY_SECONDS)
                spent = (cpu_ns(made.namesrv.pid) - before) / count / 1000
                echoed, echo_seconds = bare.for_seconds(of_limit, frames, QUERY_SECONDS)
                if number:
                    ours.append(count / seconds)
                    cpu.append(spent)
                    limit.append(echoed / echo_seconds)
            what = f"route queries, {MANY_CLIENTS} clients, {name}"
            yield row(what, "1/s", ours, [QUERIES_A_SECOND], MANY_CLIENTS)
            yield row(f"{what}; limit: an echo in bare trio", "1/s", ours, limit, MANY_CLIENTS)
            yield row("  CPU of each", "us", cpu, [1e6 / QUERIES_A_SECOND], MANY_CLIENTS, smaller_is_better=True)
        bare.close()


def _clients(made: Cluster, topics: int, clients: int) -> Iterator[Row]:
    """Clients that are connected and ask for one route every POLL_S."""
    before = made.namesrv.rss_bytes()
    peers = made.load.connect(clients)
    frames = (queries(topics, CBOR) * (clients // 20_000 + 1))[:clients]
    check(made.load.at_once(peers, frames))
    n = min(SAMPLE, clients)
    alone = [cpu_us_each(made.namesrv.pid, n, lambda: made.load.one_by_one(peers[:n], frames[:n]))]
    used = clients / POLL_S * alone[0] / 1e6
    added = made.namesrv.rss_bytes() - before
    what = f"{clients:,} clients that poll"
    yield row(f"memory of {what}", "MB", [added / MB], [MEMORY_MB], clients, smaller_is_better=True)
    yield row(f"CPU of {what}, a poll", "us", alone, [HEARTBEAT_US], clients, smaller_is_better=True)
    yield row(f"CPU of {what}, each a topic in {POLL_S:.0f} s", "s/s", [used], [1.0], clients, smaller_is_better=True)
    # Clients that watch topics (one held request of each connection) belong here, beside those that poll.


def _restart(made: Cluster, topics: int) -> Iterator[Row]:
    chosen = random.Random(2)
    names = [topic_name(chosen.randrange(topics)) for _ in range(SAMPLE)]
    found = [made.restart(names) for _ in range(ROUNDS)]
    n = len(made.brokers)
    took = [seconds for seconds, _ in found]
    yield row("restart: all brokers are registered after", "s", took, [RESTART_S], n, smaller_is_better=True)
    for name, of in (("route queries meanwhile", lambda each: [*each.found_ms, *each.not_found_ms]),):
        for per_cent in (50, 99):
            figures = [_percentile(of(probed), per_cent) for _, probed in found]
            yield row(f"{name}, {per_cent} %", "ms", figures, [1000.0], n, smaller_is_better=True)
    share = [len(probed.found_ms) / (len(probed.found_ms) + len(probed.not_found_ms)) for _, probed in found]
    yield row("  share of them that had a route already", "", share, [1.0], n)


def _percentile(values: Sequence[float], per_cent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * per_cent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description="What one NameServer carries")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=50_000, help="of all brokers together")
    parser.add_argument("--copies", type=int, default=4, help="brokers that have each topic")
    parser.add_argument("--clients", type=int, default=10_000)
    arguments = parser.parse_args()
    show(rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
