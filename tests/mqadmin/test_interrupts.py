"""Ctrl-C while a command runs."""

import signal

import pytest
import trio

from skylark.mqadmin.command import _run


def test_an_interrupt_waits_for_a_checkpoint_and_a_second_one_would_end_the_process() -> None:
    reached = []

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append(signal.getsignal(signal.SIGINT))
        await trio.lowlevel.checkpoint()
        reached.append("after the checkpoint")

    with pytest.raises(KeyboardInterrupt):
        _run(work)
    assert reached == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored() -> None:
    async def work() -> str:
        signal.raise_signal(signal.SIGINT)
        await trio.lowlevel.checkpoint()
        return "done"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert _run(work) == "done"
    finally:
        signal.signal(signal.SIGINT, before)
