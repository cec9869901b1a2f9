"""Brokers and a real Controller on loopback: ids, elections, leases, roles. The logs are numbers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from skylark.broker.identity import Identity
from skylark.broker.options import UNKNOWN_ID, BrokerOptions
from skylark.broker.replication.autoswitch.enrolment import Enrolment
from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.broker.replication.autoswitch.member import MemberLog, Membership, MemberState
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.role import Role, RoleKind, RoleMachine
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.clock import SystemClock
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from tests.broker.replication.autoswitch.test_log_epochs import Log
from tests.namesrv.controller.controllers import CLUSTER, NAME, Controllers, open_controllers
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


@dataclass
class Member:
    """A broker without a store. Promotions end as soon as they are prepared."""

    part: Membership
    role: RoleMachine
    elected: Elected
    known: KnownMaster
    epochs: LogEpochs
    log: Log
    identity: Identity
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def addr(self) -> str:
        return self.identity.addr

    @property
    def leads(self) -> bool:
        return self.role.now.is_master

    @property
    def follows(self) -> str:
        """The address of the master, when this broker follows one."""
        return self.known.address.addr if self.role.now.follows and self.known.address else ""

    def kill(self) -> None:
        """Kill a broker: its connections close, and its port refuses new ones."""
        self.scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:

                async def take_over() -> None:
                    if await self.part.prepare_to_lead():
                        self.role.took_over()
                    else:
                        self.role.stepped_back()

                def role_changed(before: Role, now: Role) -> None:
                    if now.kind is RoleKind.TAKING_OVER:
                        nursery.start_soon(take_over)

                self.role.observe(role_changed)
                self.identity.addr = await nursery.start(Server(self.part.handlers()).serve, "127.0.0.1", 0)
                await nursery.start(self.part.run)
                task_status.started()


class Cluster:
    """Controllers and members; see `cluster`."""

    def __init__(self, nursery: trio.Nursery, controllers: Controllers) -> None:
        self._nursery = nursery
        self.controllers = controllers

    async def start(self, files: MemoryFiles | None = None, log: Log | None = None, **options: Any) -> Member:
        """A broker that runs until it is killed. ``files`` and ``log``: what an earlier run of it has left."""
        files, log = files or MemoryFiles(), log or Log()
        files.mkdirs("/store")
        settings = BrokerOptions(
            broker_cluster_name=CLUSTER, broker_name=NAME, enable_controller_mode=True, broker_heartbeat_interval=100,
            **{
                "controller_addr": ";".join(self.controllers.addrs.values()),
                "controller_heart_beat_timeout_mills": 60_000,
                **options,
            },
        )  # fmt: skip
        role, elected, known = RoleMachine(UNKNOWN_ID), Elected(trio.current_time), KnownMaster()
        identity = Identity(CLUSTER, NAME, UNKNOWN_ID, "", "")
        as_log: Any = log
        epochs = LogEpochs(files, "/store/epochFileCheckpoint", as_log)
        epochs.load()
        part = Membership(
            settings, identity, Enrolment(files, "/store/brokerIdentity", identity, SystemClock()),
            MemberState(role, elected, known),
            MemberLog(epochs, AckLedger(1 << 20), lambda: log.end, lambda epoch: None), open_client,
        )  # fmt: skip
        found = Member(part, role, elected, known, epochs, log, identity)
        await self._nursery.start(found.run)
        return found


@asynccontextmanager
async def cluster(*names: str, **options: Any) -> AsyncIterator[Cluster]:
    # No broker is taken for dead because it is slow.
    async with (
        open_controllers(*names, **{"broker_heartbeat_timeout": 60_000, **options}) as controllers,
        trio.open_nursery() as nursery,
    ):
        yield Cluster(nursery, controllers)
        nursery.cancel_scope.cancel()


async def in_sync(master: Member, *slaves: int) -> None:
    """The slaves have the whole log."""
    for slave in slaves:
        master.part.leading.acked(slave, master.log.end, False)
    await until(lambda: master.elected.set_size == 1 + len(slaves), "the slaves are in the SyncStateSet")


async def pair(brokers: Cluster, first: MemoryFiles) -> tuple[Member, Member]:
    """A master and a slave, both in the SyncStateSet."""
    one = await brokers.start(first)
    await until(lambda: one.leads, "the first leads")
    two = await brokers.start(log=Log(end=500))
    await until(lambda: two.follows == one.addr, "the second follows")
    await in_sync(one, 2)
    return one, two


async def test_the_first_broker_leads_and_the_second_follows() -> None:
    async with cluster("n0") as brokers:
        one, two = await pair(brokers, MemoryFiles())
        await until(lambda: one.elected.is_leased, "it may accept messages")
        assert one.epochs.last == 1
        assert (one.role.now.broker_id, two.role.now.broker_id) == (0, 2)
        assert one.elected.set_size == 2


async def test_a_leader_that_controller_addr_does_not_list_gives_a_lease_too() -> None:
    async with cluster("n0", "n1", "n2") as brokers:
        leader = await brokers.controllers.leader()
        other = next(addr for name, addr in brokers.controllers.addrs.items() if name != leader)
        one = await brokers.start(controller_addr=other)
        await until(lambda: one.leads and one.elected.is_leased, "it leads and may accept messages")


async def test_a_slave_takes_over_when_the_master_is_killed_which_then_follows_it() -> None:
    files = MemoryFiles()
    async with cluster("n0") as brokers:
        one, two = await pair(brokers, files)
        one.kill()
        await until(lambda: two.leads, "the second leads")
        assert [tuple(entry) for entry in two.epochs.now] == [(0, 0), (2, 500)]
        assert two.elected.confirm_offset == 500
        one = await brokers.start(files, Log(end=600))
        await until(lambda: one.follows == two.addr, "the first follows")
        assert one.role.now.broker_id == 1, "it kept its id"


async def test_a_master_without_controllers_stops_to_lead_and_leads_again_in_its_epoch() -> None:
    async with cluster("n0", broker_heartbeat_timeout=500) as brokers:
        one = await brokers.start(controller_heart_beat_timeout_mills=500)
        # Elected comes before leased: a master that never had a lease has no lease that could end.
        await until(lambda: one.leads and one.elected.is_leased, "it leads and may accept messages")
        await brokers.controllers.stop("n0")
        await until(lambda: not one.leads, "its lease ended")
        assert not one.elected.is_leased
        await brokers.controllers.start("n0")
        await until(lambda: one.leads, "it leads again")
        await until(lambda: one.elected.is_leased, "it may accept messages")
        assert one.epochs.last == 1


async def test_a_master_that_was_restarted_leads_in_a_new_epoch() -> None:
    files = MemoryFiles()
    async with cluster("n0") as brokers:
        one = await brokers.start(files)
        await until(lambda: one.leads, "it leads")
        one.kill()
        one = await brokers.start(files, Log(end=10))
        await until(lambda: one.leads, "it leads again")
        assert one.epochs.last == 2


async def test_the_leader_of_the_controllers_may_change() -> None:
    async with cluster("n0", "n1", "n2") as brokers:
        one, two = await pair(brokers, MemoryFiles())
        await brokers.controllers.stop(await brokers.controllers.leader())
        three = await brokers.start()
        await until(lambda: three.follows == one.addr, "the third follows")
        await in_sync(one, 2, 3)
        await until(lambda: one.elected.is_leased, "it may accept messages")
        assert one.leads and two.follows == one.addr


async def test_a_learner_is_never_elected() -> None:
    # A Controller that has just begun to lead makes no unclean choice for that long.
    async with cluster("n0", enable_elect_unclean_master=True, broker_heartbeat_timeout=1_000) as brokers:
        one = await brokers.start(controller_heart_beat_timeout_mills=1_000)
        await until(lambda: one.leads, "it leads")
        learner = await brokers.start(async_learner=True, controller_heart_beat_timeout_mills=1_000)
        await until(lambda: learner.follows == one.addr, "the learner follows")
        one.kill()
        three = await brokers.start(controller_heart_beat_timeout_mills=1_000)
        await until(lambda: three.leads, "another one leads")
        await until(lambda: learner.follows == three.addr, "the learner follows it")


async def test_a_member_whose_disk_fails_is_not_elected() -> None:
    quick = {"controller_heart_beat_timeout_mills": 1_000}
    async with cluster("n0", broker_heartbeat_timeout=1_000) as brokers:
        one = await brokers.start(**quick)
        await until(lambda: one.leads, "the first leads")
        two = await brokers.start(log=Log(end=500), **quick)
        await in_sync(one, 2)
        three = await brokers.start(log=Log(end=500), **quick)
        await in_sync(one, 2, 3)
        beats = 0

        def has_sound_disk() -> bool:
            nonlocal beats
            beats += 1
            return False

        two.elected.has_sound_disk = has_sound_disk
        await until(lambda: beats > 1, "the Controller has heard of it")
        one.kill()
        await until(lambda: three.leads, "the one whose disk is sound leads")
        await until(lambda: two.follows == three.addr, "the other one follows it")


async def test_a_controller_that_answers_as_the_leader_is_the_leader() -> None:
    # Nothing but heartbeats is sent: what makes brokers look for the leader, and the ends of leases, are hours away.
    hour = 3_600_000
    quiet = {"sync_broker_metadata_period": hour, "controller_heart_beat_timeout_mills": hour}
    async with cluster("n0", "n1", "n2", broker_heartbeat_timeout=hour) as made:
        await made.controllers.leader_addr()
        member = await made.start(**quiet)
        await until(lambda: member.leads, "the only broker leads")
        assert member.part._requests is not None
        known = member.part._requests.controllers
        before = known.leader
        leader = await made.controllers.leader()
        await made.controllers.stop(leader)
        await until(lambda: known.leader not in ("", before), "a heartbeat finds the new leader")
        assert known.leader in made.controllers.addrs.values()
