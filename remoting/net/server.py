"""Accepts connections and runs handlers.

A handler that need not wait is a plain function that runs in the reader's turn: all frames of one read are handled,
then answered with one send. A slow handler runs as a task; their number is bounded per server. A stop is graceful: no
new connections, the requests in flight are answered, then all connections close.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex

import trio

from skylark.mqcommon.addresses import is_address, limited_network, server_address
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.accepting import accept_connections
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.limits import BufferBudget, ConnectionBudget, RateLimit, Refusals, ServerLimits
from skylark.remoting.net.scanning import scan_connections
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.transport import Listener, Transport
from skylark.remoting.net.unanswered import Unanswered
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, JSON, OFFER_CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.requests.clients import CHALLENGE, ChallengeHeader
from skylark.remoting.protocol.signature import WholeSignatures

logger = logging.getLogger(__name__)

Handler = Callable[[Channel, Command], Command | None]
SlowHandler = Callable[[Channel, Command], Awaitable[Command | None]]


class RunInTask(Exception):
    """Raised by a handler whose request turns out to take long: ``handler`` then runs as a task for the request."""

    def __init__(self, handler: SlowHandler) -> None:
        self.handler = handler


MAX_LANGUAGE = 32
_CHALLENGE_BYTES = 16
_MAX_ADDRESS = 64
_LAST_WITHOUT_GO_AWAY = 475


class Server:
    """Serves ``handlers`` (code → plain function) and ``slow_handlers`` (code → async function).

    ``on_close`` is called for every channel that has ended; ``after_turn`` after the frames of one read are handled
    and before their answers are sent.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        slow_handlers: Mapping[int, SlowHandler] | None = None,
        *,
        limits: ServerLimits | None = None,
        on_close: Callable[[Channel], None] | None = None,
        after_turn: Callable[[], None] | None = None,
        greeting: Mapping[str, str] | None = None,
        connections: ConnectionBudget | None = None,
        reached_at: Callable[[str], bool] = lambda addr: False,
    ) -> None:
        """``greeting``: more ext fields for the answer that accepts a client's offer to speak CBOR.

        ``connections`` is shared by all servers of a daemon; 10,000 of its own when there is none.
        ``reached_at``: whether clients may reach this server at ``ip:port``, which is none of the machine's own.
        """
        self._reached_at = reached_at
        self._greeting = {OFFER_FIELD: OFFER_CBOR, **(greeting or {})}
        self.replace_handlers(handlers, slow_handlers or {})
        self._limits = limits or ServerLimits()
        self._on_close = on_close
        self._after_turn = after_turn
        self._connections = connections or ConnectionBudget(10_000)
        self._buffers = BufferBudget(self._limits.max_buffered_bytes)
        self.refusals = Refusals()
        self._unanswered = Unanswered()
        self._request_rate = RateLimit(self._limits.max_requests_a_second)
        self._accepting = trio.CancelScope()
        self._slow_running = 0
        self._stopping = False
        self._nursery: trio.Nursery | None = None
        self.channels: set[Channel] = set()

    @property
    def codes(self) -> list[int]:
        """The codes of the requests that this server answers."""
        return sorted({*self._handlers, *self._slow_handlers})

    def replace_handlers(self, handlers: Mapping[int, Handler], slow_handlers: Mapping[int, SlowHandler]) -> None:
        """Serve requests from now on with these handlers."""
        self._handlers = {CHALLENGE.code: self._challenge, **handlers}
        self._slow_handlers = slow_handlers

    async def serve(
        self,
        host: str,
        port: int,
        secured: Callable[[list[Listener]], list[Listener]] = list,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on ``host:port`` (port 0 takes a free one) until cancelled; starts with ``"ip:port"``.

        ``secured`` wraps the listeners, for TLS. Raises UserError when it cannot listen on the port.
        """
        await self.serve_on(secured(await listen(host, port)), task_status=task_status)

    async def serve_on(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """As `serve`, on listeners that are open already."""
        # Two nurseries with different lives: closing the listeners must not end the connections.
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(scan_connections, self.channels, self._check, self._buffers)
            task_status.started(listeners[0].address)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(
                            accept_connections,
                            listener,
                            self._nursery,
                            self._serve_transport,
                            self._connections,
                            self.refusals,
                        )
            # Open connections are served until `drain` or cancellation ends them.
            await trio.sleep_forever()

    def stop_accepting(self) -> None:
        """Close the listening sockets; from now on requests that arrive on open connections are refused.

        Clients then try another server. A refused send is not stored, so nothing is stored twice.
        """
        self._stopping = True
        self._accepting.cancel()

    async def drain(self, timeout_ms: float) -> bool:
        """Wait until nothing is in flight, at most ``timeout_ms``; False when something still is."""
        return await poll_until(
            lambda: not self._slow_running and all(channel.idle for channel in self.channels), timeout_ms / 1000
        )

    def _refused(self, kind: str, remote: str, detail: str) -> None:
        self.refusals.count(kind, trio.current_time(), remote, detail)

    async def _serve_transport(self, transport: Transport) -> None:
        channel = Channel(
            transport,
            max_frame_bytes=self._limits.max_frame_bytes,
            max_header_bytes=self._limits.max_header_bytes,
            max_outbox_bytes=self._limits.max_answer_bytes,
            backpressure=True,
            budget=self._buffers,
        )
        channel.greeting = self._greeting
        self.channels.add(channel)
        self._buffers.holders.add(channel)
        try:
            limited = self._limits.max_requests_a_second and transport.direct_calls is None
            await channel.run(self._dispatch_at_a_rate if limited else self._dispatch, self._turned)
        except* Exception as group:
            # A bug here closes the connection that triggered it, and no other.
            logger.error("connection of %s closed after an error", channel.remote, exc_info=group)
        finally:
            self.channels.discard(channel)
            self._buffers.holders.discard(channel)
            if channel.exceeded:
                self._refused(channel.exceeded, channel.remote, f"connection closed: {channel.closed_reason}")
            self._closed(channel)

    def _turned(self) -> None:
        """Call ``after_turn``; an error in it does not close this connection, as it also works for others."""
        if self._after_turn is not None:
            try:
                self._after_turn()
            except Exception:
                logger.exception("after_turn failed")

    def _closed(self, channel: Channel) -> None:
        if self._on_close is not None:
            try:
                self._on_close(channel)
            except Exception:
                logger.exception("on_close failed for the connection of %s", channel.remote)
        channel.attachments.clear()

    def _dispatch_at_a_rate(self, channel: Channel, request: Command) -> None:
        network = limited_network(channel.remote.rpartition(":")[0].strip("[]"))
        if self._request_rate.take(network, trio.current_time()):
            self._dispatch(channel, request)
            return
        self._refused("request_rate", network, f"more than {self._limits.max_requests_a_second} requests a second")
        if not request.flag & FLAG_ONEWAY:
            channel.reply(request, _busy(request))

    def _dispatch(self, channel: Channel, request: Command) -> None:
        # The first request says the language and the version of the peer.
        if not channel.language:
            channel.language = request.language[:MAX_LANGUAGE]
            channel.version = request.version
        # If a request offers CBOR, its own answer has to accept the offer. A later request offers it when the first had
        # no answer.
        if request.codec == JSON and request.ext is not None and request.ext.get(OFFER_FIELD) == OFFER_CBOR:
            channel.attachments[OFFER_FIELD] = request.opaque
        handler = self._handlers.get(request.code)
        response: Command | None
        # A stopping server refuses before anything else: nothing is stored, so the client may try another server.
        # A replay is refused before its handler runs, whatever its code.
        if self._stopping:
            response = _stopping(request)
        elif channel.signatures is not None and not channel.signatures.is_new(request):
            self._refused("replays", channel.remote, f"request {request.code} refused")
            response = request.respond(ResponseCode.NO_PERMISSION, "this signed request is not new")
        elif handler is None:
            response = self._start_slow(channel, request)
        else:
            try:
                response = handler(channel, request)
            except RunInTask as long:
                response = self._start(long.handler, channel, request)
            except Exception as error:
                response = failure(request, error)
        if response is not None:
            if request.flag & FLAG_ONEWAY:
                self._log_if_refused(channel, request, response)
            channel.reply(request, response)

    def _log_if_refused(self, channel: Channel, request: Command, response: Command) -> None:
        if response.code != ResponseCode.SUCCESS:
            self._unanswered.log(channel.remote, request, response, trio.current_time())

    def _start_slow(self, channel: Channel, request: Command) -> Command | None:
        handler = self._slow_handlers.get(request.code)
        if handler is None:
            return not_supported(request)
        return self._start(handler, channel, request)

    def _start(self, handler: SlowHandler, channel: Channel, request: Command) -> Command | None:
        limits = self._limits
        if self._slow_running >= limits.max_slow_requests or channel.tasks >= limits.max_slow_requests_of_connection:
            self._refused("requests_in_flight", channel.remote, f"request {request.code} refused")
            return _busy(request)
        if request.body and not channel.hold(len(request.body)):
            self._refused("buffered_bytes", channel.remote, f"request {request.code} refused")
            return _busy(request)
        # Counted here and not in the task, which starts later: the next request of this turn must see the count.
        assert self._nursery is not None
        self._slow_running += 1
        channel.tasks += 1
        self._nursery.start_soon(self._run_slow, handler, channel, request, len(request.body))
        return None

    async def _run_slow(self, handler: SlowHandler, channel: Channel, request: Command, held_bytes: int) -> None:
        try:
            response = await handler(channel, request)
        except Exception as error:
            response = failure(request, error)
        finally:
            self._slow_running -= 1
            channel.tasks -= 1
            if held_bytes:
                channel.let_go(held_bytes)
        if response is not None:
            if request.flag & FLAG_ONEWAY:
                self._log_if_refused(channel, request, response)
            channel.reply(request, response)

    def _check(self, channel: Channel, now_s: float) -> None:
        """Close a connection that is silent or does not read."""
        limits = self._limits
        channel.charge()
        channel.expire_requests(now_s)
        if channel.blocked_since and now_s - channel.blocked_since > limits.write_timeout_ms / 1000:
            channel.close(f"peer did not read for {limits.write_timeout_ms} ms", "slow_readers")
        elif now_s - channel.incomplete_since(now_s) > limits.read_timeout_ms / 1000:
            channel.close(f"a frame was not whole after {limits.read_timeout_ms} ms", "slow_frames")
        elif now_s - channel.idle_since > limits.idle_timeout_ms / 1000:
            channel.close(f"idle for {limits.idle_timeout_ms} ms")

    def _challenge(self, channel: Channel, request: Command) -> Command:
        """Give a Skylark client the challenge with which it signs its requests on this connection, and on no other."""
        # A client that names another address may have connected to a fake server there, which forwards what it gets.
        server = CHALLENGE.header(request).server or ""
        is_local = server == server_address(channel.local)
        if server and not is_local and not (is_address(server) and self._reached_at(server)):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"this server is not known to be reached at {server[:_MAX_ADDRESS]}: if it is, by way of another"
                " address of its network, add that to reachedAtAddresses in its conf file",
            )
        if channel.signatures is None:
            channel.signatures = WholeSignatures(token_hex(_CHALLENGE_BYTES), server)
        made = channel.signatures
        return CHALLENGE.answer(request, ChallengeHeader(made.challenge, made.server or None))


def _busy(request: Command) -> Command:
    # Official clients know this code and text, and back off.
    return request.respond(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")


def _stopping(request: Command) -> Command:
    # Older clients do not know GO_AWAY; both codes make a producer try another broker.
    knows_go_away = request.version > _LAST_WITHOUT_GO_AWAY
    code = ResponseCode.GO_AWAY if knows_go_away else ResponseCode.SERVICE_NOT_AVAILABLE
    return request.respond(code, "the server is stopping; try another one")


def not_supported(request: Command) -> Command:
    """The answer to a request without a handler; the text is RocketMQ's."""
    return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")


def failure(request: Command, error: Exception) -> Command:
    """The answer to a request whose handler raised; an error that is not a refusal is logged with its traceback."""
    if isinstance(error, RequestRefused):
        return request.respond(error.code, error.remark)
    if isinstance(error, ProtocolError):
        # The body cannot be read, but the frame is sound.
        return request.respond(ResponseCode.SYSTEM_ERROR, str(error))
    logger.error("request %d failed", request.code, exc_info=error)
    return request.respond(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
