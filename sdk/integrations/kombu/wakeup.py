"""`Wakeup`: a descriptor that any thread makes readable, for event loops to watch and for threads to wait for."""

import os
import select
import socket
from contextlib import suppress


class Wakeup:
    """An eventfd; a pair of sockets on systems that have none, such as macOS and Windows."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return
        self._pair = socket.socketpair()
        for each in self._pair:
            each.setblocking(False)
        #: Readable from `set` to `clear`.
        self.descriptor = self._pair[0].fileno()

    def __del__(self) -> None:
        if self._pair is None:
            os.close(self.descriptor)

    def set(self) -> None:
        """Make the descriptor readable. Any thread may call it."""
        if self._pair is None:
            os.eventfd_write(self.descriptor, 1)
            return
        with suppress(BlockingIOError):  # full, and so readable
            self._pair[1].send(b"\0")

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with suppress(BlockingIOError):
            if self._pair is None:
                os.eventfd_read(self.descriptor)
                return
            while self._pair[0].recv(4096):
                pass

    def wait(self, timeout_s: float | None) -> None:
        """Block until the descriptor is readable, or for ``timeout_s``."""
        if not hasattr(select, "poll"):
            select.select([self.descriptor], [], [], timeout_s)
            return
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        poller.poll(None if timeout_s is None else timeout_s * 1000)
