"""The rendered overlays as processes: each pod's command with its conf file and variables, at an address of its own.

Names of Services and pods in conf files become these addresses, as the cluster's DNS would tell them.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from scripts.daemons import BIN, Daemon
from skylark import Message, Producer, PullConsumer
from skylark.mqcommon.addresses import format_address
from tests.deploy.rendering import OF_IMAGE, Doc, Pod, name_of, of_kind, pods, rendered
from tests.support.daemons import SMALL, started
from tests.support.scrape import get
from tests.support.waiting import until

# A NameServer waits for brokers first, and daemons of all pods start at once.
READY_S = 120
TOPIC = "orders"


@dataclass
class Node:
    """A pod that runs as a process."""

    pod: Pod
    ip: str
    daemon: Daemon

    async def why_unready(self) -> str:
        """The text of /readyz; "" when the daemon is ready."""
        assert self.daemon.runs, f"{self.pod.name} has ended:\n{self.daemon.log_end()}"
        try:
            status, text = await get(f"{self.ip}:{self.pod.ports['health']}", "/readyz")
        except OSError:
            return "no page"
        return "" if status == 200 else text

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            return not await self.why_unready()

        await until(is_ready, f"{self.pod.name} is ready", READY_S)


@asynccontextmanager
async def cluster(overlay: str, home: Path) -> AsyncIterator[list[Node]]:
    """All pods of the overlay, started together; ready when the block begins."""
    docs = rendered(overlay)
    ips = {pod.name: f"127.0.7.{number}" for number, pod in enumerate(pods(docs), 1)}
    names = {f"{pod.name}.{pod.workload['spec'].get('serviceName')}": ips[pod.name] for pod in pods(docs)}
    behind = {
        name_of(service): [ips[pod.name] for pod in pods(docs) if _selects(service, pod)]
        for service in of_kind(docs, "Service")
    }

    def located(text: str) -> str:
        for name, ip in names.items():
            text = text.replace(f"{name}:", f"{ip}:")
        for name, found in behind.items():
            ports = re.findall(rf"(?<![\w-]){name}:(\d+)", text)
            for port in ports:
                text = re.sub(rf"(?<![\w-]){name}:{port}", ";".join(f"{ip}:{port}" for ip in found), text)
        return text

    nodes = [node_of(pod, ips[pod.name], home, located) for pod in pods(docs, "POD-IP")]
    async with started(*(node.daemon for node in nodes)):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.until_ready)
        yield nodes


def _selects(service: Doc, pod: Pod) -> bool:
    wanted: dict[str, str] = service["spec"]["selector"]
    return wanted.items() <= pod.labels.items()


def node_of(pod: Pod, ip: str, home: Path, located: Callable[[str], str]) -> Node:
    data, conf = home / pod.name, home / f"{pod.name}-conf"
    data.mkdir()
    conf.mkdir()
    for path, text in pod.files.items():
        text = located(text).replace("/var/lib/skylark", str(data)).replace("0.0.0.0", ip)
        (conf / Path(path).name).write_text(text, encoding="utf-8")
    environ = {**OF_IMAGE, **pod.environ, "HOME": str(data), "SKYLARK_BIND_ADDRESS": ip, "POD_IP": ip}
    variables = [f"{name}={located(text)}" for name, text in environ.items()]
    words = [word.replace("/etc/skylark/", f"{conf}/").replace("POD-IP", ip) for word in pod.command]
    small = SMALL if pod.daemon == "broker" else ()
    command = ["env", "-i", f"PATH={BIN}", *variables, str(BIN / "skylark"), *words, *small]
    return Node(pod, ip, Daemon(pod.name, command, 0, home / f"{pod.name}.log"))


def of_daemon(nodes: list[Node], daemon: str) -> list[Node]:
    return [node for node in nodes if node.pod.daemon == daemon]


@pytest.mark.nightly
@pytest.mark.parametrize("overlay", ["single", "2m-2s", "controller"])
async def test_a_message_goes_through_an_overlay_and_a_pod_that_comes_back_becomes_ready(
    overlay: str, tmp_path: Path
) -> None:
    async with cluster(overlay, tmp_path) as nodes:
        namesrv = ";".join(format_address(node.ip, node.pod.ports["remoting"]) for node in of_daemon(nodes, "namesrv"))
        async with Producer(namesrv) as producer:
            await producer.send(Message(TOPIC, b"first"))
            # As a StatefulSet does it: the last pod of a set first, the next one when it is ready.
            for node in reversed(of_daemon(nodes, "broker") + of_daemon(nodes, "controller")):
                node.daemon.terminate()
                await trio.to_thread.run_sync(node.daemon.wait_stopped)
                if overlay != "single":
                    await producer.send(Message(TOPIC, node.pod.name.encode()))
                node.daemon.start()
                await node.until_ready()
            await producer.send(Message(TOPIC, b"last"))
        async with PullConsumer(namesrv) as consumer:
            found = [
                message.body
                for queue in await consumer.message_queues(TOPIC)
                for message in (await consumer.pull(queue, await consumer.min_offset(queue))).messages
            ]
        assert {b"first", b"last"} <= set(found)
