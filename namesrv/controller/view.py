"""What a Controller knows: the agreed state of its group, and the brokers whose heartbeats it gets itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Protocol

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.errors import NotLeader, RaftError
from skylark.namesrv.controller.commands import Candidate, Change, encode_change
from skylark.namesrv.controller.liveness import Key, Liveness
from skylark.namesrv.controller.options import ControllerOptions
from skylark.namesrv.controller.replicas import BrokerSet, ChangeOutcome, Replicas
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.raft.group import Group

TIMEOUT_MS = 3_000


class HasOptions(Protocol):
    """An object that keeps the options, which are replaced when they change."""

    options: Any


@lazy_dataclass(slots=True)
class View:
    """The state of one Controller that its handlers and its elections share; controller.py makes it."""

    holder: HasOptions
    group: Group
    replicas: Replicas
    clock: Clock
    liveness: Liveness[Channel] = field(default_factory=Liveness)
    #: Until this time a new leader does not know which brokers are dead: it waits for a heartbeat of each.
    learning_until_ms: int = 0
    unclean_elections: int = 0

    @property
    def options(self) -> ControllerOptions:
        """The present options."""
        options: ControllerOptions = self.holder.options
        return options

    @property
    def is_learning(self) -> bool:
        """Whether brokers that were not heard of may be alive."""
        return self.clock.monotonic_ms() < self.learning_until_ms

    @property
    def may_be_unclean(self) -> bool:
        """Whether a replica that may lack messages may be elected; not before all others had time to be heard."""
        return self.options.enable_elect_unclean_master and not self.is_learning

    def is_alive(self, key: Key) -> bool:
        """Whether a broker is alive, or may be alive."""
        return self.liveness.get(key) is not None or self.is_learning

    def live_ids(self, known: BrokerSet | None) -> list[int]:
        """The ids of the living brokers of a set."""
        return [each for each in known.replicas if self.liveness.get((known.name, each))] if known else []

    def candidates(self, known: BrokerSet) -> list[Candidate]:
        """The living brokers of a set that may be elected."""
        rows = self.liveness.alive(known.name, list(known.replicas))
        return [row.candidate for row in rows if row.is_electable]

    async def change(self, change: Change) -> ChangeOutcome:
        """Write ``change`` to the log of the group. Raises RequestRefused when this Controller cannot."""
        with self.refusing():
            outcome: ChangeOutcome = await self.group.propose(encode_change(change), TIMEOUT_MS)
        return outcome

    async def read(self) -> None:
        """Return when ``replicas`` has every change that was answered before. Raises RequestRefused as ``change``."""
        with self.refusing():
            await self.group.read(TIMEOUT_MS)

    @contextmanager
    def refusing(self, *others: type[Exception]) -> Iterator[None]:
        """Raise RequestRefused instead of a RaftError, or of one of ``others``."""
        refused: tuple[type[Exception], ...] = (RaftError, *others)
        try:
            yield
        except NotLeader as error:
            raise self.not_leader(error.leader) from None
        except refused as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def not_leader(self, leader: str = "") -> RequestRefused:
        """The refusal that sends brokers to the leader."""
        addr = self.group.members.all.get(leader) or self.group.leader_addr
        where = f"ask {addr}" if addr else "there is none at the moment, try again"
        return RequestRefused(ResponseCode.CONTROLLER_NOT_LEADER, f"this Controller is not the leader: {where}")
