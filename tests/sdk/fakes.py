"""Servers for tests of the SDK: real sockets on 127.0.0.1:0, tables in memory, every request noted."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import BROKER_NAME_FIELD, OFFER_FIELD, Command
from skylark.remoting.protocol.dialect import dialect_for, encode_body
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData

MAX_CODE = 2_000
Answer = Callable[[Command], Command | Body | dict[str, Any] | None]


class Fake:
    """One server: `on` says what it answers, `requests` what it was asked."""

    def __init__(self) -> None:
        self.addr = ""
        self.requests: list[Command] = []
        self.channels: list[Channel] = []
        # Whether it is a RocketMQ, which does not know what the offer of CBOR means.
        self.json_only = False
        # What it calls itself when it accepts CBOR; "" when it does not say.
        self.announces = ""
        # Codes above MAX_CODE that are noted, too.
        self.own_codes: tuple[int, ...] = ()
        self._answers: dict[int, Answer] = {}
        self._seen = trio.Event()
        self.server: Server | None = None
        self.stop: Callable[[], object] = lambda: None

    def on(self, code: int, answer: Answer) -> None:
        """Answer ``code`` with what ``answer`` returns: a command, a body, ext fields, or None for silence."""
        self._answers[code] = answer

    def asked(self, code: int) -> list[Command]:
        """The requests of ``code`` so far."""
        return [request for request in self.requests if request.code == code]

    async def wait_asked(self, code: int, count: int = 1) -> list[Command]:
        """Wait until ``code`` was asked ``count`` times."""
        while len(found := self.asked(code)) < count:
            await self._seen.wait()
        return found

    def close_connections(self) -> None:
        """Drop every client, as a restart does."""
        assert self.server is not None
        for channel in list(self.server.channels):
            channel.close("test")

    def _handle(self, channel: Channel, request: Command) -> Command | None:
        self.requests.append(request)
        if self.json_only:
            channel.attachments.clear()
        if channel not in self.channels:
            self.channels.append(channel)
        self._seen.set()
        self._seen = trio.Event()
        accepts_cbor = channel.attachments.get(OFFER_FIELD) == request.opaque
        response = self._answer(request)
        if response is not None and accepts_cbor and self.announces:
            response.ext = {**(response.ext or {}), BROKER_NAME_FIELD: self.announces}
        return response

    def _answer(self, request: Command) -> Command | None:
        answer = self._answers.get(request.code)
        if answer is None:
            raise RequestRefused(3, f" request type {request.code} not supported")
        result = answer(request)
        if isinstance(result, Body):
            return request.respond(body=encode_body(result, dialect_for(request)))
        if isinstance(result, dict):
            return request.respond(ext=result)
        return result


@asynccontextmanager
async def serving(fake: Fake) -> AsyncIterator[Fake]:
    """``fake`` listens while the block runs; `Fake.stop` ends it earlier, as a kill does."""
    # The port stays taken when the fake has stopped: a server of another test would answer there.
    held = None if fake.addr else HeldPort("127.0.0.1")
    async with trio.open_nursery() as nursery:
        fake.server = Server(dict.fromkeys([*range(MAX_CODE), *fake.own_codes], fake._handle))
        port = int(fake.addr.rpartition(":")[2]) if held is None else held.port
        # A scope of its own: the block goes on when the server stops.
        scope = trio.CancelScope()
        fake.addr = await nursery.start(_serve, fake.server, port, scope)
        fake.stop = scope.cancel
        yield fake
        nursery.cancel_scope.cancel()
    if held is not None:
        held.release()


async def _serve(server: Server, port: int, scope: trio.CancelScope, *, task_status: trio.TaskStatus[str]) -> None:
    with scope:
        await server.serve("127.0.0.1", port, task_status=task_status)


class FakeNamesrv(Fake):
    """Knows routes."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRouteData] = {}
        self.on(105, self._route)
        self.on(106, self._clusters)

    def add(self, topic: str, *brokers: "FakeBroker", queues: int = 2, perm: int = 6) -> None:
        """``topic`` has ``queues`` queues on each broker."""
        route = self.routes.setdefault(topic, TopicRouteData())
        for broker in brokers:
            route.queue_datas.append(QueueData(broker.name, queues, queues, perm))
            route.broker_datas.append(BrokerData("c1", broker.name, {0: broker.addr}))

    def _route(self, request: Command) -> Command | Body:
        topic = (request.ext or {})["topic"]
        route = self.routes.get(topic)
        return route or request.respond(17, f"No topic route info in name server for the topic: {topic}")

    def _clusters(self, request: Command) -> Body:
        datas = {data.broker_name: data for route in self.routes.values() for data in route.broker_datas}
        return ClusterInfo(datas, {"c1": sorted(datas)})


class FakeBroker(Fake):
    """Queues in memory; pulls as RocketMQ answers them."""

    def __init__(self, name: str = "broker-a") -> None:
        super().__init__()
        self.name = name
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.suggest = 0
        self.on(11, self._pull)
        self.on(14, self._query_offset)
        self.on(15, self._update_offset)
        self.on(29, lambda request: {"offset": int((request.ext or {})["timestamp"]) // 1000})
        self.on(30, lambda request: {"offset": len(self._queue(request))})
        self.on(31, lambda request: {"offset": self.min_offsets.get(self._key(request), 0)})
        self.on(34, lambda request: {})
        self.on(35, lambda request: {})

    def put(self, topic: str, queue_id: int, *bodies: bytes, **properties: str) -> None:
        """Store messages."""
        queue = self.queues.setdefault((topic, queue_id), [])
        for body in bodies:
            queue.append(record(topic, queue_id, len(queue), body, **properties))

    def _key(self, request: Command) -> tuple[str, int]:
        ext = request.ext or {}
        return ext["topic"], int(ext["queueId"])

    def _queue(self, request: Command) -> list[bytes]:
        return self.queues.get(self._key(request), [])

    def _pull(self, request: Command) -> Command | None:
        ext = request.ext or {}
        queue, asked = self._queue(request), int(ext["queueOffset"])
        low, high = self.min_offsets.get(self._key(request), 0), len(queue)
        bounds = {"minOffset": low, "maxOffset": high, "suggestWhichBrokerId": self.suggest}
        if asked < low or asked > high:
            return request.respond(21, ext={**bounds, "nextBeginOffset": low if asked < low else high})
        if asked == high:
            if int(ext["sysFlag"]) & 2:
                return None
            return request.respond(19, ext={**bounds, "nextBeginOffset": asked})
        records = queue[asked : asked + int(ext["maxMsgNums"])]
        return request.respond(0, ext={**bounds, "nextBeginOffset": asked + len(records)}, body=b"".join(records))

    def _query_offset(self, request: Command) -> Command:
        ext = request.ext or {}
        offset = self.committed.get((ext["consumerGroup"], *self._key(request)))
        return request.respond(22, "Not found") if offset is None else request.respond(ext={"offset": offset})

    def _update_offset(self, request: Command) -> dict[str, Any]:
        ext = request.ext or {}
        self.committed[ext["consumerGroup"], *self._key(request)] = int(ext["commitOffset"])
        return {}


def record(topic: str, queue_id: int, offset: int, body: bytes, sys_flag: int = 0, **properties: str) -> bytes:
    """A stored message."""
    magic, topic_part = topic_field(topic)
    host = encode_host("127.0.0.1", 10911)
    return encode_record(
        magic, topic_part, queue_id, offset, 1000 * offset, body, encode_properties(properties).encode(),
        0, sys_flag, 1_700_000_000_000, host, 1_700_000_000_000 + offset, host, 0, 0,
    )  # fmt: skip


def queue(queue_id: int = 0, topic: str = "t", broker_name: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for happens behind sockets
        await trio.sleep(0.002)
