"""A master: a log in memory and connections around the sessions of the product, and sends that wait for copies."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.hello import LinkTerms, LogClaim, first_difference
from skylark.broker.replication.link import MasterLink
from skylark.broker.replication.session import MasterSession, Peer
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from tests.broker.writing.support import Answers
from tests.sim.log import Log, record_bytes
from tests.sim.network import End
from tests.sim.scheduler import Process, Scheduler

SWEEP_S = 0.1


@dataclass
class Sent:
    """A message that was stored; ``answer`` is None until it is given."""

    start: int
    end: int
    at: float
    life: int
    in_sync: int
    data: bytes = field(repr=False)
    answer: int | None = None
    answered_at: float = 0.0


class Served:
    """The master's side of one connection."""

    def __init__(self, master: "Master", end: End, number: int) -> None:
        self.master = master
        self.number = number
        self.end = end
        self.link = MasterLink(master.terms, master.log.bounds, master.random.randbytes(16), master.scheduler.now)
        peer = Peer(end.addr, master.scheduler.now, lambda said_hello: None, lambda reason: None)
        self.session = MasterSession(self.link, master.acks, peer)
        self._judging = False

    @property
    def name(self) -> str:
        """The name that the slave gives itself; a slave without a hello has another name with each connection."""
        return self.link.hello.addr if self.link.hello else self.end.addr

    def begin(self) -> None:
        self.end.attach(self._received, self.close, self.pump)
        self._tick()

    def close(self) -> None:
        if self in self.master.served:
            self.master.served.remove(self)
            self.session.ended()
        self.end.close()

    def _received(self, data: bytes) -> None:
        try:
            self.session.receive(data, self.master.scheduler.now)
        except ProtocolError:
            self.close()
            return
        self._note_follower()
        self.pump()

    def _note_follower(self) -> None:
        if self.session.slave is not None:
            last = self.master.last_of.get(self.name)
            if last is None or last.number < self.number:
                self.master.last_of[self.name] = self

    def pump(self) -> None:
        """Send what there is, as far as the connection takes it."""
        end, log = self.end, self.master.log
        while not end.closed and end.has_room and not self._judging:
            try:
                step = self.session.next_step(self.master.scheduler.now)
            except ProtocolError:
                self.close()
                return
            if step is None:
                return
            if isinstance(step, bytes):
                end.send(step)
            elif isinstance(step, LogClaim):
                self._judging = True
                self.master.later(0.01 * self.master.random.random(), partial(self._judge, step))
            else:
                end.send(step.header + log.read(step.offset, step.size))
                self.session.sent(step.size)

    def _judge(self, claim: LogClaim) -> None:
        """A thread has compared: its answer comes also when the connection was closed meanwhile."""
        log = self.master.log
        self._judging = False
        self.session.judge(first_difference(claim.tails, log.start, log.end, log.crc), self.master.scheduler.now)
        if self.end.closed:
            self.session.ended()
            return
        self._note_follower()
        self.pump()

    def _tick(self) -> None:
        if self.end.closed:
            return
        try:
            self.link.check(self.master.scheduler.now)
        except ProtocolError:
            self.close()
            return
        self.pump()
        due = min(self.link.beat_at(), self.link.times_out_at())
        self.master.at(max(due, self.master.scheduler.now + 0.5), self._tick)


class Master(Process):
    """A simulated master. ``on_answer`` is called with each answer, when it is given."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        options: BrokerOptions,
        terms: LinkTerms,
        on_answer: Callable[[Sent], None],
    ) -> None:
        super().__init__(scheduler, "master")
        self.random = random
        self.options = options
        self.terms = terms
        self.log = Log()
        # What each life of this master had in the end: a power loss makes another log of it.
        self.past: list[Log] = []
        self.sent: list[Sent] = []
        self.refused = 0
        self._on_answer = on_answer
        self._sync_flush = options.flush_disk_type == "SYNC_FLUSH"
        # A disk that is slow now and then.
        self.flush_s = 0.01

    def start(self) -> None:
        self.begin()
        self.acks = AckLedger(self.options.ha_max_gap_not_in_sync)
        self.commits = LogWaits()
        self.commits.reached = self.log.flushed
        self.durability = Durability(self.commits, self.acks, self.options, double_write=True)
        self.admission = Admission(self.durability)
        self.served: list[Served] = []
        # The last connection of each slave.
        self.last_of: dict[str, Served] = {}
        self._accepted = 0
        self._flushing = False
        self._sweep()
        if not self._sync_flush:
            self._flush_at_times()

    def accept(self, end: End) -> None:
        self._accepted += 1
        served = Served(self, end, self._accepted)
        self.served.append(served)
        served.begin()

    def die(self, *, power_loss: bool) -> None:
        """What is not flushed may be gone; then this log is another one from here on."""
        self.end()
        past = self.log
        if power_loss:
            self.log = past.copy()
        self.log.recover(self.random, power_loss=power_loss)
        if self.log.end < past.end:
            self.past.append(past)
        else:
            self.log = past

    def told(self, end: int) -> int:
        """How many slaves have reported ``end``, each by its last connection, and have what comes before it."""
        return sum(link.acked >= end > link.start for link in self._links())

    def in_sync(self, end: int) -> int:
        gap = self.options.ha_max_gap_not_in_sync
        return sum(link.acked >= 0 and end - link.acked < gap for link in self._links())

    def _links(self) -> list[MasterLink]:
        return [served.link for served in self.last_of.values() if served in self.served]

    def send(self, body: bytes) -> None:
        """A client's send."""
        now = self.scheduler.now
        try:
            self.admission.check_message(self.log.end, b"")
        except RequestRefused:
            self.refused += 1
            return
        end = self.log.put(body)
        start = end - record_bytes(body)
        sent = Sent(start, end, now, self.life, self.in_sync(end), self.log.read(start, end - start))
        self.sent.append(sent)

        def answer(code: int) -> None:
            assert sent.answer is None, "answered twice"
            sent.answer, sent.answered_at = code, self.scheduler.now
            self._on_answer(sent)

        Answers(answer).wait(self.durability, end, now)
        self.flush()
        for served in self.served[:]:
            served.pump()

    def flush(self) -> None:
        """Group commit: one fsync at a time, for all that is there when it begins."""
        if self._flushing or self.log.flushed == self.log.end:
            return
        self._flushing = True
        end = self.log.end

        def flushed() -> None:
            self._flushing = False
            self.log.flushed = max(end, self.log.start)
            self.commits.advance(end)
            if self._sync_flush:
                self.flush()

        self.later(self.flush_s * (0.5 + self.random.random()), flushed)

    def _flush_at_times(self) -> None:
        self.flush()
        self.later(0.5, self._flush_at_times)

    def _sweep(self) -> None:
        self.commits.expire(self.scheduler.now)
        self.durability.expire(self.scheduler.now)
        self.later(SWEEP_S, self._sweep)
