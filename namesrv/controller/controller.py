"""A Controller: its port, its node of the group, and its tasks.

``Controller`` runs alone (cli.py) or inside a NameServer, which gives it its options.
Neighbours: view.py (what this owns), handlers.py (requests), elections.py.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import trio

from skylark.mqcommon.addresses import server_address, split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.atomic import remove_all_leftovers, remove_leftovers
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import RaftError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.namesrv.config_handlers import OptionsHolder
from skylark.namesrv.controller.elections import Elections, RoleNotices
from skylark.namesrv.controller.handlers import AdminHandlers, BrokerHandlers
from skylark.namesrv.controller.leases import Leases
from skylark.namesrv.controller.replicas import Replicas
from skylark.namesrv.controller.view import View
from skylark.namesrv.guard import Guard
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.limits import ConnectionBudget
from skylark.remoting.net.server import Handler, Server, SlowHandler
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.raft.disk import FileDisk
from skylark.remoting.raft.group import NodeOptions
from skylark.remoting.raft.node import RaftNode
from skylark.remoting.raft.storage import FileStorage

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_MS = 1_000
HAND_OVER_MS = 1_000
IDLE_S = 120
MOST_CONNECTIONS = 40_000
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_ANYBODY = (
    "Controller without access control at %s: whoever reaches the port can choose masters;"
    " set aclEnable=true and aclFile, or use an address of a network that you trust"
)


@lazy_dataclass(slots=True)
class Holder:
    """The present options of a Controller that runs alone."""

    options: Any
    fs: FileSystem
    changing_options: trio.Lock = field(default_factory=trio.Lock)


class Controller:
    """One Controller. ``run`` serves until cancelled; call ``stop`` first to answer the requests in flight."""

    def __init__(self, holder: OptionsHolder, clock: Clock) -> None:
        self._holder = holder
        self._clock = clock
        self._server: Server | None = None
        self._elections: Elections | None = None
        self._is_stopping = False
        self.view: View | None = None

    async def run(self, tls: DaemonTls, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Starts with the address, when the port is open; the group may not have a leader yet."""
        options, fs = self._holder.options, self._holder.fs
        directory = os.path.join(options.controller_dir, options.controller_d_leger_self_id)
        storage = await trio.to_thread.run_sync(FileStorage, fs, directory)
        try:
            # Temporary files that a crash left. The directory belongs to this process now.
            await trio.to_thread.run_sync(remove_all_leftovers, fs, directory)
            if options.config_store_path and (reason := remove_leftovers(fs, options.config_store_path)):
                logger.warning("%s", reason)
            async with open_client(credentials=options.inner_credentials, connect=tls.connect) as client:
                await self._run(tls, client, storage, task_status)
        finally:
            storage.close()

    async def _run(
        self, tls: DaemonTls, client: RemotingClient, storage: FileStorage, task_status: trio.TaskStatus[str]
    ) -> None:
        options, replicas = self._holder.options, Replicas()
        node = RaftNode(_node_options(options), FileDisk(storage), replicas, client, self._clock)
        self.view = view = View(self._holder, node, replicas, self._clock)
        notices = RoleNotices(view, client)
        self._elections = elections = Elections(view, tls.connect, notices.tell)
        leases = Leases(view, elections.is_replacing)
        brokers, admin = BrokerHandlers(view, elections, leases), AdminHandlers(view, self._holder)
        handlers: Mapping[int, Handler] = {**node.handlers(), **brokers.handlers(), **admin.handlers()}
        slow: Mapping[int, SlowHandler] = {**node.slow_handlers(), **brokers.slow_handlers(), **admin.slow_handlers()}
        # Access control is around all handlers, Raft's too: a stranger's entries could replace what the group has
        # decided.
        guard = Guard(lambda: self._holder.options) if options.is_guarded else None
        if guard is not None:
            handlers, slow = guard.guarded(handlers), guard.guarded_slow(slow)
        own = options.controller_peers[options.controller_d_leger_self_id]
        host, port = split_address(own)
        host = options.controller_bind_address or host
        self._server = server = Server(
            handlers,
            slow,
            limits=options.server_limits(MAX_FRAME_BYTES, IDLE_S),
            on_close=self._on_close,
            connections=ConnectionBudget(MOST_CONNECTIONS),
            reached_at=options.reached_at({server_address(own)}),
        )
        # The port opens before the node runs: nodes of a new group wait until they can ask each other.
        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.serve, host, port, tls.secured)
            if guard is not None:
                nursery.start_soon(guard.run)
            elif host not in LOOPBACK:
                logger.warning(_ANYBODY, address)
            nursery.start_soon(elections.run)
            nursery.start_soon(leases.run)
            nursery.start_soon(notices.run)
            await nursery.start(node.run)
            task_status.started(address)

    @property
    def unready(self) -> str:
        """Why this Controller is not ready; "" when it knows who leads the group."""
        if self._server is None or self.view is None:
            return "this Controller starts"
        if self._is_stopping:
            return "this Controller stops"
        return "" if self.view.group.leader else "the group has no leader"

    async def stop(self) -> None:
        """Let another Controller lead, accept no more connections, answer what is in flight; then cancel ``run``."""
        self._is_stopping = True
        await self._hand_over()
        if self._server is not None:
            self._server.stop_accepting()
            await self._server.drain(DRAIN_TIMEOUT_MS)

    async def _hand_over(self) -> None:
        """Hand the leadership over: masters would have no lease until the others notice that this leader is gone."""
        group = None if self.view is None else self.view.group
        if group is None or not group.heir:
            return
        try:
            await group.transfer(group.heir, HAND_OVER_MS)
        except RaftError as error:
            logger.warning("the leadership is not handed over: %s", error)

    def _on_close(self, channel: Channel) -> None:
        if self._elections is not None:
            self._elections.closed(channel)


def _node_options(options: Any) -> NodeOptions:
    election_ms = options.controller_election_timeout
    return NodeOptions(
        options.controller_d_leger_group,
        options.controller_d_leger_self_id,
        options.controller_peers,
        election_ms=election_ms,
        heartbeat_ms=max(election_ms // 10, 10),
    )
