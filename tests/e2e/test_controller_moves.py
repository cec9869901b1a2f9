"""A set of a master and two slaves moves to Controller mode and back, as docs/operate/controller.md says, under load.

One broker at a time is stopped and started with another conf.
"""

import sys
from pathlib import Path

import trio

from scripts.controller_set import NAME, ControllerSet
from scripts.daemons import Daemon
from skylark import Admin
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import check_acknowledged, check_order, stored, under_load
from tests.e2e.switches import FEW, PAUSE_S, QUICK, SENDERS, TOPIC, until_logs_are_equal
from tests.support.daemons import Cluster, until_route
from tests.support.waiting import until

PATIENT_MS = 60_000
# Of both kinds of set: a message is on two brokers when it is acknowledged, where there are two.
OPTIONS = (
    *QUICK, "--total-replicas", "3", "--enable-auto-in-sync-replicas", "true", "--min-in-sync-replicas", "1"
)  # fmt: skip
# In the store of a broker in Controller mode; meaningless afterwards.
FILES = ("brokerIdentity", "epochFileCheckpoint")


class Mover:
    """Restarts brokers with another conf."""

    def __init__(self, at: ControllerSet) -> None:
        self.at = at
        self._controlled = {broker.name: broker.command for broker in at.brokers}

    def make_plain(self, broker: Daemon, broker_id: int) -> None:
        """Make a broker, from its next start on, a master (id 0) or a slave without Controllers."""
        role = "SYNC_MASTER" if broker_id == 0 else "SLAVE"
        broker.command = [
            *self._controlled[broker.name], "--enable-controller-mode", "false", "--all-ack-in-sync-state-set", "false",
            "--broker-role", role, "--broker-id", str(broker_id),
        ]  # fmt: skip

    def make_controlled(self, broker: Daemon) -> None:
        broker.command = [*self._controlled[broker.name], "--all-ack-in-sync-state-set", "true"]

    async def stop(self, broker: Daemon) -> None:
        broker.terminate()
        await trio.to_thread.run_sync(broker.wait_stopped)

    async def until_followed(self, admin: Admin, master: Daemon) -> None:
        """The other two follow this plain master, and have all of its log."""

        async def so() -> bool:
            try:
                status = await admin.broker_ha_status(master.addr)
            except (RemotingError, BrokerError):
                return False
            return status.in_sync_slave_nums == len(self.at.brokers) - 1

        await until(so, f"all follow {master.name}")


async def test_a_set_moves_to_controllers_and_back(tmp_path: Path) -> None:
    at = ControllerSet(tmp_path, options=OPTIONS, controllers=1)
    mover = Mover(at)
    for number, broker in enumerate(at.brokers):
        mover.make_plain(broker, number)
    try:
        await trio.to_thread.run_sync(at.start)
        async with Admin(at.nameserver) as admin:
            first = at.brokers[0]
            await mover.until_followed(admin, first)
            await admin.create_topic(first.addr, TopicConfig(TOPIC, 4, 4))
            await until_route(Cluster(tmp_path, [at.namesrv], [first]), TOPIC, [NAME])
            async with under_load(at.nameserver, TOPIC, SENDERS, PATIENT_MS, pause_s=PAUSE_S) as load:
                await load.more_from(NAME, FEW)
                # There: the master first, or a slave would be elected beside it.
                for number, broker in enumerate(at.brokers):
                    await mover.stop(broker)
                    mover.make_controlled(broker)
                    await at.start_broker(broker)
                    assert await at.until_in_sync(admin, number + 1) is first
                    await load.more_from(NAME, FEW)
                # It is a set like any other with Controllers.
                first.kill()
                master = await at.until_master(admin, but=first)
                await load.more_from(NAME, FEW)
                await at.start_broker(first)
                await at.until_in_sync(admin)
                # Back: the slaves first, as they have nothing that the master lacks.
                slaves = [broker for broker in at.brokers if broker is not master]
                # Slaves keep their ids: any other id may be the id of the master until the master is restarted.
                for broker in [*slaves, master]:
                    await mover.stop(broker)
                    broker_id = 0 if broker is master else at.id_of(broker)
                    for name in FILES:
                        (at.store_of(broker) / name).unlink()
                    mover.make_plain(broker, broker_id)
                    await at.start_broker(broker)
                    await load.more_from(NAME, FEW)
                await mover.until_followed(admin, master)
                await admin.clean_broker_metadata(at.controller_addrs, NAME)
                await load.more_from(NAME, FEW)
            sys.stdout.write(f"{len(load.acked)} acknowledged, {len(load.failures)} failed\n")
            await until_logs_are_equal(at, admin)
            found = await stored(at.nameserver, TOPIC)
            check_acknowledged(load.acked, found)
            check_order(found)
    finally:
        at.end()
