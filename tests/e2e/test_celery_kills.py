"""Workers of Celery and their broker are killed with -9, again and again: no task is lost, due now or later.

The tasks acknowledge late, so a task whose worker is killed is done again. A task that was done twice without such a
kill is a mistake.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import trio
from celery import Celery
from kombu import pools

from scripts.daemons import Daemon
from tests.sdk.integrations.kombu import tasks
from tests.support.celery_workers import Worker, running
from tests.support.daemons import running as running_cluster
from tests.support.daemons import start
from tests.support.rounds import report
from tests.support.waiting import until

WORKERS, PROCESSES = 2, 2
# How long a killed worker's tasks are hidden. Long enough for the broker to come back before the others' are over.
VISIBILITY_S = 5.0
TASKS_A_ROUND = 30
WORK_S = 0.01
END_TIMEOUT_S = 120


class Done(NamedTuple):
    """One line of `tasks.counted`."""

    number: int
    worker_pid: int
    at: float


def read(path: Path) -> list[Done]:
    if not path.exists():
        return []
    # The last line may be half of one, of a process that is killed.
    rows = [line.split() for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return [Done(int(number), int(pid), float(at)) for number, pid, at in rows]


def send(app: Celery, numbers: Sequence[int], done: Path, random: Random) -> None:
    """All of these; every fifth is due in a while, at the broker or in a worker."""
    for number in numbers:
        countdown = random.uniform(0.1, 3) if number % 5 == 0 else None
        app.tasks[f"{tasks.__name__}.counted"].apply_async((number, str(done), WORK_S), countdown=countdown)


def done_twice(lines: list[Done], killed: set[int], broker_kills: list[float]) -> list[list[Done]]:
    """Tasks done twice without a reason: the first worker lived, and no broker was away when it acknowledged."""
    of_numbers: dict[int, list[Done]] = {}
    for line in lines:
        of_numbers.setdefault(line.number, []).append(line)
    return [
        found
        for found in of_numbers.values()
        for earlier in found[:-1]
        if earlier.worker_pid not in killed and not any(at - 1 < earlier.at < at + VISIBILITY_S for at in broker_kills)
    ]


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_no_task_is_lost(tmp_path: Path, seed: int, rounds: int) -> None:
    random, done = Random(seed), tmp_path / "done"
    killed: set[int] = set()
    broker_kills: list[float] = []
    async with running_cluster(tmp_path, brokers=2) as cluster:
        environment = {
            tasks.BROKER: f"rocketmq://{cluster.nameserver}/",
            tasks.BACKEND: "disabled://",
            tasks.VISIBILITY_S: str(VISIBILITY_S),
        }
        workers = [Worker(tmp_path, f"w{number}@kills", environment, "-c", str(PROCESSES)) for number in range(WORKERS)]
        app = tasks.make_app(environment[tasks.BROKER], environment[tasks.BACKEND])
        app.loader.import_default_modules()
        with running(*workers), app:
            for worker in workers:
                await until(worker.is_ready, f"{worker.name} is ready")
            for number in range(rounds):
                numbers = range(number * TASKS_A_ROUND, (number + 1) * TASKS_A_ROUND)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.to_thread.run_sync, send, app, numbers, done, random)
                    before = len(read(done))
                    await until(lambda before=before: len(read(done)) > before, "a task is done")  # type: ignore[misc]
                    # Both kinds in each three rounds, whatever the seed.
                    if number % 3 == 1:
                        await kill_broker(random.choice(cluster.brokers), broker_kills)
                    else:
                        kill_worker(random.choice(workers), killed)
            everything = set(range(rounds * TASKS_A_ROUND))
            try:
                await until(lambda: {line.number for line in read(done)} == everything, "all are done", END_TIMEOUT_S)
            finally:
                lost = everything - {line.number for line in read(done)}
                report(acknowledged=len(everything), lost=len(lost))
        pools.reset()  # an app that is closed leaves its connections to them
    lines = read(done)
    assert done_twice(lines, killed, broker_kills) == []
    assert len(lines) - len(everything) <= (len(killed) + len(broker_kills)) * WORKERS * PROCESSES * 4


def kill_worker(worker: Worker, killed: set[int]) -> None:
    killed.add(worker.pid)
    worker.kill()
    worker.start()


async def kill_broker(broker: Daemon, kills: list[float]) -> None:
    kills.append(time.time())
    broker.kill()
    await start(broker)


def test_the_check_sees_what_is_done_twice() -> None:
    lines = [Done(1, 7, 10.0), Done(1, 8, 11.0)]
    assert done_twice(lines, set(), []) == [lines]
    assert done_twice(lines, {7}, []) == done_twice(lines, set(), [9.5]) == []
    assert done_twice(lines, {8}, [12.0]) == [lines]
