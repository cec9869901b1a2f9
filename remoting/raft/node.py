"""A node of a Raft group as its application has it: it begins or joins by itself, and serves requests 7110 to 7112.

Neighbours: bootstrap.py decides how to begin, running.py is what then runs, group.py what the application may rely on.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from mqcommon.backoff import Backoff
from mqcommon.clock import Clock
from mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from mqcommon.raft.errors import NotLeader, RaftError
from mqcommon.raft.membership import AddLearner, Change, Members
from mqcommon.raft.messages import Snapshot
from remoting.net.call import Remote, call
from remoting.net.channel import Channel
from remoting.net.client import RemotingClient
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.raft import (
    RAFT_JOIN,
    RAFT_MESSAGES,
    RAFT_STATUS,
    RaftJoinHeader,
    RaftStatusHeader,
    RaftStatusRequestHeader,
)
from remoting.raft.bootstrap import Bootstrap, Seen, how_to_bootstrap, may_stand, next_step
from remoting.raft.codec import decode_messages
from remoting.raft.group import Done, NodeOptions, StateMachine
from remoting.raft.peers import Peers
from remoting.raft.running import Running
from remoting.raft.storage import Storage, Stored

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 1_000
JOIN_TIMEOUT_MS = 3_000
# A node that waits for others says so once in so many tries.
TRIES_PER_LINE = 20


class RaftNode:
    """Give ``handlers`` and ``slow_handlers`` to the server at the node's address, then ``run`` until cancelled."""

    def __init__(
        self, options: NodeOptions, storage: Storage, machine: StateMachine, client: RemotingClient, clock: Clock
    ) -> None:
        self._options = options
        self._storage = storage
        self._machine = machine
        self._client = client
        self._clock = clock
        self._peers = Peers(options.group, options.addr, client, Backoff(0.05, 0.5, options.random))
        self._running: Running | None = None
        self._observers: list[Callable[[bool], None]] = []
        self._others = {name: addr for name, addr in options.peers.items() if name != options.name}
        self._pause_s = options.heartbeat_ms / 250

    # What the application sees: group.py.

    @property
    def node(self) -> str:
        return self._storage.node or self._options.name

    @property
    def leader(self) -> str:
        return "" if self._running is None else self._running.raft.leader

    @property
    def leader_addr(self) -> str:
        return "" if self._running is None else self._running.address(self.leader)

    @property
    def is_leader(self) -> bool:
        return self._running is not None and self._running.raft.is_leader

    @property
    def term(self) -> int:
        return 0 if self._running is None else self._running.raft.term

    @property
    def members(self) -> Members:
        return Members() if self._running is None else self._running.raft.members

    def lag(self, node: str) -> int | None:
        """How many entries ``node`` lacks, as far as this node, when it leads, knows."""
        return None if self._running is None else self._running.raft.lag(node)

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        return await self._begun().propose(data, timeout_ms)

    def submit(self, data: bytes, done: Done) -> None:
        """As ``propose``, for many at once: ``done`` gets the result or the RaftError. Raises NotLeader, Overloaded."""
        self._begun().submit(data, done)

    async def read(self, timeout_ms: float) -> None:
        await self._begun().read(timeout_ms)

    async def change(self, change: Change, timeout_ms: float) -> None:
        await self._begun().change(change, timeout_ms)

    async def add(self, addr: str, timeout_ms: float) -> str:
        """Make the node that listens at ``addr`` a learner; it then asks to be a voter by itself. Returns its id."""
        node = (await self._ask(addr)).node
        await self.change(AddLearner(node, addr), timeout_ms)
        return node

    async def transfer(self, to: str, timeout_ms: float) -> None:
        await self._begun().transfer(to, timeout_ms)

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        self._observers.append(observer)
        if self._running is not None:
            self._running.observe(observer)

    def _begun(self) -> Running:
        if self._running is None:
            raise NotLeader("")
        return self._running

    # Its life.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Starts at once: a node that begins waits for others, which ask this one in turn."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._peers.run)
            stored = await trio.to_thread.run_sync(self._storage.load)
            task_status.started()
            if stored is None:
                stored = await self._begin()
            running = Running(self._options, self._storage, stored, self._machine, self._peers, self._clock)
            for observer in self._observers:
                running.observe(observer)
            await nursery.start(running.run)
            self._running = running
            if self.node == self._options.name:
                await self._wait_for_others(running)
            else:
                await self._join(running)

    async def _begin(self) -> Stored:
        """Write down who this node is; waits until it can know that."""
        tries = 0
        while True:
            seen = await self._look_at_others()
            how = how_to_bootstrap(self._others, seen)
            if how is not Bootstrap.WAIT:
                break
            if tries % TRIES_PER_LINE == 0:
                missing = [f"{name} ({addr})" for name, addr in self._others.items() if name not in seen]
                logger.warning("a new group waits until all its nodes were there once; missing: %s", ", ".join(missing))
            tries += 1
            await trio.sleep(self._pause_s)
        if how is Bootstrap.BEGIN:
            node, members = self._options.name, Members(dict(self._options.peers))
        else:
            node, members = f"{self._options.name}.{self._options.random.randbytes(4).hex()}", Members()
            logger.warning("the group is older than this node's disk: it joins as %s", node)
        await trio.to_thread.run_sync(self._storage.begin, node, Snapshot(0, 0, members, b""))
        stored = await trio.to_thread.run_sync(self._storage.load)
        assert stored is not None
        return stored

    async def _wait_for_others(self, running: Running) -> None:
        """Let the node stand for election when no other can begin later than it did."""
        while running.raft.term == 0:
            if may_stand(self._others, await self._look_at_others()):
                break
            await trio.sleep(self._pause_s)
        running.may_tick = True

    async def _join(self, running: Running) -> None:
        """Ask the leader, step by step, to make this node a voter."""
        running.may_tick = True
        tries = 0
        while self.node not in running.raft.members.voters or self._options.name in running.raft.members.voters:
            try:
                await self._ask_to_join()
            except (RemotingError, BrokerError, ProtocolError) as error:
                if tries % TRIES_PER_LINE == 0:
                    logger.warning("%s is not a voter yet: %s", self.node, error)
                tries += 1
            await trio.sleep(self._pause_s)
        logger.info("%s is a voter now", self.node)

    async def _ask_to_join(self) -> None:
        options = self._options
        header = RaftJoinHeader(options.group, options.name, self.node, options.addr)
        for addr in {*self._others.values(), *self.members.all.values()} - {options.addr}:
            try:
                leader_addr = (await self._ask(addr)).leader_addr
            except (RemotingError, BrokerError, ProtocolError):
                continue  # the next one may know
            if leader_addr:
                await call(Remote(self._client, leader_addr, JOIN_TIMEOUT_MS), RAFT_JOIN, header)
                return
        raise RemotingError("no node of the group knows a leader")

    # What nodes ask each other.

    async def _look_at_others(self) -> dict[str, Seen]:
        seen: dict[str, Seen] = {}

        async def look(name: str, addr: str) -> None:
            try:
                status = await self._ask(addr)
            except (RemotingError, BrokerError, ProtocolError):
                return  # it is missing in the answer
            seen[name] = Seen(status.begun, status.term)

        async with trio.open_nursery() as nursery:
            for name, addr in self._others.items():
                nursery.start_soon(look, name, addr)
        return seen

    async def _ask(self, addr: str) -> RaftStatusHeader:
        at = Remote(self._client, addr, ASK_TIMEOUT_MS)
        return (await call(at, RAFT_STATUS, RaftStatusRequestHeader(self._options.group))).header()

    def handlers(self) -> Mapping[int, Callable[[Channel, Command], Command | None]]:
        return {
            RAFT_MESSAGES.code: self._on_messages,
            RAFT_STATUS.code: self._on_status,
        }

    def slow_handlers(self) -> Mapping[int, Any]:
        return {RAFT_JOIN.code: self._on_join}

    def _on_messages(self, _: Channel, request: Command) -> Command | None:
        header = RAFT_MESSAGES.header(request)
        self._check_group(header.group)
        messages = decode_messages(RAFT_MESSAGES.body(request))
        if self._running is not None:
            self._running.receive(header.node, header.addr, messages)
        return None

    def _on_status(self, _: Channel, request: Command) -> Command:
        self._check_group(RAFT_STATUS.header(request).group)
        begun = self._running is not None
        status = RaftStatusHeader(self.node, begun, self.term, self.leader, self.leader_addr)
        return RAFT_STATUS.answer(request, status)

    async def _on_join(self, _: Channel, request: Command) -> Command:
        header = RAFT_JOIN.header(request)
        self._check_group(header.group)
        try:
            step = next_step(self.members, self._options.peers, header.node, header.addr, self.lag(header.node))
            if step is not None:
                await self.change(step, JOIN_TIMEOUT_MS)
        except RaftError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return RAFT_JOIN.answer(request, None)

    def _check_group(self, group: str) -> None:
        if group != self._options.group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"group {group} is not served here")
