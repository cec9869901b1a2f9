"""A proxy in a thread of the test's process, calls to it, and official clients in processes of their own.

The official Python client has the import name of the C++ client, so it stands in a folder of its own: scripts/test
makes it, and the folder of the Node client.
"""

import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import trio
from google.protobuf.message import Message

from scripts.daemons import ROOT
from scripts.run_watcher import MARK
from skylark.mqproxy.metrics import Meters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.server import serve
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from tests.support.requirements import GROUPS
from tests.support.warm_daemons import warm

PYTHON, NODE = "python", "node"
CLIENTS = {PYTHON: ROOT / ".venv" / "rocketmq5", NODE: ROOT / ".venv" / "rocketmq5-node" / "node_modules"}
SCENARIOS = ROOT / "tests" / "mqproxy" / "scenarios"
DEADLINE_S = 60

A = TypeVar("A", bound=Message)


class Proxy:
    """A proxy that serves at ``address`` until the block ends."""

    def __init__(self, address: str, stop: Any) -> None:
        self.address = address
        self.stop = stop

    def channel(self) -> grpc.Channel:
        """A connection without TLS."""
        return grpc.insecure_channel(self.address)


@contextmanager
def proxy(nameserver: str, **options: Any) -> Iterator[Proxy]:
    """Serve for the cluster of ``nameserver``; errors of the start are raised."""
    given = {"namesrv_addr": nameserver, "bind_address": "127.0.0.1", "grpc_server_port": 0, **options}
    begun = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        stopping, token = trio.Event(), trio.lowlevel.current_trio_token()

        def stop() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(stopping.set)

        async with trio.open_nursery() as nursery:
            served = partial(serve, ProxyOptions(**given), stopping, meters=Meters())
            found.append(Proxy(await nursery.start(served), stop))
            begun.set()

    def work() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            found.append(error)
            begun.set()

    thread = threading.Thread(target=work, name="proxy")
    thread.start()
    assert begun.wait(DEADLINE_S)
    first = found[0]
    if isinstance(first, BaseException):
        thread.join(DEADLINE_S)
        raise first
    try:
        yield first
    finally:
        if thread.is_alive():
            first.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    if len(found) > 1:
        raise found[1]


def call(channel: grpc.Channel, method: str, request: Message, answer: type[A], client_id: str | None = "test") -> A:
    """The answer to one call."""
    metadata = [] if client_id is None else [("x-mq-client-id", client_id)]
    made = channel.unary_unary(f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString)
    return made(request, metadata=metadata, timeout=DEADLINE_S)


def message(topic: str, body: bytes = b"a cup of tea", **system: Any) -> wire.Message:
    """A message as clients send it."""
    system.setdefault("message_id", "0102FC0000000175170B1ABA8000000000")
    system.setdefault("body_encoding", wire.IDENTITY)
    return wire.Message(topic=wire.Resource(name=topic), body=body, system_properties=wire.SystemProperties(**system))


def languages() -> list[str]:
    """The languages whose official clients can run on this machine."""
    return [PYTHON, NODE] if GROUPS["Node"].is_here() else [PYTHON]


def command(scenario: str, language: str) -> list[str]:
    """The command that runs a scenario."""
    assert CLIENTS[language].is_dir(), f"no official client for {language} is here: run scripts/test, it installs it"
    if language == NODE:
        return [shutil.which("node") or NODE, str(SCENARIOS / f"{scenario}.js")]
    return [warm("python"), str(SCENARIOS / f"{scenario}.py")]


def environment(language: str, home: str) -> dict[str, str]:
    """The environment of an official client, which writes its logs into ``home``."""
    client = str(CLIENTS[language])
    names = [name for name in os.environ if name in ("PATH", "TMPDIR") or name.startswith(MARK)]
    inherited = {name: os.environ[name] for name in names}
    return {**inherited, "PYTHONPATH": client, "NODE_PATH": client, "HOME": home}


def official(scenario: str, endpoints: str, *, language: str = PYTHON, **arguments: Any) -> Any:
    """Run a scenario with an official client; returns what it prints as JSON."""
    with started(scenario, endpoints, language=language, **arguments) as running:
        out, errors = running.process.communicate(timeout=DEADLINE_S)
    assert running.process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


class Telling:
    """A client with a stream of Telemetry: `tell` sends a command, `read` waits for one."""

    def __init__(
        self,
        channel: grpc.Channel,
        client_id: str,
        settings: wire.Settings,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        """``metadata``: more than the client id, as a signature."""
        self._commands: queue.Queue[wire.TelemetryCommand | None] = queue.Queue()
        self._stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(iter(self._commands.get, None), metadata=[("x-mq-client-id", client_id), *metadata], timeout=DEADLINE_S)
        self.tell(wire.TelemetryCommand(settings=settings))
        assert self.read().HasField("settings")

    def tell(self, command: wire.TelemetryCommand) -> None:
        self._commands.put(command)

    def read(self) -> wire.TelemetryCommand:
        command: wire.TelemetryCommand = next(self._stream)
        return command

    def close(self) -> None:
        self._commands.put(None)
        self._stream.cancel()


class Scenario:
    """A scenario that runs: it prints lines of JSON, and ends when its stdin is closed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def answer(self) -> Any:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=DEADLINE_S)
            raise AssertionError(errors[-3000:])
        return json.loads(line)

    def end(self) -> Any:
        """End it; returns the last line that it prints."""
        out, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors[-3000:]
        return json.loads(out.splitlines()[-1])

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait(DEADLINE_S)


@contextmanager
def started(scenario: str, endpoints: str, *, language: str = PYTHON, **arguments: Any) -> Iterator[Scenario]:
    """A scenario with an official client, which is killed at the end of the block if it still runs."""
    home = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        command(scenario, language), env=environment(language, home.name),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    running = Scenario(process)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"endpoints": endpoints, **arguments}) + "\n")
        process.stdin.flush()
        yield running
    finally:
        if process.poll() is None:
            running.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        home.cleanup()
