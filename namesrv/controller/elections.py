"""Elections that the Controller begins itself: when a master falls silent or its connection closes.

A connection may close without its broker being dead; a broker whose port refuses connections is dead. A broker that is
stopped or cut off is found by its silence. A Controller that does not lead does nothing, and a new leader first waits
until all living brokers must have been heard.
Neighbours: liveness.py (who is heard of), replicas.py (who is elected).
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.raft.errors import RaftError
from skylark.mqcommon.signal import Signal
from skylark.namesrv.controller.commands import Candidate, ElectMaster, encode_change
from skylark.namesrv.controller.liveness import Key, LiveReplica
from skylark.namesrv.controller.replicas import BrokerSet, ChangeOutcome
from skylark.namesrv.controller.view import View
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.net.transport import Connect
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import NOTIFY_BROKER_ROLE_CHANGED

logger = logging.getLogger(__name__)

# A broker that was killed may still accept for the moment in which its process ends.
PROBE_TRIES = 3
PROBE_TIMEOUT_S = 0.3
PROBES = 200  # at once
SLICE = 1_000


class Elections:
    """The elections of one Controller.

    The port calls ``take_heartbeat`` and ``closed``; ``run`` elects. ``elected`` gets each set with a new master.
    """

    def __init__(
        self,
        view: View,
        connect: Connect,
        elected: Callable[[BrokerSet], None],
        sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._view = view
        self._connect = connect
        self._elected = elected
        self._sleep = sleep
        self._running: set[str] = set()  # sets whose election waits for the group
        # By set: how many of its brokers are being examined, as their connections ended. Then: brokers that were found
        # dead.
        self._examining: dict[str, int] = {}
        self._dead: set[Key] = set()
        # Sets in which a broker or an administrator asked for an election that may replace a living master.
        self._requested: list[str] = []
        # Sets with such an election that may still be decided, though its result did not come in time.
        self._doubtful: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._probes = trio.CapacityLimiter(PROBES)
        view.group.on_leadership(self._leadership)

    async def run(self) -> None:
        """Elect until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._check_all_masters_often)
            try:
                await self._scan()
            finally:
                # From now on connections close because this Controller stops. A nursery that has closed takes no task,
                # and the group may tell of a new leader until this Controller has stopped.
                self._nursery = None

    def take_heartbeat(self, heard: LiveReplica[Channel]) -> None:
        """Record a broker's heartbeat; `check_master` of its set if the broker was not alive before."""
        if self._view.liveness.hear(heard):
            name, broker_id = heard.key
            self._dead.discard(heard.key)
            logger.info("broker is alive: %s %d from %s", name, broker_id, heard.connection.remote)
            self.check_master(name)
        elif self._doubtful and heard.key[0] in self._doubtful:
            self.check_master(heard.key[0])

    def closed(self, channel: Channel) -> None:
        """A connection ended: see whether its brokers are dead."""
        for key in self._view.liveness.closed(channel):
            if self._nursery is not None:
                self.begin_examination(key)
                self._nursery.start_soon(self._examine, key, channel)

    def begin_examination(self, key: Key) -> None:
        """Count an examination in the set; `examined` must follow."""
        self._examining[key[0]] = self._examining.get(key[0], 0) + 1

    def examined(self, key: Key, channel: Channel, *, is_dead: bool) -> None:
        """End an examination: elect when the broker is dead and was the master. The last examination in a set elects.

        When all brokers of a set are killed at once, a dead broker could be elected, and then no other broker could
        lead.
        """
        name, row = key[0], self._view.liveness.get(key)
        # A broker that has come back on another connection since is alive, whatever its old connection says.
        if is_dead and row is not None and row.connection is channel:
            self._view.liveness.forget(key)
            self._dead.add(key)
        # Only the last examination of a set elects: until then a candidate may be dead, too.
        self._examining[name] -= 1
        if not self._examining[name]:
            del self._examining[name]
            known = self._view.replicas.sets.get(name)
            if known is not None and self._is_dead(known):
                self.check_master(name)

    def check_master(self, name: str) -> None:
        """Elect if the set needs a master. A master that is known to be dead counts as dead even for a new leader.

        When the result of an earlier election is unknown, another election that changes nothing is proposed: its result
        tells.
        """
        view = self._view
        known = view.replicas.sets.get(name)
        if not view.group.is_leader or known is None or not known.master_epoch:
            return
        if known.master is not None and not self._is_dead(known) and view.is_alive((name, known.master)):
            if name in self._doubtful and not self._replaces(known, None, designated=False):
                self._elect(known, self._request(name, None, designated=False))
            return
        if known.master is None and not self._has_candidate(known):
            return
        # The entry carries the candidates: only this Controller knows who is alive, and all must elect the same.
        candidates = tuple(view.candidates(known))
        self._elect(known, ElectMaster(name, None, False, candidates, view.may_be_unclean))

    def is_replacing(self, name: str) -> bool:
        """Whether the master of a set may be replaced at any moment, so that it must get no lease."""
        return name in self._running or name in self._requested or name in self._doubtful

    async def elect_on_request(self, name: str, broker_id: int | None, *, designated: bool) -> ChangeOutcome:
        """Elect for a broker or an administrator. RequestRefused when this Controller cannot."""
        known = self._view.replicas.sets.get(name)
        was_doubtful = name in self._doubtful
        if known is None or not self._replaces(known, broker_id, designated=designated):
            outcome = await self._view.change(self._request(name, broker_id, designated=designated))
        else:
            self._requested.append(name)
            try:
                # The old master may acknowledge until its lease ends, and gets no new lease meanwhile (`Leases`). Only
                # then the group decides: two brokers never acknowledge at once.
                await self._sleep(max(0, self._granted_until_ms(known) - self._view.clock.monotonic_ms()) / 1000)
                outcome = await self._view.change(self._request(name, broker_id, designated=designated))
            except BaseException:  # also when the caller is cancelled: the group may still decide the election
                self._doubtful.add(name)
                raise
            finally:
                self._requested.remove(name)
        if was_doubtful:
            # The log has an order: once this entry is decided, the earlier elections are decided, too.
            self._doubtful.discard(name)
        self.outcome(outcome)
        return outcome

    def _request(self, name: str, broker_id: int | None, *, designated: bool) -> ElectMaster:
        view = self._view
        known = view.replicas.sets.get(name)
        candidates = view.candidates(known) if known else []
        if known and known.master is not None and view.is_learning and not designated:
            # The master may be alive, and not have been heard by this new leader.
            candidates = [*[each for each in candidates if each.broker_id != known.master], Candidate(known.master)]
        return ElectMaster(name, broker_id, designated, tuple(candidates), view.may_be_unclean)

    def _replaces(self, known: BrokerSet, broker_id: int | None, *, designated: bool) -> bool:
        """Whether the election may depose a master that has a lease."""
        if designated:
            return known.master not in (None, broker_id)
        candidates = self._request(known.name, broker_id, designated=False).candidates
        return known.master is not None and all(each.broker_id != known.master for each in candidates)

    def _granted_until_ms(self, known: BrokerSet) -> int:
        """The time when the lease of the master ends; 0 for a dead master."""
        if self._is_dead(known):
            return 0
        row = None if known.master is None else self._view.liveness.get((known.name, known.master))
        return max(self._view.learning_until_ms, 0 if row is None else row.granted_until_ms)

    def outcome(self, outcome: ChangeOutcome) -> None:
        """Log the outcome of an election and announce the master, whoever began the election."""
        known = outcome.broker_set
        if known is None:
            return
        if outcome.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE:
            logger.error("%s has no master: no replica online of its SyncStateSet %s", known.name, _ids(known))
        elif outcome.code == ResponseCode.SUCCESS:
            logger.warning(
                "%s: broker %s at %s is the master of epoch %d",
                known.name,
                known.master,
                known.address(known.master),
                known.master_epoch,
            )
            if outcome.is_unclean:
                self._view.unclean_elections += 1
                logger.error(
                    "%s: its new master was not in the SyncStateSet, acknowledged messages may be lost;"
                    " such elections since the start: %d",
                    known.name,
                    self._view.unclean_elections,
                )
            self._elected(known)

    def _leadership(self, leads: bool) -> None:
        # An election that was asked for in another term is decided by the log of that term's leader, not by this
        # memory.
        self._running.clear()
        self._doubtful.clear()
        # While another Controller led, these brokers may have started again without this Controller hearing of it.
        self._dead.clear()
        if leads:
            view = self._view
            view.learning_until_ms = view.clock.monotonic_ms() + view.options.broker_heartbeat_timeout
            if self._nursery is not None:
                self._nursery.start_soon(self._end_learning, view.learning_until_ms)

    async def _end_learning(self, until_ms: int) -> None:
        await trio.sleep(max(0, until_ms - self._view.clock.monotonic_ms()) / 1000)
        await self._check_all_masters()

    def _is_dead(self, known: BrokerSet) -> bool:
        """Whether the master refused connections after its last heartbeat."""
        return known.master is not None and (known.name, known.master) in self._dead

    def _has_candidate(self, known: BrokerSet) -> bool:
        unclean = self._view.may_be_unclean
        return any(unclean or each.broker_id in known.sync_state_set for each in self._view.candidates(known))

    def _elect(self, known: BrokerSet, change: ElectMaster) -> None:
        if known.name in self._running:
            return
        was_doubtful = known.name in self._doubtful
        try:
            self._view.group.submit(encode_change(change), partial(self._answered, known.name, was_doubtful))
        except RaftError as error:
            logger.warning("no election in %s: %s", known.name, error)  # the next scan of all sets tries again
        else:
            self._running.add(known.name)

    def _answered(self, name: str, was_doubtful: bool, result: ChangeOutcome | RaftError) -> None:
        # After an error the entry may still be committed. The next scan of all sets proposes again, which then changes
        # nothing.
        self._running.discard(name)
        if isinstance(result, RaftError):
            logger.warning("no election in %s: %s", name, result)
            return
        if was_doubtful:
            self._doubtful.discard(name)
        self.outcome(result)

    async def _scan(self) -> None:
        clock = self._view.clock
        while True:
            slept_from_ms = clock.monotonic_ms()
            # In a NameServer scanNotActiveBrokerInterval is an option of its routes, whose scans may be slower.
            interval_ms = self._view.options.scan_brokers_ms
            await trio.sleep(interval_ms / 1000)
            now_ms = clock.monotonic_ms()
            if now_ms - slept_from_ms > interval_ms + 900:
                # This process was stopped, not the brokers: their heartbeats wait in the sockets. Read those first.
                logger.warning("this process was stopped for %d ms; no broker counts as dead", now_ms - slept_from_ms)
                continue
            self.check_silent_brokers()

    def check_silent_brokers(self) -> None:
        """Elect where the master was not heard of for its timeout."""
        for name, broker_id in self._view.liveness.pop_silent(self._view.clock.monotonic_ms()):
            logger.warning("broker is silent: %s %d", name, broker_id)
            self.check_master(name)

    async def _check_all_masters_often(self) -> None:
        while True:
            await trio.sleep(self._view.options.scan_inactive_master_interval / 1000)
            await self._check_all_masters()

    async def _check_all_masters(self) -> None:
        names = list(self._view.replicas.sets)
        for at in range(0, len(names), SLICE):
            for name in names[at : at + SLICE]:
                self.check_master(name)
            await trio.lowlevel.checkpoint()

    async def _examine(self, key: Key, channel: Channel) -> None:
        """Find out whether a broker refuses connections."""
        known = self._view.replicas.sets.get(key[0])
        addr = None if known is None else known.address(key[1])
        async with self._probes:
            is_dead = addr is not None and await self._refuses(addr)
        if is_dead:
            logger.warning("broker is gone: %s %d at %s", *key, addr)
        self.examined(key, channel, is_dead=is_dead)

    async def _refuses(self, addr: str) -> bool:
        for _ in range(PROBE_TRIES):
            with trio.move_on_after(PROBE_TIMEOUT_S) as scope:
                try:
                    async with await self._connect(*split_address(addr)) as transport:
                        await transport.receive(1)
                except trio.BrokenResourceError:
                    continue
                # Only a refusal is a proof: the host answers, and nobody listens. A silent host or network may hide a
                # broker that still acknowledges messages; its lease has to run out first.
                except OSError as error:
                    return _is_refused(error)
            if scope.cancelled_caught:
                return False
        return False


def _is_refused(error: OSError) -> bool:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ConnectionRefusedError):
            return True
        if isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        else:
            inner = inner.__cause__
    return False


def _ids(known: BrokerSet) -> str:
    return ", ".join(map(str, sorted(known.sync_state_set))) or "(empty)"


TELL_TIMEOUT_S = 1.0
SENDERS = 20


class RoleNotices:
    """Tells the brokers of a set who its master is (1008), without waiting for an answer.

    A lost notice does little harm: brokers ask every few seconds (1004). Only the last notice of a set is sent.
    ``tell`` never waits; ``run`` sends.
    """

    def __init__(self, view: View, client: RemotingClient) -> None:
        self._view = view
        self._client = client
        self._waiting: dict[str, BrokerSet] = {}
        self._wake = Signal()
        self._limit = trio.CapacityLimiter(SENDERS)

    def tell(self, known: BrokerSet) -> None:
        """Tell the living brokers of ``known``."""
        if self._view.options.notify_broker_role_changed:
            self._waiting[known.name] = known
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                while self._waiting:
                    known = self._waiting.pop(next(iter(self._waiting)))
                    for broker_id in self._view.live_ids(known):
                        addr = known.address(broker_id)
                        if addr is not None:
                            nursery.start_soon(self._send, known, addr)

    async def _send(self, known: BrokerSet, addr: str) -> None:
        try:
            async with self._limit:
                with trio.move_on_after(TELL_TIMEOUT_S):
                    await self._client.oneway(
                        addr, NOTIFY_BROKER_ROLE_CHANGED.oneway(known.master_header), body=known.in_sync
                    )
        except RemotingError as error:
            logger.info("broker not told of its master: %s", error)
