"""The clients of the proxy as brokers know them, so that tools list them, and reach them through the proxy.

`Registrations` tells brokers the connected clients (7140): new settings at once, and all clients every HEARTBEAT_S.
Brokers other than Skylark's do not know this request: they know only the producer groups of transactions, as with
RocketMQ's proxy. `Questions` passes on requests of tools to a client, and waits for its answer on the stream of
Telemetry.
"""

import logging
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self
from uuid import uuid4

import trio

from skylark.mqcommon.errors import BrokerError, FrameTooLarge, ProtocolError, RequestRefused, SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqproxy.clients import CONSUMERS, Clients, ProxyClient
from skylark.mqproxy.receiving import filter_of
from skylark.mqproxy.stored import stored_message
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import VERSION
from skylark.remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
    parse_subscription,
)
from skylark.remoting.protocol.requests.proxied import PROXY_HEART_BEAT, ProxiedClient, ProxyHeartbeatData
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
# New settings that come within this time are sent in one request.
TOGETHER_S = 0.1
# Clients in one request; a broker takes 512 KB.
AT_ONCE = 100
# How many clients are encoded, at some 10 µs each, before other calls have their turn.
TURN = 200
# How long a client may take to answer a tool. The broker that asks gives up earlier.
ANSWER_S = 60.0
MAX_QUESTIONS = 1_000
# Topics without a known route that NameServers are asked for in one round: clients may make them up.
MAX_UNKNOWN = 200
# A broker that does not know the request gets it again after this time: another broker may have its address by then.
UNKNOWN_FOR_S = 600.0

_LANGUAGES = {
    wire.JAVA: "JAVA", wire.CPP: "CPP", wire.DOT_NET: "DOTNET", wire.GOLANG: "GO", wire.RUST: "RUST",
    wire.PYTHON: "PYTHON", wire.PHP: "PHP", wire.NODE_JS: "NODE_JS", wire.RUBY: "RUBY",
}  # fmt: skip


# --- clients as brokers list them (pure)


def topics_of(settings: wire.Settings) -> list[str]:
    """The topics that a client sends to or receives from."""
    if settings.HasField("publishing"):
        return [topic.name for topic in settings.publishing.topics]
    return [entry.topic.name for entry in settings.subscription.subscriptions]


def subscriptions_of(settings: wire.Settings) -> list[SubscriptionData]:
    """The subscriptions of a consumer. Refused when an expression is invalid."""
    found: list[SubscriptionData] = []
    for entry in settings.subscription.subscriptions:
        expression, kind, _ = filter_of(entry.expression)
        found.append(parse_subscription(entry.topic.name, expression, kind))
    return found


def proxied_of(client_id: str, client: ProxyClient) -> ProxiedClient:
    """A client as brokers list it."""
    settings = client.settings
    made = ProxiedClient(client_id, client.address, _LANGUAGES.get(settings.user_agent.language, "OTHER"), VERSION)
    if settings.client_type in CONSUMERS:
        # RocketMQ's proxy begins at the end, as pops do.
        made.consumer_data_set = [
            ConsumerData(
                settings.subscription.group.name,
                consume_type_of(settings),
                "CLUSTERING",
                "CONSUME_FROM_LAST_OFFSET",
                subscriptions_of(settings),
            )
        ]
    else:
        made.producer_groups = topics_of(settings)
    return made


def consume_type_of(settings: wire.Settings) -> str:
    """RocketMQ's name for the kind of consumption: a SimpleConsumer pulls; to other consumers messages are pushed."""
    return "CONSUME_PASSIVELY" if settings.client_type == wire.PUSH_CONSUMER else "CONSUME_ACTIVELY"


# --- telling them


class RegistrationRequests:
    """Sends registrations. Brokers' requests to the clients go to ``questions``."""

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        questions: "Questions",
    ) -> None:
        self._client = ClientHandle(nameserver)
        self._questions = questions
        # Address → the clients that the broker has been sent.
        self._told: dict[str, set[str]] = {}
        # Address → when a broker that does not know the request is tried again.
        self._unknown: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._client.instance.membership.proxied = self._questions
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.instance.membership.proxied = None
        await self._client.__aexit__(kind, error, trace)

    async def tell(self, clients: Sequence[tuple[ProxiedClient, Collection[str]]], *, are_all: bool) -> None:
        """Send clients to the masters of their topics; with ``are_all`` all other clients have left."""
        by_addr: dict[str, list[ProxiedClient]] = {}
        masters: dict[str, list[str]] = {}
        unknown = 0
        for client, topics in clients:
            # A client of several topics may have several sets of brokers; each broker must be sent the client once.
            addrs: dict[str, None] = {}
            for topic in topics:
                if topic not in masters:
                    is_unknown = self._client.instance.routes.get(topic) is None
                    unknown += is_unknown
                    masters[topic] = [] if is_unknown and unknown > MAX_UNKNOWN else await self._masters(topic)
                addrs.update(dict.fromkeys(masters[topic]))
            for addr in addrs:
                by_addr.setdefault(addr, []).append(client)
        async with trio.open_nursery() as nursery:
            # A broker whose last client has left gets a request, too: it must forget the clients of this proxy.
            for addr in [*by_addr, *(addr for addr in self._told if are_all and addr not in by_addr)]:
                here = by_addr.get(addr, [])
                ids = {client.client_id for client in here}
                left = self._told.get(addr, set()) - ids if are_all else set()
                nursery.start_soon(self._tell, addr, here, sorted(left))

    async def leave(self, client_id: str) -> None:
        """Tell brokers that a client has left."""
        async with trio.open_nursery() as nursery:
            for addr, ids in self._told.items():
                if client_id in ids:
                    nursery.start_soon(self._tell, addr, [], [client_id])

    async def _masters(self, topic: str) -> list[str]:
        try:
            route = await self._client.instance.route(topic)
        except SkylarkError as error:
            logger.info("brokers of topic %s are not told about its clients: %s", topic, error)
            return []
        return [addrs[0] for addrs in route.brokers.values() if 0 in addrs]

    async def _tell(self, addr: str, clients: Sequence[ProxiedClient], left: Sequence[str]) -> None:
        if self._unknown.get(addr, 0) > trio.current_time():
            return
        try:
            for start in range(0, max(len(clients), len(left)), AT_ONCE):
                part, gone = clients[start : start + AT_ONCE], left[start : start + AT_ONCE]
                try:
                    await self._tell_part(addr, part, gone)
                except (BrokerError, FrameTooLarge) as error:
                    # Such a refusal has nothing to do with the clients that the request names.
                    is_about_broker = isinstance(error, BrokerError) and (
                        error.is_unknown_request or error.code == ResponseCode.SYSTEM_BUSY
                    )
                    if is_about_broker or len(part) + bool(gone) < 2:
                        raise
                    # A client without the rights that it needs, or with too many subscriptions, must not hide other
                    # clients.
                    if gone:
                        await self._tell_part(addr, (), gone)
                    for client in part:
                        await self._tell(addr, [client], ())
        except SkylarkError as error:
            if isinstance(error, BrokerError) and error.is_unknown_request:
                self._unknown[addr] = trio.current_time() + UNKNOWN_FOR_S
            logger.info("broker %s is not told about clients of this proxy: %s", addr, error)

    async def _tell_part(self, addr: str, clients: Sequence[ProxiedClient], left: Sequence[str]) -> None:
        await call(self._client.at(addr), PROXY_HEART_BEAT, None, ProxyHeartbeatData(list(clients), list(left)))
        told = self._told.setdefault(addr, set())
        told.update(client.client_id for client in clients)
        told.difference_update(left)


class Registrations:
    """Decides when clients are sent to brokers."""

    def __init__(self, requests: RegistrationRequests, clients: Clients) -> None:
        self._requests = requests
        self._clients = clients
        self._changed: dict[str, None] = {}
        self._due = trio.Event()

    def changed(self, client_id: str) -> None:
        """Record that a client has come, left, or has other settings."""
        self._changed[client_id] = None
        self._due.set()

    async def run(self) -> None:
        """Send clients to brokers, again and again."""
        next_s = trio.current_time() + HEARTBEAT_S
        while True:
            # Many clients come at once when another proxy stops: their settings are sent in one request.
            with trio.move_on_at(next_s) as heartbeat:
                await self._due.wait()
                await trio.sleep(TOGETHER_S)
            self._due = trio.Event()
            changed, self._changed = self._changed, {}
            with survived("telling brokers about clients"):
                if heartbeat.cancelled_caught:
                    next_s = trio.current_time() + HEARTBEAT_S
                    await self._tell(dict(self._clients), are_all=True)
                else:
                    await self._tell_changed(changed)

    async def _tell_changed(self, changed: Collection[str]) -> None:
        there = {client_id: client for client_id in changed if (client := self._clients.get(client_id)) is not None}
        if there:
            await self._tell(there, are_all=False)
        for client_id in changed:
            if client_id not in there:
                await self._requests.leave(client_id)

    async def _tell(self, clients: dict[str, ProxyClient], *, are_all: bool) -> None:
        listed: list[tuple[ProxiedClient, Collection[str]]] = []
        for number, (name, client) in enumerate(clients.items(), 1):
            listed.append((proxied_of(name, client), topics_of(client.settings)))
            if number % TURN == 0:
                await trio.lowlevel.checkpoint()
        await self._requests.tell(listed, are_all=are_all)


# --- requests of tools


class _Question:
    """A request to a client whose answer is awaited."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.answer: wire.TelemetryCommand | None = None
        self.is_answered = trio.Event()


class Questions:
    """Requests of brokers to clients, for tools, and the answers that clients owe.

    `skylark.sdk.membership.ProxiedConsumers` names the requests.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        # By their nonces.
        self._open: dict[str, _Question] = {}

    def answered(self, client_id: str, nonce: str, command: wire.TelemetryCommand) -> None:
        """Pass on a client's answer; an answer for which nobody waits is dropped."""
        # The client id is compared: another client of the same user must not answer for this client.
        question = self._open.get(nonce)
        if question is not None and question.client_id == client_id and question.answer is None:
            question.answer = command
            question.is_answered.set()

    async def running_info(self, group: str, client_id: str, *, jstack: bool) -> ConsumerRunningInfo:
        """307: what the proxy knows of a consumer, and the stacks of its threads, which the client sends."""
        settings = self._member(group, client_id).settings
        info = ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": consume_type_of(settings),
                "PROP_CONSUMEORDERLY": str(settings.subscription.fifo).lower(),
                "PROP_CLIENT_VERSION": settings.user_agent.version,
            },
            subscription_set=subscriptions_of(settings),
        )
        if jstack:
            nonce, command = uuid4().hex, wire.TelemetryCommand()
            command.print_thread_stack_trace_command.nonce = nonce
            answer = await self._ask(client_id, nonce, command)
            if answer.status.code != wire.OK:
                text = f"the client does not print its threads: {_reason(answer.status)}"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
            info.jstack = answer.thread_stack_trace.thread_stack_trace
        return info

    async def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """309: give a message to the handler of a consumer, and return its result."""
        self._member(group, client_id)
        nonce, command = uuid4().hex, wire.TelemetryCommand()
        verify = command.verify_message_command
        verify.nonce = nonce
        try:
            verify.message.CopyFrom(stored_message(message, wire.Resource(name=message.topic)))
        except ProtocolError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        begun_s = trio.current_time()
        status = (await self._ask(client_id, nonce, command)).status
        result = ConsumeMessageDirectlyResult(remark="from gRPC client")
        result.spent_time_mills = round((trio.current_time() - begun_s) * 1000)
        match status.code:
            case wire.OK:
                result.consume_result = "CR_SUCCESS"
            case wire.FAILED_TO_CONSUME_MESSAGE:
                result.consume_result = "CR_LATER"
            case wire.MESSAGE_CORRUPTED:
                result.consume_result = "CR_RETURN_NULL"
            case wire.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
                raise RequestRefused(ResponseCode.NO_PERMISSION, "forbidden to verify message")
            case _:
                result.consume_result, result.remark = "CR_THROW_EXCEPTION", _reason(status)
        return result

    def _member(self, group: str, client_id: str) -> ProxyClient:
        client = self._clients.get(client_id)
        if client is None or client.settings.subscription.group.name != group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        return client

    async def _ask(self, client_id: str, nonce: str, command: wire.TelemetryCommand) -> wire.TelemetryCommand:
        if len(self._open) >= MAX_QUESTIONS:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"the proxy waits for {MAX_QUESTIONS} answers already")
        question = self._open[nonce] = _Question(client_id)
        try:
            stream = self._clients.stream(client_id)
            if stream is None or not stream.push(command):
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"client {client_id} does not read commands now")
            with trio.move_on_after(ANSWER_S):
                await question.is_answered.wait()
        finally:
            del self._open[nonce]
        if question.answer is None:
            text = f"client {client_id} has not answered in {ANSWER_S:.0f} s"
            raise RequestRefused(ResponseCode.CONSUME_MSG_TIMEOUT, text)
        return question.answer


def _reason(status: wire.Status) -> str:
    return f"{wire.Code.Name(status.code)} {status.message}".strip()
