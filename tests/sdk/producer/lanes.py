"""A lane in virtual time: brokers that answer, refuse or are silent, without sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import trio

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    ConnectFailed,
    ConnectionLost,
    NoNameServer,
    RemotingError,
    RequestTimeout,
    SkylarkError,
)
from skylark.mqcommon.message.batch import decode_batch, encode_offsets
from skylark.mqcommon.message.ids import encode_host, offset_msg_id
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Answered
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.routes import BrokerData, QueueData, TopicRouteData
from skylark.remoting.protocol.requests.sends import NOT_SAFE_HERE, ONLY_IF_SAFE, SEND_BATCH_MESSAGE
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.brokers import Brokers
from skylark.sdk.producer.lane import Lane
from skylark.sdk.producer.pending import MAX_BATCH_BYTES, TOGETHER, PendingSend
from skylark.sdk.producer.result import STATUS_OF, SendResult
from skylark.sdk.producer.routing import SendRoutes, Turns
from skylark.sdk.routes import RouteCache, TopicRoute, make_route

OK = 0
SILENT = -1
REFUSING = -2
LOSING = -3
# A SYNC_MASTER of Skylark without its slave.
UNSAFE = -4


class Cluster:
    """Remoting and client in one: ``acts`` says what the broker at an address does with a request."""

    def __init__(self, nursery: trio.Nursery, *names: str) -> None:
        self.nursery = nursery
        self.routes = RouteCache()
        self.backoff = Backoff(0.05, 0.5, Random(0))
        self.remoting = self
        self.instance = self
        self.acts = {addr_of(name): OK for name in names}
        self.listed = list(names)
        self.has_namesrv = True
        self.answers_at_once = False
        self.refreshed = 0
        # (trio's time, address) of every try, also of those that could not connect.
        self.tries: list[tuple[float, str]] = []
        self.stored: list[tuple[str, bytes]] = []
        #: Addresses whose connection is open and leads to a broker that takes batches with times of delivery.
        self.greeted: set[str] = set()

    def tries_at(self, name: str) -> list[float]:
        return [when for when, addr in self.tries if addr == addr_of(name)]

    def list_again(self) -> TopicRoute:
        """Put what the NameServer lists into the routes."""
        queues = [QueueData(name, 2, 2, 6) for name in self.listed]
        brokers = [BrokerData("c", name, {0: addr_of(name)}) for name in self.listed]
        return self.routes.put(make_route("t", TopicRouteData(queues, brokers)))

    # --- of a ClientHandle and its ClientInstance

    async def refresh(self, topic: str) -> TopicRoute:
        await trio.lowlevel.checkpoint()
        self.refreshed += 1
        if not self.has_namesrv:
            raise NoNameServer("n:1", "refused")
        return self.list_again()

    def is_elsewhere(self, broker_name: str, addr: str) -> None:
        self.routes.forget_address(broker_name, addr)

    # --- of a RemotingClient

    def connected(self, addr: str) -> bool:
        return self.acts[addr] != REFUSING

    def broker_name_at(self, addr: str) -> str:
        return ""

    def greets_with(self, addr: str, field: str) -> bool:
        return addr in self.greeted

    async def channel(self, addr: str, timeout_ms: float) -> None:
        await trio.lowlevel.checkpoint()
        if self.acts[addr] == REFUSING:
            self.tries.append((trio.current_time(), addr))
            raise ConnectFailed(addr, "refused")

    async def invoke(self, addr: str, command: Command, timeout_ms: float) -> Command:
        """Answer a probe; no other request comes here."""
        if self.acts[addr] in (REFUSING, SILENT):
            raise ConnectFailed(addr, "refused")
        return command.respond()

    def prepare(self, addr: str, command: Command) -> None:
        command.codec = CBOR

    def flush(self, addr: str) -> None:
        pass

    def submit(self, addr: str, command: Command, timeout_ms: float, answered: Answered) -> None:
        self.tries.append((trio.current_time(), addr))
        self.nursery.start_soon(self._answer, addr, command, timeout_ms, answered)

    async def _answer(self, addr: str, command: Command, timeout_ms: float, answered: Answered) -> None:
        act = self.acts[addr]
        if act == UNSAFE:
            act = ResponseCode.SLAVE_NOT_AVAILABLE
            if (command.ext or {}).get(ONLY_IF_SAFE):
                await trio.sleep(0.001)
                answered(command.respond(ResponseCode.SYSTEM_ERROR, NOT_SAFE_HERE))
                return
        if act == SILENT:
            await trio.sleep(timeout_ms / 1000)
        else:
            await trio.sleep(0.001)
        answered(self._result(addr, act, command))

    def _result(self, addr: str, act: int, command: Command) -> Command | RemotingError:
        if act == SILENT:
            return RequestTimeout(addr, command.code, 1)
        if act in (LOSING, REFUSING):
            return ConnectionLost(addr)
        if act not in STATUS_OF:
            return command.respond(act, "not now")
        assert command.ext is not None
        is_batch = command.code == SEND_BATCH_MESSAGE.code
        bodies = [body for _, body, _ in decode_batch(command.body)[0]] if is_batch else [command.body]
        first = len(self.stored)
        self.stored += [(addr, body) for body in bodies]
        ext = {"queueId": command.ext["e"], "queueOffset": first, "msgId": offset_msg_id(HOST, first)}
        return command.respond(act, None, ext, encode_offsets(range(first, first + len(bodies))) if is_batch else b"")


HOST = encode_host("127.0.0.1", 10911)


def addr_of(name: str) -> str:
    return f"{name}:1"


class Owner:
    """A producer, as its lanes see it."""

    wire_group = "g"
    sys_flag = 0
    accept_weaker = False
    has_many_senders = False
    max_batch_bytes = MAX_BATCH_BYTES
    traces = None
    undo_copy = None

    def __init__(self, cluster: Cluster, retries: int) -> None:
        self.retries = retries
        self.retried = 0
        self.remoting: Any = cluster
        self.backoff = cluster.backoff
        self.lanes: list[Lane] = []
        client = cast(ClientHandle, cluster)
        self.brokers = Brokers(client, SendRoutes(client), lambda: [lane.wake() for lane in self.lanes])
        self._cluster = cluster

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def new_keys(self, count: int) -> list[bytes]:
        return [b"UNIQ_KEY\x01%032d\x02" % number for number in range(count)]

    def route_of(self, topic: str) -> TopicRoute | None:
        return self._cluster.routes.get(topic)


class Sender:
    """Sends into one lane, each from a task of its own."""

    def __init__(self, cluster: Cluster, lane: Lane, owner: Owner) -> None:
        self.cluster = cluster
        self.owner = owner
        self.lane = lane
        self.added: list[bytes] = []
        self.results: dict[bytes, SendResult] = {}
        self.errors: dict[bytes, SkylarkError] = {}
        self.ended_at: dict[bytes, float] = {}

    async def send(self, body: bytes, timeout_s: float = 3, alone: int = TOGETHER) -> None:
        send = PendingSend(Message("t", body), None, timeout_s, trio.lowlevel.current_task())
        send.alone = alone
        self.lane.add(send)
        self.added.append(body)
        try:
            self.results[body] = await trio.lowlevel.wait_task_rescheduled(send.abort)
        except SkylarkError as error:
            self.errors[body] = error
        self.ended_at[body] = trio.current_time()


@asynccontextmanager
async def a_lane(*names: str, queue: MessageQueue | None = None, retries: int = 2) -> AsyncIterator[Sender]:
    """A lane of topic t, or of ``queue``, to brokers of these names; use it with an autojump clock."""
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, *names)
        cluster.list_again()
        owner = Owner(cluster, retries)
        lane = Lane(owner, nursery, "t", queue, True, Turns(Random(0)), "t")
        owner.lanes.append(lane)
        nursery.start_soon(lane.run)
        yield Sender(cluster, lane, owner)
        nursery.cancel_scope.cancel()
