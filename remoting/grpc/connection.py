"""One connection of a client.

A turn: read once, handle all that came, send all answers together. A call that waits for something is answered between
turns, and the writer task sends its answer. While the client does not take its answers, nothing more is read from it.

Leaving gracefully (RFC 9113, 6.8): a GOAWAY with the largest stream id asks the client to open no more streams. Streams
that are on their way arrive before the answer to a PING that follows it; then GOAWAY names the last of them. All of
these are answered, and the client closes the connection: closing here could destroy answers that it has not read.
gRPC's C++ and Python clients fail a call that begins in the instant in which they read the first GOAWAY. So answers are
held back before it, until the client's threads wait for their calls, and are released once the client has read it.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import CLOSED_BY_PEER
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.signal import Signal
from skylark.remoting.grpc import heads
from skylark.remoting.grpc.call import Call, Streaming, Unary
from skylark.remoting.grpc.limits import CallBudget, GrpcLimits
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.events import (
    DataReceived,
    Event,
    PingAnswered,
    PingReceived,
    RequestReceived,
    StreamReset,
    WindowOpened,
)
from skylark.remoting.net.limits import BufferBudget
from skylark.remoting.net.transport import Transport

logger = logging.getLogger(__name__)

# The header blocks in a piece of this size, some hundred small calls, are decoded without a pause.
READ_BYTES: Final = 16_384
# Large requests are read in larger pieces, which are decoded in smaller ones.
READ_BYTES_BULK: Final = 262_144
# A read with fewer events than this, and no more room in its buffer, is a part of large requests.
FEW_EVENTS: Final = 32
# After this time other connections are served before the rest of a read.
TURN_S: Final = 0.005
# The clock is read once before this many events.
EVENTS_PER_CLOCK_READ: Final = 8
# Streams wait with their next message while more bytes than this wait for the transport.
BULK_BYTES: Final = 262_144
# Large answers are sent in parts of this size, so that a slow client is told apart from a client that reads nothing.
PART_BYTES: Final = 262_144
# A client that gets no answers and sends nothing for this long begins no call.
QUIET_S: Final = 0.025
# The longest wait for a quiet client before the GOAWAY, and for a new connection's first bytes.
MAX_QUIET_WAIT_S: Final = 0.25
# After the GOAWAY: the time in which the client's threads learn of it.
SETTLE_S: Final = 0.02
# A client that does not answer the PING after a GOAWAY has this long to open its last streams.
GO_AWAY_ANSWER_S: Final = 1.0
# A client that has all answers after a GOAWAY has this long to close the connection.
LINGER_S: Final = 5.0
# After an error: the time in which the client may read why its connection ends.
ERROR_LINGER_S: Final = 1.0
# The most pings in a row that may come too early, as in gRPC's own servers.
MAX_EARLY_PINGS: Final = 2


class GrpcConnection:
    """Serves the calls of one client over ``transport``."""

    # More than 29 attributes without slots would make each call of a method slower in CPython 3.11.
    __slots__ = (
        "__weakref__",
        "_all_sent",
        "_blocked_since",
        "_budget",
        "_buffers",
        "_busy_at",
        "_calls",
        "_cancel_scope",
        "_charged_bytes",
        "_early_pings",
        "_go_away_answered",
        "_held",
        "_holds",
        "_in_turn",
        "_is_leaving",
        "_is_sending",
        "_last_ping",
        "_last_read",
        "_limits",
        "_methods",
        "_nursery",
        "_one_request_calls",
        "_opened_at",
        "_outbox",
        "_outbox_bytes",
        "_pinged_at",
        "_request_bytes",
        "_resumed_at",
        "_taken",
        "_transport",
        "_turn_ends",
        "_unary_calls",
        "_unsent",
        "_wake",
        "closed_reason",
        "exceeded",
        "has_answered",
        "http2",
        "max_message_bytes",
        "remote",
    )

    def __init__(
        self,
        transport: Transport,
        methods: Mapping[str, Unary | Streaming],
        limits: GrpcLimits,
        calls: CallBudget,
        buffers: BufferBudget,
    ) -> None:
        """``calls`` and ``buffers`` are shared by the connections of a server."""
        self._transport = transport
        self._methods = methods
        self._limits = limits
        self._budget = calls
        self._buffers = buffers
        self.http2 = ServerConnection(limits.http2)
        self.remote = transport.remote
        self.max_message_bytes = limits.max_message_bytes
        #: Why it was closed, and the limit that the client exceeded, if any: a key of `limits.REFUSED`.
        self.closed_reason: str | None = None
        self.exceeded = ""
        self._calls: dict[int, Call] = {}
        # Calls with one request: those with one answer, and all of them.
        self._unary_calls = 0
        self._one_request_calls = 0
        # Ended calls whose answer waits for the client's window, and when they ended; scans drop those that have gone.
        self._unsent: dict[int, float] = {}
        self._request_bytes = 0
        self._charged_bytes = 0
        # --- sending
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._wake = Signal()
        self._in_turn = False
        self._turn_ends = 0.0
        self._is_sending = False
        # What HTTP/2 has to send waits here while `_holds`.
        self._holds = False
        self._held: list[bytes] = []
        self._taken = trio.lowlevel.ParkingLot()
        self._blocked_since: float | None = None
        # --- life
        self._cancel_scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._opened_at = self._last_read = self._busy_at = trio.current_time()
        self._resumed_at = -inf
        self._pinged_at = 0.0
        self._last_ping = -inf
        self._early_pings = 0
        self.has_answered = False
        self._is_leaving = False
        self._go_away_answered = trio.Event()
        self._all_sent = trio.Event()

    async def run(self) -> None:
        """Serve until the client closes, or `close` is called. Faults of the client raise no exception."""
        try:
            with self._cancel_scope:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._write_queued)
                    if self._is_leaving:
                        self._nursery.start_soon(self._leave)
                    try:
                        await self._read()
                    finally:
                        # Before the nursery ends, which takes no more tasks of calls then.
                        self.close(CLOSED_BY_PEER)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self._transport.aclose()

    def close(self, reason: str, exceeded: str = "") -> None:
        """Close now; calls in progress are cut. ``exceeded`` as the attribute."""
        if self.closed_reason is not None:
            return
        self.closed_reason, self.exceeded = reason, exceeded
        self._cancel_scope.cancel()
        for call in list(self._calls.values()):
            call.cut()
        self._outbox.clear()
        self._held.clear()
        self._outbox_bytes = 0
        self._charge()
        self._taken.unpark_all()

    def leave(self) -> None:
        """Begin to leave gracefully; `run` then returns when all calls are answered and the client has closed.

        Before `run` it makes the connection leave as soon as it is served.
        """
        if not self._is_leaving and self.closed_reason is None:
            self._is_leaving = True
            if self._nursery is not None:
                self._nursery.start_soon(self._leave)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that this connection holds in memory."""
        http2 = self.http2
        held_bytes = http2.pending_bytes + http2.queued_bytes + self._outbox_bytes + self._request_bytes
        return held_bytes + self._transport.buffered_bytes

    def scan(self, now_s: float) -> None:
        """Enforce what takes time: to be called about once a second."""
        limits = self._limits
        if not self.http2.has_begun:
            if now_s - self._opened_at > limits.first_bytes_timeout_ms / 1000:
                self.close(f"it did not begin to speak HTTP/2 in {limits.first_bytes_timeout_ms} ms", "silent")
            return
        blocked_since = self._blocked_since
        if blocked_since is not None and now_s - blocked_since > limits.write_timeout_ms / 1000:
            self.close(f"peer did not read for {limits.write_timeout_ms} ms", "slow_readers")
            return
        request_timeout_s = limits.request_timeout_ms / 1000
        # Nothing is read while the client does not take its answers.
        incomplete_since = self.http2.incomplete_since_s
        reading_since = now_s if incomplete_since is None else max(incomplete_since, self._resumed_at)
        if blocked_since is None and now_s - reading_since > request_timeout_s:
            self.close(f"a frame or headers were not whole after {limits.request_timeout_ms} ms", "slow_frames")
            return
        for call in list(self._calls.values()):
            call.expire(now_s, request_timeout_s)
        for stream_id, since in list(self._unsent.items()):
            if not self.http2.unsent_bytes(stream_id):
                del self._unsent[stream_id]
            elif now_s - since > limits.write_timeout_ms / 1000:
                del self._unsent[stream_id]
                self.http2.reset(stream_id, ErrorCode.CANCEL)
                self.wake()
        if self._calls or self.http2.open_streams:
            self._busy_at = now_s
        elif now_s - self._busy_at > limits.idle_timeout_ms / 1000:
            self.leave()
        self._keep_alive(now_s)
        self._charge()

    def _keep_alive(self, now_s: float) -> None:
        """Ping a client that is silent; it may have vanished without a word."""
        limits = self._limits
        if self._blocked_since is not None:
            # Its answers to pings are not read now, and it has a limit of its own.
            return
        if self._pinged_at > self._last_read:
            if now_s - self._pinged_at > limits.ping_timeout_ms / 1000:
                self.close(f"no answer to a ping in {limits.ping_timeout_ms} ms", "silent")
        elif now_s - self._last_read > limits.ping_interval_ms / 1000:
            self._pinged_at = now_s
            self.http2.ping()
            self.wake()

    # --- for calls: see CallLink

    def start(self, call: Call, work: Coroutine[Any, Any, Any], then: Callable[[], None]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(call.work, work, then)

    def hold(self, size: int) -> None:
        self._request_bytes += size

    def wake(self) -> None:
        if not self._in_turn:
            self._wake.set()

    async def taken(self) -> None:
        while not self.takes_more():
            await self._taken.park()

    def takes_more(self) -> bool:
        self._collect()
        return self._outbox_bytes <= BULK_BYTES or self.closed_reason is not None

    def ended(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id, None)
        if call is None:
            return
        self._budget.used -= 1
        self._request_bytes -= call.header_bytes
        self._unary_calls -= call.is_unary
        self._one_request_calls -= not call.is_streaming
        self.has_answered = True
        if self.http2.unsent_bytes(stream_id):
            self._unsent[stream_id] = trio.current_time()
        if self._in_turn:
            return
        if call.is_streaming or (self._unary_calls if call.is_unary else self._one_request_calls):
            # Many receives end together, when the server stops or their time is over: one flush sends all answers.
            self._wake.set()
        else:
            # No other answer can join this one, so it need not wait for the writer's turn.
            self.flush_now()

    # --- reading

    async def _read(self) -> None:
        receive, http2, buffers = self._transport.receive, self.http2, self._buffers
        size = READ_BYTES
        while True:
            try:
                data = await receive(size)
            except trio.BrokenResourceError as error:
                self.close(str(error))
                return
            if not data:
                return
            received = len(data)
            now_s = self._last_read = trio.current_time()
            self._turn_ends = now_s + TURN_S
            count = 0
            for at in range(0, received, READ_BYTES):
                if at and trio.current_time() > self._turn_ends:
                    await self._pause()
                try:
                    events = http2.receive(data[at : at + READ_BYTES], now_s)
                except Http2Error as error:
                    await self._give_up(str(error), "bad_frames")
                    return
                count += len(events)
                if not await self._handle(events, now_s):
                    return
                del events
            # A buffer of the transport would stay alive while the turn waits.
            del data
            if not self.flush_now():
                await self._all_taken()
                # A client that takes its answers is not silent.
                self._resumed_at = self._last_read = trio.current_time()
            if self._request_bytes or self._charged_bytes or http2.pending_bytes:
                self._charge()
                # Between turns: `relieve` closes connections, and a handler must not lose its own.
                if buffers.used > buffers.most:
                    buffers.relieve()
            if self.closed_reason is not None:
                return
            is_bulk = received == size and count < FEW_EVENTS
            size = min(2 * size, READ_BYTES_BULK) if is_bulk else READ_BYTES

    async def _handle(self, events: list[Event], now_s: float) -> bool:
        """Handle the events of a part of a read; False when the connection ends."""
        calls = self._calls
        self._in_turn = True
        try:
            for number, event in enumerate(events, 1):
                if isinstance(event, RequestReceived):
                    self._begin(event, now_s)
                elif isinstance(event, DataReceived):
                    stream_id, data, is_last = event
                    call = calls.get(stream_id)
                    if call is not None:
                        call.received(data, is_last)
                elif isinstance(event, PingReceived):
                    if self._is_early_ping(now_s):
                        self.http2.close(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
                        await self._give_up("pings come too often", "pings")
                        return False
                else:
                    self._handle_rare(event)
                if not number % EVENTS_PER_CLOCK_READ and trio.current_time() > self._turn_ends:
                    await self._pause()
        finally:
            self._in_turn = False
        return self.closed_reason is None

    async def _pause(self) -> None:
        """Let other connections be served; the answers made so far do not wait for that."""
        self.flush_now()
        await trio.lowlevel.checkpoint()
        self._turn_ends = trio.current_time() + TURN_S

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, StreamReset):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.cut()
        elif isinstance(event, WindowOpened):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.window_opened()
        elif isinstance(event, PingAnswered) and event.is_leaving:
            self._go_away_answered.set()

    def _begin(self, event: RequestReceived, now_s: float) -> None:
        stream_id, headers, is_whole, header_bytes = event
        http2 = self.http2
        if headers[":method"] != "POST":
            http2.send_trailers(stream_id, heads.NOT_POST)
            return
        if not heads.is_grpc(headers.get("content-type", "")):
            http2.send_trailers(stream_id, heads.UNSUPPORTED_MEDIA_TYPE)
            return
        encoding = headers.get("grpc-encoding", "identity")
        if encoding != "identity" and not (encoding == "gzip" and self._limits.takes_gzip):
            takes_gzip = self._limits.takes_gzip
            http2.send_trailers(stream_id, heads.unknown_encoding(encoding, takes_gzip=takes_gzip))
            return
        method = self._methods.get(headers[":path"])
        try:
            if method is None:
                raise GrpcError(StatusCode.UNIMPLEMENTED, "unknown service or method")
            call = Call(self, stream_id, headers, method, now_s, is_whole=is_whole, header_bytes=header_bytes)
            if self._budget.used >= self._budget.most:
                self._budget.refused(self.remote, now_s)
                raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, "too many calls are in progress")
        except GrpcError as error:
            http2.send_trailers(stream_id, heads.failure(error.status, error.text, is_whole=True))
            return
        self._budget.used += 1
        self._request_bytes += call.header_bytes
        self._calls[stream_id] = call
        self._unary_calls += call.is_unary
        self._one_request_calls += not call.is_streaming
        call.begin()

    def _is_early_ping(self, now_s: float) -> bool:
        """Count a ping; True when too many in a row come too early. gRPC's clients then ping less often."""
        limits = self._limits
        interval_ms = limits.min_ping_interval_ms if self._calls else limits.min_idle_ping_interval_ms
        is_early = now_s - self._last_ping < interval_ms / 1000 and not self.has_answered
        self._early_pings = self._early_pings + 1 if is_early else 0
        self._last_ping = now_s
        self.has_answered = False
        return self._early_pings > MAX_EARLY_PINGS

    # --- sending

    @enable_ki_protection
    def flush_now(self) -> bool:
        """Send what the transport takes without waiting; whether nothing is left. The rest leaves as the peer reads."""
        if self._is_sending or self.closed_reason is not None:
            # The task that is sending will send this, too.
            return False
        if not (waiting := self._waiting()):
            self._check_all_sent()
            return True
        try:
            taken = self._transport.try_send([waiting])
        except trio.BrokenResourceError:
            # The writer finds the same, and closes: callers of this function must not lose their call in its midst.
            taken = 0
        self._outbox_bytes -= taken
        if taken < len(waiting):
            self._outbox = [memoryview(waiting)[taken:]]
            self._wake.set()
            self._charge()
            return False
        if self._taken:
            self._taken.unpark_all()
        self._check_all_sent()
        return True

    def _waiting(self) -> bytes | memoryview:
        """Take what waits to be sent."""
        self._collect()
        pieces, self._outbox = self._outbox, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _collect(self) -> None:
        """Put what HTTP/2 has to send, which are whole frames, to what waits to be sent or is held back."""
        if made := self.http2.take():
            self._outbox_bytes += sum(map(len, made))
            if self._holds:
                self._held += made
            else:
                self._outbox += made

    async def _flush(self) -> None:
        """Send all that waits; returns at once when another task is sending, which takes the rest."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while waiting := self._waiting():
                view = memoryview(waiting)
                for at in range(0, len(view), PART_BYTES):
                    part = view[at : at + PART_BYTES]
                    self._blocked_since = trio.current_time()
                    await self._transport.send_all(part)
                    self._outbox_bytes -= len(part)
                self._charge()
        except trio.BrokenResourceError as error:
            self.close(str(error))
        finally:
            self._blocked_since = None
            self._is_sending = False
            self._taken.unpark_all()

    async def _all_taken(self) -> None:
        """Wait until all is sent, or the connection is closed."""
        while not self.flush_now() and self.closed_reason is None:
            if self._is_sending:
                await self._taken.park()
            else:
                await self._flush()

    @enable_ki_protection
    async def _write_queued(self) -> None:
        while True:
            await self._wake.wait()
            if not self.flush_now():
                await self._flush()

    def _charge(self) -> None:
        """Tell the budget what this connection holds now, and close it above its own limit."""
        held = self.buffered_bytes if self.closed_reason is None else 0
        self._buffers.used += held - self._charged_bytes
        self._charged_bytes = held
        if self._outbox_bytes > self._limits.max_answer_bytes:
            self.close(f"peer does not read: {self._outbox_bytes} bytes wait for it", "answer_bytes")

    # --- the end

    def _check_all_sent(self) -> None:
        if self._is_leaving and not self._calls and not self.http2.open_streams:
            self._all_sent.set()

    async def _leave(self) -> None:
        # The first bytes of a new connection may be on their way, with a call.
        await poll_until(lambda: self.http2.has_begun, MAX_QUIET_WAIT_S)
        if self.http2.has_begun:
            self._holds = True
            await poll_until(lambda: trio.current_time() - self._last_read >= QUIET_S, MAX_QUIET_WAIT_S)
            self._collect()
            # The GOAWAY overtakes what is held back.
            self._holds = False
            self.http2.go_away()
            self._collect()
            self._holds = True
            self._wake.set()
            with trio.move_on_after(GO_AWAY_ANSWER_S):
                await self._go_away_answered.wait()
                await trio.sleep(SETTLE_S)
            self._release()
            self.http2.go_away_now()
            self._all_sent = trio.Event()
            self._wake.set()
            await self._all_sent.wait()
            # The client closes now that it has all answers, which ends `run`.
            await trio.sleep(LINGER_S)
        self.close("the server asked the client to leave")

    def _release(self) -> None:
        """Send what was held back."""
        self._holds = False
        self._outbox += self._held
        self._held = []

    async def _give_up(self, reason: str, exceeded: str) -> None:
        """Send the GOAWAY with the error, and let the client read it: an early close could destroy it."""
        self._in_turn = False
        self._release()
        for call in list(self._calls.values()):
            call.cut()
        with trio.move_on_after(ERROR_LINGER_S):
            await self._all_taken()
            try:
                while await self._transport.receive(READ_BYTES):
                    pass
            except trio.BrokenResourceError:
                # The client has closed in its own way.
                logger.debug("%s closed after an error", self.remote)
        self.close(reason, exceeded)
