"""The faults: of which kind, in which modes, and how each is made and mended."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from scripts.controller_set import NAME
from scripts.daemons import Daemon
from tests.e2e.faults.sets import CONTROLLER, DLEDGER, MODES, SET, Trial
from tests.e2e.test_dledger import LinkedGroup
from tests.support.daemons import start
from tests.support.waiting import until

KILLS, FREEZES, CUTS, CLOCKS, DISKS, MEMBERS = "kills", "freezes", "cuts", "clocks", "disks", "members"
COPIED, VOTING = (SET, CONTROLLER, DLEDGER), (CONTROLLER, DLEDGER)
CLOCK_S = 3_600
SLOW_S = 0.5
# Sends that are acknowledged before, during and after each fault.
FEW = 100
# A fault that stops all sends ends after this time without an acknowledgement.
SILENT_S = 2.0

# The brokers that are away while the fault lasts; None: nobody acknowledges meanwhile, or not for long.
Away = Sequence[Daemon] | None
Making = Callable[[Trial], AbstractAsyncContextManager[Away]]


@dataclass(frozen=True)
class Fault:
    """``making`` makes it, and mends it at the end of its block."""

    kind: str
    what: str
    modes: Sequence[str]
    making: Making
    needs_machines: bool = False


async def round_of(trial: Trial, fault: Fault) -> None:
    """Sends are acknowledged before the fault, during it where the mode promises that, and after it."""
    await trial.at.until_in_sync(trial.now.admin)
    await trial.load.more_from(NAME, FEW)
    async with fault.making(trial) as away:
        if away is not None and (not away or trial.mode in VOTING):
            if await trial.at.until_master(trial.now.admin) in away:
                await trial.at.until_master(trial.now.admin, but=away[0])
            await trial.load.more_from(NAME, FEW)
        else:
            await trial.load.more_or_silence(FEW, SILENT_S)
    await trial.at.until_in_sync(trial.now.admin)
    await trial.load.more_from(NAME, FEW)


# --- kills, freezes


def at_roles(
    do: Callable[[Sequence[Daemon]], AbstractAsyncContextManager[None]],
    *,
    master: bool = False,
    slaves: int = 0,
    controller: bool = False,
    namesrv: bool = False,
) -> Making:
    """Do it to the daemons that have these roles now."""

    @asynccontextmanager
    async def making(trial: Trial) -> AsyncIterator[Away]:
        leader, others = await trial.roles()
        brokers = [*([leader] if master else []), *others[:slaves]]
        more = [*([await trial.leading_controller()] if controller else []), *([trial.at.namesrv] if namesrv else [])]
        async with do([*brokers, *more]):
            # The lease of a master needs a leading Controller, so the set may pause.
            is_pause = len(brokers) > 1 or more
            yield None if is_pause else brokers

    return making


@asynccontextmanager
async def killed(daemons: Sequence[Daemon]) -> AsyncIterator[None]:
    for daemon in daemons:
        daemon.kill()
    yield
    await start(*daemons)


@asynccontextmanager
async def frozen(daemons: Sequence[Daemon]) -> AsyncIterator[None]:
    for daemon in daemons:
        daemon.freeze()
    try:
        yield
    finally:
        for daemon in daemons:
            daemon.thaw()


# --- cuts


def cut(*, hears: bool = False, is_heard: bool = False, controllers: bool = False, brokers: bool = True) -> Making:
    """Cut the master off from the other brokers, from the Controllers or from both; ``hears``: it still gets bytes."""

    @asynccontextmanager
    async def making(trial: Trial) -> AsyncIterator[Away]:
        master, _ = await trial.roles()
        links = [
            *(trial.links_between_brokers(master) if brokers else ()),
            *(trial.links_to_controllers(master) if controllers else ()),
        ]
        for link, is_near in links:
            out, into = not is_heard, not hears
            link.cut(there=out if is_near else into, back=into if is_near else out)
        # A master that is heard in one direction, or by Controllers, may stay the master, and wait.
        is_replaced = not hears and not is_heard and (controllers or trial.mode == DLEDGER)
        try:
            yield [master] if is_replaced and links else None
        finally:
            trial.mend_all()

    return making


# --- clocks, disks


@asynccontextmanager
async def clock_ahead(trial: Trial) -> AsyncIterator[Away]:
    master, _ = await trial.roles()
    trial.machine_of(master).set(clock_s=CLOCK_S)
    yield []
    trial.machine_of(master).set()


@asynccontextmanager
async def clock_behind(trial: Trial) -> AsyncIterator[Away]:
    master, _ = await trial.roles()
    trial.machine_of(master).set(clock_s=-CLOCK_S)
    yield []
    trial.machine_of(master).set()


@asynccontextmanager
async def clocks_apart(trial: Trial) -> AsyncIterator[Away]:
    """Each broker has another time."""
    await trial.roles()
    for number, broker in enumerate(trial.at.brokers):
        trial.machine_of(broker).set(clock_s=(number - 1) * CLOCK_S)
    yield []
    for broker in trial.at.brokers:
        trial.machine_of(broker).set()


@asynccontextmanager
async def disk_slow(trial: Trial) -> AsyncIterator[Away]:
    master, _ = await trial.roles()
    trial.machine_of(master).set(sync_s=SLOW_S)
    yield []
    trial.machine_of(master).set()


@asynccontextmanager
async def disk_full(trial: Trial) -> AsyncIterator[Away]:
    """The files of the master get no room until its log could not grow."""
    master, _ = await trial.roles()
    trial.machine_of(master).set(full=True)
    await until(lambda: b"no room" in master.logged, f"{master.name} notices its full disk")
    yield None
    trial.machine_of(master).set()


async def _lose_disk(trial: Trial, broker: Daemon) -> None:
    broker.kill()
    trial.at.lose_disk(broker)
    if isinstance(trial.at, LinkedGroup):
        trial.at.are_links_own = False


async def _until_joined(trial: Trial, broker: Daemon, old_id: int | None) -> None:
    """Wait until a broker counts that has started with an empty disk; Controllers forget its id of before."""
    await until(broker.ready, f"{broker.name} serves")
    if trial.mode == DLEDGER:
        await until(lambda: b"is a voter now" in broker.logged, f"{broker.name} is a voter")
    if old_id is not None:
        await trial.now.admin.clean_broker_metadata(trial.at.controller_addrs, NAME, [old_id], even_living=False)


def disk_lost(*, master: bool) -> Making:
    @asynccontextmanager
    async def making(trial: Trial) -> AsyncIterator[Away]:
        leader, others = await trial.roles()
        broker = leader if master else others[0]
        old_id = trial.at.id_of(broker) if trial.mode == CONTROLLER else None
        await _lose_disk(trial, broker)
        yield [broker]
        broker.start()
        await _until_joined(trial, broker, old_id)

    return making


# --- membership changes with faults


def joins_while(do: Callable[[Sequence[Daemon]], AbstractAsyncContextManager[None]]) -> Making:
    """A broker joins anew with an empty disk; before it counts, the same happens to the master as in ``do``."""

    @asynccontextmanager
    async def making(trial: Trial) -> AsyncIterator[Away]:
        master, others = await trial.roles()
        joiner = others[0]
        old_id = trial.at.id_of(joiner) if trial.mode == CONTROLLER else None
        await _lose_disk(trial, joiner)
        joiner.start()
        async with do([master]):
            # Two of three copies are away, and a third one is empty.
            yield None
        await _until_joined(trial, joiner, old_id)

    return making


@asynccontextmanager
async def left_alone(trial: Trial) -> AsyncIterator[Away]:
    """All other brokers are killed one after the other, and come back in the other order."""
    _, others = await trial.roles()
    async with AsyncExitStack() as stack:
        for broker in others:
            await stack.enter_async_context(killed([broker]))
        yield None


FAULTS = (
    Fault(KILLS, "the master is killed", MODES, at_roles(killed, master=True)),
    Fault(KILLS, "a slave is killed", COPIED, at_roles(killed, slaves=1)),
    Fault(KILLS, "all brokers are killed at once", COPIED, at_roles(killed, master=True, slaves=2)),
    Fault(KILLS, "all slaves are killed by turns", VOTING, left_alone),
    Fault(KILLS, "the NameServer is killed", MODES, at_roles(killed, namesrv=True)),
    Fault(KILLS, "the leading Controller is killed", [CONTROLLER], at_roles(killed, controller=True)),
    Fault(
        KILLS, "master and leading Controller are killed", [CONTROLLER], at_roles(killed, master=True, controller=True)
    ),
    Fault(FREEZES, "the master is frozen", MODES, at_roles(frozen, master=True)),
    Fault(FREEZES, "a slave is frozen", COPIED, at_roles(frozen, slaves=1)),
    Fault(FREEZES, "the NameServer is frozen", MODES, at_roles(frozen, namesrv=True)),
    Fault(FREEZES, "the leading Controller is frozen", [CONTROLLER], at_roles(frozen, controller=True)),
    Fault(CUTS, "the master is cut off from brokers", COPIED, cut()),
    Fault(CUTS, "the master is cut off from Controllers", [CONTROLLER], cut(brokers=False, controllers=True)),
    Fault(CUTS, "the master's room is cut off", [CONTROLLER], cut(controllers=True)),
    Fault(CUTS, "one way: other brokers do not hear the master", COPIED, cut(hears=True)),
    Fault(CUTS, "one way: the master does not hear other brokers", COPIED, cut(is_heard=True)),
    Fault(
        CUTS,
        "one way: Controllers do not hear the master",
        [CONTROLLER],
        cut(hears=True, brokers=False, controllers=True),
    ),
    Fault(
        CUTS,
        "one way: the master does not hear Controllers",
        [CONTROLLER],
        cut(is_heard=True, brokers=False, controllers=True),
    ),
    Fault(CLOCKS, "the master's clock is an hour ahead", MODES, clock_ahead, needs_machines=True),
    Fault(CLOCKS, "the master's clock is an hour behind", MODES, clock_behind, needs_machines=True),
    Fault(CLOCKS, "the brokers' clocks are an hour apart", COPIED, clocks_apart, needs_machines=True),
    Fault(DISKS, "the master's disk is full", MODES, disk_full, needs_machines=True),
    Fault(DISKS, "each fsync of the master takes 0.5 s", MODES, disk_slow, needs_machines=True),
    Fault(DISKS, "the master's disk is lost", VOTING, disk_lost(master=True)),
    Fault(DISKS, "a slave's disk is lost", COPIED, disk_lost(master=False)),
    Fault(MEMBERS, "a broker joins anew while the master is killed", VOTING, joins_while(killed)),
    Fault(MEMBERS, "a broker joins anew while the master is frozen", VOTING, joins_while(frozen)),
)  # fmt: skip
