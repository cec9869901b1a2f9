"""What one NameServer carries: very many brokers, topics and clients, and its restart.

    python -m bench.scale [--json] [--brokers N] [--topics N] [--copies N] [--clients N]
    python -m bench.scale --pictures docs/operate/scale

One real NameServer process; its brokers and clients are simulated in another one (bench/scale_load.py) with real frames
on real connections. ``--topics`` is the number of topics of all brokers together, each on ``--copies`` brokers. The
limits are the targets, or an echo in bare trio where the row says so. CPU is the NameServer's own. With ``--pictures``
some figures are measured at several sizes and drawn instead.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.growth_picture import Panel, picture
from bench.harness import Row, echo_process, echo_server, row, show
from bench.scale_load import Broker, Load, Peer, Probed, check, probing, route_query, topic_name, version_of, watch
from scripts.daemons import Daemon, namesrv_daemon, serving, wait_ready
from skylark.remoting.protocol.command import CBOR, JSON

MB = 1_000_000
ROUNDS, CPU_ROUNDS = 3, 9
QUERY_SECONDS = 2.0
IDLE_S = 10.0
SAMPLE = 2_000
# The targets.
MEMORY_MB, HEARTBEAT_US, RESTART_S, QUERIES_A_SECOND = 1_000.0, 50.0, 60.0, 25_000.0
MANY_CLIENTS, POLL_S, WATCHED, KNOWN_MS = 64, 30.0, 10, 200.0
# Sizes of the pictures.
BROKER_COUNTS, TOPICS_OF_A_BROKER = (100, 200, 500, 1_000), 50
FEW_COPIES, MANY_COPIES = 4, 40
ASKING_COUNTS, CLIENT_COUNTS = (1, 4, 16, 64, 256, 1_024), (1_000, 2_000, 5_000, 10_000)


def cpu_ns(pid: int) -> int:
    """The processor time of a process so far."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def cpu_us(pid: int, work: Callable[[], object], count: int) -> float:
    """The processor time of process ``pid`` for each of the ``count`` requests in ``work``: the median of rounds."""
    found = []
    for _ in range(CPU_ROUNDS):
        before = cpu_ns(pid)
        work()
        found.append((cpu_ns(pid) - before) / count / 1000)
    return median(found)


class Cluster:
    """One NameServer and its simulated brokers, which `register` registers."""

    def __init__(self, namesrv: Daemon, brokers: Sequence[Broker]) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.joining = [each.join(1) for each in brokers]
        self.load = Load(namesrv.addr)
        self.peers: list[Peer] = []

    @property
    def rss_mb(self) -> float:
        return self.namesrv.rss_bytes() / MB

    def register(self) -> float:
        """All brokers connect and register at once. Returns the seconds until the last one has its answer."""
        started = time.perf_counter()
        self.peers = self.load.connect(len(self.brokers), are_brokers=True)
        answers = self.load.in_order(self.peers, self.joining)
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

    def cpu_us(self, work: Callable[[Sequence[Peer], Sequence[bytes]], Sequence[bytes]], frames: list[bytes]) -> float:
        """The NameServer's processor time for one request, when each broker sends its frame. The median of rounds."""
        check(work(self.peers, frames))
        return cpu_us(self.namesrv.pid, lambda: work(self.peers, frames), len(frames))


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


def queries(topics: int, codec: int = CBOR) -> list[bytes]:
    """Route queries for topics at random."""
    chosen = random.Random(1)
    return [route_query(topic_name(chosen.randrange(topics)), codec) for _ in range(20_000)]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with cluster(arguments.brokers, arguments.topics, arguments.copies) as made:
        yield from _registered(made, f"{arguments.topics:,} topics, each on {arguments.copies}")
        yield from _heartbeats(made)
        yield from _queries(made, arguments.topics)
        yield from _clients(made, arguments.topics, arguments.clients)
        yield from _restart(made, arguments.topics)


def _registered(made: Cluster, what: str) -> Iterator[Row]:
    empty_mb, n = made.rss_mb, len(made.brokers)
    before = cpu_ns(made.namesrv.pid)
    made.register()
    spent = (cpu_ns(made.namesrv.pid) - before) / 1e9
    yield row(f"memory: {n:,} brokers, {what}", "MB", [made.rss_mb], [MEMORY_MB], n, smaller_is_better=True)
    yield row("  of it, before the first broker", "MB", [empty_mb], [MEMORY_MB], n, smaller_is_better=True)
    yield row("CPU of all registrations", "s", [spent], [RESTART_S], n, smaller_is_better=True)


def _heartbeats(made: Cluster) -> Iterator[Row]:
    load, n = made.load, len(made.brokers)
    frames = [each.heartbeat() for each in made.brokers]
    with echo_process() as (echo, echo_pid):
        bare = Load(echo)
        peers = bare.connect(n)
        floor = cpu_us(echo_pid, partial(bare.one_by_one, peers, frames), n)
        bare.close()
    yield row(
        "CPU of the same in an echo in bare trio, one at a time",
        "us",
        [floor],
        [HEARTBEAT_US],
        n,
        smaller_is_better=True,
    )
    for name, frames in (
        ("unchanged version, 322", [each.ask_version(1) for each in made.brokers]),
        ("904", [each.heartbeat() for each in made.brokers]),
    ):
        for how, work in (("one at a time", load.one_by_one), ("all at once", load.at_once)):
            cost = made.cpu_us(work, frames)
            yield row(f"CPU of a heartbeat ({name}), {how}", "us", [cost], [HEARTBEAT_US], n, smaller_is_better=True)
    before = cpu_ns(made.namesrv.pid)
    load.idle(IDLE_S)
    used = (cpu_ns(made.namesrv.pid) - before) / IDLE_S / 1e9
    yield row("CPU at rest, with questions to silent brokers", "s/s", [used], [1.0], n, smaller_is_better=True)
    costs = []
    for version in range(1, ROUNDS + 1):
        frames = [each.change(version, each.topics[:1]) for each in made.brokers]
        before = cpu_ns(made.namesrv.pid)
        answers = load.one_by_one(made.peers, frames)
        costs.append((cpu_ns(made.namesrv.pid) - before) / n / 1000)
        check(answers)
    yield row("CPU of a changed topic (103), one at a time", "us", costs, costs, n, smaller_is_better=True)


def _asked(made: Cluster, peers: Sequence[Peer], frames: Sequence[bytes]) -> tuple[float, float]:
    """Queries a second, and the NameServer's processor time for one, in microseconds."""
    before = cpu_ns(made.namesrv.pid)
    count, seconds = made.load.for_seconds(peers, frames, QUERY_SECONDS)
    return count / seconds, (cpu_ns(made.namesrv.pid) - before) / count / 1000


def _queries(made: Cluster, topics: int) -> Iterator[Row]:
    n = MANY_CLIENTS
    with echo_server() as echo:
        bare = Load(echo)
        of_limit, peers = bare.connect(n), made.load.connect(n)
        # Each topic once: no client has asked for it since it changed.
        first = [route_query(topic_name(number)) for number in range(min(topics, SAMPLE))]
        before = cpu_ns(made.namesrv.pid)
        check(made.load.one_by_one(peers[:1] * len(first), first))
        cost = (cpu_ns(made.namesrv.pid) - before) / len(first) / 1000
        yield row("CPU of a first route query, one at a time", "us", [cost], [HEARTBEAT_US], n, smaller_is_better=True)
        for name, codec in (("Skylark's clients", CBOR), ("RocketMQ's clients", JSON)):
            frames = queries(topics, codec)
            for at in range(0, len(frames), n):
                check(made.load.at_once(peers[: len(frames) - at], frames[at : at + n]))
            ours, costs, limit = [], [], []
            for number in range(ROUNDS + 1):
                speed, cost = _asked(made, peers, frames)
                echoed, seconds = bare.for_seconds(of_limit, frames, QUERY_SECONDS)
                if number:
                    ours.append(speed)
                    costs.append(cost)
                    limit.append(echoed / seconds)
            what = f"route queries, {n} clients, {name}"
            yield row(what, "1/s", ours, [QUERIES_A_SECOND], n)
            yield row(f"{what}; limit: an echo", "1/s", ours, limit, n)
            yield row("  CPU of each", "us", costs, [1e6 / QUERIES_A_SECOND], n, smaller_is_better=True)
        bare.close()


def _clients(made: Cluster, topics: int, clients: int) -> Iterator[Row]:
    """Clients that are connected and ask for one route every POLL_S."""
    before_mb = made.rss_mb
    peers = made.load.connect(clients)
    frames = (queries(topics) * (clients // 20_000 + 1))[:clients]
    check(made.load.at_once(peers, frames))
    added_mb = made.rss_mb - before_mb
    n = min(SAMPLE, clients)
    before = cpu_ns(made.namesrv.pid)
    made.load.one_by_one(peers[:n], frames[:n])
    poll_us = (cpu_ns(made.namesrv.pid) - before) / n / 1000
    what = f"{clients:,} clients that poll"
    yield row(f"memory of {what}", "MB", [added_mb], [MEMORY_MB], clients, smaller_is_better=True)
    yield row("  CPU of a poll, one at a time", "us", [poll_us], [HEARTBEAT_US], clients, smaller_is_better=True)
    used = clients / POLL_S * poll_us / 1e6
    yield row(f"  CPU of all, a topic each {POLL_S:.0f} s", "s/s", [used], [1.0], clients, smaller_is_better=True)
    yield from _watching(made, peers, topics)


def _watching(made: Cluster, peers: Sequence[Peer], topics: int) -> Iterator[Row]:
    """The same clients watch some topics each, and all of them one common topic, which changes."""
    chosen, clients, teller = random.Random(3), len(peers), made.brokers[0]
    common = teller.topics[0]
    watched = [[common, *(topic_name(chosen.randrange(topics)) for _ in range(WATCHED - 1))] for _ in peers]
    before_mb = made.rss_mb
    version = version_of(made.load.at_once(peers[:1], [watch("", [])])[0])
    median_ms, last_ms, costs, used_mb = [], [], [], 0.0
    for number in range(ROUNDS):
        made.load.send_only(peers, [watch(version, own) for own in watched])
        # Answered after all other requests, as requests are read in their order.
        check(made.load.at_once(made.peers[:1], [teller.heartbeat()]))
        used_mb = made.rss_mb - before_mb
        spent = cpu_ns(made.namesrv.pid)
        found = made.load.send_and_await_others(made.peers[0], teller.change(ROUNDS + 1 + number, [common]), clients)
        costs.append((cpu_ns(made.namesrv.pid) - spent) / clients / 1000)
        version = version_of(found[-1][1])
        median_ms.append(found[clients // 2][0])
        last_ms.append(found[-1][0])
    what = f"{clients:,} clients that watch {WATCHED} topics each"
    yield row(f"memory of {what}", "MB", [used_mb], [MEMORY_MB], clients, smaller_is_better=True)
    yield row(
        "  a change of a topic is known at all, median", "ms", median_ms, [KNOWN_MS], clients, smaller_is_better=True
    )
    yield row(
        "  a change of a topic is known at all, the last", "ms", last_ms, last_ms, clients, smaller_is_better=True
    )
    yield row("  CPU of it, a client", "us", costs, [HEARTBEAT_US], clients, smaller_is_better=True)


def _restart(made: Cluster, topics: int) -> Iterator[Row]:
    chosen = random.Random(2)
    names = [topic_name(chosen.randrange(topics)) for _ in range(SAMPLE)]
    found = [made.restart(names) for _ in range(ROUNDS)]
    n = len(made.brokers)
    took = [seconds for seconds, _ in found]
    yield row("restart: all brokers are registered after", "s", took, [RESTART_S], n, smaller_is_better=True)
    for per_cent in (50, 99, 100):
        figures = [_percentile(probed, per_cent) for _, probed in found]
        yield row(f"  route queries meanwhile, {per_cent} %", "ms", figures, [1_000.0], n, smaller_is_better=True)
    share = [len(probed.found_ms) / len(_answers(probed)) for _, probed in found]
    yield row("  share of them that found a broker", "", share, [1.0], n)


def _answers(probed: Probed) -> list[float]:
    return sorted([*probed.found_ms, *probed.not_found_ms])


def _percentile(probed: Probed, per_cent: int) -> float:
    ordered = _answers(probed)
    return ordered[min(len(ordered) - 1, len(ordered) * per_cent // 100)]


# --- pictures


def panels() -> list[Panel]:
    """How the figures grow."""
    memory: dict[str, list[float]] = {}
    restart: dict[str, list[float]] = {}
    late: dict[str, list[float]] = {}
    beats: dict[str, list[float]] = {"322": [], "904": []}
    asked: dict[str, list[float]] = {"queries": []}
    clients: list[float] = []
    for copies in (FEW_COPIES, MANY_COPIES):
        name = f"each topic on {copies}"
        for brokers in BROKER_COUNTS:
            topics = brokers * TOPICS_OF_A_BROKER
            with cluster(brokers, topics, copies) as made:
                made.register()
                memory.setdefault(name, []).append(made.rss_mb)
                if copies == FEW_COPIES:
                    beats["322"].append(
                        made.cpu_us(made.load.one_by_one, [each.ask_version(1) for each in made.brokers])
                    )
                    beats["904"].append(made.cpu_us(made.load.one_by_one, [each.heartbeat() for each in made.brokers]))
                    if brokers == BROKER_COUNTS[-1]:
                        asked["queries"] = _at_client_counts(made, topics)
                        clients = _memory_of_clients(made)
                took, probed = made.restart([topic_name(number) for number in range(SAMPLE)])
                restart.setdefault(name, []).append(took)
                late.setdefault(name, []).append(_percentile(probed, 99))
    what = f"brokers, {TOPICS_OF_A_BROKER} topics for each"
    return [
        Panel(f"Memory, by {what}", "MB", BROKER_COUNTS, memory),
        Panel("CPU of a heartbeat, by brokers", "us", BROKER_COUNTS, beats),
        Panel("All are registered again after a restart", "s", BROKER_COUNTS, restart),
        Panel("Route query meanwhile, 99 %", "ms", BROKER_COUNTS, late),
        Panel("Thousands of route queries a second, by clients", "", ASKING_COUNTS, asked),
        Panel("Memory of clients that are connected", "MB", CLIENT_COUNTS, {"clients": clients}),
    ]


def _at_client_counts(made: Cluster, topics: int) -> list[float]:
    frames, found = queries(topics), []
    peers = made.load.connect(ASKING_COUNTS[-1])
    for at in range(0, len(frames), len(peers)):
        some = frames[at : at + len(peers)]
        check(made.load.at_once(peers[: len(some)], some))
    for count in ASKING_COUNTS:
        found.append(median(_asked(made, peers[:count], frames)[0] for _ in range(ROUNDS)) / 1_000)
    return found


def _memory_of_clients(made: Cluster) -> list[float]:
    before, count, found = made.rss_mb, 0, []
    for more in CLIENT_COUNTS:
        peers = made.load.connect(more - count)
        check(made.load.at_once(peers, [route_query(topic_name(0))] * len(peers)))
        count = more
        found.append(made.rss_mb - before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What one NameServer carries")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=50_000, help="of all brokers together")
    parser.add_argument("--copies", type=int, default=4, help="brokers that have each topic")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="draw namesrv.svg there instead")
    arguments = parser.parse_args()
    if arguments.pictures is None:
        show(rows(arguments), arguments.json)
        return
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    found = panels()
    for each in found:
        print(each.title, each.unit, each.sizes, each.costs)
    (arguments.pictures / "namesrv.svg").write_text(picture(found), encoding="utf-8")


if __name__ == "__main__":
    main()
