"""A broker in Controller mode as a part: it talks with the Controllers, and changes its role by their decisions.

It gets an id (enrolment.py), registers its address (1003), and asks every few seconds who is the master (1004), and at
once after a notice (1008). While there is no master it asks for an election (1002). Heartbeats (904) go to all
Controllers; the leader's answers extend the lease under which a master acknowledges messages (`MasterLease`).
decisions.py says what follows from an answer. `_follow_decisions` changes the role, one change after another, since a
promotion takes time. The notice is not trusted, since anybody can send one: the leader is asked.
"""

import logging
import math
from collections.abc import Callable
from random import Random

import trio

from skylark.broker.identity import Identity
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.autoswitch.controllers import ControllerRequests, ReplicaInfo
from skylark.broker.replication.autoswitch.decisions import NO_EPOCH, Decisions, MasterLease, RoleDecision, Stand
from skylark.broker.replication.autoswitch.enrolment import Enrolment
from skylark.broker.replication.autoswitch.leading import Leading
from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.broker.replication.autoswitch.session import Followers, RegisteredReplicas
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import Role, RoleKind, RoleMachine
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, ConfigError, ProtocolError, RemotingError, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import OpenClient, RemotingClient
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.controller import NOTIFY_BROKER_ROLE_CHANGED, SyncStateSet

logger = logging.getLogger(__name__)

# Pauses between tries while no Controller answers: they grow from the first to the second, with jitter.
FIRST_RETRY_S = 0.1
RETRY_S = 1.0
# How often an election is asked for while there is no master.
ELECT_S = 0.5
# Heartbeats are this far apart while no Controller answers them, so that a new leader hears this broker soon.
URGENT_BEAT_S = 0.25
LOG_S = 60.0
# The most different reasons that are logged in that time.
REASONS = 5
CONTROLLERS = "Controllers"
# A Controller's answer to a broker whose id it does not know.
UNKNOWN_BROKER = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
# Stands for the leader when other Controllers named an address of the leader that is not in controllerAddr.
UNLISTED = ""


@lazy_dataclass(frozen=True, slots=True)
class MemberState:
    """The state that the Controllers' answers change: the role, the lease and confirm offset, the master's address."""

    role: RoleMachine
    elected: Elected
    known: KnownMaster


@lazy_dataclass(frozen=True, slots=True)
class MemberLog:
    """The log, and who has how much of it.

    ``counted_end``: up to where the log counts, with SYNC_FLUSH up to where it is on disk. ``began`` is called with the
    epoch in which this broker leads, before its first message.
    """

    epochs: LogEpochs
    acks: AckLedger
    counted_end: Callable[[], int]
    began: Callable[[int], None]


class Membership(Part):
    """This broker's membership in its set. ``leading`` gets the SyncStateSet.

    ``followers`` are the connected slaves, and ``registered_replicas`` says which brokers may be among them.
    """

    def __init__(
        self,
        options: BrokerOptions,
        identity: Identity,
        enrolment: Enrolment,
        state: MemberState,
        log: MemberLog,
        open_client: OpenClient,
        random: Random | None = None,
    ) -> None:
        self._options = options
        self._identity = identity
        self._enrolment = enrolment
        self._role = state.role
        self._elected = state.elected
        self._known = state.known
        self._epochs = log.epochs
        self._counted_end = log.counted_end
        self._began = log.began
        self._open_client = open_client
        self._backoff = Backoff(FIRST_RETRY_S, RETRY_S, random or Random())
        patience_s = options.ha_max_time_slave_not_catchup / 1000
        self.leading = Leading(
            state.elected, log.counted_end, patience_s, self._ask_for_set, self.ask_soon, self._forget_others
        )
        self.registered_replicas = RegisteredReplicas(self._ask_replicas, options.plain_hosts)
        self.followers = Followers(log.acks, self.leading)
        self._lease = MasterLease(options.controller_heart_beat_timeout_mills / 1000)
        self._requests: ControllerRequests | None = None
        # None until this broker has an id.
        self._decisions: Decisions | None = None
        self._last: ReplicaInfo | None = None
        self._ask_now = Signal()
        self._beats = {addr: Signal() for addr in (*options.controller_addrs, UNLISTED)}
        self._decided = Signal()
        self._role_changed = Signal()
        self._leased = Signal()
        self._failures = 0
        # Whether the leader has answered that it does not know this broker.
        self._is_unknown = False
        self._reasons: set[str] = set()
        self._logged_at = -math.inf
        self._epoch_logged_at = -math.inf
        #: Set when this broker has its id.
        self.enrolled = trio.Event()
        state.role.observe(self._after_role_change)

    # --- the part

    def handlers(self) -> dict[int, Handler]:
        return {NOTIFY_BROKER_ROLE_CHANGED.code: self.role_notice}

    def role_notice(self, channel: Channel, request: Command) -> Command:
        """1008: a Controller tells who is the master of this set now."""
        self.ask_soon()
        return request.respond()

    def after_turn(self) -> None:
        """Confirm what the log has grown by, if no other member has to have it."""
        self.leading.grown()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Talk with the Controllers until cancelled."""
        async with self._open_client() as client:
            requests = self._requests = ControllerRequests(client, self._options, self._identity)
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._talk_with_controllers, requests)
                nursery.start_soon(self._follow_decisions)
                nursery.start_soon(self._watch_lease)
                nursery.start_soon(self.leading.run)
                for addr in self._beats:
                    nursery.start_soon(self._keep_alive, requests, addr)

    @property
    def known_epoch(self) -> int:
        """The last epoch that the Controllers have reported."""
        return self._decisions.now.epoch if self._decisions else NO_EPOCH

    @property
    def is_in_sync(self) -> bool:
        """Whether the Controllers had this broker in the SyncStateSet when they were asked last."""
        return (
            self._last is not None and self._decisions is not None and self._decisions.broker_id in self._last.members
        )

    def ask_soon(self) -> None:
        """Ask the Controllers at once who is the master."""
        self._ask_now.set()

    async def wait_enrolled(self, client: RemotingClient) -> None:
        """Wait until this broker has an id, without which it cannot register with NameServers."""
        await self.enrolled.wait()

    async def prepare_to_lead(self) -> bool:
        """Save the epoch in which this broker leads; returns whether it still leads.

        Called when copying has stopped, before messages are accepted. Tries again while the disk refuses.
        """
        while (decision := self._leading_decision) is not None:
            try:
                await self._epochs.begin(decision.epoch)
            except (OSError, StoreError) as error:
                logger.error("elected, but no messages are accepted until the epoch can be saved: %s", error)
                await trio.sleep(RETRY_S)
            else:
                now = self._leading_decision
                if now is not None and now.epoch == decision.epoch:
                    self._began(decision.epoch)
                    return True
        return False

    @property
    def _leading_decision(self) -> RoleDecision | None:
        """The present decision, if it is a decision to lead."""
        decision = self._decisions.now if self._decisions else None
        return decision if decision is not None and decision.stand is Stand.LEADING else None

    # --- the conversation

    async def _talk_with_controllers(self, requests: ControllerRequests) -> None:
        while True:
            try:
                broker_id = await self._enrolment.enrol(requests.controllers)
                if self._decisions is None:
                    self._enrolled(broker_id)
                await requests.register(broker_id)
                if self._failures or self._last is None:
                    logger.info("registered with Controller %s as broker %d", requests.controllers.leader, broker_id)
                self._failures = 0
                await self._poll(requests)
            except (RemotingError, BrokerError, ProtocolError, ConfigError, OSError) as error:
                self._failed(error)
                if isinstance(error, BrokerError) and error.code == UNKNOWN_BROKER:
                    await self._enrol_again(requests)
            await trio.sleep(self._backoff.pause_s(self._failures))

    async def _enrol_again(self, requests: ControllerRequests) -> None:
        """The Controllers do not know this broker's id: take a new one, if they still know the rest of its set.

        If the Controllers do not know the set, or know it with an older epoch, they have lost their state. Then a
        broker with a short log might be elected, so an administrator must decide.
        """
        decisions = self._decisions
        if decisions is None or not self._role.now.follows:
            return
        try:
            info = await requests.replica_info()
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                self._failed(
                    ConfigError(
                        f"the Controllers know no broker set {self._identity.broker_name}: restore their state."
                        " If the set was cleaned on purpose, stop its brokers and remove"
                        f" {self._enrolment.path} from each, the one with the longest log first"
                    )
                )
            return
        except (RemotingError, ProtocolError):
            return
        if info.news.epoch < decisions.now.epoch:
            self._log_older_epoch(info.news.epoch, decisions.now.epoch)
            return
        logger.warning(
            "the Controllers know no broker %d in this set any more: this broker takes a new id, and its log stays",
            decisions.broker_id,
        )
        await self._enrolment.forget()
        self._decisions = self._last = None

    async def _poll(self, requests: ControllerRequests) -> None:
        """Ask the Controllers who is the master, at intervals, and for an election when the set needs one."""
        decisions, options = self._decisions, self._options
        assert decisions is not None
        while True:
            if self._is_unknown:
                self._is_unknown = False
                # Refused if the Controllers know no such id.
                await requests.register(decisions.broker_id)
            info = await requests.replica_info()
            self._apply_info(info)
            await self._count_replicas(info)
            pause_s = options.sync_broker_metadata_period / 1000
            if decisions.asks_for_election:
                pause_s = ELECT_S
                # The Controllers choose by the ends of the logs, which heartbeats report.
                heard = not decisions.must_be_silent and await self._beat(requests, requests.controllers.leader)
                if heard and not options.async_learner:
                    self._apply_info(await requests.elect(decisions.broker_id))
            if not decisions.asks_for_election:
                pause_s = options.sync_broker_metadata_period / 1000
            with trio.move_on_after(pause_s):
                await self._ask_now.wait()

    async def _count_replicas(self, info: ReplicaInfo) -> None:
        """Tell `Elected` how many brokers the set has; RocketMQ's Controllers have to be asked for that."""
        if info.replicas is not None:
            self.leading.registered(info.replicas)
        elif self._leading_decision is not None:
            await self.registered_replicas.refresh()
            self.leading.registered(len(self.registered_replicas.replicas))

    def _enrolled(self, broker_id: int) -> None:
        self._decisions = Decisions(broker_id, self._epochs.last)
        self._decided.set()
        self.followers.own = broker_id, self._identity.addr
        self._role.numbered(broker_id)
        self.enrolled.set()

    def _apply_info(self, info: ReplicaInfo | None) -> None:
        decisions = self._decisions
        if info is None or decisions is None:
            return
        news = info.news
        if news.epoch < decisions.now.epoch and news.master_id is not None:
            self._log_older_epoch(news.epoch, decisions.now.epoch)
        try:
            decision = decisions.take_news(news)
        except RuntimeError as error:
            self._failed(ConfigError(str(error)))
            return
        self._last = info
        if decision is not None:
            self._decided.set()
            # End the lease first; the role follows in a task of its own. No message is acknowledged in between.
            if decision.stand is not Stand.LEADING:
                self._lease.end(trio.current_time())
            self._show_lease()
            # A new master has its lease with the next answer.
            for beat in self._beats.values():
                beat.set()
        elif decisions.now.stand is Stand.LEADING:
            self.leading.update(info.members, info.set_epoch)

    def _log_older_epoch(self, epoch: int, ours: int) -> None:
        now = trio.current_time()
        if now >= self._epoch_logged_at + LOG_S:
            self._epoch_logged_at = now
            logger.error(
                "the Controllers name a master of epoch %d, but this broker knows epoch %d: they have lost their state,"
                " or controllerAddr names another group; restore the Controllers, see docs/operate/controller.md",
                epoch,
                ours,
            )

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        now = trio.current_time()
        if now >= self._logged_at + LOG_S:
            self._reasons.clear()
            self._logged_at = now
        if str(error) not in self._reasons and len(self._reasons) < REASONS:
            self._reasons.add(str(error))
            logger.warning("the Controllers are not followed, still trying: %s", error)

    async def _ask_replicas(self) -> dict[int, str]:
        assert self._requests is not None
        return await self._requests.replicas()

    async def _forget_others(self) -> None:
        """Close the connections of slaves that the Controllers do not know."""
        try:
            await self.registered_replicas.refresh()
        except (RemotingError, BrokerError, ProtocolError) as error:
            self._failed(error)
        else:
            self.followers.forget_others(self.registered_replicas.replicas)

    async def _ask_for_set(self, wanted: SyncStateSet) -> SyncStateSet:
        requests, decisions = self._requests, self._decisions
        assert requests is not None and decisions is not None
        return await requests.alter(decisions.broker_id, decisions.now.epoch, wanted)

    # --- heartbeats and the lease

    async def _keep_alive(self, requests: ControllerRequests, addr: str) -> None:
        interval_s = self._options.broker_heartbeat_interval / 1000
        await self.enrolled.wait()
        while True:
            await self._beat(requests, addr if addr != UNLISTED else self._unlisted_leader(requests))
            is_fresh = self._leading_decision is None or self._lease.holds(trio.current_time() + interval_s)
            with trio.move_on_after(interval_s if is_fresh else min(interval_s, URGENT_BEAT_S)):
                await self._beats[addr].wait()

    def _unlisted_leader(self, requests: ControllerRequests) -> str:
        leader = requests.controllers.leader
        return "" if leader in self._beats else leader

    async def _beat(self, requests: ControllerRequests, addr: str) -> bool:
        """Send a heartbeat to a Controller; returns whether it answered as the leader."""
        decisions = self._decisions
        if not addr or decisions is None or decisions.must_be_silent:
            return False
        # The lease counts from the sending, and only if no decision came meanwhile: the answer is about the state of
        # this broker at the time of the question.
        sent_at, before = trio.current_time(), decisions.now
        beat = await requests.beat(addr, decisions.broker_id, self._epochs.last, self._counted_end(), self._elected)
        if beat is None:
            return False
        if beat.is_unknown:
            self._is_unknown = True
            self.ask_soon()
            return False
        if beat.no_lease:
            self._failed(ConfigError(f"{beat.no_lease}; lower controllerHeartBeatTimeoutMills of this broker"))
        if before is decisions.now and before.stand is Stand.LEADING and beat.grants(decisions.broker_id, before.epoch):
            self._lease.answered(sent_at)
            self._show_lease()
            self._leased.set()
        elif beat.epoch is not None and beat.epoch > decisions.now.epoch:
            self.ask_soon()
        return True

    async def _watch_lease(self) -> None:
        while True:
            if self._lease.holds(trio.current_time()):
                with trio.move_on_at(self._lease.until):
                    await self._leased.wait()
                continue
            if self._decisions is not None and self._decisions.lease_ended() is not None:
                logger.error(
                    "no Controller answers: another master may be elected from now on, so this one accepts no more"
                    " messages until they answer"
                )
                self._show_lease()
                self._decided.set()
                self.ask_soon()
            await self._leased.wait()

    def _show_lease(self) -> None:
        """Publish the lease, which counts only while the decision is to lead: the role follows a moment later."""
        self._elected.lease_until = self._lease.until if self._leading_decision is not None else -math.inf

    # --- the role

    async def _follow_decisions(self) -> None:
        """Change the role until it agrees with the decisions."""
        while True:
            await self._decided.wait()
            while self._decisions is not None and not self._step(self._decisions):
                await self._role_changed.wait()

    def _step(self, decisions: Decisions) -> bool:
        """Make one step; returns whether the role agrees with the decision. After False the role is changing."""
        role, decision = self._role, decisions.now
        # One change at a time. A decision that comes during a promotion is applied after it.
        if role.now.kind is RoleKind.TAKING_OVER:
            return False
        if decision.stand is Stand.LEADING:
            if role.now.is_master and self._epochs.last >= decision.epoch:
                return True
            # This master was elected again, in a new epoch. It becomes a slave first, so that the log gets the epoch
            # between two messages, and no send of the old epoch is acknowledged in the new one.
            if role.now.is_master:
                role.demoted(decisions.broker_id)
            what = "is elected the master" if decision.begins else "leads again, nobody else was elected: still"
            logger.warning("this broker %s of epoch %d", what, decision.epoch)
            role.promoted()
            return False
        if role.now.is_master:
            role.demoted(decisions.broker_id)
        self._follow(decision)
        return True

    def _follow(self, decision: RoleDecision) -> None:
        if decision.stand is Stand.FOLLOWING:
            logger.info(
                "broker %s at %s is the master of epoch %d", decision.master_id, decision.master_addr, decision.epoch
            )
            self._known.reported(CONTROLLERS, MasterAddress(decision.master_addr, ""))
        else:
            logger.warning("no master: asking the Controllers for an election")
            self._known.reported(CONTROLLERS, None)

    def _after_role_change(self, before: Role, now: Role) -> None:
        self._role_changed.set()
        if not now.is_master:
            self.leading.end()
        elif (decision := self._leading_decision) is not None and self._decisions is not None:
            last = self._last
            assert last is not None
            self.leading.begin(self._decisions.broker_id, decision.epoch, last.members, last.set_epoch)
