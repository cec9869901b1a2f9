"""One random history of a broker set, from a seed: sends, and all that can happen to machines and to the network.

After each event the invariants hold; in the end, when all is well again, slaves have what the master has.
"""

from collections.abc import Callable
from random import Random

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.hello import LinkTerms
from skylark.broker.replication.link import RESYNC
from skylark.broker.writing.waits import ABSENCE_S
from skylark.remoting.protocol.codes import ResponseCode
from tests.sim.log import Log
from tests.sim.master import SWEEP_S, Master, Sent
from tests.sim.network import Network
from tests.sim.scheduler import Scheduler
from tests.sim.slave import SimSlave

FAULTS = 20
STEP_S = 4.0
# Longer than a refused slave waits, and than a silent connection lives.
CALM_S = 80.0


class BrokerSet:
    """`run` it; ``trace`` tells what happened so far."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.trace: list[str] = []
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random)
        slaves = random.choice((1, 1, 2, 3))
        copies = random.randint(1, slaves + 1)
        self.options = BrokerOptions(
            broker_role="SYNC_MASTER",
            in_sync_replicas=copies,
            min_in_sync_replicas=random.randint(1, copies),
            total_replicas=slaves + 1,
            enable_auto_in_sync_replicas=random.random() < 0.3,
            flush_disk_type=random.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            ha_max_gap_not_in_sync=random.choice((1000, 1 << 28)),
        )
        terms = LinkTerms("DefaultCluster", "broker-a", random.choice((b"", b"secret")), plain_chunk_bytes=300)
        self.master = Master(self.scheduler, random, self.options, terms, self._answered)
        self.slaves = [self._new_slave(terms, number) for number in range(1, slaves + 1)]
        self.brokers: list[Master | SimSlave] = [self.master, *self.slaves]
        faults = [
            self._lose_connection,
            self._network_down,
            self._kill_slave,
            self._slave_loses_power,
            self._kill_master,
            self._master_loses_power,
            self._freeze,
            self._slow_disk,
            self._retention,
            self._nothing,
        ]
        self._faults: list[Callable[[], None]] = faults
        # Histories differ in what happens often in them.
        self._weights = [random.random() ** 3 for _ in faults]
        self._sends_s = random.choice((0.05, 0.3, 1.0))
        self._thawed = 0.0
        self._checked: dict[str, tuple[int, Log | None]] = {}
        self._body = 0
        self._power_lost = False
        self._sending = True

    def _new_slave(self, terms: LinkTerms, number: int) -> SimSlave:
        random = self.random
        # The master cannot tell a slave without a hello from its own older connection, nor from a slave with other
        # bytes.
        plain = self.options.in_sync_replicas <= 2 and not terms.secret and random.random() < 0.2
        sync_flush, last_file = random.random() < 0.5, random.random() < 0.2
        return SimSlave(
            self.network, random, self.master, terms, number, plain=plain, sync_flush=sync_flush, last_file=last_file
        )

    def run(self) -> None:
        scheduler, random = self.scheduler, self.random
        self._bodies()
        self.master.start()
        for slave in self.slaves:
            scheduler.at(random.choice((0, 0, 3)) * random.random(), slave.start)
        scheduler.after_each = self._check
        for fault in random.choices(self._faults, self._weights, k=FAULTS):
            scheduler.run_until(scheduler.now + STEP_S * random.random() ** 2)
            self.trace.append(f"{scheduler.now:.2f} {fault.__name__.strip('_')}")
            fault()
            self._check()
        self._heal()
        thawed = max(process.frozen_until for process in self.brokers)
        scheduler.run_until(max(thawed, scheduler.now) + CALM_S)
        self._sending = False
        scheduler.run_until(scheduler.now + 30)
        self._check_end()

    # --- clients

    def _bodies(self) -> None:
        if self.master.alive and self.master.frozen_until <= self.scheduler.now and self._sending:
            for _ in range(self.random.choice((1, 1, 3))):
                self._body += 1
                self.master.send(b"%d:" % self._body + self.random.randbytes(self.random.choice((3, 30, 200))))
        wait_s = 5.0 if self.network.calm else self._sends_s * 2 * self.random.random()
        self.scheduler.at(self.scheduler.now + wait_s, self._bodies)

    def _answered(self, sent: Sent) -> None:
        options, now, waited = self.options, self.scheduler.now, self.scheduler.now - sent.at
        needed = options.in_sync_replicas - 1
        assert sent.life == self.master.life
        if sent.answer == ResponseCode.SUCCESS:
            self._check_copies(sent)
        elif sent.answer == ResponseCode.SLAVE_NOT_AVAILABLE:
            assert sent.in_sync < needed, f"{sent.in_sync} slaves were in sync: {sent}"
        elif sent.answer == ResponseCode.FLUSH_SLAVE_TIMEOUT:
            is_short = len(self.master.acks.slaves()) < needed and waited >= ABSENCE_S
            assert waited >= options.slave_timeout / 1000 or is_short, f"too early: {sent}"
            assert self.master.told(sent.end) < needed, f"all slaves had it: {sent}"
        else:
            assert sent.answer == ResponseCode.FLUSH_DISK_TIMEOUT
            assert waited >= options.sync_flush_timeout / 1000, f"too early: {sent}"
        if sent.answer != ResponseCode.SLAVE_NOT_AVAILABLE and not options.enable_auto_in_sync_replicas:
            assert sent.in_sync >= needed, f"{sent.in_sync} slaves were in sync: {sent}"
        limit_s = max(options.slave_timeout, options.sync_flush_timeout if self._sync_flush else 0) / 1000
        assert now <= max(sent.at + limit_s, self._thawed) + 2 * SWEEP_S, f"late: {sent}"

    def _check_copies(self, sent: Sent) -> None:
        options, copies = self.options, self._copies(sent)
        least = options.min_in_sync_replicas if options.enable_auto_in_sync_replicas else options.in_sync_replicas
        assert copies >= least, f"SEND_OK, and {copies} of {least} copies: {sent}"

    def _copies(self, sent: Sent) -> int:
        """How many brokers have a message; with a synchronous flush, on disk."""
        log = self.master.log
        count = int(log.holds(sent.start, sent.data, flushed=self._sync_flush))
        for slave in self.slaves:
            logs = [slave.log, *slave.forgotten]
            count += any(each.holds(sent.start, sent.data, flushed=slave.sync_flush) for each in logs)
        return count

    @property
    def _sync_flush(self) -> bool:
        return self.options.flush_disk_type == "SYNC_FLUSH"

    # --- faults

    def _lose_connection(self) -> None:
        if self.network.connections:
            self.random.choice(self.network.connections).lose(at_once=self.random.random() < 0.6)

    def _network_down(self) -> None:
        self.network.down_until = self.scheduler.now + 30 * self.random.random() ** 2
        for connection in self.network.connections:
            connection.lose(at_once=False)

    def _kill_slave(self) -> None:
        self._end(self.random.choice(self.slaves), power_loss=False)

    def _slave_loses_power(self) -> None:
        self._end(self.random.choice(self.slaves), power_loss=True)

    def _kill_master(self) -> None:
        self._end(self.master, power_loss=False)

    def _master_loses_power(self) -> None:
        # A slave without hello cannot find out that it has other bytes.
        self._end(self.master, power_loss=not any(slave.plain for slave in self.slaves))

    def _end(self, process: Master | SimSlave, *, power_loss: bool) -> None:
        if process.alive:
            self._power_lost |= power_loss
            self.network.died(process, power_loss=power_loss)
            process.die(power_loss=power_loss)
            self.scheduler.at(self.scheduler.now + 10 * self.random.random() ** 3, lambda: self._begin(process))

    def _begin(self, process: Master | SimSlave) -> None:
        if not process.alive:
            process.start()

    def _freeze(self) -> None:
        process = self.random.choice(self.brokers)
        until = self.scheduler.now + 30 * self.random.random() ** 2
        process.frozen_until = max(process.frozen_until, until)
        if process is self.master:
            self._thawed = process.frozen_until

    def _slow_disk(self) -> None:
        self.random.choice(self.brokers).flush_s = self.random.choice((0.01, 0.5, 8.0))

    def _retention(self) -> None:
        self.random.choice(self.brokers).log.drop_file()

    def _nothing(self) -> None:
        """Time goes on."""

    def _heal(self) -> None:
        self.network.heal()
        for process in self.brokers:
            process.flush_s = 0.01
            self._begin(process)

    # --- invariants

    def _check(self) -> None:
        """Check that no broker has bytes that its master does not have, or did not have."""
        for slave in self.slaves:
            state = (slave.log.end, slave.follows if slave.ready else None)
            if self._checked.get(slave.name) == state:
                continue
            self._checked[slave.name] = state
            if slave.ready:
                assert slave.follows is not None
                assert slave.log.begins_like(slave.follows), f"{slave.name} follows a log that is not its own"
            else:
                logs = (self.master.log, *self.master.past)
                assert any(slave.log.begins_like(log) for log in logs), f"{slave.name} has bytes of no master"

    def _check_end(self) -> None:
        master = self.master
        for slave in self.slaves:
            same = slave.log.begins_like(master.log)
            too_old = slave.log.end < master.log.start
            if slave.stopped:
                assert RESYNC in slave.stopped
                assert too_old or not same, f"{slave.name} is stopped, and has nothing that the master has not"
            elif not (slave.plain and too_old):  # one without a hello cannot be told
                assert same and slave.log.end == master.log.end, f"{slave.name} does not follow"
        if not self._power_lost or (self._sync_flush and all(slave.sync_flush for slave in self.slaves)):
            for sent in master.sent:
                if sent.answer == ResponseCode.SUCCESS:
                    self._check_copies(sent)
        waiting = [sent for sent in master.sent if sent.life == master.life and sent.answer is None]
        assert waiting == [] and len(master.durability) == 0
        last = master.sent[-1]
        if sum(slave.ready and not slave.stopped for slave in self.slaves) >= self.options.in_sync_replicas - 1:
            assert last.answer == ResponseCode.SUCCESS, f"all is well, and the last send is answered {last}"
