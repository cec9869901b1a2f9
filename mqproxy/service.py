"""The calls of apache.rocketmq.v2.MessagingService.

A call that fails is answered with a status, as RocketMQ's proxy does: errors of gRPC itself come only from limits, from
the stream of Telemetry, and from connections.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any, TypeVar

import trio
from google.protobuf.message import DecodeError

from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.errors import BufferFull, ProtocolError, SkylarkError
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import PERM_READ
from skylark.mqproxy.ack_request import AckRequest
from skylark.mqproxy.answers import acknowledged, receive_end, receive_status, sent_one
from skylark.mqproxy.brokers import Pop
from skylark.mqproxy.clients import CONSUMERS, LITE_CONSUMERS, answered, check_size
from skylark.mqproxy.deliveries import Delivery, PoppedRun
from skylark.mqproxy.ending import Ending
from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.methods import (
    Caller,
    Callers,
    CallerStep,
    Reply,
    UnaryMethod,
    request_of,
    status_of_any,
    unexpected,
)
from skylark.mqproxy.metrics import Meters
from skylark.mqproxy.names import group_of, topic_of
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Poll
from skylark.mqproxy.pulling import check_offset, pull_status, queue_of
from skylark.mqproxy.receiving import (
    ReceiveQueries,
    ReceiveQuery,
    check_invisible,
    filter_of,
    named_polling_ms,
    names_of,
    polling_ms,
)
from skylark.mqproxy.renewals import Taken
from skylark.mqproxy.routes import MESSAGE_TYPES, assignments, endpoints_of, message_queues, with_port
from skylark.mqproxy.sending import (
    MAX_MESSAGES,
    TRANSACTION_PREPARED,
    answer_of,
    check_count,
    entry_of,
    expanded,
    is_compressed,
    may_go_on,
    sdk_messages,
    type_of,
)
from skylark.mqproxy.sessions import Session, Sessions, ended
from skylark.mqproxy.statuses import OK, Refused, common_status, status_of
from skylark.mqproxy.stored import MessageEncoder
from skylark.mqproxy.telemetry import Stream
from skylark.mqproxy.times import ms_of
from skylark.mqproxy.transactions import Half
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.grpc.call import Call, Result, Streaming, Unary
from skylark.remoting.grpc.messages import PREFIX_BYTES
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.protocol.requests.pops import MAX_POP_COUNT
from skylark.remoting.protocol.requests.routes import TopicRouteData
from skylark.sdk.consumer.damaged import PASSED_BY, SHOWN_AGAIN, log_left_out
from skylark.sdk.consumer.reader import PullResult
from skylark.sdk.producer.producer import Ticket
from skylark.sdk.producer.result import SendStatus
from skylark.sdk.runtime import off_loop

logger = logging.getLogger(__name__)

SERVICE = "apache.rocketmq.v2.MessagingService"
# How long a receive call waits that comes while the proxy stops.
LATE_CALL_S = 0.2
_QUIET_MS = 60_000
# Compressed messages of one call are expanded until they have this many bytes, and sent before the next ones.
EXPANDED_BYTES = 4 << 20
# Larger compressed bodies are expanded in threads.
EXPANDED_ON_LOOP_BYTES = 64 << 10
# Messages of a stream are written together until they have this many bytes.
WRITTEN_BYTES = 64 << 10

T = TypeVar("T")

_TYPE_NAMES = {number: name for name, number in wire.MessageType.items()}
NO_NEW_MESSAGE = wire.Status(code=wire.MESSAGE_NOT_FOUND, message="no new message")
NO_SETTINGS = wire.Settings()
# Other resolutions leave the transaction open: the broker asks later.
_ENDS = {wire.COMMIT: TRANSACTION_COMMIT, wire.ROLLBACK: TRANSACTION_ROLLBACK}


class Calls:
    """The calls, for the server to register. ``port`` is the port that routes name."""

    def __init__(
        self, options: ProxyOptions, sessions: Sessions, metadata: Metadata, port: int, meters: Meters | None = None
    ) -> None:
        """With ``meters`` calls are measured."""
        self._options = options
        self._metadata = metadata
        self._port = port
        self._meters = meters
        self._callers = Callers(options, sessions, meters)
        self._clock = SystemClock()
        self._frame_s = options.slow_frame_timeout / 1000
        self._stopping = Ending()
        self._odd_times = OddTimes(self._clock)
        self._queries = ReceiveQueries(options)

    def methods(self) -> dict[str, Unary | Streaming]:
        """The function that gRPC calls for each path."""
        unary: dict[str, Callable[[Caller, Any], Awaitable[Any]]] = {
            "QueryRoute": self.query_route,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.notify_client_termination,
            "RecallMessage": self.recall_message,
            "QueryAssignment": self.query_assignment,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
            "EndTransaction": self.end_transaction,
            "UpdateOffset": self.update_offset,
            "GetOffset": self.get_offset,
            "QueryOffset": self.query_offset,
            "SyncLiteSubscription": self.sync_lite_subscription,
        }
        methods: dict[str, Unary | Streaming] = {
            name: UnaryMethod(self._callers, name, call).as_grpc() for name, call in unary.items()
        }
        sending = UnaryMethod(self._callers, "SendMessage", self.send_message, self._send_at_once)
        methods["SendMessage"] = sending.as_grpc()
        acknowledging = UnaryMethod(self._callers, "AckMessage", self.ack_message, self._ack_at_once, AckRequest)
        methods["AckMessage"] = acknowledging.as_grpc()
        begun = CallerStep(self._callers, self._refused_receive)
        methods["ReceiveMessage"] = Unary(begun.begin, self.receive_message, begun.unread, has_many_answers=True)
        methods["PullMessage"] = Streaming(self.pull_message)
        methods["Telemetry"] = Streaming(self.telemetry)
        return {f"/{SERVICE}/{name}": method for name, method in methods.items()}

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
        self._check_known(caller.session.clients.seen(caller.client_id), request)
        return wire.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, caller: Caller, request: wire.NotifyClientTerminationRequest
    ) -> wire.NotifyClientTerminationResponse:
        """The client ends."""
        self._check_known(caller.session.clients.end(caller.client_id), request)
        caller.session.registrations.changed(caller.client_id)
        return wire.NotifyClientTerminationResponse(status=OK)

    async def send_message(self, caller: Caller, request: wire.SendMessageRequest) -> wire.SendMessageResponse:
        """Store messages of one topic; each has a result of its own."""
        messages = sdk_messages(request.messages, self._options, caller.host, self._clock.now_ms())
        await self._check_types(messages[0].topic, request)
        if any(map(is_compressed, request.messages)):
            are_compressed = [is_compressed(message) for message in request.messages]
            return answer_of(await self._send_expanded(caller, messages, are_compressed))
        return answer_of(await self._send_all(caller, messages))

    async def _send_all(self, caller: Caller, messages: Sequence[Message]) -> list[wire.SendResultEntry]:
        sends = [
            self._send_half(caller, message)
            if TRANSACTION_PREPARED in (message.properties or ())
            else self._send(caller, message)
            for message in messages
        ]
        if len(sends) == 1:
            return [await sends[0]]
        # Sends that begin together go to the broker in one request, where the broker takes such requests.
        return await _all(sends)

    async def _send_expanded(
        self, caller: Caller, messages: Sequence[Message], are_compressed: Sequence[bool]
    ) -> list[wire.SendResultEntry]:
        """Send messages of which some are compressed, a few at a time.

        A small call may expand to gigabytes, and only the broker knows whether the user may send to the topic. So the
        first message is sent alone: when the broker refuses it, no other message is expanded. After that there are
        never more than EXPANDED_BYTES and one message of a call in memory, and a few calls of one user at a time. As
        long as nothing was sent, a broken body fails the whole call; later only its own message.
        """
        entries: list[wire.SendResultEntry] = []
        most, at = self._options.most_body_bytes, 0
        while at < len(messages):
            async with caller.session.expanding:
                part: list[Message] = []
                broken: wire.SendResultEntry | None = None
                held_bytes, most_bytes = 0, EXPANDED_BYTES if entries else 0
                while at < len(messages) and (not part or held_bytes < most_bytes) and broken is None:
                    message = messages[at]
                    if are_compressed[at]:
                        try:
                            message.body = await _expanded(message.body, most)
                        except Refused as refused:
                            if not entries:
                                raise
                            broken = wire.SendResultEntry(status=status_of(refused))
                        # Each message takes milliseconds: other calls have their turn.
                        await trio.lowlevel.checkpoint()
                    if broken is None:
                        part.append(message)
                        held_bytes += len(message.body)
                    at += 1
                sent = await self._send_all(caller, part) if part else []
                entries += sent if broken is None else [*sent, broken]
                for message in part:
                    message.body = b""
            if not may_go_on(sent):
                entries += [wire.SendResultEntry(status=sent[-1].status)] * (len(messages) - at)
                break
        return entries

    async def end_transaction(self, caller: Caller, request: wire.EndTransactionRequest) -> wire.EndTransactionResponse:
        """Commit a transaction, roll it back, or leave it open because its producer does not know yet."""
        topic = topic_of(request.topic)
        half = Half.parse(request.transaction_id)
        how = _ENDS.get(request.resolution)
        if how is not None:
            is_check = request.source == wire.SOURCE_SERVER_CHECK
            await caller.session.halves.end(topic, half, request.message_id, how, from_check=is_check)
        return wire.EndTransactionResponse(status=OK)

    async def query_assignment(
        self, caller: Caller, request: wire.QueryAssignmentRequest
    ) -> wire.QueryAssignmentResponse:
        """Where a member of a group receives the messages of a topic."""
        topic, group = names_of(request.topic, request.group)
        route = await self._metadata.route(topic)
        is_ordered = await self._metadata.is_ordered(group)
        found = assignments(request.topic, route, self._endpoints(request.endpoints), is_ordered)
        if not found:
            raise Refused(wire.FORBIDDEN, "no readable queue")
        return wire.QueryAssignmentResponse(status=OK, assignments=found)

    def receive_message(self, call: Call, data: bytes) -> Result:
        """Messages for a group, hidden from its other members until they are acknowledged or their time is over.

        The answer is a status, the messages, and the time at which the proxy sent them.
        """
        caller: Caller = call.state
        poll: Poll | None = None
        try:
            asked = self._queries.read(data)
            poll = self._poll_at_once(caller, asked, call.time_left_s)
            if poll is not None:
                # Messages that the client does not take are given back, however the call ends.
                call.when_ended(poll.end)
                deliveries = poll.begin(partial(self._answer_found, call, poll, asked.resource))
                if deliveries is not None:
                    messages = self._handed_out(poll, deliveries, asked.resource)
                    if (answers := self._answers_at_once(call, poll, messages)) is not None:
                        return answers
        except Exception as error:
            return self._refused_receive(error, caller.began_s)
        return self._receive(call, asked, poll)

    def _answer_found(self, call: Call, poll: Poll, topic: wire.Resource, deliveries: Sequence[Delivery]) -> None:
        """Answer a receive that waits, in the turn in which its messages have come; its task finds that it has ended.

        If this is not possible, the task does it. Without any room its messages are not encoded here: this may be a
        turn of the messages' sender.
        """
        if call.has_room(1):
            answers = self._answers_at_once(call, poll, self._handed_out(poll, deliveries, topic))
            if answers is not None:
                call.answer(*answers)

    async def _receive(self, call: Call, asked: ReceiveQuery, poll: Poll | None) -> tuple[bytes, ...] | None:
        """As `receive_message`, for a receive that waits for its messages or for room. ``poll``, if any, was begun."""
        caller: Caller = call.state
        session = caller.session
        messages: list[bytes] = []
        try:
            with self._waiting():
                if poll is None:
                    poll = await self._unless_over(session, self._poll, caller, asked, call.time_left_s)
                    if poll is not None:
                        call.when_ended(poll.end)
                # A call that ended while the metadata came sends no pop.
                if poll is not None and not call.is_over:
                    deliveries = await self._unless_over(session, poll.deliveries)
                    # None when the proxy stops: what the pop brings later is given back.
                    if deliveries is not None and not call.is_over:
                        self._handed_out(poll, deliveries, asked.resource)
            if poll is not None:
                messages = poll.encoded or []
            status = OK if messages else NO_NEW_MESSAGE
        except (Refused, SkylarkError) as error:
            status = status_of(error)
        except Exception as error:
            status = unexpected(error)
        if call.is_over:
            return None
        if poll is not None:
            # This task answers from here on.
            poll.answer_later()
        if poll is not None and messages and (answers := self._answers_at_once(call, poll, messages)) is not None:
            return answers
        # The status goes ahead of the messages, in the first part.
        left, ahead = len(messages), 1
        for part in _in_parts(self._receive_answers(status, messages)):
            count = min(len(part) - ahead, left)
            left, ahead = left - count, 0
            if poll is not None:
                poll.sending(count)
            await self._in_time(call, call.write, *part)
            if poll is not None:
                # What waits for the client's window when the call ends does not reach the client.
                await self._in_time(call, call.drained)
                poll.sent(count)
        if poll is not None and messages:
            poll.complete()
        self._count("ReceiveMessage", status.code, caller.began_s)
        return ()

    def _answers_at_once(self, call: Call, poll: Poll, messages: list[bytes]) -> tuple[bytes, ...] | None:
        """The answer of a receive, if the client's windows have room for all of it: ``poll`` is complete then."""
        status = OK if messages else NO_NEW_MESSAGE
        answers = self._receive_answers(status, messages)
        if not call.has_room(sum(map(len, answers)) + PREFIX_BYTES * len(answers)):
            return None
        poll.sending(len(messages))
        poll.complete()
        self._count("ReceiveMessage", status.code, call.state.began_s)
        return answers

    def _handed_out(self, poll: Poll, deliveries: Sequence[Delivery], topic: wire.Resource) -> list[bytes]:
        """The answers for the messages of a receive that can be read; ``poll`` keeps them, as encoding takes long."""
        if poll.encoded is not None:
            return poll.encoded
        encoder, readable = MessageEncoder(topic), deliveries
        if isinstance(deliveries, PoppedRun):
            messages = encoder.popped_run(deliveries)
        else:
            # A message that cannot be read is not acknowledged, so it is not lost.
            readable, messages = _encoded(
                deliveries, encoder.popped, lambda each: each.message, topic.name, SHOWN_AGAIN
            )
        self._odd_times.note(encoder.odd)
        poll.hand_out(readable, messages)
        return messages

    def _receive_answers(self, status: wire.Status, messages: Iterable[bytes]) -> tuple[bytes, ...]:
        return receive_status(status), *messages, receive_end(self._clock.now_ms())

    def _refused_receive(self, error: Exception, began_s: float) -> tuple[bytes, ...]:
        status = status_of_any(error)
        self._count("ReceiveMessage", status.code, began_s)
        return self._receive_answers(status, ())

    async def ack_message(self, caller: Caller, asked: AckRequest, *, together: bool = True) -> wire.AckMessageResponse:
        """Messages are consumed; each has a result of its own. ``together``: see `Brokers.ack`."""
        request = asked.whole()
        topic, group = names_of(request.topic, request.group)
        if not request.entries:
            raise Refused(wire.INTERNAL_SERVER_ERROR, "ack message result is empty")
        check_count(len(request.entries))
        # By number of the entry: an entry that cannot be read has a status of its own, and the others are acknowledged.
        taken: dict[int, Taken] = {}
        statuses = [OK] * len(request.entries)
        renewals = caller.session.renewals
        async with AsyncExitStack() as blocks:
            for number, entry in enumerate(request.entries):
                handle = entry.receipt_handle
                try:
                    if (one := renewals.unrenewed(handle)) is None:
                        one = await blocks.enter_async_context(renewals.taken(handle))
                    taken[number] = one
                except Refused as refusal:
                    statuses[number] = status_of(refusal)
            receipts = [one.receipt for one in taken.values()]
            errors = await caller.session.brokers.ack(group, topic, receipts, together=together)
            for (number, one), error in zip(taken.items(), errors, strict=True):
                one.is_settled = error is None
                if error is not None:
                    statuses[number] = status_of(error)
        return _ack_answer(request.entries, statuses)

    def _ack_at_once(self, caller: Caller, request: AckRequest, reply: Reply) -> bool:
        """Begin to acknowledge the messages of a call, if they are of one broker and no message is renewed."""
        if not 0 < len(request.handles) <= MAX_MESSAGES:
            return False
        topic, group = names_of(request.topic, request.group)
        receipts = caller.session.renewals.receipts(request.handles)
        if receipts is None:
            return False

        def ended(error: SkylarkError | None) -> None:
            if error is None:
                reply.send_encoded(wire.OK, acknowledged(request.fields))
            else:
                entries = request.whole().entries
                reply.send(_ack_answer(entries, [status_of(error)] * len(entries)))

        def again(together: bool) -> None:
            reply.carry_out(partial(self.ack_message, together=together))

        return caller.session.brokers.ack_at_once(group, topic, receipts, ended, again)

    async def change_invisible_duration(
        self, caller: Caller, request: wire.ChangeInvisibleDurationRequest
    ) -> wire.ChangeInvisibleDurationResponse:
        """A message is shown again at another time; 0 gives it back at once."""
        topic, group = names_of(request.topic, request.group)
        wanted = request.invisible_duration.ToMilliseconds()
        check_invisible(wanted, 0, self._options)
        # From here on the client decides how long the message is hidden. A later renewal would undo this.
        async with caller.session.renewals.taken(request.receipt_handle) as taken:
            renewed = await caller.session.brokers.change_invisible_time(group, topic, taken.receipt, wanted)
            taken.is_settled = True
        return wire.ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(renewed))

    async def forward_message_to_dead_letter_queue(
        self, caller: Caller, request: wire.ForwardMessageToDeadLetterQueueRequest
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        """A message that cannot be consumed becomes a dead letter of the group."""
        topic, group = names_of(request.topic, request.group)
        async with caller.session.renewals.taken(request.receipt_handle) as taken:
            await caller.session.brokers.to_dead_letters(group, topic, request.message_id, taken.receipt)
            taken.is_settled = True
        return wire.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def pull_message(self, call: Call) -> None:
        """Messages of a queue from an offset on: a status, the messages, and the offset to go on from.

        The offset is left out when the broker gave no answer.
        """
        began_s = self._callers.now_s()
        messages: list[bytes] = []
        next_offset: int | None = None
        try:
            caller = await self._callers.of(call)
            with caller.session, self._waiting():
                request = await request_of(call, wire.PullMessageRequest, self._frame_s)
                result = await self._unless_over(caller.session, self._pull, caller, request, call.time_left_s)
            if result is None:
                status, next_offset = NO_NEW_MESSAGE, request.offset
            else:
                status, next_offset = pull_status(result), result.next_offset
                messages = self._readable(result.messages, request.message_queue.topic)
        except (Refused, SkylarkError) as error:
            status = status_of(error)
        except GrpcError:
            raise
        except Exception as error:
            status = unexpected(error)
        answers = [wire.PullMessageResponse(status=status).SerializeToString(), *messages]
        if next_offset is not None:
            answers.append(wire.PullMessageResponse(next_offset=next_offset).SerializeToString())
        for part in _in_parts(answers):
            await self._in_time(call, call.write, *part)
        self._count("PullMessage", status.code, began_s)

    async def update_offset(self, caller: Caller, request: wire.UpdateOffsetRequest) -> wire.UpdateOffsetResponse:
        """Set the offset of a queue from which a group goes on."""
        await caller.session.queues.commit(
            group_of(request.group), queue_of(request.message_queue), check_offset(request.offset)
        )
        return wire.UpdateOffsetResponse(status=OK)

    async def get_offset(self, caller: Caller, request: wire.GetOffsetRequest) -> wire.GetOffsetResponse:
        """The offset from which a group goes on."""
        offset = await caller.session.queues.committed(group_of(request.group), queue_of(request.message_queue))
        if offset is None:
            raise Refused(wire.OFFSET_NOT_FOUND, "the group has no offset of this queue")
        return wire.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(self, caller: Caller, request: wire.QueryOffsetRequest) -> wire.QueryOffsetResponse:
        """The first or the last offset of a queue, or the offset of a time."""
        queue = queue_of(request.message_queue)
        match request.query_offset_policy:
            case wire.BEGINNING:
                offset = await caller.session.queues.min_offset(queue)
            case wire.END:
                offset = await caller.session.queues.max_offset(queue)
            case wire.TIMESTAMP if request.HasField("timestamp"):
                time_ms = ms_of(request.timestamp)
                if time_ms is None:
                    raise Refused(wire.BAD_REQUEST, "the timestamp is not between the years 1 and 9999")
                offset = await caller.session.queues.search_offset(queue, time_ms)
            case _:
                raise Refused(wire.BAD_REQUEST, "the policy is none of BEGINNING, END and TIMESTAMP with a timestamp")
        return wire.QueryOffsetResponse(status=OK, offset=offset)

    async def sync_lite_subscription(
        self, caller: Caller, request: wire.SyncLiteSubscriptionRequest
    ) -> wire.SyncLiteSubscriptionResponse:
        """Refused: brokers have no lite topics, so no group is bound to one."""
        _, group = names_of(request.topic, request.group)
        raise Refused(wire.ILLEGAL_TOPIC, f"group {group} is bound to no topic of lite topics; there are none here")

    async def telemetry(self, call: Call) -> None:
        """Settings of a client, each answered with the settings that it must use, for as long as the client wants."""
        try:
            caller = await self._callers.of(call)
            with caller.session:
                await self._converse(caller, call)
        except (Refused, SkylarkError) as error:
            status = status_of(error)
            if status.code == wire.UNAUTHORIZED:
                await self._in_time(call, call.write, wire.TelemetryCommand(status=status).SerializeToString())
                return
            is_clients_fault = wire.BAD_REQUEST <= status.code < wire.INTERNAL_ERROR
            code = StatusCode.INVALID_ARGUMENT if is_clients_fault else StatusCode.INTERNAL
            raise GrpcError(code, f"process client telemetryCommand failed. {status.message}") from None
        except DecodeError as error:
            raise GrpcError(StatusCode.INVALID_ARGUMENT, str(error)) from None

    async def recall_message(self, caller: Caller, request: wire.RecallMessageRequest) -> wire.RecallMessageResponse:
        """Take back a delayed message, unless it is delivered already."""
        msg_id = await caller.session.producer.recall(topic_of(request.topic), request.recall_handle)
        return wire.RecallMessageResponse(status=OK, message_id=msg_id)

    def stop_waiting(self) -> None:
        """Answer the calls that wait for messages, and end the streams of Telemetry, as the proxy stops."""
        self._stopping.begin()

    # --- internals

    async def _unless_over(self, session: Session, work: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """The result of ``work``; None when the proxy stops before. Refused when the caller's rights end before."""
        if session.ending.has_begun:
            raise ended(session)
        if self._stopping.has_begun:
            # Work that begins now would be cancelled at once, after its request was sent. A client that has not got its
            # GOAWAY yet asks again at once.
            await trio.sleep(LATE_CALL_S)
            return None
        with trio.CancelScope() as scope:
            endings = (self._stopping, session.ending)
            for ending in endings:
                ending.scopes.add(scope)
            try:
                return await work(*arguments)
            finally:
                for ending in endings:
                    ending.scopes.discard(scope)
        if session.ending.has_begun:
            raise ended(session)
        return None

    async def _poll(self, caller: Caller, asked: ReceiveQuery, left_s: Callable[[], float | None]) -> Poll:
        is_ordered = await self._metadata.is_ordered(asked.group)
        broker = asked.broker_name or _readable_broker(await self._metadata.route(asked.topic))
        # The time is read last: fetching the metadata may have taken some of what the client gives.
        return self._new_poll(caller, asked, broker, left_s(), is_ordered=is_ordered)

    def _poll_at_once(self, caller: Caller, asked: ReceiveQuery, left_s: Callable[[], float | None]) -> Poll | None:
        """As `_poll`; None when that takes time, or the proxy or the session ends."""
        if self._stopping.has_begun or caller.session.ending.has_begun:
            return None
        now_s = trio.current_time()
        is_ordered, broker = self._metadata.known_order(asked.group, now_s), asked.broker_name
        if not broker and (route := self._metadata.known_route(asked.topic, now_s)) is not None:
            broker = _readable_broker(route)
        if is_ordered is None or not broker:
            return None
        return self._new_poll(caller, asked, broker, left_s(), is_ordered=is_ordered)

    def _new_poll(
        self, caller: Caller, asked: ReceiveQuery, broker: str, left_s: float | None, *, is_ordered: bool
    ) -> Poll:
        # Clients receive before their settings have arrived, and from another proxy after their own proxy has stopped.
        settings = caller.session.clients.settings(caller.client_id) or NO_SETTINGS
        wanted = Pop(
            asked.group,
            asked.topic,
            broker,
            asked.most,
            asked.invisible_ms,
            polling_ms(asked.named_ms, settings, left_s, self._options),
            asked.expression,
            asked.kind,
            is_ordered,
            asked.attempt_id,
        )
        return caller.session.polls.begin(caller.client_id, wanted, asked.tags, is_renewed=asked.is_renewed)

    async def _pull(
        self, caller: Caller, request: wire.PullMessageRequest, left_s: Callable[[], float | None]
    ) -> PullResult:
        settings = caller.session.clients.settings(caller.client_id) or NO_SETTINGS
        group, queue = group_of(request.group), queue_of(request.message_queue)
        wait_ms = polling_ms(named_polling_ms(request), settings, left_s(), self._options)
        expression, kind, _ = filter_of(request.filter_expression)
        return await caller.session.queues.pull(
            group,
            queue,
            check_offset(request.offset),
            most=min(max(1, request.batch_size), MAX_POP_COUNT),
            expression=expression,
            kind=kind,
            wait_ms=wait_ms,
        )

    def _readable(self, messages: Sequence[MessageExt], topic: wire.Resource) -> list[bytes]:
        """The answers for the messages of a pull that can be read."""
        encoder = MessageEncoder(topic)
        _, encoded = _encoded(messages, encoder.pulled, lambda each: each, topic.name, PASSED_BY)
        self._odd_times.note(encoder.odd)
        return encoded

    async def _converse(self, caller: Caller, call: Call) -> None:
        """Serve one stream of Telemetry, until the client ends it or the proxy stops."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            stream = Stream(caller.client_id, caller.address, call, nursery)
            try:
                await self._follow(caller, stream, call)
            except Exception as error:  # raised below, and not in a group
                failure = error
            finally:
                caller.session.clients.stream_ended(caller.client_id, stream)
            # Commands that were not sent are dropped.
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _follow(self, caller: Caller, stream: Stream, call: Call) -> None:
        """Handle a client's commands on its stream of Telemetry, until it ends the stream or the proxy stops."""
        session = caller.session
        while (data := await self._unless_over(session, call.read)) is not None:
            command = wire.TelemetryCommand.FromString(data)
            match command.WhichOneof("command"):
                case "settings":
                    answer = await self._exchange_settings(caller, command.settings, stream)
                    await self._in_time(call, stream.write, answer)
                    topics = [one.name for one in command.settings.publishing.topics]
                    await session.transactions.add(caller.client_id, topics)
                case "thread_stack_trace":
                    session.questions.answered(caller.client_id, command.thread_stack_trace.nonce, command)
                case "verify_message_result":
                    session.questions.answered(caller.client_id, command.verify_message_result.nonce, command)

    async def _exchange_settings(
        self, caller: Caller, settings: wire.Settings, stream: Stream
    ) -> wire.TelemetryCommand:
        check_size(settings)
        group = None
        if settings.client_type not in wire.ClientType.values():
            raise Refused(wire.UNRECOGNIZED_CLIENT_TYPE, f"{settings.client_type} is no type of a client")
        match settings.WhichOneof("pub_sub"):
            case "publishing":
                for topic in settings.publishing.topics:
                    topic_of(topic)
            case "subscription":
                if settings.client_type in LITE_CONSUMERS:
                    text = f"regular group cannot use LITE mode: {settings.subscription.group.name}"
                    raise Refused(wire.ILLEGAL_CONSUMER_GROUP, text)
                for entry in settings.subscription.subscriptions:
                    topic_of(entry.topic)
                    filter_of(entry.expression)
                group = await self._metadata.group(group_of(settings.subscription.group))
            case _:
                raise Refused(wire.BAD_REQUEST, "there is no publishing or subscription data in settings")
        caller.session.clients.put(caller.client_id, settings, stream)
        caller.session.registrations.changed(caller.client_id)
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
        _check_implemented(types)
        if self._options.enable_topic_message_type_check:
            _check_expected(await self._metadata.message_type(topic), types)

    def _send_at_once(self, caller: Caller, request: wire.SendMessageRequest, reply: Reply) -> bool:
        """Begin to send the only message of a call; False when that has to wait for something."""
        messages = request.messages
        if len(messages) != 1 or is_compressed(messages[0]) or (kind := type_of(messages[0])) == wire.TRANSACTION:
            return False
        (message,) = sdk_messages(messages, self._options, caller.host, self._clock.now_ms())
        _check_implemented((kind,))
        if self._options.enable_topic_message_type_check:
            expected = self._metadata.known_message_type(message.topic, trio.current_time())
            if expected is None:
                return False
            _check_expected(expected, (kind,))

        message_id = messages[0].system_properties.message_id

        def ended(ticket: Ticket) -> None:
            if ticket.error is None and (result := ticket.result()).status is SendStatus.SEND_OK:
                reply.send_encoded(wire.OK, sent_one(message_id, result.queue_offset, result.recall_handle))
            else:
                reply.send(answer_of([_entry_of(ticket)]))

        try:
            caller.session.producer.send_nowait(message, on_delivery=ended)
        except BufferFull:
            return False
        return True

    async def _send(self, caller: Caller, message: Message) -> wire.SendResultEntry:
        try:
            return entry_of(await caller.session.producer.send(message))
        except SkylarkError as error:
            return wire.SendResultEntry(status=status_of(error))

    async def _send_half(self, caller: Caller, message: Message) -> wire.SendResultEntry:
        # Recorded before the half is stored: the broker may ask for the end of the transaction at any time after that.
        await caller.session.transactions.add_half(caller.client_id, message.topic)
        try:
            result, half = await caller.session.halves.send(message)
        except SkylarkError as error:
            return wire.SendResultEntry(status=status_of(error))
        return entry_of(result, str(half))

    def _endpoints(self, given: wire.Endpoints) -> wire.Endpoints:
        if not given.addresses:
            return endpoints_of(self._options.local_serve_addr or self._options.bind_address, self._port)
        return given if self._options.use_endpoint_port_from_request else with_port(given, self._port)

    async def _in_time(self, call: Call, write: Callable[..., Awaitable[None]], *messages: Any) -> None:
        """Send messages of a stream. Ends the call when the client does not take them in time."""
        with trio.move_on_after(self._options.slow_reader_timeout / 1000):
            await write(*messages)
            return
        logger.info("%s does not read its messages", call.peer)
        raise GrpcError(StatusCode.ABORTED, "the client did not read its messages in time")

    def _waiting(self) -> AbstractContextManager[None]:
        """A block in which a call may wait for messages."""
        return nullcontext() if self._meters is None else self._meters.waiting()

    def _count(self, name: str, code: wire.Code, began_s: float) -> None:
        if self._meters is not None:
            self._meters.count(name, code, began_s)


class OddTimes:
    """Logs, once a minute, that messages are handed out without their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._quiet_until_ms = 0

    def note(self, odd: Sequence[MessageExt]) -> None:
        """Count messages that are handed out without a time."""
        self._count += len(odd)
        if not odd or (now_ms := self._clock.monotonic_ms()) < self._quiet_until_ms:
            return
        self._quiet_until_ms = now_ms + _QUIET_MS
        logger.warning(
            "%d messages were handed out without their born or store time, which is not between the years 1 and 9999; "
            "one is %s of topic %s",
            self._count,
            odd[-1].msg_id,
            odd[-1].topic,
        )
        self._count = 0


def _in_parts(answers: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The answers of a stream in parts of WRITTEN_BYTES or of one answer."""
    begin = size = 0
    for number, answer in enumerate(answers):
        if number > begin and size + len(answer) > WRITTEN_BYTES:
            yield answers[begin:number]
            begin, size = number, 0
        size += len(answer)
    yield answers[begin:]


def _readable_broker(route: TopicRouteData) -> str:
    """A broker with queues of the topic from which messages may be read. Refused when there is none."""
    for data in route.queue_datas:
        if data.perm & PERM_READ:
            return data.broker_name
    raise Refused(wire.FORBIDDEN, "no readable queue")


def _encoded(
    items: Iterable[T], encode: Callable[[T], bytes], message_of: Callable[[T], MessageExt], topic: str, what_next: str
) -> tuple[list[T], list[bytes]]:
    """The items whose messages can be read, and the bytes of each; the others are logged with ``what_next``."""
    readable: list[T] = []
    encoded: list[bytes] = []
    for item in items:
        try:
            encoded.append(encode(item))
        except ProtocolError as error:
            message = message_of(item)
            mq = MessageQueue(topic, message.broker_name, message.queue_id)
            log_left_out(mq, message.queue_offset, str(error), what_next)
        else:
            readable.append(item)
    return readable, encoded


def _ack_answer(entries: Sequence[wire.AckMessageEntry], statuses: Sequence[wire.Status]) -> wire.AckMessageResponse:
    """The answer to an AckMessage with a status for each of its entries."""
    results = [
        wire.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        for entry, status in zip(entries, statuses, strict=True)
    ]
    return wire.AckMessageResponse(status=common_status(statuses), entries=results)


def _entry_of(ticket: Ticket) -> wire.SendResultEntry:
    """The result of a send that has ended."""
    if ticket.error is None:
        return entry_of(ticket.result())
    return wire.SendResultEntry(status=status_of_any(ticket.error))


async def _expanded(body: bytes, most: int) -> bytes:
    """As `expanded`; the event loop is free while a large body is expanded."""
    if len(body) <= EXPANDED_ON_LOOP_BYTES:
        return expanded(body, most)
    return await off_loop(partial(expanded, body, most))


def _check_implemented(types: Collection[wire.MessageType]) -> None:
    if wire.LITE in types:
        raise Refused(wire.NOT_IMPLEMENTED, "this proxy takes no messages of type LITE")


def _check_expected(expected: str, types: Collection[wire.MessageType]) -> None:
    """Refused when messages of one of these types must not be sent to a topic of type ``expected``."""
    if expected == "MIXED":
        return
    for kind in types:
        actual = _TYPE_NAMES[kind]
        if actual != expected:
            text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
            raise Refused(wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all works, which run at the same time."""
    results: dict[int, T] = {}

    async def run(number: int, work: Coroutine[Any, Any, T]) -> None:
        results[number] = await work

    async with trio.open_nursery() as nursery:
        for number, work in enumerate(works):
            nursery.start_soon(run, number, work)
    return [results[number] for number in range(len(works))]
