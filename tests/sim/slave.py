"""A slave: a log and a disk in memory, and a connection around the session of the product."""

from collections.abc import Callable
from random import Random

from skylark.broker.replication.hello import VERSION, Hello, LinkTerms, LogClaim, PieceCrc, tail_places
from skylark.broker.replication.link import SlaveLink
from skylark.broker.replication.session import SlaveSession
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused
from tests.sim.log import FILE_BYTES, Log
from tests.sim.master import Master
from tests.sim.network import End, Network
from tests.sim.scheduler import Process

PAUSE_S = 0.2
REFUSED_PAUSE_S = 30.0


class SimSlave(Process):
    """A simulated slave. ``plain``: it sends no hello, as a Java slave."""

    def __init__(
        self,
        network: Network,
        random: Random,
        master: Master,
        terms: LinkTerms,
        number: int,
        *,
        plain: bool,
        sync_flush: bool,
        last_file: bool,
    ) -> None:
        super().__init__(network.scheduler, f"slave {number}")
        self.random = random
        self.log = Log()
        self.plain = plain
        self.sync_flush = sync_flush
        self.flush_s = 0.01
        #: Why nothing is copied, "" when that is not so.
        self.stopped = ""
        #: The log of the master that it is connected to, or was last.
        self.follows: Log | None = None
        #: What a loss of power took from it, though it had reported it: that is what ASYNC_FLUSH means.
        self.forgotten: list[Log] = []
        self._network = network
        self._master = master
        self._terms = terms
        self._number = number
        self._last_file = last_file
        self._end: End | None = None
        self._link: SlaveLink | None = None
        self._session: SlaveSession | None = None

    def start(self) -> None:
        self.begin()
        self.stopped, self.follows = "", None
        self._end = self._link = None
        self._flushing = False
        self._connect()
        if not self.sync_flush:
            self._flush_at_times()

    @property
    def ready(self) -> bool:
        """Whether it copies at the moment."""
        return self._link is not None and self._link.ready

    def die(self, *, power_loss: bool) -> None:
        self.end()
        before = self.log.copy()
        self.log.recover(self.random, power_loss=power_loss)
        if power_loss and not self.sync_flush:
            self.forgotten.append(before)

    # --- the connection

    def _connect(self) -> None:
        self.log.flushed = self.log.end if self.sync_flush else self.log.flushed
        connection = self._network.connect(self, self._master)
        if connection is None:
            self.later(PAUSE_S, self._connect)
            return
        ours, theirs = connection.ends
        self._end, self._link = ours, self._new_link()
        self._session = SlaveSession(self._link, sync_flush=self.sync_flush)
        ours.attach(self._received, self._lost)
        self.follows = self._master.log
        self._master.later(self._network.delay(), lambda: self._master.accept(theirs))
        self._say()
        self._tick_of(ours)

    def _new_link(self) -> SlaveLink:
        log, now = self.log, self.scheduler.now
        if self.plain:
            return SlaveLink(self._terms, now, start=log.start, end=log.end)
        tails = tuple(PieceCrc(at, size, log.crc(at, size)) for at, size in tail_places(log.start, log.end, FILE_BYTES))
        claim = LogClaim(b"", log.start, log.end, FILE_BYTES, self._last_file, tails)
        addr = f"10.0.0.{self._number}:10911"
        who = Hello(VERSION, self._terms.cluster, self._terms.broker, self._number, addr, self.random.randbytes(16))
        return SlaveLink(self._terms, now, start=log.start, end=log.end, proof=(who, claim))

    def _received(self, data: bytes) -> None:
        link, session, end, now = self._link, self._session, self._end, self.scheduler.now
        assert link is not None and session is not None and end is not None
        try:
            for piece in link.receive(data, now):
                self.log.append(piece.offset, piece.data)
        except ReplicationRefused as refused:
            self.stopped = str(refused)
            self._close(REFUSED_PAUSE_S)
            return
        except ProtocolError:
            self._close(PAUSE_S)
            return
        if link.ready:
            self.stopped = ""
        if self.log.data:
            session.appended(self.log.end, now)
        self._say()
        if self.sync_flush and link.ready:
            self._report_flushed()

    def _say(self) -> None:
        if self._end is not None and self._link is not None:
            self._end.send(self._link.take_output())

    def _tick_of(self, end: End) -> None:
        if self._end is not end or self._link is None:
            return
        try:
            self._link.tick(self.scheduler.now)
        except ProtocolError:
            self._close(PAUSE_S)
            return
        self._say()
        self.at(max(self._link.wake_at(), self.scheduler.now + 0.1), lambda: self._tick_of(end))

    def _close(self, pause_s: float) -> None:
        assert self._end is not None
        self._end.close()
        self._gone(pause_s)

    def _lost(self) -> None:
        self._gone(PAUSE_S)

    def _gone(self, pause_s: float) -> None:
        self._end = self._link = None
        self.later(pause_s * (0.5 + self.random.random()), self._connect)

    # --- the disk

    def _report_flushed(self) -> None:
        """SYNC_FLUSH: one fsync at a time for all that came meanwhile, then the report."""
        if self._link is not None and self._session is not None:
            if self.log.data:
                self._session.flushed(self.log.flushed, self.scheduler.now)
            self._say()
        if self.log.flushed < self.log.end and not self._flushing:
            self._flush(self._report_flushed)

    def _flush_at_times(self) -> None:
        if self.log.flushed < self.log.end and not self._flushing:
            self._flush(lambda: None)
        self.later(0.5, self._flush_at_times)

    def _flush(self, then: Callable[[], None]) -> None:
        self._flushing = True
        end = self.log.end

        def flushed() -> None:
            self._flushing = False
            # What a new connection began with was flushed meanwhile.
            self.log.flushed = max(self.log.flushed, end, self.log.start)
            then()

        self.later(self.flush_s * (0.5 + self.random.random()), flushed)
