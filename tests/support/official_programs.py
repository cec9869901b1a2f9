"""Official clients of RocketMQ 5 that send and consume in processes of their own, until they are told to stop.

scenarios/load and drain of tests/mqproxy are what they run; each writes JSON lines to a file.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import trio

from scripts.daemons import HOST
from tests.support.proxies import command, environment

STOP_TIMEOUT_S = 60


class Program:
    """One process. It ends when its stdin is closed."""

    _numbers = count()

    def __init__(self, home: Path, scenario: str, language: str, endpoints: str, **arguments: Any) -> None:
        self.name = f"{language}-{scenario}-{next(self._numbers)}"
        self._home = home
        self._command = command(scenario, language)
        self._environment = environment(language, str(home / self.name))
        self._asked = {"endpoints": endpoints, "name": self.name, **arguments}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._path("out").open("wb") as output, self._path("err").open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env=self._environment
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._asked).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines that it has printed."""
        data = self._path("out").read_bytes()
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def errors(self) -> list[str]:
        """The errors that the program's client raised."""
        return [line["error"] for line in self.lines() if "error" in line]

    def stop(self) -> None:
        """Tell it to stop; returns when it has ended, as it should."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(STOP_TIMEOUT_S) == 0, self.log_end()

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def log_end(self) -> str:
        """The last lines of the program and of its client."""
        logs = [self._path("err"), *sorted((self._home / self.name).glob("logs/*/*.log"))]
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def _path(self, kind: str) -> Path:
        return self._home / f"{self.name}.{kind}"


class Balancer:
    """A load balancer before proxies: one address; each new connection goes to a port that accepts it."""

    def __init__(self, ports: list[int], random: Random) -> None:
        self._ports = ports
        self._random = random
        self.addr = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        self.addr = f"{HOST}:{listener.socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._connected, [listener])

    async def _connected(self, near: trio.SocketStream) -> None:
        async with near:
            for port in self._random.sample(self._ports, len(self._ports)):
                with suppress(OSError):
                    far = await trio.open_tcp_stream(HOST, port)
                    break
            else:
                return
            async with far, trio.open_nursery() as nursery:

                async def forward(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        async for data in source:
                            await sink.send_all(data)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(forward, near, far)
                nursery.start_soon(forward, far, near)


def bodies(programs: list[Program], kind: str) -> Iterator[str]:
    """The bodies of all lines of a kind."""
    for program in programs:
        for line in program.lines():
            if line.get("kind") == kind:
                yield line["body"]
