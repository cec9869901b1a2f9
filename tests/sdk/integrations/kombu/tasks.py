"""Tasks for workers in the process of a test, and in processes of their own."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Reject

from tests.support.waiting import until_true

BROKER, BACKEND, VISIBILITY_S = "CELERY_TEST_BROKER", "CELERY_TEST_BACKEND", "CELERY_TEST_VISIBILITY_S"


def make_app(broker: str, backend: str, visibility_s: float = 60) -> Celery:
    """An app with the tasks of this module."""
    made = Celery("tasks", broker=broker, backend=backend, include=[__name__], set_as_current=False)
    made.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": visibility_s},
        result_chord_retry_interval=0.1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
    )
    return made


if BROKER in os.environ:
    #: The app of a worker in a process of its own.
    app = make_app(os.environ[BROKER], os.environ[BACKEND], float(os.environ.get(VISIBILITY_S, "60")))


class Oops(Exception):
    """The error that a task raises."""


@shared_task
def add(one: Any, other: Any) -> Any:
    return one + other


@shared_task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task
def fail(text: str) -> None:
    raise Oops(text)


@shared_task
def note(text: Any, path: str) -> None:
    """A line in a file: what has happened, and where."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text} {os.getpid()}\n")


@shared_task(bind=True, max_retries=5)
def retried(self: Task, times: int, pause_s: float) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=pause_s)
    return int(self.request.retries)


@shared_task(bind=True, max_retries=5)
def note_priority(self: Task, path: str, retries: int = 0) -> None:
    """A line in a file: the priority of the task, of which it knows itself."""
    if self.request.retries < retries:
        raise self.retry(countdown=0)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{self.request.delivery_info['priority']}\n")


# With no delay Celery's state RETRY, which the first process notes, may come after what the second one has done.
@shared_task(autoretry_for=(Oops,), max_retries=1, retry_backoff=False, default_retry_delay=0.5)
def fails_twice() -> None:
    raise Oops("twice")


@shared_task
def started_at() -> float:
    return time.time()


@shared_task(bind=True, acks_late=True)
def rejected_once(self: Task, path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        raise Reject("again", requeue=True)
    return str(self.request.delivery_info["redelivered"])


def wait_for(path: str) -> None:
    """Wait until the test makes the file."""
    until_true(Path(path).exists, f"{path} is there")


@shared_task(acks_late=True, reject_on_worker_lost=True)
def gated(number: int, gate: str, done: str) -> int:
    """Works until the gate is open."""
    note(f"begin-{number}", done)
    wait_for(gate)
    note(f"end-{number}", done)
    return number


@shared_task(acks_late=True, reject_on_worker_lost=True)
def counted(number: int, done: str, work_s: float) -> None:
    """Write a line that says which worker has done the task, and when."""
    threading.Event().wait(work_s)
    with Path(done).open("a", encoding="utf-8") as file:
        file.write(f"{number} {os.getppid()} {time.time()}\n")


@shared_task(bind=True)
def from_within(self: Task, count: int) -> Any:
    """Is replaced by tasks that it sends."""
    raise self.replace(total.s([count, 1]))
