"""Ports of loopback for daemons that are started, killed and started again."""

import random
import socket
from contextlib import suppress

HOST = "127.0.0.1"
# Below the range of ports for outgoing connections, so that no other process takes a port while its daemon is down, and
# no client that tries it connects to itself.
FREE_PORTS = range(20_000, 32_000)


class ReservedPort:
    """A port that no other process gets from `reserve` while this object lives.

    A socket is bound to it and does not listen. A daemon can listen there all the same: both have SO_REUSEADDR.
    """

    def __init__(self, wanted: int) -> None:
        """Raises OSError when the port is in use or reserved."""
        self.number = wanted
        self._holder = socket.socket()
        self._holder.bind((HOST, wanted))
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def __del__(self) -> None:
        self._holder.close()


def reserve() -> ReservedPort:
    """A port on which nothing listens."""
    while True:
        with suppress(OSError):
            return ReservedPort(random.choice(FREE_PORTS))


def free_port() -> int:
    """A port on which nothing listens now; it is not reserved."""
    return reserve().number


def reserve_if_free(wanted: int) -> tuple[int, ReservedPort | None]:
    """``wanted``, by default any; reserved if it is free. The daemon says so itself when it is not."""
    if not wanted:
        port = reserve()
        return port.number, port
    with suppress(OSError):
        return wanted, ReservedPort(wanted)
    return wanted, None


def in_use(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
