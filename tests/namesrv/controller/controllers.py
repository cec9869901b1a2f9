"""Controllers on loopback with disks in memory, and brokers that only speak with them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.namesrv.controller.controller import Controller, Holder
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_REGISTER_BROKER,
    NOTIFY_BROKER_ROLE_CHANGED,
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    GetNextBrokerIdRequestHeader,
    GetReplicaInfoRequestHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    SyncStateSet,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

T = TypeVar("T")

CLUSTER, NAME = "DefaultCluster", "broker-a"
TIMEOUT_MS = 10_000
# Longer than any test: a broker with it is never silent.
LONG_MS = 600_000


class StandIn:
    """A broker that registers, sends heartbeats when told to, and writes down its notices."""

    def __init__(self, client: RemotingClient, addr: str) -> None:
        self.client = client
        self.addr = addr
        self.broker_id = 0
        self.notices: list[tuple[MasterHeader, SyncStateSet]] = []

    def at(self, controller: str) -> Remote:
        return Remote(self.client, controller, TIMEOUT_MS)

    def notified(self, channel: Channel, request: Command) -> None:
        self.notices.append((NOTIFY_BROKER_ROLE_CHANGED.header(request), NOTIFY_BROKER_ROLE_CHANGED.body(request)))

    async def join(self, controller: str, *, timeout_ms: int = LONG_MS, **said: Any) -> None:
        """Get an id, register and be heard of."""
        at = self.at(controller)
        if not self.broker_id:
            header = GetNextBrokerIdRequestHeader(CLUSTER, NAME)
            self.broker_id = (await call(at, CONTROLLER_GET_NEXT_BROKER_ID, header)).header().next_broker_id
        claim = ApplyBrokerIdRequestHeader(CLUSTER, NAME, self.broker_id, f"{self.addr};1")
        await call(at, CONTROLLER_APPLY_BROKER_ID, claim)
        await self.register(controller)
        await self.beat(controller, timeout_ms=timeout_ms, **said)

    async def register(self, controller: str) -> int | None:
        """The id of the master."""
        who = RegisterBrokerToControllerRequestHeader(CLUSTER, NAME, self.broker_id, self.addr)
        return (await call(self.at(controller), CONTROLLER_REGISTER_BROKER, who)).header().master_broker_id

    async def beat(self, controller: str, *, timeout_ms: int = LONG_MS, **said: Any) -> None:
        header = BrokerHeartbeatRequestHeader(
            CLUSTER, self.addr, NAME, self.broker_id, heartbeat_timeout_mills=timeout_ms, **said
        )
        await call(self.at(controller), BROKER_HEARTBEAT, header)

    async def elect(self, controller: str, broker_id: int, *, designate: bool = False) -> MasterHeader:
        header = ElectMasterRequestHeader(NAME, CLUSTER, broker_id, designate)
        return (await call(self.at(controller), CONTROLLER_ELECT_MASTER, header)).header()

    async def alter(self, controller: str, new_set: list[int], epoch: int, master_epoch: int = 1) -> int:
        header = AlterSyncStateSetRequestHeader(NAME, self.broker_id, master_epoch)
        at = self.at(controller)
        answer = await call(at, CONTROLLER_ALTER_SYNC_STATE_SET, header, SyncStateSet(new_set, epoch))
        return answer.header().new_sync_state_set_epoch

    async def master(self, controller: str) -> int | None:
        answer = await call(self.at(controller), CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader(NAME))
        return answer.header().master_broker_id


class Controllers:
    """A group; ``start`` and ``stop`` by id."""

    def __init__(self, nursery: trio.Nursery, ports: dict[str, HeldPort], options: dict[str, Any]) -> None:
        self._nursery = nursery
        self.addrs = {name: f"127.0.0.1:{port.port}" for name, port in ports.items()}
        self._options = options
        self.disks = {name: MemoryFiles() for name in ports}
        self.running: dict[str, Controller] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            options = ControllerDaemonOptions(
                controller_d_leger_peers=";".join(f"{each}-{addr}" for each, addr in self.addrs.items()),
                controller_d_leger_self_id=name,
                controller_store_path="/controller",
                **self._options,
            )
            self.running[name] = controller = Controller(Holder(options, self.disks[name]), SystemClock())
            self._scopes[name], self._ended[name] = trio.CancelScope(), trio.Event()
            await self._nursery.start(self._run, name, controller)

    async def _run(self, name: str, controller: Controller, *, task_status: trio.TaskStatus[str]) -> None:
        with self._scopes[name]:
            await controller.run(DaemonTls(), task_status=task_status)
        self._ended[name].set()

    async def stop(self, name: str) -> None:
        del self.running[name]
        self._scopes[name].cancel()
        await self._ended[name].wait()

    def leads(self, name: str) -> bool:
        view = self.running[name].view
        return view is not None and view.group.is_leader

    async def leader(self) -> str:
        """The id of the Controller that leads."""
        await until(lambda: any(map(self.leads, self.running)), "a leader")
        return next(filter(self.leads, self.running))

    async def asked(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """The answer of the leader, whoever that is by then."""
        while True:
            try:
                return await ask(await self.leader_addr())
            except BrokerError as error:
                if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    raise
            except RemotingError:
                pass
            await trio.sleep(0.01)  # until another leads

    async def leader_addr(self) -> str:
        return self.addrs[await self.leader()]


@asynccontextmanager
async def open_controllers(*names: str, **options: Any) -> AsyncIterator[Controllers]:
    ports = {name: HeldPort("127.0.0.1") for name in names}
    async with trio.open_nursery() as nursery:
        controllers = Controllers(nursery, ports, {"controller_election_timeout": 300, **options})
        await controllers.start(*names)
        yield controllers
        nursery.cancel_scope.cancel()
    for port in ports.values():
        port.release()


@asynccontextmanager
async def open_stand_in() -> AsyncIterator[StandIn]:
    """Ends as a killed broker: its connections close, and its port refuses others."""
    async with trio.open_nursery() as nursery, open_client() as client:
        stand_in = StandIn(client, "")
        server = Server({NOTIFY_BROKER_ROLE_CHANGED.code: stand_in.notified})
        stand_in.addr = await nursery.start(server.serve, "127.0.0.1", 0)
        yield stand_in
        nursery.cancel_scope.cancel()


async def code_of(asking: Any) -> int:
    """The code of the refusal; SUCCESS when there is none."""
    try:
        await asking
    except BrokerError as error:
        return error.code
    except RemotingError:
        return -1
    return ResponseCode.SUCCESS
