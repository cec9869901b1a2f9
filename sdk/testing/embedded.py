"""`Cluster`: NameServers, brokers and slaves for a test, inside its process."""

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError
from skylark.remoting.net.inner_credentials import KEY as INNER_CREDENTIALS
from skylark.remoting.net.inner_credentials import InnerCredentialsOptions
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.client import Admin
from skylark.sdk.checked import TopicName, checked_methods
from skylark.sdk.runtime import Home
from skylark.sdk.testing.daemons import HOST, BrokerDaemon, NamesrvDaemon, broker_options
from skylark.sdk.testing.node import PATIENCE_S, Node

POLL_S = 0.002


@checked_methods
class Cluster:
    """``with Cluster() as cluster: ...``, or ``async with`` in trio and asyncio; ``cluster.nameserver`` is its address.

    ``brokers`` masters, each with ``slaves`` slaves, registered with ``nameservers`` NameServers. ``options`` are
    broker.conf options for all brokers, such as ``{"autoCreateTopicEnable": False}``; ``brokerRole`` is for the
    masters. The cluster signs its own requests with ``innerClientAuthenticationCredentials``, if that is given. The
    files are in a new folder that is deleted in the end, or in ``home``, where they stay. Starting and stopping blocks
    for a moment, also in ``async with``.
    """

    def __init__(
        self,
        brokers: int = 1,
        slaves: int = 0,
        *,
        nameservers: int = 1,
        options: Mapping[str, object] | None = None,
        home: Path | None = None,
    ) -> None:
        if brokers < 0 or slaves < 0 or nameservers < 1:
            raise ValueError(f"a cluster of {nameservers} NameServers, {brokers} brokers and {slaves} slaves each")
        self._options = dict(options or {})
        inner = str(self._options.get(INNER_CREDENTIALS, ""))
        self._credentials = InnerCredentialsOptions(inner).inner_credentials
        self._given_home = home
        self._counts = nameservers, brokers, slaves
        self._ports: list[HeldPort] = []
        self._home: Path | None = None
        self._opened_in = Home()
        #: The NameServers, the masters, and the slaves (the first master's slaves first).
        self.nameservers: list[Node] = []
        self.brokers: list[Node] = []
        self.slaves: list[Node] = []

    @property
    def nameserver(self) -> str:
        """The addresses of the NameServers, as clients take them."""
        if not self.nameservers:
            raise RuntimeError("open the cluster with 'with' or 'async with' first")
        return ";".join(node.address for node in self.nameservers)

    def create_topic(self, topic: TopicName, queues: int = 4) -> None:
        """Create the topic on all brokers that run; returns when the NameServers know it."""
        running = [node for node in self.brokers if node.is_running and not node.is_frozen]

        async def create() -> None:
            async with Admin(credentials=self._credentials) as admin:
                for node in running:
                    await admin.create_topic(node.address, TopicConfig(topic, queues, queues))

        self._nameserver().call(create)
        names = {node.name for node in running}

        async def knows(admin: Admin) -> bool:
            try:
                found = {data.broker_name for data in (await admin.topic_route(topic)).broker_datas}
            except RouteNotFound:
                return False
            return names <= found

        self._until(knows, f"topic {topic} is known")

    # --- life

    def __enter__(self) -> Self:
        if self._home is not None:
            raise RuntimeError("this cluster was opened before; make another")
        self._opened_in = Home()
        self._home = self._given_home or Path(tempfile.mkdtemp(prefix="skylark-"))
        try:
            self._make(self._home)
            for nodes in (self.nameservers, self.brokers, self.slaves):
                for node in nodes:
                    node.begin()
                for node in nodes:
                    node.wait_started()
            self._until_registered()
            self._until_in_sync()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        # This blocks the loop of the test on purpose: the daemons have loops of their own, and with a MockClock a loop
        # that waits for a thread would let time jump.
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """End all nodes and delete their files. A child of a fork leaves its parent's nodes alone."""
        if not self._opened_in.is_here:
            return
        nodes = (*self.slaves, *self.brokers, *self.nameservers)
        for node in nodes:
            node.discard()
        for node in nodes:
            node.wait_ended()
        for port in self._ports:
            port.release()
        if self._home is not None and self._given_home is None:
            shutil.rmtree(self._home)

    # --- nodes

    def _make(self, home: Path) -> None:
        nameservers, brokers, slaves = self._counts
        self.nameservers = [
            self._namesrv_node(home, "namesrv" if number == 0 else f"namesrv-{number}") for number in range(nameservers)
        ]
        for number in range(brokers):
            name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
            self.brokers.append(self._broker_node(home, name, 0))
            self.slaves += [self._broker_node(home, name, slave) for slave in range(1, slaves + 1)]

    def _port(self) -> int:
        self._ports.append(HeldPort(HOST))
        return self._ports[-1].port

    def _namesrv_node(self, home: Path, name: str) -> Node:
        port, directory = self._port(), home / name
        return Node(name, f"{HOST}:{port}", directory, lambda: NamesrvDaemon(directory, port))

    def _broker_node(self, home: Path, name: str, broker_id: int) -> Node:
        given = dict(self._options)
        if broker_id:
            given |= {"brokerId": broker_id, "brokerRole": "SLAVE"}
        node_name = f"{name}-slave-{broker_id}" if broker_id else name
        port, ha_port, directory = self._port(), self._port(), home / node_name
        options = broker_options(name, directory, self.nameserver, port, ha_port, given)
        node = Node(node_name, f"{HOST}:{port}", directory, lambda: BrokerDaemon(options))
        node.changed = self._until_registered
        return node

    # --- waiting

    def _nameserver(self) -> Node:
        for node in self.nameservers:
            if node.is_running and not node.is_frozen:
                return node
        raise RuntimeError("no NameServer of this cluster runs: start() one first")

    def _until_registered(self) -> None:
        """Wait until every NameServer knows exactly the brokers that run. Frozen brokers may be known or not."""
        nodes = (*self.brokers, *self.slaves)
        wanted = {node.address for node in nodes if node.is_running and not node.is_frozen}
        unwanted = {node.address for node in nodes if not node.is_running}

        async def known(admin: Admin) -> bool:
            table = (await admin.cluster_info()).broker_addr_table
            found = {addr for data in table.values() for addr in data.broker_addrs.values()}
            return wanted <= found and not unwanted & found

        self._until(known, "the NameServers know which brokers run")

    def _until_in_sync(self) -> None:
        """Wait until all slaves follow their masters."""
        slaves = self._counts[2]

        async def all_follow(admin: Admin) -> bool:
            for master in self.brokers:
                if (await admin.broker_ha_status(master.address)).in_sync_slave_nums < slaves:
                    return False
            return True

        if slaves:
            self._until(all_follow, "the slaves follow their masters")

    def _until(self, condition: Callable[[Admin], Awaitable[bool]], what: str) -> None:
        """Wait until ``condition`` holds at each NameServer that runs; it runs in the loop of the NameServer."""
        deadline = time.monotonic() + PATIENCE_S
        for node in self.nameservers:
            if not node.is_running or node.is_frozen:
                continue

            async def holds(address: str = node.address) -> bool:
                async with Admin(address, credentials=self._credentials) as admin:
                    try:
                        return await condition(admin)
                    except (RemotingError, BrokerError):
                        return False

            while not node.call(holds):
                if time.monotonic() > deadline:
                    raise SkylarkError(f"{what}: not within {PATIENCE_S:.0f} s")
                time.sleep(POLL_S)
