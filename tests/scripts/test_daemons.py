"""Daemons of tests and of the quickstart: their ports."""

import socket

import pytest

from scripts.daemons import HOST, ReservedPort, free_port, in_use


def test_a_port_is_nobody_elses_while_it_is_kept() -> None:
    port = free_port()
    assert not in_use(port)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(port)


def test_a_daemon_can_listen_on_its_reserved_port() -> None:
    port = free_port()
    for _ in range(2):  # it may be killed and come back
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind((HOST, port))
            daemon.listen()
            assert in_use(port)


def test_a_port_that_is_no_longer_kept_is_free() -> None:
    number = int(free_port())
    assert ReservedPort(number) == number
