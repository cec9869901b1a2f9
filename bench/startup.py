"""From exec to the first answer, and memory when idle: NameServer and broker, each on an empty store.

    python -m bench.startup [--json] [--rounds N]

The limit is a Python process that imports trio and answers the same request: the cost of the interpreter itself.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, command, row
from scripts.daemons import free_port
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.routes import GET_NAMESRV_CONFIG

IDLE_S = 2.0


def start_and_ask(command: list[str], port: int, request: bytes, home: str) -> tuple[float, float]:
    """(seconds to the first answer, resident MB after some idle time)."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "HOME": home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with exit code {process.returncode}")
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as connection:
                    connection.sendall(request)
                    if connection.recv(65_536):
                        break
            except OSError:
                time.sleep(0.001)
        elapsed = time.perf_counter() - started
        time.sleep(IDLE_S)
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    finally:
        process.terminate()
        process.wait(20)
    return elapsed, resident / 1024


def measure(command: list[str], code: int) -> tuple[float, float]:
    """One start of ``command``, to which the port is added."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        return start_and_ask([*command, str(port)], port, encode(Command(code, opaque=1)), home)


def rows(rounds: int) -> Iterator[Row]:
    bin_dir = Path(sys.executable).parent
    limit_command = [sys.executable, "-m", "bench.echo"]
    daemons: tuple[tuple[str, int, list[str]], ...] = (
        ("namesrv", GET_NAMESRV_CONFIG.code, []),
        ("broker", GET_BROKER_CONFIG.code, ["--broker-ip1", "127.0.0.1", "--namesrv-addr", "127.0.0.1:1"]),
    )
    for name, code, more in daemons:
        command = [str(bin_dir / name), "--bind-address", "127.0.0.1", *more, "--listen-port"]
        ours, limit = [], []
        for _ in range(rounds):
            ours.append(measure(command, code))
            limit.append(measure(limit_command, code))
        times = [elapsed for elapsed, _ in ours], [elapsed for elapsed, _ in limit]
        sizes = [size for _, size in ours], [size for _, size in limit]
        yield row(f"{name}: from exec to the first answer", "s", *times, rounds, smaller_is_better=True)
        yield row(f"{name}: resident when idle", "MB", *sizes, rounds, smaller_is_better=True)


if __name__ == "__main__":
    command(__doc__ or "", 7, rows)
