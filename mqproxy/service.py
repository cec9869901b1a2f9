"""The calls of apache.rocketmq.v2.MessagingService.

A call that fails is answered with a status, as RocketMQ's proxy does: errors of gRPC itself are left to limits, to the
stream of Telemetry, and to connections.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message as ProtoMessage

from mqcommon.clock import SystemClock
from mqcommon.errors import SkylarkError
from mqproxy.clients import CONSUMERS, Clients, answered
from mqproxy.metadata import Metadata
from mqproxy.names import group_of, topic_of
from mqproxy.options import ProxyOptions
from mqproxy.routes import MESSAGE_TYPES, endpoints_of, message_queues, with_port
from mqproxy.sending import answer_of, entry_of, sdk_messages, type_of
from mqproxy.statuses import Refused, status_of
from mqproxy.wire import messaging_pb2 as wire
from sdk import Message
from sdk.aio import Producer

logger = logging.getLogger(__name__)

SERVICE = "apache.rocketmq.v2.MessagingService"

Request = TypeVar("Request", bound=ProtoMessage)
Answer = TypeVar("Answer", bound=ProtoMessage)

OK = wire.Status(code=wire.OK, message="OK")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call: the id that a client gave itself, and its address."""

    client_id: str
    address: str

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")


class Calls:
    """The calls, for the server to register. ``real_address`` finds the client behind an address that gRPC sees."""

    def __init__(
        self,
        options: ProxyOptions,
        producer: Producer,
        metadata: Metadata,
        port: int,
        real_address: Callable[[str], str],
    ) -> None:
        self._options = options
        self._producer = producer
        self._metadata = metadata
        self._port = port
        self._real_address = real_address
        self._clients = Clients(options)
        self._clock = SystemClock()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What gRPC calls for each method."""
        methods = {
            "QueryRoute": self._unary(self.query_route, wire.QueryRouteRequest, wire.QueryRouteResponse),
            "Heartbeat": self._unary(self.heartbeat, wire.HeartbeatRequest, wire.HeartbeatResponse),
            "SendMessage": self._unary(self.send_message, wire.SendMessageRequest, wire.SendMessageResponse),
            "NotifyClientTermination": self._unary(
                self.notify_client_termination,
                wire.NotifyClientTerminationRequest,
                wire.NotifyClientTerminationResponse,
            ),
            "Telemetry": grpc.stream_stream_rpc_method_handler(
                self.telemetry, wire.TelemetryCommand.FromString, wire.TelemetryCommand.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # --- calls

    async def query_route(self, caller: Caller, request: wire.QueryRouteRequest) -> wire.QueryRouteResponse:
        """The queues of a topic, all of them at the address under which the client knows this proxy."""
        topic = topic_of(request.topic)
        route = await self._metadata.route(topic)
        types = MESSAGE_TYPES.get(await self._metadata.message_type(topic), MESSAGE_TYPES["UNSPECIFIED"])
        queues = message_queues(request.topic, route, self._endpoints(request.endpoints), types)
        return wire.QueryRouteResponse(status=OK, message_queues=queues)

    async def heartbeat(self, caller: Caller, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
        """The client lives."""
        self._check_known(self._clients.seen(caller.client_id), request)
        return wire.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, caller: Caller, request: wire.NotifyClientTerminationRequest
    ) -> wire.NotifyClientTerminationResponse:
        """The client ends."""
        self._check_known(self._clients.remove(caller.client_id), request)
        return wire.NotifyClientTerminationResponse(status=OK)

    async def send_message(self, caller: Caller, request: wire.SendMessageRequest) -> wire.SendMessageResponse:
        """Store messages of one topic; each has a result of its own."""
        messages = sdk_messages(request.messages, self._options, caller.host, self._clock.now_ms())
        await self._check_types(messages[0].topic, request)
        if len(messages) == 1:
            return answer_of([await self._send(messages[0])])
        # Sends that begin together go to the broker in one request, where the broker takes them together.
        return answer_of(await asyncio.gather(*map(self._send, messages)))

    async def telemetry(self, requests: AsyncIterable[wire.TelemetryCommand], context: Any) -> None:
        """A client's settings, each answered with those that it is to use, for as long as the client wants."""
        try:
            caller = self._caller(context)
            async for command in requests:
                if command.HasField("settings"):
                    await context.write(await self._exchange_settings(caller, command.settings))
        except (Refused, SkylarkError) as error:
            status = status_of(error)
            is_clients_fault = wire.BAD_REQUEST <= status.code < wire.INTERNAL_ERROR
            code = grpc.StatusCode.INVALID_ARGUMENT if is_clients_fault else grpc.StatusCode.INTERNAL
            await context.abort(code, f"process client telemetryCommand failed. {status.message}")

    # --- internals

    async def _exchange_settings(self, caller: Caller, settings: wire.Settings) -> wire.TelemetryCommand:
        group = None
        match settings.WhichOneof("pub_sub"):
            case "publishing":
                for topic in settings.publishing.topics:
                    topic_of(topic)
            case "subscription":
                group = await self._metadata.group(group_of(settings.subscription.group))
            case _:
                raise Refused(wire.BAD_REQUEST, "there is no publishing or subscription data in settings")
        self._clients.put(caller.client_id, settings)
        return wire.TelemetryCommand(status=OK, settings=answered(settings, self._options, group))

    def _check_known(
        self, settings: wire.Settings | None, request: wire.HeartbeatRequest | wire.NotifyClientTerminationRequest
    ) -> None:
        if settings is None:
            raise Refused(wire.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        if settings.client_type in CONSUMERS:
            group_of(request.group)
        elif settings.client_type != wire.PRODUCER:
            raise Refused(wire.UNRECOGNIZED_CLIENT_TYPE, wire.ClientType.Name(settings.client_type))

    async def _check_types(self, topic: str, request: wire.SendMessageRequest) -> None:
        types = {type_of(message) for message in request.messages}
        for type in types & {wire.LITE, wire.PRIORITY, wire.TRANSACTION}:
            raise Refused(wire.NOT_IMPLEMENTED, f"this proxy takes no messages of type {wire.MessageType.Name(type)}")
        if not self._options.enable_topic_message_type_check:
            return
        expected = await self._metadata.message_type(topic)
        if expected == "MIXED":
            return
        for type in types:
            actual = wire.MessageType.Name(type)
            if actual != expected:
                text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
                raise Refused(wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)

    async def _send(self, message: Message) -> wire.SendResultEntry:
        try:
            return entry_of(await self._producer.send(message))
        except SkylarkError as error:
            return wire.SendResultEntry(status=status_of(error))

    def _endpoints(self, given: wire.Endpoints) -> wire.Endpoints:
        if not given.addresses:
            return endpoints_of(self._options.local_serve_addr or self._options.bind_address, self._port)
        return given if self._options.use_endpoint_port_from_request else with_port(given, self._port)

    def _caller(self, context: Any) -> Caller:
        """Who calls. Refused when it has no client id."""
        client_id = ""
        for name, value in context.invocation_metadata():
            if name == "x-mq-client-id":
                client_id = str(value)
        if not client_id.strip():
            raise Refused(wire.CLIENT_ID_REQUIRED, "client id cannot be empty")
        return Caller(client_id, self._real_address(context.peer()))

    def _unary(
        self,
        call: Callable[[Caller, Request], Awaitable[Answer]],
        request_type: type[Request],
        answer_type: type[Answer],
    ) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            partial(self._answer, call, answer_type), request_type.FromString, answer_type.SerializeToString
        )

    async def _answer(
        self,
        call: Callable[[Caller, Request], Awaitable[Answer]],
        answer_type: Callable[..., Answer],
        request: Request,
        context: Any,
    ) -> Answer:
        try:
            return await call(self._caller(context), request)
        except (Refused, SkylarkError) as error:
            return answer_type(status=status_of(error))
        except Exception as error:
            logger.exception("a call failed by an error that was not expected")
            status = wire.Status(code=wire.INTERNAL_SERVER_ERROR, message=f"internal error: {type(error).__name__}")
            return answer_type(status=status)
