"""The calls of apache.rocketmq.v2.MessagingService.

A call that fails is answered with a status, as RocketMQ's proxy does: errors of gRPC itself are left to limits, to the
stream of Telemetry, and to connections.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from mqcommon.clock import SystemClock
from mqcommon.errors import ProtocolError, SkylarkError
from mqcommon.names import PERM_READ
from mqproxy.brokers import Brokers, Pop, Receipt
from mqproxy.clients import CONSUMERS, Clients, answered
from mqproxy.metadata import Metadata
from mqproxy.names import group_of, topic_of
from mqproxy.options import ProxyOptions
from mqproxy.parsing import refuse, refusing
from mqproxy.receiving import check_invisible, filter_of, invisible_ms, message_of, names_of, polling_ms
from mqproxy.renewals import Renewals
from mqproxy.routes import MESSAGE_TYPES, assignments, endpoints_of, message_queues, with_port
from mqproxy.sending import answer_of, entry_of, sdk_messages, type_of
from mqproxy.statuses import Refused, common_status, status_of
from mqproxy.wire import messaging_pb2 as wire
from remoting.protocol.requests.pops import MAX_POP_COUNT
from sdk import Message
from sdk.aio import Producer

logger = logging.getLogger(__name__)

SERVICE = "apache.rocketmq.v2.MessagingService"

T = TypeVar("T")
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
        brokers: Brokers,
        metadata: Metadata,
        port: int,
        real_address: Callable[[str], str],
    ) -> None:
        self._options = options
        self._producer = producer
        self._brokers = brokers
        self._metadata = metadata
        self._port = port
        self._real_address = real_address
        self._clients = Clients(options)
        self._clock = SystemClock()
        self._stopping = asyncio.Event()
        #: To be run while the proxy serves.
        self.renewals = Renewals(brokers, options, self._clock, self._clients.is_alive)

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
            "RecallMessage": self._unary(self.recall_message, wire.RecallMessageRequest, wire.RecallMessageResponse),
            "QueryAssignment": self._unary(
                self.query_assignment, wire.QueryAssignmentRequest, wire.QueryAssignmentResponse
            ),
            "ReceiveMessage": grpc.unary_stream_rpc_method_handler(
                self.receive_message,
                wire.ReceiveMessageRequest.FromString,
                wire.ReceiveMessageResponse.SerializeToString,
            ),
            "AckMessage": self._unary(self.ack_message, wire.AckMessageRequest, wire.AckMessageResponse),
            "ChangeInvisibleDuration": self._unary(
                self.change_invisible_duration,
                wire.ChangeInvisibleDurationRequest,
                wire.ChangeInvisibleDurationResponse,
            ),
            "ForwardMessageToDeadLetterQueue": self._unary(
                self.forward_message_to_dead_letter_queue,
                wire.ForwardMessageToDeadLetterQueueRequest,
                wire.ForwardMessageToDeadLetterQueueResponse,
            ),
            "Telemetry": grpc.stream_stream_rpc_method_handler(
                self.telemetry, wire.TelemetryCommand.FromString, wire.TelemetryCommand.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, {name: refusing(each) for name, each in methods.items()})

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

    async def query_assignment(
        self, caller: Caller, request: wire.QueryAssignmentRequest
    ) -> wire.QueryAssignmentResponse:
        """Where a member of a group receives the messages of a topic."""
        topic, group = names_of(request.topic, request.group)
        route = await self._metadata.route(topic)
        config = await self._metadata.group(group)
        is_ordered = config is not None and config.consume_message_orderly
        found = assignments(request.topic, route, self._endpoints(request.endpoints), is_ordered)
        if not found:
            raise Refused(wire.FORBIDDEN, "no readable queue")
        return wire.QueryAssignmentResponse(status=OK, assignments=found)

    async def receive_message(self, request: wire.ReceiveMessageRequest, context: Any) -> None:
        """Messages for a group, hidden from its other members until they are acknowledged or their time is over.

        The answer is a status, the messages, and the time at which the proxy sent them.
        """
        messages: list[wire.Message] = []
        try:
            waiting = self._receive(self._caller(context), request, context.time_remaining())
            messages = await self._unless_stopping(waiting) or []
            status = OK if messages else wire.Status(code=wire.MESSAGE_NOT_FOUND, message="no new message")
        except (Refused, SkylarkError) as error:
            status = status_of(error)
        except Exception as error:
            status = _unexpected(error)
        await context.write(wire.ReceiveMessageResponse(status=status))
        for message in messages:
            await context.write(wire.ReceiveMessageResponse(message=message))
        last = wire.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._clock.now_ms())
        await context.write(last)

    async def ack_message(self, caller: Caller, request: wire.AckMessageRequest) -> wire.AckMessageResponse:
        """Messages are consumed; each has a result of its own."""
        topic, group = names_of(request.topic, request.group)
        if not request.entries:
            raise Refused(wire.INTERNAL_SERVER_ERROR, "ack message result is empty")
        receipts: dict[int, Receipt] = {}
        statuses = [OK] * len(request.entries)
        for number, entry in enumerate(request.entries):
            try:
                receipts[number] = await self.renewals.take(entry.receipt_handle)
            except Refused as refusal:
                statuses[number] = status_of(refusal)
        errors = await self._brokers.ack(group, topic, list(receipts.values()))
        for number, error in zip(receipts, errors, strict=True):
            if error is not None:
                statuses[number] = status_of(error)
        results = [
            wire.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
            for entry, status in zip(request.entries, statuses, strict=True)
        ]
        return wire.AckMessageResponse(status=common_status(statuses), entries=results)

    async def change_invisible_duration(
        self, caller: Caller, request: wire.ChangeInvisibleDurationRequest
    ) -> wire.ChangeInvisibleDurationResponse:
        """A message is shown again at another time; 0 gives it back at once."""
        topic, group = names_of(request.topic, request.group)
        wanted = request.invisible_duration.ToMilliseconds()
        check_invisible(wanted, 0, self._options)
        receipt = await self.renewals.take(request.receipt_handle)
        renewed = await self._brokers.change_invisible_time(group, topic, receipt, wanted)
        return wire.ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(renewed))

    async def forward_message_to_dead_letter_queue(
        self, caller: Caller, request: wire.ForwardMessageToDeadLetterQueueRequest
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        """A message that cannot be consumed becomes a dead letter of the group."""
        topic, group = names_of(request.topic, request.group)
        receipt = await self.renewals.take(request.receipt_handle)
        await self._brokers.to_dead_letters(group, topic, request.message_id, receipt)
        return wire.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def telemetry(self, requests: AsyncIterable[wire.TelemetryCommand], context: Any) -> None:
        """A client's settings, each answered with those that it is to use, for as long as the client wants."""
        try:
            caller = self._caller(context)
            while (command := await self._unless_stopping(context.read())) not in (None, grpc.aio.EOF):
                if command.HasField("settings"):
                    await context.write(await self._exchange_settings(caller, command.settings))
        except (Refused, SkylarkError) as error:
            status = status_of(error)
            is_clients_fault = wire.BAD_REQUEST <= status.code < wire.INTERNAL_ERROR
            code = grpc.StatusCode.INVALID_ARGUMENT if is_clients_fault else grpc.StatusCode.INTERNAL
            await context.abort(code, f"process client telemetryCommand failed. {status.message}")
        except DecodeError as error:
            await refuse(error, context)

    async def recall_message(self, caller: Caller, request: wire.RecallMessageRequest) -> wire.RecallMessageResponse:
        """Take back a delayed message, unless it is delivered already."""
        msg_id = await self._producer.recall(topic_of(request.topic), request.recall_handle)
        return wire.RecallMessageResponse(status=OK, message_id=msg_id)

    def stop_waiting(self) -> None:
        """Answer the calls that wait for messages, and end the streams of Telemetry: the proxy stops."""
        self._stopping.set()

    # --- internals

    async def _unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``; None when the proxy stops before."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _receive(
        self, caller: Caller, request: wire.ReceiveMessageRequest, left_s: float | None
    ) -> list[wire.Message]:
        # Clients receive before their settings are here, and from another proxy after theirs has stopped.
        settings = self._clients.settings(caller.client_id) or wire.Settings()
        wait_ms = polling_ms(request, settings, left_s, self._options)
        queue = request.message_queue
        topic, group = names_of(queue.topic, request.group)
        expression, kind, tags = filter_of(request.filter_expression)
        config = await self._metadata.group(group)
        wanted = Pop(
            group, topic, queue.broker.name or await self._any_broker(topic),
            min(max(1, request.batch_size), MAX_POP_COUNT), invisible_ms(request, self._options), wait_ms,
            expression, kind, config is not None and config.consume_message_orderly,
            request.attempt_id if request.HasField("attempt_id") else None,
        )  # fmt: skip
        found = await self._brokers.pop(wanted)
        # The broker compares only hashes of tags. What has another tag must not come back.
        others = [delivery.receipt for delivery in found if tags and delivery.message.tags not in tags]
        if others:
            await self._brokers.ack(group, topic, others)
        messages: list[wire.Message] = []
        for delivery in found:
            if tags and delivery.message.tags not in tags:
                continue
            try:
                messages.append(message_of(delivery, queue.topic))
            except ProtocolError as error:
                logger.warning("a message of topic %s cannot be handed out: %s", topic, error)
                continue
            if request.auto_renew and self._options.enable_proxy_auto_renew:
                self.renewals.note(caller.client_id, group, topic, delivery.receipt)
        return messages

    async def _any_broker(self, topic: str) -> str:
        for data in (await self._metadata.route(topic)).queue_datas:
            if data.perm & PERM_READ:
                return data.broker_name
        raise Refused(wire.FORBIDDEN, "no readable queue")

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
            return answer_type(status=_unexpected(error))


def _unexpected(error: Exception) -> wire.Status:
    logger.error("a call failed by an error that was not expected", exc_info=error)
    return wire.Status(code=wire.INTERNAL_SERVER_ERROR, message=f"internal error: {type(error).__name__}")
