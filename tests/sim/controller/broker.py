"""A broker in Controller mode: the real decisions, lease, SyncStateSet, epochs and links, on a log in memory."""

from collections.abc import Callable
from random import Random

from skylark.broker.replication.autoswitch.decisions import Decisions, MasterLease, RoleDecision, Stand
from skylark.broker.replication.autoswitch.frames import SlaveHello
from skylark.broker.replication.autoswitch.sync_set import SyncSet
from tests.sim.controller.checks import Checks
from tests.sim.controller.controllers import TIMEOUT_MS, Controller
from tests.sim.controller.copying import Following, Serving
from tests.sim.controller.disk import RECORD_BYTES, Disk
from tests.sim.controller.member import Member
from tests.sim.controller.network import Connection, End, Network
from tests.sim.scheduler import Event, Process, Scheduler

LEASE_CHECK_S = 0.2
BACKGROUND_FLUSH_S = 0.5
UNKNOWN_SET = -1


class Broker(Process):
    """``find``: the broker with an id, where it answers."""

    def __init__(
        self, scheduler: Scheduler, random: Random, name: str, network: Network, controllers: list[Controller],
        checks: Checks, find: Callable[[int], "Broker | None"], *, sync_flush: bool, is_learner: bool,
    ) -> None:  # fmt: skip
        super().__init__(scheduler, name)
        self.random = random
        self.network = network
        self.controllers = controllers
        self.checks = checks
        self.addr = f"127.0.0.1:{10_000 + int(name[1:])}"
        self.disk = Disk()
        self.sync_flush = sync_flush
        self.is_learner = is_learner
        self.priority = random.choice((1, 2))
        # How long it waits for a Controller's answer.
        self.call_s = random.choice((1.5, 1.5, 5.0))
        self.poll_s = random.choice((1.0, 3.0, 5.0))
        # Its clock runs faster or slower.
        self.rate = random.uniform(0.95, 1.05)
        self.patience_s = random.choice((2.5, 4.0))
        self.had = 0
        self._find = find

    # A life.

    def start(self) -> None:
        self.begin()
        self.disk.recover()
        self.lease = MasterLease(TIMEOUT_MS / 1000)
        self.decisions: Decisions
        self.has_decisions = False
        self.sync: SyncSet | None = None
        self._serving: list[Serving] = []
        self._following: Following | None = None
        self._connections: list[Connection] = []
        self._confirmed = 0
        self._shown = 0
        # Sends that wait: the record, where it ends, and whether all members must have it.
        self._waiting: list[tuple[bytes, int, bool]] = []
        self._is_flushing = False
        self._led_since = 0.0
        self._flush_asked = False
        self.member = Member(self)
        self.member.begin()
        self.every(LEASE_CHECK_S, self._check_lease)
        if not self.sync_flush:
            self.every(BACKGROUND_FLUSH_S, self._flushed_in_background)

    def die(self, *, power_loss: bool) -> None:
        if not self.alive:
            return
        self.end()
        for connection in self._connections:
            connection.died(self, silently=power_loss)
        if power_loss:
            end = self.disk.end
            if self.disk.lose_power(self.random) and not self.sync_flush:
                self.had = max(self.had, end)
        else:
            self.member.closed()

    def lose_disk(self) -> None:
        self.disk = Disk()
        self.had = 0

    # Time, as this machine's clock shows it.

    @property
    def now(self) -> float:
        return self.scheduler.now * self.rate

    def wait(self, seconds: float, event: Event) -> None:
        self.later(seconds / self.rate, event)

    def every(self, seconds: float, event: Event) -> None:
        def come() -> None:
            event()
            self.wait(seconds, come)

        self.wait(seconds * self.random.uniform(0.5, 1.0), come)

    # What it is.

    @property
    def epoch(self) -> int:
        return self.decisions.now.epoch if self.has_decisions else -1

    @property
    def stand(self) -> Stand:
        return self.decisions.now.stand if self.has_decisions else Stand.IDLE

    @property
    def leads(self) -> bool:
        """Whether it may acknowledge now."""
        return (
            self.has_decisions
            and self.decisions.now.stand is Stand.LEADING
            and self.lease.holds(self.scheduler.now * self.rate)
        )

    @property
    def confirm_offset(self) -> int:
        return self._confirmed if self.sync is None else self.sync.confirm_offset

    @property
    def safe_end(self) -> int:
        """How far its log is what it answers for."""
        return self.disk.flushed if self.sync_flush else self.disk.end

    def decided(self, decision: RoleDecision) -> None:
        self._waiting.clear()
        if decision.stand is Stand.LEADING:
            self._lead(decision)
        elif decision.stand is Stand.FOLLOWING:
            self._remember_confirmed()
            self._close_links()
            self.sync = None
            self._connect()

    def _lead(self, decision: RoleDecision) -> None:
        self._led_since = self.now
        if decision.begins:
            self._remember_confirmed()
            self._close_links()
            self.disk.cut_torn_record()
            self.disk.epochs.begin(decision.epoch, self.disk.end)
            self._confirmed = min(self._confirmed, self.disk.end)
            me = decision.master_id
            assert me is not None
            self.sync = SyncSet(me, {me}, UNKNOWN_SET, self.patience_s, self.now, self._confirmed)
            self.appended()
        self.member.beat()

    def _remember_confirmed(self) -> None:
        self._confirmed = self.confirm_offset

    def _check_lease(self) -> None:
        if self.random.random() < 0.5:
            return  # what came meanwhile is read first
        if self.stand is Stand.LEADING and not self.lease.holds(self.now) and self.now > self._led_since + 1:
            decision = self.decisions.lease_ended()
            assert decision is not None
            self.decided(decision)

    # Sends.

    def send(self, record: bytes, *, by_all: bool) -> None:
        if not self.leads:
            return
        last = self.disk.epochs.last
        at = self.disk.end
        start = last.start if last is not None and last.epoch == self.epoch else -1
        self.checks.wrote(self, self.epoch, start, at, record)
        self.disk.log += record
        self._waiting.append((record, at + RECORD_BYTES, by_all))
        self.appended()
        for each in self._serving:
            each.push()

    def appended(self) -> None:
        if not self.sync_flush:
            self._safe()
        elif not self._is_flushing:
            self._flush()
        else:
            self._flush_asked = True

    def _flush(self) -> None:
        self._is_flushing, self._flush_asked = True, False
        end = self.disk.end

        def flushed() -> None:
            self.disk.flushed = min(max(self.disk.flushed, end), self.disk.end)
            self._is_flushing = False
            self._safe()
            if self._flush_asked:
                self._flush()

        self.later(self.random.uniform(0.001, 0.02), flushed)

    def _flushed_in_background(self) -> None:
        self.disk.flushed = self.disk.end

    def _safe(self) -> None:
        if self.sync is not None:
            self.sync.advance(self.safe_end)
        elif self._following is not None:
            self._following.report()
        self.confirmed()

    # What is confirmed.

    def confirmed(self) -> None:
        """Consumers see more, and sends are answered."""
        shown = min(self.confirm_offset, self.disk.end)
        if shown != self._shown:
            self._shown = shown
            self.checks.confirmed(self, shown)
        if self._waiting and self.sync is not None:
            self._answer()

    def _answer(self) -> None:
        left, leads = [], self.leads
        for record, end, by_all in self._waiting:
            if end > (self.confirm_offset if by_all else self.safe_end):
                left.append((record, end, by_all))
            elif leads:
                self.checks.acknowledged(self, record, end, by_all=by_all)
        self._waiting = left

    # Links.

    def accept(self, connection: Connection, end: End) -> None:
        self._keep(connection)
        if self.stand is Stand.LEADING:
            self._serving = [each for each in self._serving if not each.is_closed]
            self._serving.append(Serving(self, end, self.epoch))
        else:
            end.close()

    def _keep(self, connection: Connection) -> None:
        self._connections = [each for each in self._connections if not all(end.is_closed for end in each.ends)]
        self._connections.append(connection)

    def _connect(self) -> None:
        decision = self.decisions.now
        if decision.stand is not Stand.FOLLOWING or (self._following and not self._following.is_closed):
            return
        assert decision.master_id is not None and self.disk.kept is not None
        master = self._find(decision.master_id)
        if master is None or not master.alive or self.network.open_at(self, master):
            self.wait(0.3, self._connect)
            return
        connection = Connection(self.network, self, master)
        self._keep(connection)
        hello = SlaveHello(False, self.is_learner, self.disk.kept.broker_id)
        self._following = Following(self, connection, hello, decision.epoch)
        master.later(self.network.delay(), lambda: master.accept(connection, connection.ends[1]))

    def _close_links(self) -> None:
        for each in self._serving:
            each.close()
        self._serving.clear()
        if self._following is not None:
            self._following.close()
            self._following = None

    def lost_master(self) -> None:
        self.wait(self.random.uniform(0.1, 0.4), self._connect)

    def acked(self, slave: SlaveHello, offset: int) -> None:
        if self.sync is not None:
            self.sync.acked(slave.broker_id, offset, self.safe_end, self.now, is_learner=slave.is_learner)
            self.confirmed()

    def slave_gone(self, slave: SlaveHello) -> None:
        if self.sync is not None:
            self.sync.disconnected(slave.broker_id, self.now)

    def told_confirm_offset(self, offset: int) -> None:
        self._confirmed = max(self._confirmed, offset)

    def cut(self, offset: int) -> None:
        if offset < self.disk.end:
            self.checks.cut(self, offset)
        self.disk.cut(offset)
        self._confirmed = min(self._confirmed, offset)
        self._shown = min(self._shown, offset)
