"""The group of Controllers as its members see it: one log, agreed upon in a moment, whose leader may change.

Raft itself has its own simulation. Here an entry of the leader is committed after a while; at a change of the leader
the first of those that wait are kept, and the others never happened. A leader that was deposed does not know it yet.
"""

from collections.abc import Callable, Generator
from random import Random
from types import SimpleNamespace
from typing import Any

from skylark.mqcommon.raft.errors import NotLeader, RaftError, Unknown
from skylark.namesrv.controller.replicas import ChangeOutcome, Replicas
from tests.sim.scheduler import Process, Scheduler

Done = Callable[[Any], None]


class Later:
    """A result for which a coroutine waits."""

    def __init__(self, begin: Callable[[Done], None]) -> None:
        self._begin = begin

    def __await__(self) -> Generator["Later", Any, Any]:
        result = yield self
        if isinstance(result, RaftError):
            raise result
        return result

    def start(self, done: Done) -> None:
        try:
            self._begin(done)
        except RaftError as error:
            done(error)


def drive(coroutine: Any, done: Callable[[Any, Exception | None], None], value: Any = None) -> None:
    """Run it to its end, whenever that comes."""
    try:
        later: Later = coroutine.send(value)
    except StopIteration as stop:
        done(stop.value, None)
    except Exception as error:
        done(None, error)
    else:
        later.start(lambda result: drive(coroutine, done, result))


class Agreed:
    """The state, and who leads. ``leader`` is None while nobody was elected."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.replicas = Replicas()
        self.leader: Group | None = None
        #: Hears of each change of the state, as soon as it is agreed upon.
        self.applied: Callable[[ChangeOutcome], None] = _nothing
        self._waiting: list[tuple[bytes, Done]] = []
        self._slowest_s = random.choice((0.005, 0.02, 0.3, 1.0))
        # Nothing is committed before this time, as a disk is slow.
        self.stalled_until = 0.0

    def delay(self) -> float:
        return self._slowest_s * self.random.random()

    def change_leader(self, leader: "Group | None") -> None:
        """The present one is deposed; a new one takes over the first of what waits."""
        if self.leader is not None:
            self.leader.deposed()
            kept = self.random.randint(0, len(self._waiting))
            for data, _ in self._waiting[:kept]:
                self._apply(data)
            for _, done in self._waiting:
                done(Unknown("the leader was deposed"))
            self._waiting.clear()
        self.leader = leader
        if leader is not None:
            leader.lead()

    def propose(self, data: bytes, done: Done) -> None:
        self._waiting.append((data, done))
        self.scheduler.at(self.scheduler.now + self.delay(), self._commit)

    def _commit(self) -> None:
        if not self._waiting or self.leader is None:
            return
        wait_until = max(self.leader.process.frozen_until, self.stalled_until)
        if wait_until > self.scheduler.now:
            self.scheduler.at(wait_until, self._commit)
            return
        data, done = self._waiting.pop(0)
        done(self._apply(data))

    def _apply(self, data: bytes) -> ChangeOutcome:
        outcome = self.replicas.apply(0, data)
        self.applied(outcome)
        return outcome


class Group:
    """One Controller's view of it: `skylark.remoting.raft.group.Group`, as far as Controllers use it."""

    def __init__(self, agreed: Agreed, process: Process) -> None:
        self.process = process
        self.replicas = Replicas()
        self.replicas.sets = agreed.replicas.sets
        self.is_leader = False
        self.leader_addr = ""
        self.members = SimpleNamespace(all={})
        self._agreed = agreed
        self._observers: list[Callable[[bool], None]] = []

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        self._observers.append(observer)

    def lead(self) -> None:
        self.is_leader = True
        self._tell()

    def deposed(self) -> None:
        """Depose the leader: its state stays unchanged, and it learns of this after a while."""
        self.replicas.sets = dict(self._agreed.replicas.sets)
        self.process.later(1.0 + 0.1 * self._agreed.random.random(), self._learn)

    def _learn(self) -> None:
        self.is_leader = False
        self.replicas.sets = self._agreed.replicas.sets
        self._tell()

    def _tell(self) -> None:
        for observer in self._observers:
            observer(self.is_leader)

    def submit(self, data: bytes, done: Done) -> None:
        if not self.is_leader:
            raise NotLeader("")
        back = self._back(done)
        if self._agreed.leader is self:
            self._agreed.propose(data, back)
        else:
            self.process.later(1.0, lambda: done(Unknown("it was deposed")))

    async def propose(self, data: bytes, timeout_ms: float) -> Any:
        def begin(done: Done) -> None:
            once = _once(done)
            self.submit(data, once)
            self.process.later(timeout_ms / 1000, lambda: once(Unknown("not committed in time")))

        return await Later(begin)

    async def read(self, timeout_ms: float) -> None:
        if not self.is_leader:
            raise NotLeader("")
        await Later(self._read)

    def _read(self, done: Done) -> None:
        def confirm() -> None:
            done(None if self._agreed.leader is self else NotLeader(""))

        self.process.later(self._agreed.delay(), confirm)

    def _back(self, done: Done) -> Done:
        """What was decided is known here as soon as this process runs."""
        life = self.process.life

        def tell(result: Any) -> None:
            if self.process.life == life:
                self.process.later(0, lambda: done(result))

        return tell


def _once(done: Done) -> Done:
    """The first result counts."""
    is_done = False

    def tell(result: Any) -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            done(result)

    return tell


def _nothing(_: ChangeOutcome) -> None:
    """Nobody looks."""
