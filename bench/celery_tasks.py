"""App of bench/celery.py, which its workers load: the environment names the broker, and the file for what is done."""

import os
import struct
import time

from celery import Celery

BROKER, DONE = "BENCH_CELERY_BROKER", "BENCH_CELERY_DONE"
#: One line of the file: how late a task began, in ms.
LATE = struct.Struct("<d")


def make_app(broker: str) -> Celery:
    """An app that keeps no results."""
    made = Celery("bench", broker=broker, set_as_current=False)
    made.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
    return made


app = make_app(os.environ.get(BROKER, "rocketmq://"))
_file = os.open(os.environ.get(DONE, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(name="bench.stamp")  # type: ignore[untyped-decorator]  # Celery has no types
def stamp(due: float) -> None:
    """Write a row that says how much later than ``due`` this task runs."""
    os.write(_file, LATE.pack((time.time() - due) * 1000))
