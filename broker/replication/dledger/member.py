"""A member of a DLedger group as a part: its port, its node of the Raft group, and the role that follows from it.

The node runs whatever role this broker has. When the node leads and knows all entries that former leaders committed,
this broker is promoted. When the node does not lead any more, this broker is demoted, and stores nothing from that
moment on (`Elected.lease_until`). An acknowledgement needs no lease: it is only sent for a committed entry, which stays
committed whoever leads.
Neighbours: log_disk.py (the log), following.py, proposing.py; role.py, replication.py (the steps of a change).
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from skylark.broker.part import Part
from skylark.broker.replication.dledger.agreed_tables import AgreedTables
from skylark.broker.replication.dledger.followers import FollowerReport
from skylark.broker.replication.dledger.log_disk import FULL_PAUSE_S, LogDisk
from skylark.broker.replication.dledger.log_entries import reference_of
from skylark.broker.replication.dledger.mending import Mending
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import Role, RoleKind, RoleMachine
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import BrokerError, DiskFull, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.raft.errors import NotLeader, RaftError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import OpenClient
from skylark.remoting.net.limits import ServerLimits
from skylark.remoting.net.server import Handler, Server, SlowHandler
from skylark.remoting.net.transport import Listener
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.raft import DLEDGER_ENTRY, RAFT_MEMBERS
from skylark.remoting.raft.bootstrap import name_of
from skylark.remoting.raft.group import NodeOptions
from skylark.remoting.raft.members_request import do_members_request
from skylark.remoting.raft.node import RaftNode

logger = logging.getLogger(__name__)

GROUP = "DLedger group"
# Pause between questions where the leader is.
ASK_S = 0.2
# Files of entries are small, and there are few.
CLEAN_S = 60.0
READ_MS = 1_000.0
HAND_OVER_MS = 2_000.0
# How long a leader that stops waits for the majority that its last messages need.
ANSWERED_S = 2.0
MEMBERS_MS = 3_000.0
# How often a leader looks for a member that should lead instead, and how many entries that member may lack.
PREFER_S = 1.0
PREFER_LAG = 100


class GroupState:
    """The state machine of the group: up to where the log is confirmed, and tables."""

    def __init__(self, elected: Elected, disk: LogDisk, tables: AgreedTables) -> None:
        self._elected = elected
        self._disk = disk
        self._tables = tables

    def apply(self, index: int, data: bytes) -> Any:
        found = reference_of(data)
        if found is not None:
            self._elected.confirmed(found.start + found.size)
        else:
            self._tables.apply(data)

    def snapshot(self) -> bytes:
        """The state of the application, which is empty: the log is the state."""
        return b""

    def restore(self, data: bytes) -> None:
        """Confirm what the stored state says: what is not in the log of the group any more was committed."""
        self._elected.confirmed(self._disk.committed_position)


@lazy_dataclass(frozen=True, slots=True)
class LeadershipEffects:
    """What the group changes. ``began`` is called with the term in which this broker leads, before its first message.

    ``follower_id``: the broker id while it does not lead. ``preferred``: the names of those who are to lead.
    ``flush_interval_s``: how often the log, its entries and the mark are flushed. ``waiting``: how many sends wait for
    their answers.
    """

    role: RoleMachine
    elected: Elected
    known: KnownMaster
    follower_id: int
    began: Callable[[int], None]
    tables: AgreedTables
    followers: FollowerReport
    preferred: Callable[[], list[str]]
    flush_interval_s: Callable[[], float]
    waiting: Callable[[], int]


@lazy_dataclass(frozen=True, slots=True)
class GroupPort:
    """The open port of the group, who may use it, and with what the others are asked."""

    listeners: list[Listener]
    guarded: Callable[[Mapping[int, Handler]], Mapping[int, Handler]]
    guarded_slow: Callable[[Mapping[int, SlowHandler]], Mapping[int, SlowHandler]]
    open_client: OpenClient
    limits: ServerLimits
    #: As `Server` takes it.
    reached_at: Callable[[str], bool]


class GroupMember(Part):
    """This broker's membership in its DLedger group."""

    tick_interval_ms = 100

    def __init__(
        self, options: NodeOptions, disk: LogDisk, state: LeadershipEffects, port: GroupPort, clock: Clock
    ) -> None:
        self._options = options
        self._disk = disk
        self._role = state.role
        self._elected = state.elected
        self._known = state.known
        self._follower_id = state.follower_id
        self._began = state.began
        self._tables = state.tables
        self._followers = state.followers
        self._preferred = state.preferred
        self._port = port
        self._clock = clock
        self._flush_interval_s = state.flush_interval_s
        self._waiting = state.waiting
        #: None until it runs.
        self.node: RaftNode | None = None
        self._mending: Mending | None = None
        self._changed = Signal()
        self._moved = Signal()
        state.elected.replicas = state.elected.set_size = len(options.peers)
        state.role.observe(self._role_changed)

    @property
    def leader(self) -> str:
        """The id of the leader, "" while none is known."""
        return "" if self.node is None else self.node.leader

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        port = self._port
        async with port.open_client(on_lost=self._lost) as client:
            state = GroupState(self._elected, self._disk, self._tables)
            self.node = node = RaftNode(self._options, self._disk, state, client, self._clock)
            node.on_leadership(self._leadership)
            node.on_leader(lambda leader: self._moved.set())
            self._mending = mending = Mending(self._options.group, self._disk, client, self._others, self._step_aside)
            server = Server(
                port.guarded(node.handlers()),
                port.guarded_slow({**node.slow_handlers(), DLEDGER_ENTRY.code: mending.asked}),
                limits=port.limits,
                after_turn=self._turned,
                reached_at=port.reached_at,
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve_on, port.listeners)
                port.listeners.clear()
                nursery.start_soon(self._follow_leadership)
                nursery.start_soon(self._find_leader)
                nursery.start_soon(self._clean_often)
                nursery.start_soon(self._disk.flush_often, self._flush_interval_s)
                nursery.start_soon(mending.run)
                nursery.start_soon(self._prefer)
                nursery.start_soon(self._followers.find, node)
                nursery.start_soon(node.run)
                task_status.started()

    @property
    def problem(self) -> str:
        """What keeps members of the group from getting entries; "" if nothing does."""
        found = [] if self._mending is None else [self._mending.problem]
        if self.node is not None:
            found.append(self.node.problem)
        return "; ".join(filter(None, found))

    async def mend_entries(self, indexes: Sequence[int]) -> str:
        """Mend entries that the scrub has found damaged; see `Mending.mend_all`."""
        if self._mending is None:
            return "this member does not run yet"
        return await self._mending.mend_all(indexes)

    def _others(self) -> dict[str, str]:
        assert self.node is not None
        return {name: addr for name, addr in self.node.members.all.items() if name != self.node.node}

    async def _step_aside(self) -> None:
        """Let another member lead, which may have the entry that is damaged here."""
        if self.node is not None and self.node.is_leader:
            logger.warning("this leader steps aside: an entry that members need is damaged here")
            await self.stop()

    def _lost(self, addr: str) -> None:
        if self.node is not None:
            self.node.connection_lost(addr)

    def _turned(self) -> None:
        """Carry out at once what the requests of one read from another member have caused; then build the queues."""
        assert self.node is not None
        # Acknowledgements first: who sends waits for these, and nobody for queues.
        self.node.turn()
        self._disk.build_queues()

    def tick(self) -> None:
        self._disk.build_queues()
        self._followers.show(self.node if self._role.now.is_master else None)

    async def stop(self) -> None:
        """Hand the leadership to the member that has the most, so that the group need not wait for an election."""
        node = self.node
        if node is not None and (heir := node.heir):
            # Once another member leads, this one does not know whether their messages are safe: they are sent again.
            await poll_until(lambda: not self._waiting(), ANSWERED_S)
            await self._hand_over(node, heir)

    async def _hand_over(self, node: RaftNode, to: str) -> None:
        # Nothing is stored from here on: it could not be proposed, and would be cut.
        self._elected.lease_until = -math.inf
        try:
            await node.transfer(to, HAND_OVER_MS)
        except RaftError as error:
            logger.warning("the leadership is not handed over: %s", error)
        self._show_lease()

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        return {RAFT_MEMBERS.code: self.members}

    async def members(self, channel: Channel, request: Command) -> Command:
        """7120: list the members of the DLedger group, add or remove one, or make one the leader."""
        header, node = RAFT_MEMBERS.header(request), self.node
        try:
            if node is None:
                raise NotLeader("")
            # As in `_hand_over`; the `finally` below takes messages again when the transfer fails.
            if header.action == "transfer" and node.is_leader and (header.node or "") in node.members.voters:
                self._elected.lease_until = -math.inf
            members = await do_members_request(node, header, MEMBERS_MS)
        except (RaftError, RemotingError, BrokerError, ProtocolError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        finally:
            self._show_lease()
        if header.action != "list":
            logger.warning(
                "members of the group: %s %s by %s", header.action, header.node or header.address, channel.remote
            )
        return answer_with(RAFT_MEMBERS, request, members, channel.max_frame_bytes)

    async def close(self) -> None:
        for listener in self._port.listeners:
            await listener.aclose()
        # Nothing runs any more: after a clean stop the mark counts all entries.
        with trio.CancelScope(shield=True):
            await self._disk.finish()

    async def prepare_to_lead(self) -> bool:
        """Bring the log to the end of what the group has committed; returns whether this broker still leads.

        Called when copying has stopped, before messages are accepted.
        """
        node = self.node
        assert node is not None
        # A new leader may not know yet what the former one committed. A read that succeeds shows that a majority still
        # follows, and that all those entries are applied: only then is the end of the log the place for new messages.
        while node.is_leader:
            try:
                await node.read(READ_MS)
                await self._disk.align()
            except RaftError as error:
                logger.info("not the master yet: %s", error)
                await trio.sleep(ASK_S)
            except DiskFull as error:
                logger.error("elected, but no messages are accepted until the log can be cut: %s", error)
                await trio.sleep(FULL_PAUSE_S)
            else:
                if node.is_leader:
                    self._began(node.term)
                    return True
        return False

    # --- who leads

    def _leadership(self, leads: bool) -> None:
        self._show_lease()
        self._changed.set()

    def _role_changed(self, before: Role, now: Role) -> None:
        # Administrators who wait for a change are told at once that it may be lost.
        if not now.is_master:
            self._tables.give_up()
        self._show_lease()
        self._changed.set()

    def _show_lease(self) -> None:
        """Let messages be stored from when this broker is the master, until its node does not lead any more."""
        leads = self.node is not None and self.node.is_leader and self._role.now.is_master
        self._elected.lease_until = math.inf if leads else -math.inf

    async def _follow_leadership(self) -> None:
        """Change the role until it agrees with the node, one change after another."""
        role, node = self._role, self.node
        assert node is not None
        while True:
            await self._changed.wait()
            # A change is under way; its end sets the signal again, and the newest state of the node counts then.
            if role.now.kind is RoleKind.TAKING_OVER:
                continue
            if node.is_leader and role.now.follows:
                logger.warning("this broker leads its group in term %d: it becomes the master", node.term)
                role.promoted()
            elif not node.is_leader and role.now.is_master:
                role.demoted(self._follower_id)

    async def _prefer(self) -> None:
        """Hand over to a preferred member; when the disk of this leader is failing, to any member with a sound disk."""
        node = self.node
        assert node is not None
        while True:
            await trio.sleep(PREFER_S)
            is_failing = not self._elected.has_sound_disk()
            wanted = self._wanted_leaders(node, is_failing=is_failing)
            if not wanted:
                continue
            fit = await node.fit_to_lead()
            found = next((each for each in wanted if each in fit), "")
            if found and node.is_leader:
                why = "the disk of this leader is failing" if is_failing else "it is preferred as the leader"
                logger.warning("handing the leadership over to %s: %s", found, why)
                await self._hand_over(node, found)

    def _wanted_leaders(self, node: RaftNode, *, is_failing: bool) -> list[str]:
        """The members that should lead instead of this leader, the best one first; all have caught up."""
        names, followers = self._preferred(), node.followers()
        if not node.is_leader or (name_of(node.node) in names and not is_failing):
            return []

        def has_caught_up(member: str) -> bool:
            # A new leader takes all members for alive at first, and knows entries of those that have answered it.
            state = followers.get(member)
            return state is not None and state.answers and bool(state.match) and (node.lag(member) or 0) <= PREFER_LAG

        able = [each for each in node.members.voters if has_caught_up(each)]
        preferred = [each for name in names for each in able if name_of(each) == name]
        return preferred if not is_failing else list(dict.fromkeys([*preferred, *able]))

    async def _clean_often(self) -> None:
        while True:
            await trio.sleep(CLEAN_S)
            await self._disk.clean()

    async def _find_leader(self) -> None:
        """Tell where the leader is: tables are copied from its port for clients."""
        node = self.node
        assert node is not None
        while True:
            await self._moved.wait()
            asked = node.leader
            if not asked or asked == node.node:
                self._known.reported(GROUP, None)
                continue
            try:
                addr = await node.client_addr_of(node.leader_addr)
            except (RemotingError, BrokerError, ProtocolError) as error:
                logger.info("leader %s does not answer yet: %s", asked, error)
                await trio.sleep(ASK_S)
                self._moved.set()
                continue
            # An answer about a leader that was deposed meanwhile is of no use; the signal is set for the next one.
            if node.leader == asked:
                logger.info("leader %s at %s is followed", asked, addr)
                self._known.reported(GROUP, MasterAddress(addr, ""))
