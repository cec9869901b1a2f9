"""Daemons of tests and of the quickstart: their ports."""

import socket
from pathlib import Path

import pytest

from scripts.daemons import HOST, ReservedPort, free_port, in_use, namesrv_daemon, reserve


def test_a_port_is_nobody_elses_while_it_is_kept() -> None:
    port = reserve()
    assert not in_use(port.number)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(port.number)


def test_a_daemon_can_listen_on_its_reserved_port() -> None:
    port = reserve()
    for _ in range(2):  # it may be killed and come back
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind((HOST, port.number))
            daemon.listen()
            assert in_use(port.number)


def test_a_port_that_is_no_longer_kept_is_free() -> None:
    number = reserve().number
    assert ReservedPort(number)


def test_a_free_port_belongs_to_this_process_until_its_end() -> None:
    number = free_port()
    for each in (number, number + 1):
        with pytest.raises(OSError, match="in use"):
            ReservedPort(each)


def test_a_daemon_keeps_its_port_while_it_is_down(tmp_path: Path) -> None:
    daemon = namesrv_daemon(tmp_path)
    with pytest.raises(OSError, match="in use"):
        ReservedPort(daemon.port)
