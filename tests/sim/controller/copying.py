"""A broker's ends of auto-switch links: the master sends its log to slaves, a slave copies its master's log."""

from typing import Protocol

from skylark.broker.replication.autoswitch.frames import SlaveHello
from skylark.broker.replication.autoswitch.link import ElectedLog, MasterEnd, SlaveEnd
from skylark.broker.replication.hello import LinkTerms
from skylark.broker.replication.link import LogBounds
from skylark.mqcommon.errors import ProtocolError
from tests.sim.controller.checks import Checks
from tests.sim.controller.disk import Disk
from tests.sim.controller.network import Connection, End
from tests.sim.scheduler import Event

TERMS = LinkTerms(heartbeat_s=1.0, timeout_s=4.0)
CHUNK_BYTES = 20
PEER = "10.0.0.1:40000"
TICK_S = 0.5
FILE_BYTES = 1 << 20


class Owner(Protocol):
    """The broker of these ends."""

    name: str
    disk: Disk
    checks: Checks
    had: int

    @property
    def epoch(self) -> int: ...

    @property
    def now(self) -> float: ...

    @property
    def confirm_offset(self) -> int: ...

    @property
    def safe_end(self) -> int: ...

    def wait(self, seconds: float, event: Event) -> None: ...

    def acked(self, slave: SlaveHello, offset: int) -> None: ...

    def slave_gone(self, slave: SlaveHello) -> None: ...

    def told_confirm_offset(self, offset: int) -> None: ...

    def cut(self, offset: int) -> None: ...

    def appended(self) -> None: ...

    def lost_master(self) -> None: ...


class Serving:
    """The master's end of one connection, as long as its broker leads in ``epoch``."""

    def __init__(self, owner: Owner, end: End, epoch: int) -> None:
        self._owner = owner
        self._end = end
        log = ElectedLog(self._bounds, owner.disk.epochs, epoch, lambda: owner.confirm_offset)
        self._link = MasterEnd(TERMS, log, b"nonce", PEER, owner.now)
        end.on_data, end.on_close = self._received, self.close
        owner.wait(TICK_S, self._tick)

    def _bounds(self) -> LogBounds:
        return LogBounds(0, self._owner.disk.end, FILE_BYTES)

    def _received(self, data: bytes) -> None:
        try:
            self._link.receive(data, self._owner.now)
            if self._link.claimed is not None:
                self._link.judge("", self._owner.now)
        except ProtocolError:
            self.close()
            return
        slave = self._link.slave
        if slave is not None and self._link.acked >= 0:
            self._owner.acked(slave, self._link.acked)
        self.push()

    def push(self) -> None:
        """Send what is there."""
        link, log = self._link, self._owner.disk.log
        data = link.take_output()
        while (found := link.next_range(self._owner.now, CHUNK_BYTES)) is not None:
            data += found.header + log[found.offset : found.offset + found.size]
        self._end.send(data)

    def _tick(self) -> None:
        if self._end.is_closed:
            return
        try:
            self._link.check(self._owner.now)
        except ProtocolError:
            self.close()
            return
        self.push()
        self._owner.wait(TICK_S, self._tick)

    def close(self) -> None:
        self._end.close()
        self._end.is_closed = True
        if self._link.slave is not None:
            self._owner.slave_gone(self._link.slave)

    @property
    def is_closed(self) -> bool:
        return self._end.is_closed


class Following:
    """The slave's end of one connection to the master of ``epoch``."""

    def __init__(self, owner: Owner, connection: Connection, hello: SlaveHello, epoch: int) -> None:
        self._owner = owner
        self._end = connection.ends[0]
        self._epoch = epoch
        self._follows = False
        self._link = SlaveEnd(TERMS, hello, owner.disk.epochs, start=0, end=owner.disk.end, now=owner.now)
        self._end.on_data, self._end.on_close = self._received, self._lost
        self._say()
        owner.wait(TICK_S, self._tick)

    def _received(self, data: bytes) -> None:
        owner, link = self._owner, self._link
        try:
            for piece in link.receive(data, owner.now):
                owner.checks.copied(owner, piece)
                owner.disk.log += piece.data
        except ProtocolError:
            self._lost()
            return
        if link.cut_at is not None:
            owner.cut(link.cut_at)
            link.cut(owner.now)
        owner.told_confirm_offset(link.confirm_offset)
        owner.appended()
        self._say()

    def report(self) -> None:
        """Report that the bytes that this broker has on disk have grown."""
        self._link.report(self._owner.safe_end, self._owner.now)
        self._say()

    def _say(self) -> None:
        self._end.send(self._link.take_output())

    def _tick(self) -> None:
        if self._end.is_closed:
            return
        try:
            self._link.tick(self._owner.now)
        except ProtocolError:
            self._lost()
            return
        self._say()
        self._owner.wait(TICK_S, self._tick)

    def _lost(self) -> None:
        self.close()
        self._owner.lost_master()

    @property
    def is_closed(self) -> bool:
        return self._end.is_closed

    def close(self) -> None:
        self._end.close()
        self._end.is_closed = True
