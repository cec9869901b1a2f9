"""Controllers with their real handlers, elections and liveness, on a network of the simulation."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from skylark.mqcommon.errors import RequestRefused
from skylark.namesrv.controller.elections import Elections
from skylark.namesrv.controller.handlers import AdminHandlers, BrokerHandlers
from skylark.namesrv.controller.leases import Leases
from skylark.namesrv.controller.liveness import Key
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.namesrv.controller.replicas import BrokerSet
from skylark.namesrv.controller.view import View
from skylark.remoting.net.server import failure
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ELECT_MASTER,
    CleanBrokerDataRequestHeader,
    ElectMasterRequestHeader,
)
from tests.sim.controller.group import Agreed, Group, Later, drive
from tests.sim.scheduler import Process, Scheduler

TIMEOUT_MS = 3_000
CLUSTER, NAME = "DefaultCluster", "broker-a"
SCAN_S = 0.25
LOOK_S = 2.0
# A leader that is not heard of for so long is deposed.
ELECTION_S = 1.0

Reply = Callable[[Command], None]


class Caller:
    """The connection of one life of a broker to a Controller, as far as handlers see it."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self._replies: dict[int, Reply] = {}

    def expect(self, request: Command, reply: Reply) -> None:
        self._replies[id(request)] = reply

    def reply(self, request: Command, answer: Command) -> None:
        self._replies.pop(id(request))(answer)


class Controller(Process):
    def __init__(self, scheduler: Scheduler, name: str, agreed: Agreed, options: ControllerDaemonOptions,
                 elected: Callable[["Controller", BrokerSet], None]) -> None:  # fmt: skip
        super().__init__(scheduler, name)
        self.group = Group(agreed, self)
        self._agreed = agreed
        self._holder = SimpleNamespace(options=options)
        self._elected = elected

    def monotonic_ms(self) -> int:
        return int(self.scheduler.now * 1000)

    def start(self) -> None:
        self.begin()
        self.group = group = Group(self._agreed, self)
        any_group: Any = group
        clock: Any = self
        self.view = view = View(self._holder, any_group, group.replicas, clock)
        self._elections = Elections(view, _never, lambda known: self._elected(self, known), self._sleep)
        self._leases = Leases(view, self._elections.is_replacing)
        brokers, admin = BrokerHandlers(view, self._elections, self._leases), AdminHandlers(view, self._holder)
        self._handlers: dict[int, Any] = dict(brokers.handlers())
        self._slow: dict[int, Any] = {**brokers.slow_handlers(), **admin.slow_handlers()}
        self._is_answering = False
        group.on_leadership(self._leadership)
        self.later(SCAN_S, self._scan)
        self.later(LOOK_S, self._look)

    def _leadership(self, leads: bool) -> None:
        if leads:
            self.at(self.view.learning_until_ms / 1000 + 0.001, self._look_once)

    def _sleep(self, seconds: float) -> Any:
        return Later(lambda done: self.later(seconds, lambda: done(None)))

    def _scan(self) -> None:
        self._elections.check_silent_brokers()
        self.later(SCAN_S, self._scan)

    def _look(self) -> None:
        self._look_once()
        self.later(LOOK_S, self._look)

    def _look_once(self) -> None:
        self._elections.check_master(NAME)

    # Requests.

    def handle(self, caller: Caller, request: Command, reply: Reply) -> None:
        # A repeated request is another one.
        request = Command(request.code, request.ext, request.body, request.flag, request.opaque)
        handler = self._handlers.get(request.code)
        if handler is None:
            drive(
                self._slow[request.code](caller, request), lambda answer, error: reply(_result(request, answer, error))
            )
            return
        caller.expect(request, reply)
        try:
            answer = handler(caller, request)
        except Exception as error:
            answer = _result(request, None, error)
        if answer is not None:
            caller.reply(request, answer)
        self._answer()

    def _answer(self) -> None:
        """Answer heartbeats, as `Leases.run` does."""
        if self._leases.has_work and not self._is_answering:
            self._is_answering = True
            drive(self._leases.answer(), self._answered)

    def _answered(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._is_answering = False
        self._answer()

    def closed(self, key: Key, caller: Caller, broker: Process) -> None:
        """A connection ended: see whether the broker's port refuses another one."""
        channel: Any = caller
        elections = self._elections
        elections.begin_examination(key)
        self.later(
            0.02 * self._agreed.random.random(), lambda: elections.examined(key, channel, is_dead=not broker.alive)
        )

    # The administrator.

    def allow_unclean(self) -> None:
        self._holder.options = replace(self._holder.options, enable_elect_unclean_master=True)

    def designate(self, broker_id: int) -> None:
        header = ElectMasterRequestHeader(NAME, CLUSTER, broker_id, True)
        self.handle(Caller("admin"), CONTROLLER_ELECT_MASTER.command(header), lambda _: None)

    def clean(self, broker_id: int) -> None:
        header = CleanBrokerDataRequestHeader(NAME, CLUSTER, str(broker_id))
        self.handle(Caller("admin"), CLEAN_BROKER_DATA.command(header), lambda _: None)


class Controllers:
    """One or three of them. ``elected`` hears of each election when it is decided."""

    def __init__(self, scheduler: Scheduler, random: Random, *, unclean: bool,
                 elected: Callable[[Controller, BrokerSet], None]) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.random = random
        self.agreed = Agreed(scheduler, random)
        options = ControllerDaemonOptions(
            controller_d_leger_peers="n0-127.0.0.1:9877",
            controller_d_leger_self_id="n0",
            enable_elect_unclean_master=unclean,
            broker_heartbeat_timeout=TIMEOUT_MS,
        )
        count = random.choice((1, 3, 3))
        self.all = [Controller(scheduler, f"c{each}", self.agreed, options, elected) for each in range(count)]

    def start(self) -> None:
        for each in self.all:
            each.start()
        self.agreed.change_leader(self.all[0].group)

    @property
    def known(self) -> BrokerSet | None:
        return self.agreed.replicas.sets.get(NAME)

    @property
    def leader(self) -> Controller | None:
        group = self.agreed.leader
        return next((each for each in self.all if each.group is group), None)

    def depose(self) -> None:
        """The leader is cut off from the others, or hands over."""
        if self.agreed.leader is not None:
            self.agreed.change_leader(None)
            self._elect_later()

    def crash(self, controller: Controller, down_s: float) -> None:
        if controller.alive:
            controller.end()
            if self.agreed.leader is controller.group:
                self.depose()
            self.scheduler.at(self.scheduler.now + down_s, lambda: self._restart(controller))

    def freeze(self, controller: Controller, seconds: float) -> None:
        controller.frozen_until = self.scheduler.now + seconds
        if self.agreed.leader is controller.group and seconds > ELECTION_S and len(self.all) > 1:
            group = controller.group
            self.scheduler.at(
                self.scheduler.now + ELECTION_S, lambda: self.depose() if self.agreed.leader is group else None
            )

    def _restart(self, controller: Controller) -> None:
        if not controller.alive:
            controller.start()

    def _elect_later(self) -> None:
        self.scheduler.at(self.scheduler.now + self.random.uniform(0.1, ELECTION_S), self._elect)

    def _elect(self) -> None:
        if self.agreed.leader is not None:
            return
        ready = [each for each in self.all if each.alive and each.frozen_until <= self.scheduler.now]
        # A leader that was deposed a moment ago is elected again only when it knows that it was deposed.
        ready = [each for each in ready if not each.group.is_leader]
        if ready and 2 * len(ready) > len(self.all):
            self.agreed.change_leader(self.random.choice(ready).group)
        else:
            self._elect_later()

    def heal(self) -> None:
        self.agreed.stalled_until = 0.0
        for each in self.all:
            each.frozen_until = 0.0
            self._restart(each)


def _result(request: Command, answer: Command | None, error: Exception | None) -> Command:
    if error is None:
        assert answer is not None
        return answer
    if not isinstance(error, RequestRefused):
        raise error
    return failure(request, error)


async def _never(*_: Any) -> Any:
    raise OSError("nobody probes here")
