"""The interfaces between the ends of an HA connection (master.py, slave.py) and the sessions of two protocols.

session.py has the sessions of sets without a Controller, autoswitch/session.py the sessions of sets with one.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker.replication.autoswitch.link import Newcomer
from broker.replication.hello import LogClaim, PieceCrc
from broker.replication.link import Range
from broker.writing.waits import ConnectedSlave


class Bytes(Protocol):
    """A piece of the log."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> memoryview: ...


#: What speaks against a slave: without a Controller a piece of its log that differs, with one the reason in words.
Objection = PieceCrc | str | None


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection to the HA port: its address, and since when it is connected.

    ``admit`` is called before it is accepted as a slave, with whether it said hello, and may raise ProtocolError.
    ``close`` ends the connection for a reason.
    """

    addr: str
    since: float
    admit: Callable[[bool], None]
    close: Callable[[str], None]


class MasterSide(Protocol):
    """A master's session with one slave; see `MasterSession`, whose methods these are."""

    slave: ConnectedSlave | None

    @property
    def who(self) -> str: ...
    @property
    def idle(self) -> bool: ...
    @property
    def next_offset(self) -> int: ...
    def lags(self, end: int) -> bool: ...
    def receive(self, data: bytes, now: float) -> None: ...
    def next_step(self, now: float, most: int) -> bytes | LogClaim | Newcomer | Range | None: ...
    def next_range(self, now: float) -> Range | None: ...
    def judge(self, objection: Objection, now: float) -> None: ...
    def sent(self, size: int) -> None: ...
    def ended(self) -> None: ...
    def check(self, now: float) -> None: ...
    def beat_at(self) -> float: ...
    def silent_at(self) -> float: ...


class SlaveSide(Protocol):
    """A slave's session with its master; see `SlaveSession`."""

    @property
    def ready(self) -> bool: ...
    async def receive(self, data: memoryview, now: float) -> Sequence[Bytes]: ...
    @property
    def must_cut(self) -> bool: ...
    async def cut(self) -> None: ...
    def settle(self) -> None: ...
    def appended(self, end: int, now: float) -> None: ...
    def flushed(self, end: int, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def wake_at(self) -> float: ...
    def take_output(self) -> bytes: ...


#: Makes the session of a connection.
NewMasterSide = Callable[[Peer], MasterSide]

#: Finds what speaks against a slave; None or "" when nothing does. May raise ProtocolError: the slave may try again.
Examine = Callable[[LogClaim | Newcomer], Awaitable[Objection]]


class MasterTarget(NamedTuple):
    """Where a slave connects: the master's HA address; ``hello``: it is a Skylark broker.

    ``begin``: where its log begins; None when that is unknown or the log is empty.
    """

    ha_addr: str
    hello: bool
    begin: int | None = None


class Dialogue(Protocol):
    """How a slave begins a connection: plain_dialogue.py without a Controller, autoswitch/session.py with one."""

    async def begin(self, target: MasterTarget) -> SlaveSide:
        """The session of a new connection to ``target``."""
