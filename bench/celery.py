"""Celery with Skylark as its broker, beside Celery with Redis: both on loopback, in turns in one run.

    python -m bench.celery [--n 5000] [--latency 200] [--eta 200] [--waiting 100000] [--rounds 3] [--json]

The limit of each row is Redis (redis-server with its defaults, nothing on disk) through kombu's own transport. Skylark
writes each task to its commit log. Each broker has one worker with two processes and Celery's defaults, and no results.
Memory is the growth of the worker's main process and of the broker, in MB without mapped files, while ``--waiting``
tasks wait that are due in an hour. Needs Debian's redis-server and the extras bench and celery.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.celery_tasks import BROKER, DONE, LATE, make_app
from bench.harness import Row, cluster, in_turn, row, show, turns
from bench.peers import redis_process

TASK = "bench.stamp"
BULK, SINGLE = "bulk", "single"
SENDERS = 8
PATIENCE_S = 600
LATENCY_PAUSE_S = 0.01
ETA_FIRST_S, ETA_LAST_S = 2.0, 4.0
# A worker must have been idle for this long before its memory is read.
SETTLE_S = 3.0


class Side:
    """One broker with its worker."""

    def __init__(self, broker: str, home: Path, broker_pid: int) -> None:
        self.app = make_app(broker)
        self.broker_pid = broker_pid
        self._broker = broker
        self._done = home / "done"
        self._log = home / "log"
        self._read = 0
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def worker(self) -> Iterator[None]:
        environment = {**os.environ, BROKER: self._broker, DONE: str(self._done)}
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "bench.celery_tasks",
            "worker",
            "-c",
            "2",
            "-Q",
            SINGLE,
            "--loglevel",
            "WARNING",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            self.send(SINGLE)
            self.wait(1)
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def send(self, queue: str, due: float | None = None, **options: Any) -> None:
        self.app.send_task(TASK, (time.time() if due is None else due,), queue=queue, **options)

    def send_many(self, count: int, queue: str, **options: Any) -> None:
        """Send from several threads, as a web server does."""
        with ThreadPoolExecutor(SENDERS) as pool:
            for each in [pool.submit(self._send_share, count // SENDERS, queue, options) for _ in range(SENDERS)]:
                each.result()
        self._send_share(count % SENDERS, queue, options)

    def _send_share(self, count: int, queue: str, options: dict[str, Any]) -> None:
        for _ in range(count):
            self.send(queue, **options)

    def wait(self, count: int) -> list[float]:
        """How late the next ``count`` tasks were, in ms, when all of them are done."""
        deadline = time.monotonic() + PATIENCE_S
        end = self._read + count * LATE.size
        while not self._done.exists() or self._done.stat().st_size < end:
            if time.monotonic() > deadline:
                raise SystemExit(f"the tasks are not done: {self._log.read_text()[-2000:]}")
            time.sleep(0.002)
        with self._done.open("rb") as file:
            file.seek(self._read)
            data = file.read(end - self._read)
        self._read = end
        return [late for (late,) in LATE.iter_unpack(data)]

    # --- figures

    def sends(self, count: int) -> float:
        """Tasks a second that one thread sends."""
        started = time.perf_counter()
        self._send_share(count, BULK, {})
        return count / (time.perf_counter() - started)

    def tasks(self, count: int) -> float:
        """Tasks a second that the worker does, of those that `sends` has left."""
        started = time.perf_counter()
        self.app.control.add_consumer(BULK)
        self.wait(count)
        took = time.perf_counter() - started
        self.app.control.cancel_consumer(BULK, reply=True, limit=1, timeout=PATIENCE_S)
        return count / took

    def latency(self, count: int) -> list[float]:
        """The time from a send to the task's first line, in ms."""
        for _ in range(count):
            self.send(SINGLE)
            time.sleep(LATENCY_PAUSE_S)
        return self.wait(count)

    def eta(self, count: int) -> list[float]:
        """How late tasks with a countdown are, ms."""
        now = time.time()
        for number in range(count):
            due = now + ETA_FIRST_S + (ETA_LAST_S - ETA_FIRST_S) * number / count
            self.send(SINGLE, due, countdown=due - time.time())
        return self.wait(count)

    def waiting(self, count: int, is_settled: Callable[[], bool]) -> tuple[float, float]:
        """MB by which worker and broker grow while ``count`` tasks wait."""
        assert self._process is not None
        time.sleep(SETTLE_S)
        before = resident_mb(self._process.pid), resident_mb(self.broker_pid)
        self.send_many(count, SINGLE, countdown=3600)
        deadline = time.monotonic() + PATIENCE_S
        while not is_settled() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        after = resident_mb(self._process.pid), resident_mb(self.broker_pid)
        return after[0] - before[0], after[1] - before[1]


def resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition("RssAnon:")[2].split()[0]) / 1024


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure(ours: Side, theirs: Side, redis_app: Any, arguments: argparse.Namespace) -> Iterator[Row]:
    n, rounds = arguments.n, arguments.rounds
    of_ours, of_theirs = in_turn(rounds, lambda: ours.sends(n), lambda: theirs.sends(n))
    yield row("tasks sent, one thread", "1/s", of_ours, of_theirs, n)
    # All tasks that the rounds, and the round that warms up, have sent.
    total = n * (rounds + 1)
    yield row("tasks done, worker with two processes", "1/s", [ours.tasks(total)], [theirs.tasks(total)], total)
    for name, count, figure in (
        ("from send to start", arguments.latency, Side.latency),
        ("later than its ETA", arguments.eta, Side.eta),
    ):
        late = turns(rounds, partial(figure, ours, count), partial(figure, theirs, count))
        for share, of in ((0.5, "median"), (0.99, "99 %")):
            a, b = ([percentile(each, share) for each in side] for side in late)
            yield row(f"{name}, {of}", "ms", a, b, count, smaller_is_better=True)
    if not arguments.waiting:
        return
    count = arguments.waiting
    grown = [
        ours.waiting(count, lambda: True),
        theirs.waiting(count, lambda: redis_app.hlen("unacked") >= count),
    ]
    for number, name in enumerate(("worker", "broker")):
        yield Row(
            f"memory of the {name}, tasks waiting for their ETA",
            "MB",
            round(grown[0][number], 2),
            round(grown[1][number], 2),
            round(grown[1][number] / max(grown[0][number], 0.1), 1),
            count,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5_000, help="tasks of a round")
    parser.add_argument("--latency", type=int, default=200, help="tasks whose way is measured")
    parser.add_argument("--eta", type=int, default=200, help="tasks with a countdown")
    parser.add_argument("--waiting", type=int, default=100_000, help="tasks that wait; 0: leave that out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    import redis

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        at = stack.enter_context(cluster())
        port, pid = stack.enter_context(redis_process())
        sides: list[Side] = []
        for name, url, broker_pid in (
            ("ours", f"rocketmq://{at.nameserver}/", at.broker_pid),
            ("redis", f"redis://127.0.0.1:{port}/0", pid),
        ):
            (home / name).mkdir()
            sides.append(Side(url, home / name, broker_pid))
        for side in sides:
            stack.enter_context(side.worker())
        client = stack.enter_context(redis.Redis("127.0.0.1", port))
        ours, theirs = sides
        show(measure(ours, theirs, client, arguments), arguments.json)


if __name__ == "__main__":
    main()
