"""A PostgreSQL server of a test's own, on a Unix socket."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import psycopg

from tests.support.requirements import postgresql_program
from tests.support.waiting import until

USER = "skylark"
# No test asks for what survives a power failure.
OPTIONS = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=8MB", "-c", "max_connections=20")
STOP_S = 30


@asynccontextmanager
async def postgresql() -> AsyncIterator[str]:
    """The server's URI; the server runs in the block."""
    # The path of a socket has at most 107 bytes, too few for tmp_path.
    with TemporaryDirectory() as home:
        server = _start(home)
        try:
            uri = f"postgresql:///postgres?host={home}&user={USER}"
            await until(lambda: _answers(uri), "PostgreSQL answers")
            yield uri
        finally:
            server.send_signal(signal.SIGQUIT)  # at once
            server.wait(STOP_S)


def _start(home: str) -> "subprocess.Popen[bytes]":
    data = f"{home}/data"
    with open(f"{home}/log", "wb") as log:
        make = _unprivileged("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        subprocess.run(make, stdout=log, stderr=log, check=True)
        return subprocess.Popen(_unprivileged("postgres", "-D", data, "-k", home, *OPTIONS), stdout=log, stderr=log)


def _unprivileged(name: str, *arguments: str) -> Sequence[str]:
    """The command. PostgreSQL refuses to run as root: then it sees its user as another one."""
    path = postgresql_program(name)
    assert path is not None, f"{name} of PostgreSQL is not found"
    as_other = ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []
    return [*as_other, path, *arguments]


def _answers(uri: str) -> bool:
    try:
        psycopg.connect(uri).close()
    except psycopg.OperationalError:
        return False
    return True
