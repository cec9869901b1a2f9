"""Celery over a cluster of ours, after its own integration tests: canvas, retries, times, revokes, remote control.

The worker is a process with a pool of processes, and keeps results in files, as chords need results that can be shared.
The last tests have workers in this process, and ``rpc://`` for results.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from skylark import blocking
from skylark.sdk.testing import Cluster
from tests.sdk.integrations.kombu import tasks
from tests.support.celery_workers import Worker, running
from tests.support.manual import blocks
from tests.support.waiting import until_true

TIMEOUT_S = 60
# Results in files are asked for so often.
POLL_S = 0.05
# The pool forks again and again while the worker is connected.
REFORK = ("--max-tasks-per-child", "30")


def lines(path: Path) -> list[str]:
    """The lines that `tasks.note` wrote, without the ids of processes."""
    return [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def environment(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # The form for several NameServers; it is the only one of this cluster by two names.
    same = cluster.nameserver.replace("127.0.0.1", "localhost")
    return {
        tasks.BROKER: f"rocketmq://{cluster.nameserver},{same}/",
        tasks.BACKEND: f"file://{tmp_path_factory.mktemp('results')}",
    }


@pytest.fixture(scope="module")
def worker(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    made = Worker(tmp_path_factory.mktemp("worker"), "w@test", environment, "-c", "2", "-E", *REFORK)
    with running(made):
        until_true(made.is_ready)
        yield made
        made.terminate()
        assert made.wait() == 0, made.said()


@pytest.fixture(scope="module")
def made(environment: dict[str, str], worker: Worker) -> Iterator[Celery]:
    with tasks.make_app(environment[tasks.BROKER], environment[tasks.BACKEND]) as app:
        yield app


@pytest.fixture
def app(made: Celery) -> Celery:
    """Sends to the worker."""
    made.set_current()
    made.set_default()
    return made


# --- canvas


def test_chains(app: Celery) -> None:
    assert chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4)).delay().get(TIMEOUT_S, interval=POLL_S) == 10
    result = chain(tasks.add.s(1, 2), tasks.fail.si("middle"), tasks.add.s(4)).delay()
    with pytest.raises(tasks.Oops, match="middle"):
        result.get(TIMEOUT_S, interval=POLL_S)
    assert result.parent.state == "FAILURE" and result.parent.parent.get(TIMEOUT_S, interval=POLL_S) == 3


def test_groups(app: Celery) -> None:
    result = group(tasks.add.s(number, number) for number in range(20)).delay()
    assert result.get(TIMEOUT_S, interval=POLL_S) == [2 * number for number in range(20)]
    chunks = tasks.add.chunks(zip(range(6), range(6), strict=True), 2).delay()
    assert chunks.get(TIMEOUT_S, interval=POLL_S) == [[0, 2], [4, 6], [8, 10]]
    assert tasks.total.map([[1, 2], [3]]).delay().get(TIMEOUT_S, interval=POLL_S) == [3, 3]


def test_chords(app: Celery) -> None:
    assert chord(tasks.add.s(number, 1) for number in range(5))(tasks.total.s()).get(TIMEOUT_S, interval=POLL_S) == 15
    nested = chain(
        group(tasks.add.s(1, 1), chord([tasks.add.s(2, 2), tasks.add.s(3, 3)], tasks.total.s())), tasks.total.s()
    )
    assert nested.delay().get(TIMEOUT_S, interval=POLL_S) == 12
    failing = chord([tasks.add.s(1, 1), tasks.fail.si("in a header")], tasks.total.s()).delay()
    with pytest.raises(tasks.Oops, match="in a header"):
        failing.get(TIMEOUT_S, interval=POLL_S)


def test_replaced_tasks_links_and_errors(app: Celery, tmp_path: Path) -> None:
    assert tasks.from_within.delay(4).get(TIMEOUT_S, interval=POLL_S) == 5
    done = tmp_path / "done"
    tasks.add.apply_async((1, 1), link=tasks.note.si("linked", str(done)))
    tasks.fail.apply_async(("x",), link_error=tasks.note.si("failed", str(done)))
    until_true(lambda: sorted(lines(done)) == ["failed", "linked"])


# --- retries and times


def test_retries(app: Celery) -> None:
    assert tasks.retried.delay(2, 0.5).get(TIMEOUT_S, interval=POLL_S) == 2
    with pytest.raises(tasks.Oops, match="twice"):
        tasks.fails_twice.delay().get(TIMEOUT_S, interval=POLL_S)


def test_a_retry_waits_at_the_broker(app: Celery) -> None:
    """Longer than the lead, so that the retry is a timed message."""
    before = time.time()
    assert tasks.retried.delay(1, 1.5).get(TIMEOUT_S, interval=POLL_S) == 1
    assert time.time() - before >= 1.5


def test_countdown_and_eta(app: Celery) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=2)
    later, soon = tasks.started_at.apply_async(eta=eta), tasks.started_at.apply_async(countdown=0.5)
    # The later one is at the broker: a worker would list it.
    assert app.control.inspect(timeout=0.5).scheduled() == {"w@test": []} or soon.get(TIMEOUT_S, interval=POLL_S)
    assert later.get(TIMEOUT_S, interval=POLL_S) >= eta.timestamp() > soon.get(TIMEOUT_S, interval=POLL_S)


def test_expired_tasks_are_not_run(app: Celery) -> None:
    with pytest.raises(TaskRevokedError):
        tasks.add.apply_async((1, 1), expires=datetime.now(UTC) - timedelta(seconds=5)).get(TIMEOUT_S, interval=POLL_S)


def test_a_task_that_is_rejected_comes_again(app: Celery, tmp_path: Path) -> None:
    assert tasks.rejected_once.delay(str(tmp_path / "rejected")).get(TIMEOUT_S, interval=POLL_S) == "True"


# --- remote control


def test_inspect_and_control(app: Celery) -> None:
    inspect = app.control.inspect(destination=["w@test"], timeout=TIMEOUT_S, limit=1)
    assert inspect.ping() == {"w@test": {"ok": "pong"}}
    stats = inspect.stats()["w@test"]
    assert len(stats["pool"]["processes"]) == 2 and stats["broker"]["transport"] == "rocketmq"
    assert f"{tasks.__name__}.add" in inspect.registered()["w@test"]
    assert [queue["name"] for queue in inspect.active_queues()["w@test"]] == ["celery"]


def test_queues_are_added_and_cancelled_while_a_worker_runs(app: Celery) -> None:
    waits = tasks.add.apply_async((1, 1), queue="urgent.mail")
    assert "ok" in app.control.add_consumer("urgent.mail", reply=True, limit=1, timeout=TIMEOUT_S)[0]["w@test"]
    assert waits.get(TIMEOUT_S, interval=POLL_S) == 2
    assert "ok" in app.control.cancel_consumer("urgent.mail", reply=True, limit=1, timeout=TIMEOUT_S)[0]["w@test"]
    # The worker answers first, and cancels then.
    inspect = app.control.inspect(destination=["w@test"], timeout=TIMEOUT_S, limit=1)
    until_true(lambda: [queue["name"] for queue in inspect.active_queues()["w@test"]] == ["celery"])
    late = tasks.add.apply_async((1, 2), queue="urgent.mail")
    assert tasks.add.delay(1, 1).get(TIMEOUT_S, interval=POLL_S) == 2 and late.state == "PENDING"


def test_revoked_tasks_do_not_run(app: Celery, worker: Worker) -> None:
    result = tasks.add.apply_async((1, 1), countdown=1.5)
    # Waits for the worker to know: the task itself is at the broker.
    app.control.revoke(result.id, reply=True, limit=1, timeout=TIMEOUT_S)
    with pytest.raises(TaskRevokedError):
        result.get(TIMEOUT_S, interval=POLL_S)


def test_a_task_that_runs_is_terminated(app: Celery, tmp_path: Path) -> None:
    done = tmp_path / "done"
    result = tasks.gated.delay(1, str(tmp_path / "never"), str(done))
    until_true(lambda: lines(done) == ["begin-1"])
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(TIMEOUT_S, interval=POLL_S)
    assert lines(done) == ["begin-1"]


def test_events_tell_of_tasks(app: Celery) -> None:
    seen: set[str] = set()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.add(event["type"])})
        with receiver.consumer_context() as (own, _, _):
            tasks.add.delay(1, 1)
            while not seen >= {"task-received", "task-started", "task-succeeded"}:
                own.drain_events(timeout=TIMEOUT_S)


# --- the end of workers


def test_a_warm_shutdown_finishes_tasks_and_gives_back_what_was_prefetched(
    environment: dict[str, str], app: Celery, worker: Worker, tmp_path: Path
) -> None:
    gate, done = tmp_path / "gate", tmp_path / "done"
    stopped = Worker(tmp_path, "stopped@test", environment, "-Q", "shutdown", "-c", "1")
    with running(stopped):
        for number in range(4):
            tasks.gated.apply_async((number, str(gate), str(done)), queue="shutdown")
        until_true(lambda: len(lines(done)) == 1)
        # The worker's main process must know, too, that the task has begun: otherwise Celery drops the task's result at
        # a shutdown, and lets another worker do the task again (`AsynPool.flush`).
        inspect = app.control.inspect(destination=["stopped@test"], timeout=TIMEOUT_S, limit=1)
        until_true(lambda: inspect.active()["stopped@test"])
        stopped.terminate()
        until_true(lambda: "Warm shutdown" in stopped.said())
        gate.touch()
        assert stopped.wait() == 0
    begun = lines(done)
    assert len(begun) < 8 and {line[-1] for line in begun if "begin" in line} == {
        line[-1] for line in begun if "end" in line
    }
    asked = {"destination": ["w@test"], "reply": True, "limit": 1, "timeout": TIMEOUT_S}
    assert "ok" in app.control.add_consumer("shutdown", **asked)[0]["w@test"]
    try:
        until_true(lambda: {line for line in lines(done) if "end" in line} == {f"end-{number}" for number in range(4)})
    except AssertionError as error:
        error.add_note(f"{lines(done)}; the stopped worker:\n{stopped.said()}\nthe other one:\n{worker.said()}")
        raise
    assert "ok" in app.control.cancel_consumer("shutdown", **asked)[0]["w@test"]
    # None was done twice.
    assert sorted(lines(done)) == sorted(f"{what}-{number}" for what in ("begin", "end") for number in range(4))


# --- results by rpc://, and other pools


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_results_by_rpc(cluster: Cluster, pool: str) -> None:
    app = tasks.make_app(f"rocketmq://{cluster.nameserver}/ns-{pool}", "rpc://")
    app.set_current()
    app.set_default()
    options = {"concurrency": 2, "perform_ping_check": False, "shutdown_timeout": TIMEOUT_S}
    with app, start_worker(app, pool=pool, **options):
        results = [tasks.add.delay(number, 1) for number in range(20)]
        assert [result.get(TIMEOUT_S, interval=POLL_S) for result in results] == list(range(1, 21))
        with pytest.raises(tasks.Oops, match="far away"):
            tasks.fail.delay("far away").get(TIMEOUT_S, interval=POLL_S)
        polled = tasks.add.delay(2, 2)
        until_true(lambda: polled.state == "SUCCESS")
        assert polled.get(TIMEOUT_S, interval=POLL_S) == 4
        assert group(tasks.add.s(1, 1), tasks.add.s(2, 2)).delay().get(TIMEOUT_S, interval=POLL_S) == [2, 4]
        with pytest.raises(NotImplementedError, match="chords"):
            chord([tasks.add.s(1, 1), tasks.add.s(2, 2)], tasks.total.s()).delay()
        app.backend.result_consumer.stop()


def test_urgent_tasks_run_first_and_stay_urgent_when_they_are_retried(cluster: Cluster, tmp_path: Path) -> None:
    app = tasks.make_app(f"rocketmq://{cluster.nameserver}/ns-urgent", "rpc://")
    app.conf.update(
        task_queue_max_priority=9, task_default_priority=2, worker_prefetch_multiplier=1, task_acks_late=True
    )
    app.set_current()
    app.set_default()
    done = tmp_path / "done"
    with app:
        for priority in (0, None, 9, 5, 9):
            options = {} if priority is None else {"priority": priority}
            tasks.note_priority.apply_async((str(done), int(priority == 5)), **options)
        with start_worker(app, pool="solo", concurrency=1, perform_ping_check=False, shutdown_timeout=TIMEOUT_S):
            until_true(lambda: len(lines(done)) == 5)
    # The retry of the task with priority 5 is a message of its own, sent while the worker had the next task.
    assert sorted(lines(done)) == ["0", "2", "5", "9", "9"]
    assert lines(done)[:2] == ["9", "9"] and lines(done)[-1] == "0"


def test_a_task_is_found_by_its_id(app: Celery, cluster: Cluster) -> None:
    """With mqadmin queryMsgByKey, too."""
    result: AsyncResult = tasks.add.delay(1, 1)
    assert result.get(TIMEOUT_S, interval=POLL_S) == 2
    with blocking.Admin(cluster.nameserver) as admin:
        (message,) = until_true(lambda: admin.query_message_by_key("celery", result.id, 10))
    assert message.tags == f"{tasks.__name__}.add".replace(".", "_") + message.tags[-9:]


def test_five_lines_of_the_guide_lead_to_a_task_that_has_run(cluster: Cluster, tmp_path: Path) -> None:
    """The URL alone is enough, in programs that have imported nothing of ours."""
    (block,) = [block for block in blocks("docs/guides/celery.md") if block.language == "sh"]
    lines = block.text.replace("127.0.0.1:9876/", f"{cluster.nameserver}/five-lines").splitlines()
    _, _, write, start, call = lines
    subprocess.run(["sh", "-c", write], cwd=tmp_path, check=True)
    assert start.startswith("celery -A tasks worker -c 2")
    worker = Worker(tmp_path, "line@test", {"PYTHONPATH": str(tmp_path)}, "-c", "2", app="tasks")
    with running(worker):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        run = subprocess.run(
            ["sh", "-c", call.replace("timeout=10", f"timeout={TIMEOUT_S}")], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.stdout == "3\n", run.stderr
        worker.terminate()
        assert worker.wait() == 0
