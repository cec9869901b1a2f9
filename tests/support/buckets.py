"""Object stores of the tests' own: S3 by moto, in a process of its own, and by SeaweedFS in nightly runs."""

import json
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.daemons import reserve
from tests.support.requirements import seaweedfs_program
from tests.support.waiting import until_true

PROGRAM = Path(__file__).with_name("s3_process.py")
STOP_S = 30
# The end of a server's log that is shown.
LOG_BYTES = 4_000
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


class S3Server:
    """A server at ``url``. ``environment``: what a process needs to reach it."""

    def __init__(self, url: str, process: "subprocess.Popen[str]") -> None:
        self.url = url
        self.environment: Mapping[str, str] = {**KEYS, "AWS_ENDPOINT_URL": url}
        self.process = process

    def new_bucket(self) -> str:
        """The URL of a new bucket: ``s3://NAME``."""
        name = f"bucket-{secrets.token_hex(6)}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
        return f"s3://{name}"

    @contextmanager
    def answering(
        self, status: int, code: str, methods: Sequence[str] = (), *, after: bool = False, times: int | None = None
    ) -> Iterator[None]:
        """Moto only. In the block the answer to requests is this error.

        ``methods``: only to requests with these methods. ``times``: only to the first ``times`` requests.
        ``after``: the request is done nevertheless.
        """
        self._tell({"status": status, "code": code, "methods": methods, "after": after, "times": times})
        try:
            yield
        finally:
            self._tell({})

    @contextmanager
    def silent(self) -> Iterator[None]:
        """In the block the server answers nothing; connections are still accepted."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _tell(self, told: Mapping[str, object]) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Some 0.7 s of processor time: tests share one by the fixture ``s3_server``."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
        finally:
            process.kill()


@contextmanager
def seaweedfs_server(home: Path) -> Iterator[S3Server]:
    """SeaweedFS with its files in ``home``; takes 900 MB of memory. For tests that need the group ``SeaweedFS``."""
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    ports = {name: reserve() for name in (*names, "s3.port", "s3.port.grpc")}
    command = [str(seaweedfs_program()), f"-logdir={home}", "server", f"-dir={home}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-{name}={port.number}" for name, port in ports.items()]
    # By default catalogs listen at fixed ports, so that a second server ends, and the master sends statistics away.
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += ["-volume.max=200", "-master.volumeSizeLimitMB=256"]
    with (
        open(home / "log", "wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True) as process,
    ):
        try:
            server = S3Server(f"http://127.0.0.1:{ports['s3.port'].number}", process)
            until_true(lambda: process.poll() is not None or _answers(server), "SeaweedFS answers")
            _check_alive(process, home / "log")
            yield server
            _check_alive(process, home / "log")
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            finally:
                process.kill()
            for port in ports.values():
                # The server makes these sockets in /tmp, whatever `-dir` is, and does not remove them.
                for socket in Path("/tmp").glob(f"seaweedfs-*-{port.number}.sock"):
                    socket.unlink()


def _check_alive(process: "subprocess.Popen[str]", log: Path) -> None:
    said = log.read_bytes()[-LOG_BYTES:].decode(errors="replace")
    assert process.poll() is None, f"SeaweedFS has ended: {said}"


def _answers(server: S3Server) -> bool:
    try:
        server.new_bucket()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True
