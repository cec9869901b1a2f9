"""Tells systemd how a daemon is: ready, alive, stopping (sd_notify).

Without ``NOTIFY_SOCKET`` in the environment nothing is sent. A message is one datagram, and sending it never waits. The
first message that cannot be delivered is logged, and no later one: a daemon must not stop for that.
"""

import logging
import os
import socket
from collections.abc import Mapping
from secrets import token_hex
from typing import Self

import trio

logger = logging.getLogger(__name__)

# While a daemon starts or stops, each message asks for this much more time.
MORE_TIME_S = 60.0
# How often a daemon that starts or stops sends a message.
STEP_S = 10.0


class Systemd:
    """The service manager of this process, if there is one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _socket_address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environ, os.getpid())
        self._has_failed = False
        self._is_serving = False

    @property
    def is_there(self) -> bool:
        """Whether there is a service manager that gets messages."""
        return self._address is not None

    @property
    def interval_s(self) -> float:
        """How often to call `alive`: twice in the time after which the watchdog ends the process."""
        return min(STEP_S, self._watchdog_s / 2) if self._watchdog_s else STEP_S

    def ready(self, status: str) -> None:
        """Tell systemd that the daemon serves."""
        self._is_serving = True
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Tell systemd that the daemon has begun to stop."""
        self._is_serving = False
        self._tell("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Tell systemd that the event loop runs. A daemon that starts or stops gets more time: recovery may be long."""
        lines = [] if self._is_serving else [f"EXTEND_TIMEOUT_USEC={round(MORE_TIME_S * 1e6)}"]
        if self._watchdog_s:
            lines.append("WATCHDOG=1")
        if lines:
            self._tell("\n".join(lines))

    def _tell(self, text: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(text.encode())
        except OSError as error:
            if not self._has_failed:
                logger.warning("systemd cannot be told %r: %s", text.partition("\n")[0], error)
            self._has_failed = True
        else:
            self._has_failed = False


class Notices:
    """Receives what a child process tells its service manager, which is this process; Linux only."""

    def __init__(self) -> None:
        self._socket = trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        #: For ``NOTIFY_SOCKET`` in the child's environment.
        self.address = f"@skylark-{os.getpid()}-{token_hex(8)}"

    async def __aenter__(self) -> Self:
        await self._socket.bind(f"\0{self.address[1:]}")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._socket.close()

    async def next(self) -> list[bytes]:
        """The lines of the next message. While the child starts or stops, a message comes in every STEP_S."""
        return (await self._socket.recv(4096)).split(b"\n")


def _socket_address(text: str) -> str | None:
    """The socket address of a path, or of an abstract name, which begins with ``@``; None for an empty name."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """Systemd's watchdog ends the process after this time without a sign of life; 0: there is none."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    return int(microseconds) / 1e6
