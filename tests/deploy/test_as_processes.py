"""The rendered overlays as processes: each pod's command with its conf file and variables, at an address of its own.

Names of Services and pods in conf files become these addresses, as the cluster's DNS would tell them.
"""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from scripts.controller_set import NOT_YET
from scripts.daemons import BIN, Daemon
from skylark import Admin, Credentials, Message, Producer, PullConsumer, Tls
from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.securing import KUBERNETES_TLS, SERVER_NAME
from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import BrokerError
from skylark.sdk.credentials import read_credentials
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


@dataclass
class Secured:
    """What programs need for a cluster with the component secure, and what its pods get from Secrets."""

    tls: Tls
    credentials: Credentials
    #: Name of a Secret → its variables.
    secrets: dict[str, dict[str, str]]
    tls_folder: Path


def secured(home: Path) -> Secured:
    """The files of `mqadmin secureCluster --kubernetes`, with certificates where pods find them."""
    arguments = ["secureCluster", str(home / "made"), "--kubernetes", "skylark"]
    done = CliRunner().invoke(mqadmin, arguments, env={"NAMESRV_ADDR": ""}, prog_name="mqadmin")
    assert done.exit_code == 0, done.output
    items = json.loads((home / "made" / "secrets.json").read_text())["items"]
    secrets = {each["metadata"]["name"]: each["stringData"] for each in items}
    folder = home / "tls"
    folder.mkdir()
    for name, text in secrets.pop("skylark-tls").items():
        (folder / name).write_text(text.replace(KUBERNETES_TLS, str(folder)), encoding="utf-8")
    tls = Tls(ca_file=str(home / "made" / "ca.pem"), server_name=SERVER_NAME)
    return Secured(tls, read_credentials(home / "made" / "tools.yml"), secrets, folder)


@asynccontextmanager
async def cluster(overlay: str, home: Path, guard: Secured | None) -> AsyncIterator[list[Node]]:
    """All pods of the overlay, started together; ready when the block begins."""
    docs = rendered(overlay, ("secure",) if guard else ())
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
        return text if guard is None else text.replace(KUBERNETES_TLS, str(guard.tls_folder))

    secrets = guard.secrets if guard else {}
    nodes = [node_of(pod, ips[pod.name], home, located, secrets) for pod in pods(docs, "POD-IP")]
    async with started(*(node.daemon for node in nodes)):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.until_ready)
        yield nodes


def _selects(service: Doc, pod: Pod) -> bool:
    wanted: dict[str, str] = service["spec"]["selector"]
    return wanted.items() <= pod.labels.items()


def node_of(pod: Pod, ip: str, home: Path, located: Callable[[str], str], secrets: dict[str, dict[str, str]]) -> Node:
    data, conf = home / pod.name, home / f"{pod.name}-conf"
    data.mkdir()
    conf.mkdir()
    for path, text in pod.files.items():
        text = located(text).replace("/var/lib/skylark", str(data)).replace("0.0.0.0", ip)
        (conf / Path(path).name).write_text(text, encoding="utf-8")
    of_secrets = [secrets[each["secretRef"]["name"]] for each in pod.container.get("envFrom", [])]
    from_secrets = {name: text for values in of_secrets for name, text in values.items()}
    environ = {**OF_IMAGE, **from_secrets, **pod.environ, "HOME": str(data), "SKYLARK_BIND_ADDRESS": ip, "POD_IP": ip}
    variables = [f"{name}={located(text)}" for name, text in environ.items()]
    words = [word.replace("/etc/skylark/", f"{conf}/").replace("POD-IP", ip) for word in pod.command]
    small = SMALL if pod.daemon == "broker" else ()
    command = ["env", "-i", f"PATH={BIN}", *variables, str(BIN / "skylark"), *words, *small]
    return Node(pod, ip, Daemon(pod.name, command, 0, home / f"{pod.name}.log"))


def of_daemon(nodes: list[Node], daemon: str) -> list[Node]:
    return [node for node in nodes if node.pod.daemon == daemon]


async def until_on_all_masters(namesrv: str, known: dict[str, Any], nodes: list[Node]) -> None:
    """Wait until the topic, which a send has created, has a route to each set: `autoCreateOnAllMasters`."""
    sets = {node.pod.workload["metadata"]["name"] for node in of_daemon(nodes, "broker")}
    async with Admin(namesrv, **known) as admin:

        async def is_there() -> bool:
            return len((await admin.topic_route(TOPIC)).broker_datas) == len(sets)

        await until(is_there, "the topic is on all masters")


async def until_whole(nodes: list[Node], namesrv: str, known: dict[str, Any]) -> None:
    """Wait until the Controllers, if there are any, have all brokers alive in the SyncStateSet.

    A StatefulSet waits for minReadySeconds instead.
    """
    controllers = [f"{node.ip}:{node.pod.ports['controller']}" for node in of_daemon(nodes, "controller")]
    async with Admin(namesrv, **known) as admin:

        async def is_whole() -> bool:
            try:
                found = (await admin.sync_state_sets(controllers, ["broker-a"])).replicas_info_table["broker-a"]
            except NOT_YET:
                return False
            return sum(bool(each.alive) for each in found.in_sync_replicas) == len(of_daemon(nodes, "broker"))

        if controllers:
            await until(is_whole, "all brokers are in the SyncStateSet")


async def doctor_finds_no_failure(nodes: list[Node]) -> None:
    """`skylark admin doctor` in the console's pod, as docs/operate/kubernetes.md says."""
    (console,) = of_daemon(nodes, "console")
    command = [*console.daemon.command[: console.daemon.command.index("console")], "admin", "doctor", "--quiet"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("overlay", "is_guarded"),
    [("single", False), ("2m-2s", False), ("controller", False), ("controller", True)],
    ids=["single", "2m-2s", "controller", "controller-secure"],
)
async def test_no_send_fails_while_the_brokers_of_an_overlay_restart(
    overlay: str, is_guarded: bool, tmp_path: Path
) -> None:
    guard = await trio.to_thread.run_sync(secured, tmp_path) if is_guarded else None
    known: dict[str, Any] = {} if guard is None else {"tls": guard.tls, "credentials": guard.credentials}
    async with cluster(overlay, tmp_path, guard) as nodes:
        namesrv = ";".join(format_address(node.ip, node.pod.ports["remoting"]) for node in of_daemon(nodes, "namesrv"))
        if guard is not None:
            with pytest.raises(BrokerError, match="this broker wants signed requests"):
                async with Producer(namesrv, tls=guard.tls):
                    pass
        sent = [b"first"]
        async with Producer(namesrv, **known) as producer:
            await producer.send(Message(TOPIC, sent[0]))
            await until_on_all_masters(namesrv, known, nodes)
            await doctor_finds_no_failure(nodes)
            # As StatefulSets do it: the last pod first, the next one when it is ready.
            for node in reversed(of_daemon(nodes, "controller") + of_daemon(nodes, "broker")):
                node.daemon.terminate()
                await trio.to_thread.run_sync(node.daemon.wait_stopped)
                if overlay != "single":
                    sent.append(node.pod.name.encode())
                    await producer.send(Message(TOPIC, sent[-1]))
                node.daemon.start()
                await node.until_ready()
                await until_whole(nodes, namesrv, known)
            sent.append(b"last")
            await producer.send(Message(TOPIC, sent[-1]))
        async with PullConsumer(namesrv, **known) as consumer:
            found = [
                message.body
                for queue in await consumer.message_queues(TOPIC)
                for message in (await consumer.pull(queue, await consumer.min_offset(queue))).messages
            ]
        assert set(sent) <= set(found)
