"""Pods as processes, and StatefulSets, which replace their pods one after the other.

A pod is deleted as Kubernetes does it: it leaves the Services, gets SIGTERM, and has its grace. To need more than its
grace is a failure here. Its successor has the name and the volume of the pod and another address of loopback. It
enters the Services when its probe answers; the next pod comes some time later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from random import Random

import trio

from scripts.controller_set import until
from scripts.daemons import BIN, Daemon, DaemonFailed, reserve, reserve_pair
from scripts.rolling.names import Names

START = Path(__file__).parent / "start"
PROBE_INTERVAL_S = 0.1
PROBE_TIMEOUT_S = 5.0
# terminationGracePeriodSeconds of deploy/kubernetes is longer; a stop that needs it would stop messages, too.
GRACE_S = 30.0


@dataclass(frozen=True)
class Image:
    """A version of Skylark: where its commands are, and what their environment has besides this process's."""

    bin: Path = BIN
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The options that each command has; a command that is not there has all.
    options: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def known(self, command: str, options: Sequence[str]) -> Sequence[str]:
        """``options`` and their values without those that this version does not have."""
        known = self.options.get(command)
        pairs = zip(options[::2], options[1::2], strict=True)
        return [each for pair in pairs for each in pair if known is None or pair[0] in known]

    def environment_with(self, names: Names) -> dict[str, str]:
        """The environment of a daemon that looks ``names`` up."""
        path = [str(START), self.environment.get("PYTHONPATH", "")]
        return {**self.environment, **names.environment, "PYTHONPATH": ":".join(filter(None, path))}


class Network:
    """Addresses of loopback and ports for pods. All pods have the same ports, each at its own address."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names = Names(home / "names.json")
        # Another run beside this one has other addresses, most likely. The ports are this run's own.
        self._next = int(IPv4Address("127.1.0.1")) + (Random().randrange(250) << 16)
        self._reserved = (reserve_pair(), reserve(), reserve(), reserve())
        (clients, slaves), namesrv, peers, health = self._reserved
        self.broker_port, self.slaves_port = clients.number, slaves.number
        self.namesrv_port, self.peers_port, self.health_port = namesrv.number, peers.number, health.number

    def address(self) -> str:
        """An address that no pod has had."""
        self._next += 1
        return str(IPv4Address(self._next))


class Pod:
    """A daemon. ``options`` of its command line follow from its address.

    ``services`` stand for it while it runs, as a headless Service with publishNotReadyAddresses does, and so does its
    own name; ``ready_services`` stand for it while its probe answers.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        command: str,
        options: Callable[[str], Sequence[str]],
        services: Sequence[str] = (),
        ready_services: Sequence[str] = (),
        *,
        data: Path | None = None,
        moves: bool = True,
    ) -> None:
        self.name = name
        self._network = network
        self._names = network.names
        self._command = command
        self._options = options
        self._services = (name, *services)
        self._ready_services = ready_services
        self._moves = moves
        #: The directory of what the pod has written and its successor reads, if it has one.
        self.data = data
        self.address = network.address()
        self.daemon = Daemon(name, (), 0, network.home / f"{name}.log")
        #: Which command runs; a change counts from the next start on.
        self.image = Image()
        self._has_probe = True

    def start(self) -> None:
        """Start it; `until_ready` waits for its probe."""
        if self._moves:
            self.address = self._network.address()
        for service in self._services:
            self._names.add(service, self.address)
        options = self.image.known(self._command, self._options(self.address))
        self.daemon.command = [str(self.image.bin / self._command), *options]
        self._has_probe = "--health-port" in options
        self.daemon.environment = self.image.environment_with(self._names)
        self.daemon.start()

    async def until_ready(self) -> None:
        """Wait until the probe answers, and enter the Services. DaemonFailed when that takes too long, or it ends."""

        async def is_ready() -> bool:
            if not self._has_probe or not self.daemon.runs:
                return self.daemon.ready()
            answers = await _answers(self.address, self._network.health_port, "/readyz")
            if not answers:
                await trio.sleep(PROBE_INTERVAL_S)
            return answers

        await until(is_ready, f"{self.name} is ready: see {self.daemon.log}")
        for service in self._ready_services:
            self._names.add(service, self.address)

    async def delete(self) -> float:
        """Stop it as Kubernetes does; seconds until it had ended. DaemonFailed when it did not stop gracefully."""
        for service in self._ready_services:
            self._names.remove(service, self.address)
        began = trio.current_time()
        self.daemon.terminate()
        try:
            await until(lambda: not self.daemon.runs, f"{self.name} stops", GRACE_S)
        finally:
            for service in self._services:
                self._names.remove(service, self.address)
        if self.daemon.exit_code:
            raise DaemonFailed(f"{self.name} ended with exit code {self.daemon.exit_code}:\n{self.daemon.log_end()}")
        return trio.current_time() - began


@dataclass
class StatefulSet:
    """Pods that are replaced from the last to the first, each when the one before is ready for ``min_ready_s``."""

    pods: Sequence[Pod]
    min_ready_s: float = 1.0

    async def roll(self, down_s: float, image: Image, say: Callable[[str], None]) -> None:
        """Replace all pods with pods of ``image``. Each is away for ``down_s``, besides its stop and its start."""
        for pod in reversed(self.pods):
            took_s = await pod.delete()
            await trio.sleep(down_s)
            before = pod.address
            pod.image = image
            pod.start()
            began = trio.current_time()
            await pod.until_ready()
            moved = f"at {pod.address}, before at {before}" if pod.address != before else f"at {pod.address} again"
            say(
                f"{pod.name} stopped in {took_s:.1f} s, and was ready {trio.current_time() - began:.1f} s later {moved}"
            )
            await trio.sleep(self.min_ready_s)


async def _answers(host: str, port: int, page: str) -> bool:
    """Whether a GET of the page is answered with 200."""
    with trio.move_on_after(PROBE_TIMEOUT_S):
        try:
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(f"GET {page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await stream.receive_some(1024)
        except (OSError, trio.BrokenResourceError):
            return False
    return False
