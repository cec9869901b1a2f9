"""The official C++ client in processes of its own: when the native library crashes, one test fails and pytest lives."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from scripts.daemons import ROOT
from skylark import PullConsumer
from skylark.mqcommon.message.message import MessageExt
from tests.support.daemons import Cluster

DEADLINE_S = 90

Described = dict[str, Any]


async def send(cluster: Cluster, sends: list[Described], **more: Any) -> list[Described | None]:
    """Sends of the C++ producer, in their order; the result of each, None where there is none to have."""
    (results,) = await _run(cluster, "send", {"group": "cpp-producers", "sends": sends, **more})
    return results


async def pull(cluster: Cluster, topic: str, **more: Any) -> list[Described]:
    """All messages of the topic, as the C++ pull consumer sees them, sorted by body."""
    (messages,) = await _run(cluster, "pull", {"group": "cpp-pullers", "topic": topic, **more})
    return sorted(messages, key=lambda message: message["body"])


class Pushing:
    """A C++ push consumer that runs, and the messages that it has told of."""

    def __init__(self) -> None:
        self.messages: list[Described] = []

    @property
    def bodies(self) -> list[str]:
        return sorted(message["body"] for message in self.messages)


@asynccontextmanager
async def pushing(cluster: Cluster, group: str, topic: str, **more: Any) -> AsyncIterator[Pushing]:
    """A C++ push consumer for as long as the block runs; it has to end well, and by itself."""
    process = await trio.lowlevel.open_process(
        _command("push"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=_environment(cluster)
    )
    task = {"nameserver": cluster.nameserver, "group": group, "topic": topic, **more}
    consumer, lines = Pushing(), []

    async def listen() -> None:
        rest = b""
        async for chunk in process.stdout:
            *whole, rest = (rest + chunk).split(b"\n")
            lines.extend(told for line in whole if (told := _told(line)) is not None)
            consumer.messages = [told for told in lines if isinstance(told, dict)]

    try:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await process.stdin.send_all(json.dumps(task).encode() + b"\n")
                yield consumer
                await process.stdin.aclose()
                assert await process.wait() == 0
        assert lines[-1] == "shut down"
    finally:
        if process.poll() is None:
            process.kill()


def never_given_back(cluster: Cluster) -> set[str]:
    """Ids of the messages that a push consumer failed on and did not give back, as the library's log tells.

    It gives up a request at once when another of its threads holds the lock of its connections, and goes on as if the
    broker had taken the message back.
    """
    ids: set[str] = set()
    failed_id, gave_up = "", False
    for line in _logged(cluster):
        if failed := re.search(r"consume fail.*msgId is:(\w+)", line):
            failed_id, gave_up = failed[1], False
        elif "get timed_mutex timeout" in line:
            gave_up = True
        elif gave_up and "response is null" in line and "sendMessageBack" in line:
            ids.add(failed_id)
    return ids


def oneway_given_up(cluster: Cluster) -> int:
    """How many oneway requests the library never sent, as its log tells: its caller is not told."""
    return sum("invokeOneway failed" in line for line in _logged(cluster))


def _logged(cluster: Cluster) -> Iterator[str]:
    """The lines of the library's logs."""
    for log in (Path(cluster.home) / "cpp").rglob("*_rocketmq-cpp.log.0"):
        yield from log.read_text(errors="replace").splitlines()


async def stored(cluster: Cluster, topic: str) -> list[MessageExt]:
    """All messages of the topic, as our own consumer sees them, sorted by body."""
    found = []
    async with PullConsumer(cluster.nameserver) as consumer:
        for queue in await consumer.message_queues(topic):
            async for message in consumer.messages(queue, 0, await consumer.max_offset(queue)):
                found.append(message)
    return sorted(found, key=lambda message: message.body)


async def _run(cluster: Cluster, scenario: str, task: Described) -> list[Any]:
    given = json.dumps({"nameserver": cluster.nameserver, **task}).encode() + b"\n"
    with trio.fail_after(DEADLINE_S):
        ended = await trio.run_process(
            _command(scenario),
            stdin=given,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
            env=_environment(cluster),
        )
    assert ended.returncode == 0, f"{scenario} ended with {ended.returncode}:\n{ended.stderr.decode(errors='replace')}"
    return [told for line in ended.stdout.splitlines() if (told := _told(line)) is not None]


def _told(line: bytes) -> Any:
    """The content of a line; None when the native library wrote the line."""
    return json.loads(line) if line.startswith((b"{", b"[", b'"')) else None


def _command(scenario: str) -> list[str]:
    return [sys.executable, "-m", f"tests.interop.scenarios.{scenario}"]


def _environment(cluster: Cluster) -> dict[str, str]:
    home = Path(cluster.home) / "cpp"  # where the library logs
    home.mkdir(exist_ok=True)
    return {**os.environ, "HOME": str(home), "NAMESRV_ADDR": ""}
