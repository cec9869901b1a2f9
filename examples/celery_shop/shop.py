"""The tasks of a shop: `celery -A shop worker`."""

import random

from celery import Celery, Task

app = Celery("shop")
app.config_from_object("celeryconfig")


class BankIsBusy(Exception):
    """The bank's line is engaged; a retry helps."""


@app.task(bind=True, max_retries=5)
def charge(self: Task, order: int, cents: int) -> int:
    """One call in three finds the line engaged, and is tried again in a moment."""
    if self.request.retries == 0 and random.Random(order).random() < 1 / 3:
        raise self.retry(exc=BankIsBusy(order), countdown=0.5)
    return cents


@app.task
def receipt(cents: int, order: int) -> str:
    """The receipt for the customer."""
    return f"order {order}: {cents / 100:.2f}"


@app.task
def remind(order: int) -> str:
    """Sent with a countdown: the task waits at the broker, and not in the memory of a worker."""
    return f"order {order}: how was the tea?"
