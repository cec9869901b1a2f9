"""What the benches share: daemons on loopback, medians, the table."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Row:
    """One figure, beside its limit measured in the same run."""

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
    """Print each row when it is there."""
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


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def echo_server() -> Iterator[str]:
    """The limit's address."""
    process = subprocess.Popen([sys.executable, "-m", "bench.echo"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Cluster:
    """One NameServer and one broker."""

    nameserver: str
    broker: str
    broker_pid: int


@contextmanager
def cluster(*, store_dir: str | None = None, options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """A NameServer and a broker as processes of their own, on loopback, with a store that goes away afterwards."""
    with tempfile.TemporaryDirectory(dir=store_dir) as home, cluster_at(home, options) as made:
        yield made


@contextmanager
def cluster_at(home: str, options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """As `cluster`, on the store that is in the directory ``home``, or comes to be there."""
    nameserver, broker = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    bin_dir = Path(sys.executable).parent
    name_port, broker_port = nameserver.rpartition(":")[2], broker.rpartition(":")[2]
    env = {**os.environ, "HOME": home}
    processes = [
        subprocess.Popen(
            [bin_dir / "namesrv", "--listen-port", name_port, "--bind-address", "127.0.0.1"],
            env=env, stderr=subprocess.DEVNULL,
        ),
        subprocess.Popen(
            [bin_dir / "broker", "--listen-port", broker_port, "--bind-address", "127.0.0.1",
             "--broker-ip1", "127.0.0.1", "--namesrv-addr", nameserver, "--store-path-root-dir", f"{home}/store",
             "--broker-name", "bench", *options],
            env=env, stderr=subprocess.DEVNULL,
        ),
    ]  # fmt: skip
    try:
        for addr in (nameserver, broker):
            wait_for_port(addr)
        yield Cluster(nameserver, broker, processes[1].pid)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(20)


def wait_for_port(addr: str, timeout_s: float = 10) -> float:
    """Seconds until somebody listens at ``addr``."""
    host, _, port = addr.rpartition(":")
    started = time.perf_counter()
    while time.perf_counter() - started < timeout_s:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return time.perf_counter() - started
        except OSError:
            time.sleep(0.002)
    raise SystemExit(f"nobody listens at {addr} after {timeout_s:.0f} s")


def in_turn(rounds: int, ours: Callable[[], float], limit: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Both sides, one after the other, so often; a first round of each warms up and does not count."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side, run in enumerate((ours, limit)):
            figure = run()
            if number:
                found[side].append(figure)
    return found
