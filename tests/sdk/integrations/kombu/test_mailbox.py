"""The descriptor of a mailbox, which one thread watches and another one writes to."""

import os
import select
import threading

import pytest

from skylark.sdk.integrations.kombu.mailbox import Mailbox
from skylark.sdk.integrations.kombu.wakeup import Wakeup


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_closed_mailbox_keeps_its_descriptor_while_a_thread_may_wake_it() -> None:
    mailbox = Mailbox()
    descriptor = mailbox.descriptor
    mailbox.close()
    read, write = os.pipe()
    try:
        assert descriptor not in (read, write)
        mailbox.wake()
        assert not is_readable(descriptor)
        del mailbox
        again, other = os.pipe()
        os.close(again)
        os.close(other)
        assert descriptor in (again, other)
    finally:
        os.close(read)
        os.close(write)


@pytest.fixture(params=["Linux", "macOS", "Windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each system's way to wake a thread: macOS lacks eventfd, Windows lacks poll, too."""
    if request.param != "Linux":
        monkeypatch.delattr(os, "eventfd")
    if request.param == "Windows":
        monkeypatch.delattr(select, "poll")


@pytest.mark.usefixtures("system")
def test_a_wakeup_is_readable_from_set_to_clear() -> None:
    wakeup = Wakeup()
    wakeup.clear()
    assert not is_readable(wakeup.descriptor)
    for _ in range(3):
        wakeup.set()
    assert is_readable(wakeup.descriptor)
    wakeup.wait(None)
    wakeup.clear()
    assert not is_readable(wakeup.descriptor)
    wakeup.wait(0.001)


@pytest.mark.usefixtures("system")
def test_setting_a_wakeup_ends_the_wait_of_another_thread() -> None:
    wakeup = Wakeup()
    thread = threading.Thread(target=wakeup.wait, args=(None,))
    thread.start()
    wakeup.set()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_wakeup_without_eventfd_never_blocks_its_setters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")
    wakeup = Wakeup()
    for _ in range(2_000):  # more than a socket takes
        wakeup.set()
    wakeup.clear()
    assert not is_readable(wakeup.descriptor)
