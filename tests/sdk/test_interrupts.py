"""Ctrl-C while a client opens or closes: nothing stays open, and trio's loop ends as it should."""

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any

import pytest
import trio

from skylark import Admin, Client, Producer, PullConsumer, PushConsumer, SimpleConsumer, TransactionProducer

Made = AbstractAsyncContextManager[Any]
NOBODY = "127.0.0.1:1"
CLIENTS: dict[str, Callable[[], Made]] = {
    "Client": lambda: Client(NOBODY),
    "Admin": lambda: Admin(NOBODY),
    "Producer": lambda: Producer(NOBODY, start_timeout_ms=None, trace=True),
    "PullConsumer": lambda: PullConsumer(NOBODY, group="g", start_timeout_ms=None, trace=True),
    "PushConsumer": lambda: PushConsumer(NOBODY, group="g", subscriptions={"t": "*"}, handler=print, start_timeout_ms=None),
    "SimpleConsumer": lambda: SimpleConsumer(NOBODY, group="g", subscriptions={"t": "*"}, start_timeout_ms=None),
    "TransactionProducer": lambda: TransactionProducer(NOBODY, group="g", start_timeout_ms=None),
}
# Of the lines that an opening and a closing run, every STEP-th is interrupted.
STEP = 23


class InterruptAt:
    """Sends SIGINT to this process before the line of the SDK's code that is the ``number``-th to run."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptAt | None":
        if "/sdk/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.parametrize("name", CLIENTS)
def test_an_interrupt_at_any_line_ends_a_program(name: str) -> None:
    async def main() -> None:
        async with CLIENTS[name]():
            await trio.lowlevel.checkpoint()

    number, was_interrupted = 1, True
    while was_interrupted:
        interrupt, before = InterruptAt(number), sys.gettrace()
        try:
            sys.settrace(interrupt)
            trio.run(main)
        except BaseException as error:
            sys.settrace(before)
            rest = BaseExceptionGroup("all", [error]).split(KeyboardInterrupt)[1]
            assert rest is None, f"at line {number}: {rest!r}"
        finally:
            sys.settrace(before)
        was_interrupted = interrupt.left <= 0
        number += STEP
