"""One random history of a broker set and its Controllers, from a seed: sends, and all that can happen to them.

After each event the invariants hold. In the end everything works again, and within a bound all is well.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from skylark.broker.replication.autoswitch.decisions import Stand
from skylark.namesrv.controller.replicas import BrokerSet, ChangeOutcome
from skylark.remoting.protocol.requests.controller import MasterHeader, SyncStateSet
from tests.sim.controller.broker import Broker
from tests.sim.controller.checks import Checks
from tests.sim.controller.controllers import TIMEOUT_MS, Controller, Controllers
from tests.sim.controller.network import Network
from tests.sim.scheduler import Scheduler

TROUBLE_S = 20.0
REST_S = 8.0
# Longer than a new Controller waits, a silent link lives and a member lags before it leaves, together.
PEACE_S = 30.0


class World:
    """`run` it; ``trace`` tells what happened so far."""

    def __init__(self, seed: int, *, unclean: bool | None = None, size: int | None = None) -> None:
        self.random = random = Random(seed)
        self.scheduler = Scheduler()
        self.trace: list[str] = []
        self.checks = Checks()
        self.network = Network(self.scheduler, random)
        self.unclean = random.random() < 0.15 if unclean is None else unclean
        self.controllers = Controllers(self.scheduler, random, unclean=self.unclean, elected=self._tell)
        self.controllers.agreed.applied = self._applied
        self.sync_flush = random.random() < 0.5
        # With ASYNC_FLUSH a loss of power may take what was acknowledged; most histories have none.
        self.power_fails = self.sync_flush or random.random() < 0.2
        self.checks.may_lose = self.unclean or (self.power_fails and not self.sync_flush)
        brokers = size or random.choice((1, 2, 2, 3, 3, 3, 4))
        learner = random.randrange(brokers) if brokers > 2 and not size and random.random() < 0.2 else -1
        self.brokers = [self._new_broker(number, is_learner=number == learner) for number in range(brokers)]
        self.designations = 0
        self.elections = 0
        self._epoch = 0
        self._master: int | None = None
        # The members of the SyncStateSet whose disks are there, when it was looked at last.
        self._seen: BrokerSet | None = None
        self._members: list[Broker] = []
        self._record = 0
        self._sends_s = random.choice((0.03, 0.1, 0.4))
        self._faults: list[Callable[[Broker], None]] = [
            self._kill,
            self._kill_all,
            self._freeze,
            self._cut_from_controllers,
            self._cut_from_each_other,
            self._isolate,
            self._replace_master,
            self._trouble_controller,
            self._leave_with_old_leader,
            self._designate,
            self._designate_in_vain,
            self._lose_disk,
        ]
        # Histories differ in what happens often in them.
        self._weights = [random.random() ** 2 for _ in self._faults]

    def _new_broker(self, number: int, *, is_learner: bool) -> Broker:
        return Broker(
            self.scheduler, Random(self.random.random()), f"b{number}", self.network, self.controllers.all,
            self.checks, self.find, sync_flush=self.sync_flush, is_learner=is_learner,
        )  # fmt: skip

    def run(self) -> None:
        scheduler, random = self.scheduler, self.random
        self.begin()
        step_s, rests = random.choice((0.5, 1.0, 2.0)), random.choice((0.1, 0.5, 0.8))
        while scheduler.now < TROUBLE_S:
            if random.random() < rests:
                self._rest()
            # What happens at once is worse than what happens one after another.
            scheduler.run_until(scheduler.now + (0.05 if random.random() < 0.4 else step_s * 2 * random.random()))
            random.choices(self._faults, self._weights)[0](self._victim())
        self.note("peace")
        self.make_peace()
        self.settle()

    def _rest(self) -> None:
        """Trouble is worst for a set that works."""
        until = self.scheduler.now + REST_S
        while self.scheduler.now < until:
            known, master = self.controllers.known, self.master()
            if known and master and master.leads and len(known.sync_state_set) >= min(2, len(self.brokers)):
                return
            self.scheduler.run_until(self.scheduler.now + 0.3)

    def begin(self) -> None:
        scheduler, random = self.scheduler, self.random
        self.controllers.start()
        for broker in self.brokers:
            scheduler.at(random.choice((0.0, 0.0, 4.0)) * random.random(), broker.start)
        scheduler.after_each = self._look
        self._produce()

    def settle(self) -> None:
        """Run until all is well."""
        begun = self.scheduler.now
        while not self._is_well():
            assert self.scheduler.now < begun + PEACE_S, f"not well after {PEACE_S:.0f} s: {self.show()}"
            self.scheduler.run_until(self.scheduler.now + 0.5)

    def find(self, broker_id: int) -> Broker | None:
        """The broker with this id, if its disk is there."""
        return next((each for each in self.brokers if each.disk.kept and each.disk.kept.broker_id == broker_id), None)

    # What is looked at.

    def _look(self) -> None:
        known = self.controllers.known
        if known is not self._seen and known is not None:
            self._seen = known
            self._members = [broker for each in sorted(known.sync_state_set) if (broker := self.find(each)) is not None]
        self.checks.members(self._members)
        self.checks.leases([each.name for each in self.brokers if each.alive and each.leads])

    def _applied(self, outcome: ChangeOutcome) -> None:
        known = outcome.broker_set
        if known is None or known.master_epoch == self._epoch:
            return
        self._epoch = self.checks.present_epoch = known.master_epoch
        assert known.master is not None
        self.elections += 1
        self.note(f"{known.master} elected in {known.master_epoch}{' uncleanly' if outcome.is_unclean else ''}")
        broker = self.find(known.master)
        if broker is not None:
            self.checks.elected(broker, known.master_epoch, is_unclean=outcome.is_unclean)

    def _tell(self, controller: Controller, known: BrokerSet) -> None:
        """1008, as `RoleNotices`."""
        header = MasterHeader(known.master, known.address(known.master), known.master_epoch, known.sync_state_set_epoch)
        body = SyncStateSet(sorted(known.sync_state_set), known.sync_state_set_epoch)
        for each in controller.view.live_ids(known):
            broker = self.find(each)
            if broker is not None:
                self.network.carry(controller, broker, partial(broker.member.notified, header, body))

    # Producers.

    def _produce(self) -> None:
        for broker in self.brokers:
            # A master that was replaced and does not know it is the most instructive.
            if broker.alive and broker.frozen_until <= self.scheduler.now and broker.leads:
                for _ in range(self.random.choice((1, 1, 3))):
                    self._send(broker)
        self.scheduler.at(self.scheduler.now + self._sends_s * 2 * self.random.random(), self._produce)

    def _send(self, broker: Broker) -> None:
        self._record += 1
        record = self._record.to_bytes(4, "big") + self.random.randbytes(4)
        broker.send(record, by_all=self.random.random() < 0.7)

    # What goes wrong.

    def master(self) -> Broker | None:
        known = self.controllers.known
        return None if known is None or known.master is None else self.find(known.master)

    def _victim(self) -> Broker:
        """Most of what is instructive happens to masters."""
        master = self.master() if self.random.random() < 0.5 else None
        return master or self.random.choice(self.brokers)

    def _busy(self, broker: Broker) -> None:
        """Sends wait when it happens."""
        if broker.alive and broker.frozen_until <= self.scheduler.now and self.random.random() < 0.7:
            for _ in range(3):
                self._send(broker)

    def _kill(self, broker: Broker) -> None:
        if not broker.alive:
            return
        self._busy(broker)
        power_loss = self.power_fails and self.random.random() < 0.6
        broker.die(power_loss=power_loss)
        self.note(f"{broker.name} {'loses power' if power_loss else 'is killed'}")
        down_s = self.random.choice((0.02, 0.3, 1.0, 4.0)) * self.random.uniform(0.5, 1.5)
        self.scheduler.at(self.scheduler.now + down_s, lambda: self._start(broker))

    def _start(self, broker: Broker) -> None:
        if not broker.alive:
            self.note(f"{broker.name} starts")
            broker.start()

    def _kill_all(self, _: Broker) -> None:
        for broker in self.brokers:
            self._kill(broker)

    def _freeze(self, broker: Broker) -> None:
        if broker.alive:
            seconds = self.random.choice((0.3, 3.0, 3.0, 8.0)) * self.random.uniform(0.7, 1.2)
            self._busy(broker)
            self.note(f"{broker.name} freezes for {seconds:.1f}")
            broker.frozen_until = self.scheduler.now + seconds

    def _cut(self, ones: list[str], others: list[str], why: str) -> None:
        seconds = self.random.choice((1.0, 3.0, 7.0)) * self.random.uniform(0.2, 1.0)
        direction = self.random.choice(("both", "both", "there", "back"))
        self.note(f"{why} for {seconds:.1f}, {direction}")
        for one in ones:
            for other in others:
                if direction != "back":
                    self.network.cut(one, other, seconds)
                if direction != "there":
                    self.network.cut(other, one, seconds)

    def _controller_names(self) -> list[str]:
        """All, or some of them."""
        names = [each.name for each in self.controllers.all]
        return names if self.random.random() < 0.5 else self.random.sample(names, self.random.randint(1, len(names)))

    def _cut_from_controllers(self, broker: Broker) -> None:
        self._cut([broker.name], self._controller_names(), f"{broker.name} cut from Controllers")

    def _others(self, broker: Broker) -> list[str]:
        return [each.name for each in self.brokers if each is not broker]

    def _cut_from_each_other(self, broker: Broker) -> None:
        self._cut([broker.name], self._others(broker), f"{broker.name} cut from brokers")

    def _isolate(self, broker: Broker) -> None:
        self._cut([broker.name], self._others(broker) + self._controller_names(), f"{broker.name} isolated")

    def _replace_master(self, broker: Broker) -> None:
        """Replace the master: it goes on writing bytes that no slave gets, while another master is elected."""
        master = self.master() or broker
        self._busy(master)
        self.note(f"{master.name} alone")
        for other in self._others(master) + [each.name for each in self.controllers.all]:
            self.network.cut(master.name, other, 6.0)
            self.network.cut(other, master.name, 6.0)

    def _trouble_controller(self, _: Broker) -> None:
        controllers = self.controllers
        kind = self.random.choice(("crash", "freeze", "freeze", "depose", "pause", "stall"))
        leader = controllers.leader
        if leader is None:
            return
        self.note(f"{leader.name}: {kind}")
        if kind == "crash":
            controllers.crash(leader, self.random.uniform(0.1, 5.0))
        elif kind == "depose":
            controllers.depose()
        elif kind == "stall":
            controllers.agreed.stalled_until = self.scheduler.now + self.random.uniform(1.0, 9.0)
            if self.random.random() < 0.7:
                self._designate(self.random.choice(self.brokers))
        else:
            controllers.freeze(leader, self.random.uniform(1.0, 8.0) if kind == "freeze" else 0.7)

    def lose_disk(self, broker: Broker) -> None:
        broker.lose_disk()
        self._seen, self._members = None, []

    def _leave_with_old_leader(self, broker: Broker) -> None:
        """The master hears only the Controller that led until it was stopped."""
        master, leader = self.master() or broker, self.controllers.leader
        if leader is not None:
            self.note(f"{master.name} is left with {leader.name}")
            self.controllers.freeze(leader, self.random.uniform(4.0, 7.5))
            for each in self.controllers.all:
                if each is not leader:
                    self.network.cut(master.name, each.name, 9.0)

    def _designate(self, broker: Broker) -> None:
        leader = self.controllers.leader
        if leader is not None and leader.frozen_until <= self.scheduler.now and broker.disk.kept is not None:
            self.designations += 1
            self.note(f"{broker.name} is designated")
            leader.designate(broker.disk.kept.broker_id)

    def _designate_in_vain(self, broker: Broker) -> None:
        """The answer does not come in time, and the election comes into force much later."""
        known = self.controllers.known
        if known is not None:
            followers = [found for each in sorted(known.sync_state_set - {known.master}) if (found := self.find(each))]
            self._designate(self.random.choice(followers) if followers else broker)
            self.controllers.agreed.stalled_until = self.scheduler.now + self.random.uniform(6.0, 9.0)

    def _lose_disk(self, broker: Broker) -> None:
        """A machine dies, and its disk is found to be lost, unless no other has everything."""
        if not broker.alive:
            return
        broker.die(power_loss=self.power_fails)
        self.note(f"{broker.name} dies")
        life = broker.life

        def replace() -> None:
            known = self.controllers.known
            if broker.alive or broker.life != life:
                return
            if known and any(self.find(each) not in (None, broker) for each in known.sync_state_set):
                self.note(f"{broker.name} has lost its disk")
                self.lose_disk(broker)
            self._start(broker)

        # A Controller that takes a dead broker for living may elect it, and then nobody else has everything.
        self.scheduler.at(self.scheduler.now + TIMEOUT_MS / 1000 + 1.5, replace)

    # The end.

    def calm(self) -> None:
        """The network is good, and clients are slow enough for slaves to be level at times."""
        self._sends_s = 2.0
        self.network.heal()

    def make_peace(self) -> None:
        self.calm()
        self.controllers.heal()
        for broker in self.brokers:
            broker.frozen_until = 0.0
            self._start(broker)

    def _is_well(self) -> bool:
        """One master, whose log all have, and who has all others in its SyncStateSet."""
        known, master, leader = self.controllers.known, self.master(), self.controllers.leader
        if known is None or leader is None:
            return False
        ids = [each.disk.kept or each.disk.temporary for each in self.brokers]
        if None in ids:
            return False
        for each in sorted(set(known.replicas) - {found.broker_id for found in ids if found}):
            leader.clean(each)
            return False
        if known.master_epoch and not known.sync_state_set and not self.unclean:
            # A broker whose disk was lost had been elected while the Controller did not know that it was dead.
            self.note("only an unclean election can help")
            self.unclean = self.checks.may_lose = True
            for controller in self.controllers.all:
                controller.allow_unclean()
            return False
        if master is None or not master.leads or master.epoch != known.master_epoch:
            return False
        if any(each.disk.log != master.disk.log or not each.has_decisions for each in self.brokers):
            return False
        electable = {each.disk.kept.broker_id for each in self.brokers if each.disk.kept and not each.is_learner}
        followers = [each for each in self.brokers if each is not master]
        if known.sync_state_set != electable or any(each.stand is not Stand.FOLLOWING for each in followers):
            return False
        if master.disk.end < 8 or any(each.confirm_offset < len(self.checks.final) for each in self.brokers):
            return False
        assert master.disk.log.startswith(self.checks.final)
        last = master.disk.epochs.last
        assert last is not None
        if last.start < master.disk.end:
            assert all(list(each.disk.epochs) == list(master.disk.epochs) for each in self.brokers)
        return True

    def note(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:.2f} {text}")

    def show(self) -> str:
        brokers = [f"{each.name} {each.stand.value} in {each.epoch}, end {each.disk.end}" for each in self.brokers]
        return f"{self.controllers.known}; {'; '.join(brokers)}"
