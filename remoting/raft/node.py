"""A node of a Raft group on a real disk and network: it begins or joins by itself, and serves requests 7110 to 7112.

`RaftNode` is what the application has; `Running` is the node once it has begun. Proposals and reads wait as rows,
without a task each. One task carries out ``Raft.ready`` for everything that came since the task last ran; another task
writes to disk in a thread, with one fsync for all that gathered; each peer has a task that sends (peers.py).
Neighbours: bootstrap.py decides how to begin, group.py says what the application may rely on.
"""

import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import trio

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.errors import ChangeRefused, NotLeader, RaftError, Unknown
from skylark.mqcommon.raft.membership import AddLearner, Change, Members
from skylark.mqcommon.raft.messages import (
    APPLICATION,
    AppendRequest,
    Heartbeat,
    InstallSnapshot,
    RaftMessage,
    Snapshot,
)
from skylark.mqcommon.raft.raft import FollowerState, Raft
from skylark.mqcommon.raft.ready import Persist, Ready
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.raft import (
    RAFT_JOIN,
    RAFT_MESSAGES,
    RAFT_STATUS,
    RaftJoinHeader,
    RaftStatusHeader,
)
from skylark.remoting.raft.asking import ask_all, ask_status
from skylark.remoting.raft.bootstrap import Bootstrap, PeerStatus, how_to_bootstrap, may_stand, next_step
from skylark.remoting.raft.codec import restored_state
from skylark.remoting.raft.disk import Disk, Loaded
from skylark.remoting.raft.group import Done, NodeOptions, StateMachine
from skylark.remoting.raft.peers import Peers

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_MS = 3_000
# Messages that are refused for one reason are logged once in this time.
REFUSAL_S = 60.0
# A node that waits for others logs this once in this number of tries.
TRIES_PER_LINE = 80
# Absurd messages are logged this often at most: anybody can send them in plain mode.
ABSURD_LOG_S = 60.0
# The most messages that wait for the disk: later ones are dropped, and sent again. A leader has fewer requests in
# flight.
MAX_HELD = 128
# A snapshot goes in one frame.
MAX_SNAPSHOT_BYTES = 12 << 20


class RaftNode:
    """One node of a Raft group, as an application uses it.

    Give ``handlers`` and ``slow_handlers`` to the server at the node's address, then ``run`` until cancelled.
    """

    def __init__(
        self, options: NodeOptions, disk: Disk, machine: StateMachine, client: RemotingClient, clock: Clock
    ) -> None:
        self._options = options
        self._disk = disk
        self._machine = machine
        self._client = client
        self._clock = clock
        self._peers = Peers(options.group, options.addr, disk, client, Backoff(0.05, 0.5, options.random))
        self._running: Running | None = None
        self._observers: list[Callable[[bool], None]] = []
        self._leader_observers: list[Callable[[str], None]] = []
        self._others = {name: addr for name, addr in options.peers.items() if name != options.name}
        self._pause_s = options.heartbeat_ms / 1000
        # Why messages of another node were refused last, and until when that counts as a problem.
        self._refusal = ""
        self._refusal_until = -math.inf

    # The methods of `Group` (group.py).

    @property
    def node(self) -> str:
        return self._disk.node or self._options.name

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

    def followers(self) -> dict[str, FollowerState]:
        """The other members, as far as this node knows when it leads."""
        return {} if self._running is None else self._running.raft.followers()

    @property
    def heir(self) -> str:
        known = {name: each.match for name, each in self.followers().items() if name in self.members.voters}
        return max(known, key=known.__getitem__) if self.is_leader and known else ""

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
        status = await self._ask(addr)
        if not status.begun:
            # The node may still take another id.
            raise ChangeRefused(f"the node at {addr} has just started; try again in a moment")
        node = status.node
        await self.change(AddLearner(node, addr), timeout_ms)
        return node

    async def client_addr_of(self, addr: str) -> str:
        """Where clients reach the node that listens at ``addr``. RemotingError or BrokerError when it does not say."""
        return (await self._ask(addr)).client_addr or addr

    async def fit_to_lead(self) -> set[str]:
        """The other members that answer, and do not say that another node should lead."""
        others = {name: addr for name, addr in self.members.all.items() if name != self.node}
        seen = await ask_all(self._client, self._options.group, others)
        return {name for name, status in seen.items() if not status.is_unfit}

    async def transfer(self, to: str, timeout_ms: float) -> None:
        await self._begun().transfer(to, timeout_ms)

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        self._observers.append(observer)
        if self._running is not None:
            self._running.observe(observer)

    def connection_lost(self, addr: str) -> None:
        """Look whether the node at ``addr`` is gone; given to the client as ``on_lost``.

        So the death of a leader's process is noticed at once.
        """
        self._peers.lost(addr)

    def turn(self) -> None:
        """Carry out at once what messages and proposals have caused, instead of soon in a task."""
        if self._running is not None:
            self._running.turn()

    def on_leader(self, observer: Callable[[str], None]) -> None:
        """Call ``observer`` on the loop with each new `leader`. Call this method before `run`."""
        self._leader_observers.append(observer)

    def _begun(self) -> "Running":
        if self._running is None:
            raise NotLeader("")
        return self._running

    # --- the life of the node

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled.

        The start is reported before the node has begun: to begin it needs the other nodes, and they need answers of
        this node.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self._peers.run)
            loaded = await self._disk.load()
            task_status.started()
            if loaded is None:
                loaded = await self._begin()
            running = Running(self._options, self._disk, loaded, self._machine, self._peers, self._clock)
            for observer in self._observers:
                running.observe(observer)
            running.leader_observers += self._leader_observers
            await nursery.start(running.run)
            self._running = running
            if self.node == self._options.name:
                await self._wait_for_others(running)
            else:
                await self._join(running)

    async def _begin(self) -> Loaded:
        """Write down the id of this node; waits until the node can know its id."""
        tries = 0
        while True:
            seen = await self._ask_others()
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
            # Under its old id this node may have voted, and stored entries that counted for a majority. It has
            # forgotten both. Only a new id, which starts as a learner, can break no promise.
            node, members = f"{self._options.name}.{self._options.random.randbytes(4).hex()}", Members()
            logger.warning("the group is older than this node's disk: it joins as %s", node)
        await self._disk.begin(node, Snapshot(0, 0, members, b""))
        loaded = await self._disk.load()
        assert loaded is not None
        return loaded

    async def _wait_for_others(self, running: "Running") -> None:
        """Let this node stand for election once no other node can begin later than it did."""
        while running.raft.term == 0:
            if may_stand(self._others, await self._ask_others()):
                break
            await trio.sleep(self._pause_s)
        # One node stands at once, so that a new group neither waits for a leader nor splits its votes.
        if self._options.name == min(self._options.peers):
            running.raft.stand_first()
        running.may_tick = True

    async def _join(self, running: "Running") -> None:
        """Ask the leader, step by step, to make this node a voter."""
        running.may_tick = True
        tries, told = 0, ""
        while self.node not in running.raft.members.voters or self._options.name in running.raft.members.voters:
            try:
                await self._ask_to_join()
            except (RemotingError, BrokerError, ProtocolError) as error:
                if tries % TRIES_PER_LINE == 0 or str(error) != told:
                    logger.warning("%s is not a voter yet: %s", self.node, error)
                    told = str(error)
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
                continue  # the next node may know
            if leader_addr:
                await call(Remote(self._client, leader_addr, JOIN_TIMEOUT_MS), RAFT_JOIN, header)
                return
        raise RemotingError("no node of the group knows a leader")

    # --- requests between nodes

    async def _ask_others(self) -> dict[str, PeerStatus]:
        seen = await ask_all(self._client, self._options.group, self._others)
        return {name: PeerStatus(status.begun, status.term) for name, status in seen.items()}

    async def _ask(self, addr: str) -> RaftStatusHeader:
        return await ask_status(self._client, self._options.group, addr)

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
        try:
            messages = self._disk.decode(RAFT_MESSAGES.body(request))
        except ProtocolError as error:
            # The sender gets no answer, and sends again.
            self._refuse_messages(header.node, str(error))
            return None
        # Before a node has begun it promises nothing: messages are lost as they may be on the network.
        if self._running is not None:
            self._running.receive(header.node, header.addr, messages)
        return None

    @property
    def problem(self) -> str:
        """Why messages of another node were refused lately; "" if none was refused."""
        return self._refusal if trio.current_time() < self._refusal_until else ""

    def _refuse_messages(self, sender: str, reason: str) -> None:
        text, now = f"messages of {sender} are refused: {reason}", trio.current_time()
        if text != self._refusal or now >= self._refusal_until:
            logger.error("%s", text)
            self._refusal_until = now + REFUSAL_S
        self._refusal = text

    def _on_status(self, _: Channel, request: Command) -> Command:
        self._check_group(RAFT_STATUS.header(request).group)
        begun = self._running is not None
        status = RaftStatusHeader(
            self.node,
            begun,
            self.term,
            self.leader,
            self.leader_addr,
            self._options.client_addr or None,
            self._options.is_unfit() or None,
        )
        return RAFT_STATUS.answer(request, status)

    async def _on_join(self, _: Channel, request: Command) -> Command:
        header = RAFT_JOIN.header(request)
        self._check_group(header.group)
        try:
            step = next_step(self.members, self._options.peers, header.node, header.addr, self.lag(header.node))
            if step is not None:
                await self.change(step, JOIN_TIMEOUT_MS)
        except RaftError as error:
            reason = f"{error}; {problem}" if (problem := self._options.problem()) else str(error)
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, reason) from None
        return RAFT_JOIN.answer(request, None)

    def _check_group(self, group: str) -> None:
        if group != self._options.group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"group {group} is not served here")


class Proposals:
    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Done]] = {}

    def add(self, index: int, term: int, done: Done) -> None:
        # An index is proposed again only after this node has lost its leadership and got it back. The first entry was
        # then never committed: the leader in between would not have lost a committed entry.
        if index in self._rows:
            self._rows.pop(index)[1](NotLeader(""))
        self._rows[index] = (term, done)

    def applied(self, index: int, term: int, result: Any) -> None:
        # The entry at this index is the proposed entry only if its term matches, too: otherwise another leader wrote
        # it.
        row = self._rows.pop(index, None)
        if row is not None:
            row[1](result if row[0] == term else NotLeader(""))

    def restored(self, index: int) -> None:
        """Fail the proposals up to ``index``: a snapshot replaced these entries, and may hold any of them."""
        for each in [each for each in self._rows if each <= index]:
            self._rows.pop(each)[1](Unknown("its entry came with a snapshot of another leader, or was replaced"))

    def close(self) -> None:
        for _, done in self._rows.values():
            done(Unknown("this node stops"))
        self._rows.clear()

    def __bool__(self) -> bool:
        return bool(self._rows)


class WaitingReads:
    """Reads that were confirmed and wait for their index."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, Done]] = deque()

    def add(self, index: int, done: Done) -> None:
        self._rows.append((index, done))

    def applied(self, index: int) -> None:
        # Indexes rise from row to row, except after a change of the leader; those then wait a little longer.
        while self._rows and self._rows[0][0] <= index:
            self._rows.popleft()[1](None)


class Result:
    """Is called once with a result, for which a task waits."""

    __slots__ = ("_set", "_value")

    def __init__(self, set_event: Callable[[], None]) -> None:
        self._set = set_event
        self._value: Any = Unknown("no answer in time; it may come into force yet")

    def __call__(self, value: Any) -> None:
        self._value = value
        self._set()

    def get(self) -> Any:
        if isinstance(self._value, RaftError):
            raise self._value
        return self._value


class Running:
    """A node that has begun: its Raft state, the callers that wait, and what is being written."""

    def __init__(
        self, options: NodeOptions, disk: Disk, loaded: Loaded, machine: StateMachine, peers: Peers, clock: Clock
    ) -> None:
        self._options = options
        self._disk = disk
        self._machine = machine
        self._peers = peers
        self._clock = clock
        self.may_tick = False
        # Whether the log of this node lacks what it promised to have.
        self._lost = False
        self._quiet_until = float("-inf")
        self._wake = Signal()
        self._to_write: Persist | None = None
        self._to_compact: tuple[int, bytes] | None = None  # an index, and the state after it
        self._write = Signal()
        self._proposals = Proposals()
        self._reads = WaitingReads()
        self._addresses: dict[str, str] = {}
        self._observers: list[Callable[[bool], None]] = []
        self.leader_observers: list[Callable[[str], None]] = []
        # Messages that wait until the disk is prepared for the first message.
        self._held: deque[RaftMessage] = deque()
        self._hold = Signal()
        self._led = False
        self._leader = ""
        self._deposed = trio.Event()
        self.applied = loaded.snapshot.index
        config = Config(
            disk.node,
            options.random,
            options.election_ms,
            options.heartbeat_ms,
            max_uncommitted_bytes=options.max_uncommitted_bytes,
            tells_commits=options.tells_commits,
            travelling_bytes=disk.travelling_bytes,
        )
        self.raft = Raft(config, loaded.hard_state, loaded.snapshot, loaded.entries, clock.monotonic_ms())
        if loaded.snapshot.index:
            machine.restore(restored_state(loaded.snapshot))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._peers.on_unreachable = self._unreachable
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                nursery.start_soon(self._work)
                nursery.start_soon(self._write_to_disk)
                nursery.start_soon(self._take_held)
                task_status.started()
        finally:
            self._proposals.close()

    # --- messages and requests that arrive

    def _unreachable(self, addr: str) -> None:
        leader = self.raft.leader
        if leader and self.address(leader) == addr:
            self.raft.unreachable(leader)

    async def _tick(self) -> None:
        # The timeout of elections counts only time in which this node could read. A process or a machine that stood
        # still finds its leader's messages in its sockets afterwards, so a step counts no longer than a heartbeat,
        # however long it was.
        counted_ms, seen_ms = self.raft.now_ms, self._clock.monotonic_ms()
        while True:
            now_ms = self._clock.monotonic_ms()
            counted_ms += min(now_ms - seen_ms, self._options.heartbeat_ms)
            seen_ms = now_ms
            if (self.may_tick or self.raft.term > 0) and not self._lost:
                self.raft.tick(counted_ms)
                self._wake.set()
            await trio.sleep(self._options.heartbeat_ms / 2000)

    def receive(self, sender: str, addr: str, messages: list[RaftMessage]) -> None:
        if len(self._addresses) < 100 or sender in self._addresses:
            self._addresses[sender] = addr
        if self._lost:
            return
        for message in messages:
            is_large = isinstance(message, AppendRequest | InstallSnapshot)
            waits = is_large and message.term >= self.raft.term
            if waits and (self._held or not self._disk.is_ready(self.raft, message)):
                self._keep(message)
            else:
                self._step(message)
        if not self._options.calls_turn:
            self._wake.set()

    def _step(self, message: RaftMessage) -> None:
        if self._lost:
            return
        try:
            self.raft.step(message)
            if self.raft.absurd is not None:
                self._log_absurd(*self.raft.absurd)
                self.raft.absurd = None
        except RaftError as error:
            # This node does not know what it promised: it must neither vote nor lead.
            self._lost = True
            logger.error(
                "%s takes no part in its group any more: %s. While the other nodes are a majority and whole, stop this "
                "node, remove the directory of its Raft log and start it: it joins them anew (docs/how/raft.md)",
                self.raft.node,
                error,
            )

    def _log_absurd(self, message: RaftMessage, reason: str) -> None:
        now = trio.current_time()
        if now >= self._quiet_until:
            self._quiet_until = now + ABSURD_LOG_S
            logger.error(
                "%s dropped a message in the name of %s: %s. Somebody who is no member writes to the group's port;"
                " see docs/how/raft.md, On the wire",
                self.raft.node,
                message.sender,
                reason,
            )

    def _keep(self, message: RaftMessage) -> None:
        # The sender leads in the message's term. This counts at once, so that this node gives up an older leader, or
        # its own leadership: the disk may be waiting for that.
        if message.term > self.raft.term:
            self._step(Heartbeat(message.sender, message.to, message.term, 0, 0))
        if len(self._held) < MAX_HELD:
            self._held.append(message)
            self._hold.set()

    async def _take_held(self) -> None:
        """Take messages in their order, each when the disk is prepared for it."""
        while True:
            await self._hold.wait()
            while self._held:
                message = self._held[0]
                if self._disk.is_ready(self.raft, message) or await self._disk.prepare(self.raft, message):
                    self._step(message)
                self._held.popleft()
                self._wake.set()

    def submit(self, data: bytes, done: Done) -> None:
        """Propose ``data``; ``done`` gets what ``apply`` returned, or a RaftError. Raises NotLeader and Overloaded."""
        index, term = self.raft.propose(data)
        self._proposals.add(index, term, done)
        if not self._options.calls_turn:
            self._wake.set()

    async def change(self, change: Change, timeout_ms: float) -> None:
        await self._wait(lambda done: self._proposals.add(*self.raft.change(change), done), timeout_ms)

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        return await self._wait(lambda done: self.submit(data, done), timeout_ms)

    async def read(self, timeout_ms: float) -> None:
        await self._wait(self.raft.read_index, timeout_ms)

    async def _wait(self, begin: Callable[[Done], None], timeout_ms: float) -> Any:
        event = trio.Event()
        result = Result(event.set)
        begin(result)
        self._wake.set()
        with trio.move_on_after(timeout_ms / 1000):
            await event.wait()
        return result.get()

    async def transfer(self, to: str, timeout_ms: float) -> None:
        self.raft.transfer(to)
        self._wake.set()
        with trio.move_on_after(timeout_ms / 1000):
            # Checked after each event: if the node leads again at once, the leadership was not handed over.
            while self.raft.leader == self.raft.node:
                self._deposed = trio.Event()
                await self._deposed.wait()
            return
        raise Unknown(f"{to} has not taken over within {timeout_ms:.0f} ms; see who leads, and try again")

    def observe(self, observer: Callable[[bool], None]) -> None:
        self._observers.append(observer)

    # --- messages and results that leave

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._do_all()
            while self.raft.has_more:
                await trio.lowlevel.checkpoint()
                self._do_all()

    def _do_all(self) -> None:
        while self._do(self.raft.ready()):
            pass
        self._peers.flush()

    def _do(self, ready: Ready) -> bool:
        """Carry out ``ready``; True if there may be more to do at once, since something is on disk now."""
        # The order of mqcommon/raft/ready.py. A message that promises something that is not on disk yet is not in
        # ``messages``: it comes with ``persist`` and is sent after the fsync.
        for message in ready.messages:
            self._send(message)
        is_safe = ready.persist is not None and self._disk.write_now(ready.persist)
        if ready.persist is not None and is_safe:
            self._written(ready.persist)
        elif ready.persist is not None:
            self._to_write = ready.persist
            self._write.set()
        if ready.restore is not None:
            self._machine.restore(restored_state(ready.restore))
            self.applied = ready.restore.index
            self._proposals.restored(self.applied)
        for entry in ready.committed:
            result = self._machine.apply(entry.index, entry.data) if entry.kind == APPLICATION else None
            self._proposals.applied(entry.index, entry.term, result)
            self.applied = entry.index
        for read in ready.reads:
            done: Any = read.context
            if read.index is None:
                done(NotLeader(self.raft.leader))
            else:
                self._reads.add(read.index, done)
        self._reads.applied(self.applied)
        self._consider_snapshot()
        self._tell_observers()
        return is_safe

    def _written(self, persist: Persist) -> None:
        for message in persist.messages:
            self._send(message)
        self.raft.persisted()

    def turn(self) -> None:
        """Handle at once what came in this turn of the event loop, instead of in a task."""
        self._wake.clear()
        self._do_all()
        if self.raft.has_more:
            self._wake.set()

    def _send(self, message: RaftMessage) -> None:
        addr = self.address(message.to)
        if addr:
            self._peers.send(addr, message)

    def address(self, node: str) -> str:
        """Where ``node`` listens: the address in the membership, else the address that it told itself."""
        return self.raft.members.all.get(node) or self._addresses.get(node, "")

    def _tell_observers(self) -> None:
        if self.raft.leader != self.raft.node:
            self._deposed.set()
        if self.raft.leader != self._leader:
            self._leader = self.raft.leader
            for told in self.leader_observers:
                told(self._leader)
        leads = self.raft.is_leader
        if leads != self._led:
            self._led = leads
            logger.info("%s %s in term %d", self.raft.node, "leads" if leads else "does not lead", self.raft.term)
            for observer in self._observers:
                observer(leads)

    # --- the disk

    def _consider_snapshot(self) -> None:
        if self._to_compact is not None or self.applied - self.raft.log.snapshot.index < self._options.snapshot_entries:
            return
        # Taken here, in one turn with the entries that were applied last, so that the state belongs exactly to its
        # index.
        self._to_compact = (self.applied, self._machine.snapshot())
        self._write.set()

    async def _write_to_disk(self) -> None:
        while True:
            await self._write.wait()
            persist, self._to_write = self._to_write, None
            # One task writes, so records are in the order in which they were made. Meanwhile messages and proposals
            # gather: all of them share the next fsync.
            if persist is not None:
                await self._disk.write(persist)
                self._written(persist)
                self._do_all()
            elif self._to_compact is not None:
                await self._compact(*self._to_compact)
                self._to_compact = None
            if self._to_write is not None or self._to_compact is not None:
                self._write.set()

    async def _compact(self, index: int, state: bytes) -> None:
        data = await trio.to_thread.run_sync(zlib.compress, state, 1)
        if len(data) > MAX_SNAPSHOT_BYTES:
            raise RaftError(f"a snapshot of {len(data)} bytes is longer than {MAX_SNAPSHOT_BYTES}")
        # The event loop has run meanwhile, so what is kept of the log is decided only now. From here to the rewrite of
        # the file nothing else is written, since this is the writing task.
        log = self.raft.log
        if index <= log.snapshot.index:
            return  # the leader sent a newer snapshot meanwhile
        snapshot = self.raft.make_snapshot(index, data)
        await self._disk.compact(log, snapshot, self._options.kept_entries)
        self.raft.compact(snapshot, self._options.kept_entries)
