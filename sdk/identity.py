"""The client's own address, and the client id under which brokers list it (``ip@pid#nanoseconds``)."""

import os
import socket
import time


def local_ip() -> str:
    """The source address of this machine's outgoing packets; 127.0.0.1 when it has no network.

    Connecting a UDP socket sends nothing: it only makes the kernel choose a source address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, an address that no host has
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def make_client_id() -> str:
    """A unique client id; the ids of two clients in one process differ in the nanoseconds."""
    return f"{local_ip()}@{os.getpid()}#{time.monotonic_ns()}"
