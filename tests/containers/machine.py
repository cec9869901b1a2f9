"""``python -m tests.containers.machine FILE ROOT WORK``: a machine that runs a compose file without docker.

It wants network, mount and process namespaces of its own (`command`), so that all of it is gone when it ends. Services
are started and stopped as docker compose does it, with their networks, volumes, health checks and published ports, each
as process 1 of its container. Messages are sent and read by a program on the machine and by one in another container.
Prints a JSON object with what was seen.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import click
import grpc
import trio

from skylark import Message
from skylark.blocking import Producer, PullConsumer
from skylark.mqproxy.wire import messaging_pb2 as wire
from tests.containers.compose_files import Compose, Service, read_compose
from tests.support.proxies import call, message
from tests.support.waiting import until_true

USER = 10001
TOPIC = "orders"
OUTSIDE, INSIDE, THROUGH_PROXY = "from the machine", "from a container", "through the proxy"
_BRIDGE = "sky0"
# Mounts of a container: its root read-only, its volume, its own /proc, what programs expect in /dev.
_START = """
set -eu
mount --bind "$ROOT" "$HOME_DIR"; mount -o remount,bind,ro "$HOME_DIR"
mount --bind "$VOLUME" "$HOME_DIR/var/lib/skylark"
mount -t proc proc "$HOME_DIR/proc"
mount -t tmpfs -o mode=755,size=64k tmpfs "$HOME_DIR/dev"
for each in null zero random urandom; do
    touch "$HOME_DIR/dev/$each"; mount --bind "/dev/$each" "$HOME_DIR/dev/$each"
done
mount --bind "$HOSTS" "$HOME_DIR/etc/hosts"
exec /usr/sbin/chroot --userspec=10001:10001 "$HOME_DIR" /usr/bin/env -i -C /var/lib/skylark "$@"
"""


def command(file: Path, root: Path, work: Path) -> list[str]:
    """The command line that runs `main` in namespaces of its own."""
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*namespaces, sys.executable, "-m", "tests.containers.machine", str(file), str(root), str(work)]


class Machine:
    """A bridge with the file's subnet, and the containers at it."""

    def __init__(self, compose: Compose, root: Path, work: Path, image: Mapping[str, str]) -> None:
        self._compose = compose
        self._root = root
        self._work = work
        self._image = image
        hosts = list(ip_network(compose.subnet).hosts())[1:]
        bridged = [each.name for each in compose.services.values() if not each.in_network_of_machine]
        self._addresses = {name: str(hosts[number]) for number, name in enumerate([*bridged, "client"])}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        _run("mount", "--make-rprivate", "/")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        prefix = ip_network(compose.subnet).prefixlen
        _run("ip", "address", "add", f"{compose.gateway}/{prefix}", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        _run("mkdir", "-p", "/run/netns")
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        for name, address in self._addresses.items():
            self._plug(name, f"{address}/{prefix}")
        self._hosts = work / "hosts"
        names = "".join(f"{address} {name}\n" for name, address in self._addresses.items())
        self._hosts.write_text(f"127.0.0.1 localhost\n{names}", encoding="ascii")

    def _plug(self, name: str, address: str) -> None:
        number = list(self._addresses).index(name)
        outer, inner = f"out{number}", f"in{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", outer, "master", _BRIDGE, "up")
        _run("ip", "link", "set", inner, "netns", name)
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", address, "dev", inner),
            ("link", "set", inner, "up"),
        ):
            _run("ip", "-n", name, *words)

    def start(self, service: Service) -> None:
        """Start the container of ``service``; its output goes to a file."""
        variables = {**self._image, **service.environment}
        self._processes[service.name] = self._container(
            service.name, service.in_network_of_machine, service.command, variables
        )

    def _container(
        self, name: str, in_network_of_machine: bool, words: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        volume, home = self._work / "volumes" / name, self._work / "roots" / name
        for folder in (volume, home):
            folder.mkdir(parents=True, exist_ok=True)
        # As docker makes a volume: with the owner that the folder has in the image.
        os.chown(volume, USER, USER)
        volume.chmod(0o700)
        places = {"ROOT": self._root, "HOME_DIR": home, "VOLUME": volume, "HOSTS": self._hosts}
        network = [] if in_network_of_machine else ["ip", "netns", "exec", name]
        namespaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        settings = [f"{variable}={value}" for variable, value in variables.items()]
        no_rights = ["/usr/bin/setpriv", "--no-new-privs", "skylark"]
        with (self._work / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*network, *namespaces, "sh", "-c", _START, "sh", *settings, *no_rights, *words],
                env={**os.environ, **{key: str(place) for key, place in places.items()}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def first_process(self, name: str) -> int:
        """Process 1 of the container, as the machine numbers it; 0 before it runs."""
        pid = self._processes[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return int(children[0]) if children else 0

    def is_healthy(self, name: str) -> bool:
        """Run the health check in the container. AssertionError when the container has ended."""
        assert self._processes[name].poll() is None, f"{name} ended:\n{self.log(name)}"
        first = self.first_process(name)
        if not first or Path(f"/proc/{first}/root").resolve() == Path("/"):
            return False
        variables = {**self._image, **self._compose.services[name].environment}
        inside = ["nsenter", "--target", str(first), "--mount", "--net", "--pid", "--root", "--wd"]
        done = subprocess.run(
            [
                *inside,
                "/usr/bin/env",
                "-i",
                *(f"{key}={value}" for key, value in variables.items()),
                "skylark",
                "health",
            ],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def processor_s(self, name: str) -> float:
        """The processor time of process 1 so far."""
        fields = Path(f"/proc/{self.first_process(name)}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, name: str) -> float:
        """SIGTERM to process 1; returns how long it took. AssertionError when the exit code is not 0."""
        began = time.monotonic()
        os.kill(self.first_process(name), signal.SIGTERM)
        code = self._processes[name].wait(90)
        assert code == 0, f"{name}: {code}\n{self.log(name)}"
        return time.monotonic() - began

    def run(self, *words: str) -> str:
        """What a command prints in a container of its own, in the network of the others."""
        (self._work / "client.log").unlink(missing_ok=True)
        code = self._container("client", False, words, self._image).wait(120)
        printed = self.log("client")
        assert code == 0, printed
        return printed

    def log(self, name: str) -> str:
        """What the container has printed."""
        return (self._work / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def address(self, name: str) -> str:
        """The address of a container in the network."""
        return self._addresses[name]


@contextmanager
def published(compose: Compose, machine: Machine) -> Iterator[None]:
    """The published ports, served by another thread as docker's proxy does, which connects from the gateway."""
    ready, scope = threading.Event(), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                for service in compose.services.values():
                    for (host, outer), inner in service.ports.items():
                        forward = partial(_forward, (machine.address(service.name), inner))
                        await nursery.start(partial(trio.serve_tcp, forward, outer, host=host))
                ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join()


async def _forward(inner: tuple[str, int], client: trio.SocketStream) -> None:
    with suppress(OSError):  # the container does not listen
        async with client, await trio.open_tcp_stream(*inner) as server, trio.open_nursery() as nursery:
            nursery.start_soon(_copy, client, server)
            nursery.start_soon(_copy, server, client)


async def _copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # one end is gone, so the other one ends, too
        async for piece in source:
            await sink.send_all(piece)
        await sink.send_eof()


def up(compose: Compose, machine: Machine) -> dict[str, float]:
    """Start all services in the order of ``depends_on``; seconds from each one's start until it is healthy."""
    began: dict[str, float] = {}
    took: dict[str, float] = {}
    while len(took) < len(compose.services):
        for service in compose.services.values():
            if service.name not in began and all(name in took for name in service.depends_on):
                machine.start(service)
                began[service.name] = time.monotonic()
        name = until_true(lambda: next((each for each in began if each not in took and machine.is_healthy(each)), ""))
        took[name] = time.monotonic() - began[name]
    return took


def send(nameservers: str, text: str) -> None:
    """Send a message as a program on this machine."""
    with Producer(nameservers) as producer:
        producer.send(Message(TOPIC, text.encode()))


def read(nameservers: str) -> list[str]:
    """The different texts of all messages, sorted, as a program on this machine reads them.

    A producer sends a message again that was stored before the slave of its master had connected.
    """
    found: list[str] = []
    with PullConsumer(nameservers) as consumer:
        for queue in consumer.message_queues(TOPIC):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found += [each.body.decode() for each in result.messages]
                offset = result.next_offset
    return sorted(set(found))


def report(compose: Compose, machine: Machine) -> dict[str, Any]:
    """Start all, send and read, stop all, start all again and read again."""
    namesrvs = [each for each in compose.services.values() if each.command == ["namesrv"]]
    outside = ";".join(f"{host}:{port}" for each in namesrvs for host, port in each.ports)
    inside = ";".join(f"{each.name}:9876" for each in namesrvs)
    seen: dict[str, Any] = {"start_s": up(compose, machine)}
    seen["start_processor_s"] = {name: machine.processor_s(name) for name in compose.services}
    send(outside, OUTSIDE)
    machine.run("send", TOPIC, INSIDE, "-n", inside)
    if "proxy" in compose.services:
        seen["proxy"] = send_through_proxy(compose.services["proxy"])
    if "console" in compose.services:
        seen["console"] = console_brokers()
    seen["read_outside"] = read(outside)
    seen["read_inside"] = machine.run("tail", TOPIC, "-n", inside, "--from", "first", "--no-follow", "--json")
    # Clients before servers, as docker compose stops them.
    seen["stop_s"] = {name: machine.stop(name) for name in reversed(compose.services)}
    seen["start_again_s"] = up(compose, machine)
    seen["read_again"] = read(outside)
    seen["stop_again_s"] = {name: machine.stop(name) for name in reversed(compose.services)}
    return seen


def send_through_proxy(service: Service) -> list[int]:
    """The status and the code of a message that a client of RocketMQ 5 sends."""
    ((host, port),) = service.ports
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        request = wire.SendMessageRequest(messages=[message(TOPIC, THROUGH_PROXY.encode())])
        answer = call(channel, "SendMessage", request, wire.SendMessageResponse)
    return [answer.status.code, *(entry.status.code for entry in answer.entries)]


def console_brokers() -> list[str]:
    """The brokers that the console shows."""
    found: list[str] = []

    def look() -> bool:
        with urllib.request.urlopen("http://127.0.0.1:8088/api/overview", timeout=60) as answer:
            found[:] = sorted(re.findall(rb"broker-a", answer.read()))
        return bool(found)

    until_true(look, "brokers in the console")
    return [each.decode() for each in found[:1]]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def main() -> None:
    """Run a compose file."""
    file, root, work = (Path(each) for each in sys.argv[1:4])
    image = json.loads((work / "environment.json").read_text(encoding="utf-8"))
    compose = read_compose(file)
    machine = Machine(compose, root, work, image)
    with published(compose, machine):
        click.echo(json.dumps(report(compose, machine)))


if __name__ == "__main__":
    main()
