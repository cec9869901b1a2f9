"""One call: what its handler sees, and what becomes of the request, the answer and the end.

A unary call has two steps. `begin` sees the headers, before the request is read: a stranger's request takes no memory
beyond the window of its stream. `run` gets the whole request. A plain function answers in the turn of the connection's
reader; a coroutine runs as a task. A call ends once: answered, failed, or cut (reset, or its connection lost).
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import trio

from skylark.mqcommon.signal import Signal
from skylark.remoting.grpc import heads
from skylark.remoting.grpc.messages import MessageReader, framed, whole_message
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.http2.connection import ServerConnection

logger = logging.getLogger(__name__)

# `write` waits while more bytes than this wait for the client's window.
WRITE_BYTES: Final = 65_536

# Larger answers are not sent in one piece: the client takes them in parts, and what it does not take stays small.
AT_ONCE_BYTES: Final = 262_144

#: What a step returns: the answer, or several; None; or a coroutine for either.
Result = bytes | tuple[bytes, ...] | None | Coroutine[Any, Any, bytes | tuple[bytes, ...] | None]


class Unary(NamedTuple):
    """A method with one request and one answer. Each step returns the answer, or None, or a coroutine for either.

    ``begin``: None reads the request, an answer refuses it. ``run``: after None the handler calls `Call.answer` later.
    ``unread``: the answer when no whole request came (INVALID_ARGUMENT: none at all, DEADLINE_EXCEEDED: not in time).
    Without it, or with None, the call fails with this error. ``has_many_answers``: the handler may give several answers
    where a step gives one, and use `Call.write` before it ends the call with `Call.answer`.
    """

    begin: Callable[["Call"], Result]
    run: Callable[["Call", bytes], Result]
    unread: Callable[["Call", GrpcError], bytes | tuple[bytes, ...] | None] | None = None
    has_many_answers: bool = False


class Streaming(NamedTuple):
    """A method whose handler reads and writes messages; the call ends well when it returns."""

    run: Callable[["Call"], Coroutine[Any, Any, None]]


class CallLink(Protocol):
    """What a call needs of its connection."""

    http2: ServerConnection
    remote: str
    max_message_bytes: int
    #: Whether messages or ends of calls were sent since the client's last ping.
    has_answered: bool

    def start(self, call: "Call", work: Coroutine[Any, Any, Any], then: Callable[[], None]) -> None:
        """Run ``call.work(work, then)`` as a task."""

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes of requests in memory; fewer when it is negative."""

    def wake(self) -> None:
        """Send soon what HTTP/2 has to send."""

    async def taken(self) -> None:
        """Wait while many bytes wait for the transport."""

    def takes_more(self) -> bool:
        """Whether `taken` would not wait."""

    def ended(self, stream_id: int) -> None:
        """The call of this stream has ended."""


class Call:
    """One call as its handler sees it."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_gives_gzip",
        "_has_head",
        "_held_bytes",
        "_is_beginning",
        "_is_blocked",
        "_is_whole",
        "_link",
        "_method",
        "_news",
        "_reader",
        "_reading_since_s",
        "_scope",
        "_stream_id",
        "_takes_gzip",
        "_unconsumed_bytes",
        "_window",
        "deadline_s",
        "header_bytes",
        "headers",
        "is_over",
        "is_streaming",
        "is_unary",
        "path",
        "state",
    )

    def __init__(
        self,
        link: CallLink,
        stream_id: int,
        headers: Mapping[str, str],
        method: Unary | Streaming,
        now_s: float,
        *,
        is_whole: bool,
        header_bytes: int,
    ) -> None:
        """``now_s``: when it came, in trio's time; ``is_whole``: no request follows. Raises GrpcError.

        ``header_bytes``: what the headers take in memory, as HTTP/2 counts them.
        """
        self._link = link
        self._stream_id = stream_id
        #: All headers of the request, by lower-case names: the client's own, HTTP/2's and gRPC's.
        self.headers = headers
        self._method = method
        self.is_streaming = isinstance(method, Streaming)
        self.is_unary = isinstance(method, Unary) and not method.has_many_answers
        self.path = headers[":path"]
        self.header_bytes = header_bytes
        timeout = headers.get("grpc-timeout")
        #: When the client stops waiting, in trio's time.
        self.deadline_s = None if timeout is None else now_s + heads.timeout_s(timeout)
        #: Belongs to the handler.
        self.state: Any = None
        self.is_over = False
        self._takes_gzip = headers.get("grpc-encoding") == "gzip"
        # An answer is compressed as its request, if the client reads such answers.
        self._gives_gzip = self._takes_gzip and "gzip" in headers.get("grpc-accept-encoding", "")
        self._callbacks: tuple[Callable[[], None], ...] = ()
        # --- the request
        self._is_whole = is_whole
        # `begin` runs as a task. What comes meanwhile is read, but no window is given back.
        self._is_beginning = False
        self._reader: MessageReader | None = None
        self._reading_since_s: float | None = None
        self._error: GrpcError | None = None
        self._held_bytes = 0
        self._unconsumed_bytes = 0
        # --- the task, if there is one
        self._scope: trio.CancelScope | None = None
        self._news: Signal | None = None
        # --- the answer
        self._has_head = False
        self._is_blocked = False
        self._window: trio.lowlevel.ParkingLot | None = None

    @property
    def peer(self) -> str:
        """The client's ``ip:port``."""
        return self._link.remote

    def time_left_s(self) -> float | None:
        """Until the client stops waiting; None: it waits for ever."""
        return None if self.deadline_s is None else max(self.deadline_s - trio.current_time(), 0.0)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the call has been answered, has failed or is lost; at once if it has ended."""
        if self.is_over:
            _call_back(callback, self.path)
        else:
            self._callbacks += (callback,)

    # --- answers; an answer to a call that has ended is dropped

    def answer(self, *messages: bytes) -> None:
        """End the call well, with its answer, or with the last messages of its answer."""
        if self.is_over:
            return
        http2, stream_id, gzip = self._link.http2, self._stream_id, self._gives_gzip
        data = framed(*messages, gzip=gzip)
        if self._has_head:
            http2.send_data(stream_id, data)
            http2.send_trailers(stream_id, heads.OK)
        else:
            http2.respond(stream_id, heads.GZIP_HEAD if gzip else heads.HEAD, data, heads.OK)
        self._end()

    def has_room(self, size: int) -> bool:
        """Whether an answer of ``size`` bytes in all goes out at once: the client's windows have room for it.

        Never for more than AT_ONCE_BYTES: a client may give a window of gigabytes, and read nothing.
        """
        return (
            not self.is_over
            and size <= AT_ONCE_BYTES
            and self._link.takes_more()
            and self._link.http2.has_room(self._stream_id, size)
        )

    def start(self, work: Coroutine[Any, Any, bytes | tuple[bytes, ...] | None]) -> None:
        """Run ``work`` as the task of this call. For a handler whose `Unary.run` has returned None."""
        if self.is_over:
            work.close()
        else:
            self._link.start(self, work, _nothing)

    def fail(self, status: StatusCode, text: str) -> None:
        """End the call with an error. Messages that wait for the client's window go first, unless a write gave up."""
        if self.is_over:
            return
        trailers = heads.failure(status, text, is_whole=not self._has_head)
        self._link.http2.send_trailers(self._stream_id, trailers, drop_queued=self._is_blocked)
        self._end()

    async def read(self) -> bytes | None:
        """The next message of the client; None when the client sends no more. One task may read.

        Raises GrpcError when the message cannot be read, or the call has ended.
        """
        await trio.lowlevel.checkpoint()
        while (reader := self._reader) is None or not reader.messages:
            self._check_open()
            if self._error is not None:
                raise self._error
            if self._is_whole:
                if reader is not None and reader.pending_bytes:
                    raise GrpcError(StatusCode.INVALID_ARGUMENT, "the last message is cut off")
                return None
            if self._news is None:
                self._news = Signal()
            await self._news.wait()
        message = reader.take()
        self._hold(reader.buffered_bytes)
        if not reader.messages:
            self._give_window()
            self._link.wake()
        return message

    async def write(self, *messages: bytes) -> None:
        """Send messages of a call with many answers. Waits while the client does not read: bound this time.

        Raises GrpcError when the call has ended, or ends because it sends more than HTTP/2 keeps for a client; the
        call's own task is cancelled then.
        """
        link, http2, stream_id = self._link, self._link.http2, self._stream_id
        # Each message waits for room before it takes any: many streams may write in one turn of the loop.
        await link.taken()
        self._check_open()
        if not self._has_head:
            self._has_head = True
            http2.send_head(stream_id, heads.GZIP_HEAD if self._gives_gzip else heads.HEAD)
        if not http2.send_data(stream_id, framed(*messages, gzip=self._gives_gzip)):
            self.cut()
            link.wake()
            raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, "the client does not take the messages of the call")
        link.has_answered = True
        link.wake()
        # No turn of the loop: a handler that returns next has its last messages and the trailers sent together.
        await self._unsent_at_most(WRITE_BYTES)

    async def drained(self) -> None:
        """Wait until all that was written has gone out to the client's window: bound this time.

        Raises GrpcError when the call has ended; the call's own task is cancelled then.
        """
        await self._unsent_at_most(0)

    # --- for the connection

    def begin(self) -> None:
        """Let the handler see the headers."""
        method = self._method
        if isinstance(method, Streaming):
            self._link.start(self, method.run(self), self._finish)
            return
        self._is_beginning = True
        self._attempt(method.begin, self._read_on)

    def received(self, data: bytes, is_last: bool) -> None:
        """A part of the request came."""
        if is_last:
            self._is_whole = True
            if self._reader is None and not self._is_beginning:
                request = whole_message(data, self._link.max_message_bytes)
                # By far the most requests: one message in one frame.
                if request is not None and isinstance(self._method, Unary):
                    self._link.http2.consumed(self._stream_id, len(data))
                    self._run(self._method, request)
                    return
        self._unconsumed_bytes += len(data)
        if self._error is None:
            self._read(data)
        if not self._is_beginning:
            self._advance()

    def window_opened(self) -> None:
        """All that was written has gone out."""
        if self._window is not None:
            self._window.unpark_all()

    def cut(self) -> None:
        """The client has reset the stream, or the connection is lost: stop the handler."""
        if not self.is_over:
            self._end()
            if self._scope is not None:
                self._scope.cancel()

    def expire(self, now_s: float, request_timeout_s: float) -> None:
        """End the call if its time is over; a call that runs as a task has a timer of its own."""
        if self._scope is not None:
            return
        if self.deadline_s is not None and now_s >= self.deadline_s:
            self.fail(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")
        elif isinstance(self._method, Unary) and not self._is_whole:
            # Counted by scans: a request that comes in one piece needs no clock.
            if self._reading_since_s is None:
                self._reading_since_s = now_s
            elif now_s - self._reading_since_s > request_timeout_s:
                self._not_read(self._method, StatusCode.DEADLINE_EXCEEDED, "the request did not become whole in time")

    async def work(self, work: Coroutine[Any, Any, Any], then: Callable[[], None]) -> None:
        """Run a step of the handler; ``then`` is called when it returns None. Raises nothing but Cancelled."""
        if self.is_over:
            work.close()
            return
        deadline = inf if self.deadline_s is None else self.deadline_s
        with trio.CancelScope(deadline=deadline) as scope:
            self._scope = scope
            try:
                result = await work
            except Exception as error:
                self._failed(error)
            else:
                # The next step may start another task, with a scope of its own.
                self._scope = None
                if result is None:
                    then()
                elif isinstance(result, bytes):
                    self.answer(result)
                else:
                    self.answer(*result)
        if scope.cancelled_caught:
            self.fail(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    # --- steps

    async def _unsent_at_most(self, size: int) -> None:
        """Wait until at most ``size`` bytes of the call wait for the client's window."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.is_over and self._link.http2.unsent_bytes(self._stream_id) > size:
            if self._window is None:
                self._window = trio.lowlevel.ParkingLot()
            # Stays true when the wait is cancelled: a client that does not read would not see how the call ends.
            self._is_blocked = True
            await self._window.park()
            self._is_blocked = False
        self._check_open()

    def _attempt(self, step: Callable[..., Result], then: Callable[[], None], *args: Any) -> None:
        """Call a step of the handler; ``then`` as in `work`."""
        try:
            result = step(self, *args)
        except Exception as error:
            self._failed(error)
            return
        if result is None:
            then()
        elif isinstance(result, bytes):
            self.answer(result)
        elif isinstance(result, tuple):
            self.answer(*result)
        else:
            self._link.start(self, result, then)

    def _read_on(self) -> None:
        """`begin` has let the request in."""
        if not self.is_over:
            self._is_beginning = False
            if self._reader is not None or self._is_whole:
                self._advance()
                self._link.wake()

    def _advance(self) -> None:
        """Do what the part of the request that is here allows."""
        method, reader = self._method, self._reader
        if isinstance(method, Streaming):
            # The window is given back when the handler has read all whole messages, and never after an error.
            if self._error is None and (reader is None or not reader.messages):
                self._give_window()
            if self._news is not None:
                self._news.set()
        elif self._error is not None:
            self.fail(self._error.status, self._error.text)
        elif reader is not None and len(reader.messages) > 1:
            self.fail(StatusCode.INTERNAL, "a unary call has more than one request")
        elif not self._is_whole:
            self._give_window()
        elif reader is None or not reader.messages or reader.pending_bytes:
            self._not_read(method, StatusCode.INVALID_ARGUMENT, "there is no whole request")
        else:
            self._give_window()
            self._run(method, reader.take())

    def _give_window(self) -> None:
        if self._unconsumed_bytes:
            self._link.http2.consumed(self._stream_id, self._unconsumed_bytes)
            self._unconsumed_bytes = 0

    def _run(self, method: Unary, request: bytes) -> None:
        self._attempt(method.run, _nothing, request)
        if not self.is_over:
            # The request stays in memory until the answer.
            self._hold(len(request))

    def _not_read(self, method: Unary, status: StatusCode, text: str) -> None:
        def unread(call: Call) -> Result:
            answer = method.unread(call, GrpcError(status, text)) if method.unread is not None else None
            if answer is None:
                raise GrpcError(status, text)
            return answer

        self._attempt(unread, _nothing)

    def _read(self, data: bytes) -> None:
        """Cut ``data`` into messages."""
        if self._reader is None:
            self._reader = MessageReader(self._link.max_message_bytes, gzip=self._takes_gzip)
        try:
            self._reader.feed(data)
        except GrpcError as error:
            self._error = error
        self._hold(self._reader.buffered_bytes)

    def _hold(self, size: int) -> None:
        """Count ``size`` bytes of the request as held in memory from now on."""
        if size != self._held_bytes:
            self._link.hold(size - self._held_bytes)
            self._held_bytes = size

    def _check_open(self) -> None:
        if self.is_over:
            raise GrpcError(StatusCode.CANCELLED, "the call has ended")

    # --- the end

    def _finish(self) -> None:
        """The handler of a streaming call has returned."""
        self.answer()

    def _failed(self, error: Exception) -> None:
        # trio wraps the error of a handler's own nursery.
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, GrpcError):
            self.fail(error.status, error.text)
        else:
            logger.error("call %s of %s failed", self.path[:100], self.peer, exc_info=error)
            self.fail(StatusCode.INTERNAL, f"internal error: {type(error).__name__}")

    def _end(self) -> None:
        self.is_over = True
        if self._held_bytes:
            self._hold(0)
        self._reader = None
        if self._unconsumed_bytes:
            self._give_window()
        self._link.ended(self._stream_id)
        if self._window is not None:
            self._window.unpark_all()
        if self._news is not None:
            self._news.set()
        for callback in self._callbacks:
            _call_back(callback, self.path)


def _nothing() -> None:
    """The handler answers later."""


def _call_back(callback: Callable[[], None], path: str) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback at the end of call %s failed", path[:100])
