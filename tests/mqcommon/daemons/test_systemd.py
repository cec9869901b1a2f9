"""What systemd is told."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark.mqcommon.daemons.systemd import Systemd


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        yield receiver


def test_nothing_is_sent_without_systemd() -> None:
    for text in ("", "relative/path", "vsock:2:1"):
        systemd = Systemd({"NOTIFY_SOCKET": text})
        assert not systemd.is_there
        systemd.ready("x")
        systemd.alive()
        systemd.stopping()


@pytest.mark.parametrize("abstract", [False, True])
def test_the_messages_of_a_life(tmp_path: Path, abstract: bool) -> None:
    name = f"skylark-test-{os.getpid()}"
    path = str(tmp_path / "socket")
    environ = {"NOTIFY_SOCKET": f"@{name}" if abstract else path, "WATCHDOG_USEC": "3000000"}
    with listening(f"\0{name}" if abstract else path) as receiver:
        systemd = Systemd(environ)
        assert systemd.is_there
        assert systemd.interval_s == 1.5
        systemd.alive()
        systemd.ready("serves at 127.0.0.1:1")
        systemd.alive()
        systemd.stopping()
        systemd.alive()
        received = [receiver.recv(1000).decode() for _ in range(5)]
    assert received == [
        "EXTEND_TIMEOUT_USEC=60000000\nWATCHDOG=1",
        "READY=1\nSTATUS=serves at 127.0.0.1:1",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=stopping",
        "EXTEND_TIMEOUT_USEC=60000000\nWATCHDOG=1",
    ]


def test_the_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with listening(path) as receiver:
        systemd = Systemd({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"})
        systemd.ready("x")
        systemd.alive()
        assert receiver.recv(1000) == b"READY=1\nSTATUS=x"
        with pytest.raises(BlockingIOError):
            receiver.recv(1000)


def test_a_socket_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with caplog.at_level(logging.WARNING):
        systemd.ready("x")
        systemd.stopping()
    assert len(caplog.records) == 1
