"""The server's side of one connection, without I/O.

Contract: `receive` raises Http2Error only; anything else is a bug. A stream of bytes gives the same events however it
is split. After an error the connection is dead: `take` gives the GOAWAY to send, and answers do nothing. Events of the
same bytes before the error are not returned: the client sees requests that were lost with the connection.

Memory: an incomplete frame or header block, data that the caller has not consumed (bounded by the windows given to the
client), data that waits for the client's windows, and control frames that were not taken; each has a limit.
Neighbours: header_blocks.py decodes header blocks, limits.py has the limits.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Final

from skylark.remoting.http2 import frames
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
from skylark.remoting.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_FRAME_BYTES,
    FIRST_TABLE_BYTES,
    FIRST_WINDOW_BYTES,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
)
from skylark.remoting.http2.header_blocks import TOO_LARGE, HeaderDecoder
from skylark.remoting.http2.limits import Allowance, Http2Limits
from skylark.remoting.protocol.foreign import REMOTING, foreign_protocol

_KEEPALIVE_PING: Final = b"keepaliv"
_LEAVING_PING: Final = b"leaving\0"
# The first block after a client has made its table smaller must say so (RFC 7541, 4.2): from then on it has size 0.
_NO_TABLE: Final = b"\x20"

_unpack_head = FRAME_HEAD.unpack_from
_pack_head = FRAME_HEAD.pack
# Makes a named tuple without a call of Python, which takes a third of the time.
_new = tuple.__new__


class _Stream:
    """A stream that has not ended."""

    __slots__ = ("is_request_over", "queued", "receive_window", "send_window", "trailers", "unread", "unsent")

    def __init__(self, receive_window: int, send_window: int, is_request_over: bool) -> None:
        self.receive_window = receive_window  # what the client may still send
        self.unread = 0  # bytes of events that the caller has not consumed
        self.send_window = send_window
        self.is_request_over = is_request_over
        self.queued: list[memoryview] = []  # data beyond the client's windows
        self.unsent = 0  # bytes of `queued`
        self.trailers: bytes | None = None  # what follows `queued`; the caller has done with this stream


class ServerConnection:
    """One client's connection: `receive` its bytes, answer its streams, send what `take` gives."""

    # More than 29 attributes without slots would make each call of a method slower in CPython 3.11.
    __slots__ = (
        "_block",
        "_block_flags",
        "_block_prefix",
        "_block_stream_id",
        "_consumed",
        "_control_bytes",
        "_decoder",
        "_failure",
        "_handlers",
        "_has_preface",
        "_incomplete_since_s",
        "_is_leaving",
        "_last_stream_id",
        "_last_taken_id",
        "_limits",
        "_needed",
        "_now_s",
        "_out",
        "_peer_frame_bytes",
        "_peer_stream_window",
        "_pending",
        "_pinged",
        "_pings",
        "_priorities",
        "_refuses_streams",
        "_resets",
        "_send_window",
        "_settings",
        "_stream_window",
        "_streams",
        "_unsent",
        "_updates",
        "_useless",
        "_waiting",
        "_window",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._pending = bytearray()  # the beginning of a frame, or of the preface
        self._needed = FRAME_HEAD_BYTES  # how long `_pending` must be before it is parsed
        self._incomplete_since_s = 0.0  # of `_pending`, or of the header block that is not whole
        self._has_preface = False
        self._handlers: Mapping[int, _Handler] = _AT_START
        self._failure: tuple[ErrorCode, str] | None = None  # not the error: its traceback holds its catchers
        self._now_s = 0.0

        self._decoder = HeaderDecoder(max(limits.header_table_bytes, FIRST_TABLE_BYTES), limits.max_header_list_bytes)
        # A header block that goes on in CONTINUATION, with the stream and flags of its HEADERS.
        self._block = bytearray()
        self._block_stream_id = 0
        self._block_flags = 0

        self._streams: dict[int, _Stream] = {}
        self._last_stream_id = 0  # of all streams that the client opened
        self._last_taken_id = 0  # of the streams that were not refused
        self._refuses_streams = False
        self._is_leaving = False

        self._stream_window = max(limits.initial_window_bytes, FIRST_WINDOW_BYTES)  # of new streams
        self._window = max(limits.connection_window_bytes, FIRST_WINDOW_BYTES)  # what the client may still send
        self._consumed = 0  # what `_window` may grow by
        self._peer_stream_window = FIRST_WINDOW_BYTES  # of new streams
        self._send_window = FIRST_WINDOW_BYTES  # of the connection
        self._peer_frame_bytes = FIRST_FRAME_BYTES
        self._block_prefix = b""
        # Streams that only the connection's window holds back; none while it is open.
        self._waiting: OrderedDict[int, _Stream] = OrderedDict()
        self._unsent = 0
        self._pings: deque[bytes] = deque()  # PINGs that the client has not answered

        self._resets = Allowance(limits.resets_a_second, max(limits.resets_a_second, limits.max_concurrent_streams))
        self._useless = Allowance(limits.useless_frames_a_second, limits.useless_frames_a_second)
        self._settings = Allowance(limits.settings_a_second, limits.settings_a_second)
        self._pinged = Allowance(limits.pings_a_second, limits.pings_a_second)
        self._priorities = Allowance(limits.priorities_a_second, limits.priorities_a_second)
        self._updates = Allowance(limits.window_updates_a_second, limits.window_updates_a_second)

        self._out: list[bytes] = [_preface(limits)]
        self._control_bytes = 0

    # --- what the caller sees

    @property
    def open_streams(self) -> int:
        """Streams that have not ended: without a whole answer, or with data that waits for the client's window."""
        return len(self._streams)

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame or header block."""
        return len(self._pending) + len(self._block)

    @property
    def incomplete_since_s(self) -> float | None:
        """When the first bytes of an incomplete frame or header block came, which the caller should limit; or None."""
        return self._incomplete_since_s if self._pending or self._handlers is _IN_BLOCK else None

    @property
    def queued_bytes(self) -> int:
        """Bytes of all streams that wait for the client's windows."""
        return self._unsent

    @property
    def has_begun(self) -> bool:
        """Whether the client's preface and its SETTINGS have come."""
        return self._handlers is not _AT_START

    def unsent_bytes(self, stream_id: int) -> int:
        """Bytes of a stream that wait for the client's windows."""
        stream = self._streams.get(stream_id)
        return stream.unsent if stream is not None else 0

    def has_room(self, stream_id: int, size: int) -> bool:
        """Whether all bytes of a stream that wait and ``size`` more may be sent at once, as far as the windows say."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.unsent and size <= min(stream.send_window, self._send_window)

    def take(self) -> list[bytes]:
        """What is to be sent, once: call it when the transport can take more."""
        out, self._out = self._out, []
        self._control_bytes = 0
        return out

    # --- input

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """The events of the next bytes from the client. ``now_s``: seconds of any clock that does not go back.

        Raises Http2Error, after which the connection must be closed as soon as what `take` gives has been sent.
        """
        if self._failure is not None:
            raise Http2Error(*self._failure)
        self._now_s = now_s
        events: list[Event] = []
        pending = self._pending
        if pending:
            pending += data
            if self._has_preface and len(pending) < self._needed:
                return events
            data = bytes(pending)
            self._pending = bytearray()
        elif self._handlers is not _IN_BLOCK:
            self._incomplete_since_s = now_s
        try:
            self._parse(data, events)
        except Http2Error as error:
            self._fail(error.code, error.text)
            raise
        return events

    def _parse(self, data: bytes, events: list[Event]) -> None:
        at, end = 0, len(data)
        if not self._has_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                is_remoting = foreign_protocol(data) == REMOTING
                spoken = f"speaks {REMOTING}, not HTTP/2" if is_remoting else "does not speak HTTP/2"
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"the peer {spoken}")
            if end >= len(PREFACE):
                self._has_preface = True
                at = len(PREFACE)
        needed = FRAME_HEAD_BYTES if self._has_preface else len(PREFACE)
        max_bytes = self._limits.max_frame_bytes
        while end - at >= needed:
            word, flags, stream_id = _unpack_head(data, at)
            length = word >> 8
            if length > max_bytes:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes is longer than {max_bytes}")
            payload_at = at + FRAME_HEAD_BYTES
            if payload_at + length > end:
                needed = FRAME_HEAD_BYTES + length
                break
            at = payload_at + length
            handler = self._handlers.get(word & 0xFF, _unknown)
            handler(self, flags, stream_id & MAX_STREAM_ID, data[payload_at:at], events)
            needed = FRAME_HEAD_BYTES
        self._needed = needed
        if at and self._handlers is not _IN_BLOCK:
            self._incomplete_since_s = self._now_s
        if at < end:
            self._pending += data[at:]

    def _fail(self, code: ErrorCode, text: str) -> None:
        self._failure = code, text
        self._out.append(frames.goaway(self._last_taken_id, code, text))
        self._pending = bytearray()
        self._block = bytearray()
        self._streams.clear()
        self._waiting.clear()
        self._unsent = 0

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        self._check_opened(stream_id, "DATA")
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the peer sent more than the connection's window")
        data = _without_padding(payload) if flags & PADDED else payload
        if not data and not flags & END_STREAM:
            self._spend(self._useless, "empty frames")
        stream = self._streams.get(stream_id)
        if stream is None:
            # A stream that was reset: its last data was on the way.
            self._give_back(size)
            return
        stream.receive_window -= size
        if stream.is_request_over or stream.receive_window < 0:
            code = ErrorCode.STREAM_CLOSED if stream.is_request_over else ErrorCode.FLOW_CONTROL_ERROR
            self._give_back(size)
            self._fault(stream_id, code, events)
            return
        is_last = flags & END_STREAM == END_STREAM
        stream.is_request_over = is_last
        if stream.trailers is not None:
            self._give_back(size)
            return
        unpadded = len(data)
        stream.unread += unpadded
        if unpadded != size:
            self._give_back(size - unpadded)
            self._grow_window(stream_id, stream)
        if data or is_last:
            events.append(_new(DataReceived, (stream_id, data, is_last)))

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client may not open stream {stream_id}")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, payload, events)
            return
        self._block += payload
        self._block_stream_id, self._block_flags = stream_id, flags
        self._incomplete_since_s = self._now_s
        self._handlers = _IN_BLOCK

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id != self._block_stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of another stream interrupts a header block")
        if not payload:
            self._spend(self._useless, "empty frames")
        self._block += payload
        max_bytes = self._limits.max_header_block_bytes
        if len(self._block) > max_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a header block is longer than {max_bytes} bytes")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), bytearray()
            self._handlers = _USUAL
            self._on_block(self._block_flags, stream_id, block, events)

    def _on_block(self, flags: int, stream_id: int, block: bytes, events: list[Event]) -> None:
        # Also the block of a stream that is refused changes the dynamic table.
        headers = self._decoder.decode(block)
        is_last = flags & END_STREAM == END_STREAM
        stream = self._streams.get(stream_id)
        if stream_id > self._last_stream_id:
            self._last_stream_id = stream_id
            if self._refuses_streams or len(self._streams) >= self._limits.max_concurrent_streams:
                self._fault(stream_id, ErrorCode.REFUSED_STREAM, events)
            elif headers.request_fault:
                # gRPC's clients take ENHANCE_YOUR_CALM for RESOURCE_EXHAUSTED.
                is_too_large = headers.request_fault is TOO_LARGE
                code = ErrorCode.ENHANCE_YOUR_CALM if is_too_large else ErrorCode.PROTOCOL_ERROR
                self._fault(stream_id, code, events)
            else:
                self._last_taken_id = stream_id
                self._streams[stream_id] = _Stream(self._stream_window, self._peer_stream_window, is_last)
                events.append(_new(RequestReceived, (stream_id, headers.values, is_last, headers.size_bytes)))
        elif stream is None or stream.is_request_over:
            self._fault(stream_id, ErrorCode.STREAM_CLOSED, events)
        elif headers.trailers_fault or not is_last:
            self._fault(stream_id, ErrorCode.PROTOCOL_ERROR, events)
        else:
            stream.is_request_over = True
            if stream.trailers is None:
                events.append(DataReceived(stream_id, b"", True))

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        self._check_opened(stream_id, "RST_STREAM")
        _check_size("RST_STREAM", payload, 4)
        stream = self._streams.get(stream_id)
        if stream is None:
            # It crossed the answer, or the reset of the server.
            self._spend(self._useless, "resets of streams that have ended")
            return
        self._spend(self._resets, "reset streams")
        self._forget(stream_id, stream)
        if stream.trailers is None:
            events.append(StreamReset(stream_id, *WORD.unpack(payload)))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        _check_size("PRIORITY", payload, 5)
        self._spend(self._priorities, "PRIORITY frames")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        self._spend(self._settings, "SETTINGS frames")
        if flags & ACK:
            _check_size("an acknowledgement of SETTINGS", payload, 0)
            self._on_settings_answered()
            return
        if len(payload) % SETTING.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._handlers = _USUAL
        stream_window = self._peer_stream_window
        for key, value in SETTING.iter_unpack(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                stream_window = value
            elif key == frames.MAX_FRAME_SIZE:
                if not FIRST_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of at most {value} bytes")
                self._peer_frame_bytes = value
            elif key == frames.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
            elif key == frames.HEADER_TABLE_SIZE and value < FIRST_TABLE_BYTES:
                self._block_prefix = _NO_TABLE
        self._answer(frames.frame(SETTINGS, ACK, 0))
        if stream_window != self._peer_stream_window:
            self._resize_windows(stream_window, events)

    def _on_settings_answered(self) -> None:
        """The client knows our limits: what it might do before is not allowed any more."""
        self._decoder.limit_table(self._limits.header_table_bytes)
        shrunk = self._stream_window - self._limits.initial_window_bytes
        if shrunk:
            self._stream_window -= shrunk
            for stream in self._streams.values():
                stream.receive_window -= shrunk

    def _resize_windows(self, stream_window: int, events: list[Event]) -> None:
        """Apply the client's new window to all streams (RFC 9113, 6.9.2): windows may become negative."""
        grown = stream_window - self._peer_stream_window
        self._peer_stream_window = stream_window
        for stream_id, stream in self._streams.items():
            stream.send_window += grown
            if stream.send_window > MAX_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS make a window too large")
            if stream.unsent:
                self._waiting[stream_id] = stream
        self._send_waiting(events)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        _check_size("PING", payload, frames.PING_BYTES)
        # gRPC's clients know this text: they send keepalive pings less often after it.
        self._spend(self._pinged, "too_many_pings")
        if not flags & ACK:
            self._answer(frames.frame(PING, ACK, 0, payload))
            events.append(PingReceived())
        elif self._pings and payload == self._pings[0]:
            events.append(PingAnswered(self._pings.popleft() == _LEAVING_PING))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._spend(self._useless, "GOAWAY frames")

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            self._check_opened(stream_id, "WINDOW_UPDATE")
        _check_size("WINDOW_UPDATE", payload, 4)
        self._spend(self._updates, "WINDOW_UPDATE frames")
        size = WORD.unpack(payload)[0] & MAX_WINDOW_BYTES
        if not stream_id:
            if not size:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._send_window += size
            if self._send_window > MAX_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the connection's window grows by {size}")
            self._send_waiting(events)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.send_window += size
        if not size or stream.send_window > MAX_WINDOW_BYTES:
            self._fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR if size else ErrorCode.PROTOCOL_ERROR, events)
        elif stream.unsent:
            self._waiting[stream_id] = stream
            self._send_waiting(events)

    def _on_misplaced(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client, or CONTINUATION of nothing")

    def _on_other(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._handlers is _AT_START:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._handlers is _IN_BLOCK:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "another frame interrupts a header block")
        self._spend(self._useless, "frames of unknown kinds")

    # --- checks

    def _check_opened(self, stream_id: int, what: str) -> None:
        if stream_id > self._last_stream_id or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} of stream {stream_id}, which was not opened")

    def _spend(self, allowance: Allowance, what: str) -> None:
        if not allowance.take(self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, what)

    def _fault(self, stream_id: int, code: ErrorCode, events: list[Event]) -> None:
        """Reset a stream for what the peer did."""
        self._spend(self._resets, "reset streams")
        self._answer(frames.rst_stream(stream_id, code))
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream_id, stream)
            if stream.trailers is None:
                events.append(StreamReset(stream_id, code))

    def _answer(self, control_frame: bytes) -> None:
        self._control_bytes += len(control_frame)
        if self._control_bytes > self._limits.max_control_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the peer does not read answers to its control frames")
        self._out.append(control_frame)

    # --- windows that the client gets

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the client send as many bytes again. The rest of a stream that ends is consumed by its end."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if size > stream.unread:
            raise ValueError(f"stream {stream_id} has {stream.unread} bytes to consume, not {size}")
        stream.unread -= size
        self._grow_window(stream_id, stream)
        self._give_back(size)

    def _grow_window(self, stream_id: int, stream: _Stream) -> None:
        """Send WINDOW_UPDATE when half of the window has been consumed."""
        grown = self._stream_window - stream.receive_window - stream.unread
        if not stream.is_request_over and 2 * grown >= self._stream_window:
            stream.receive_window += grown
            self._out.append(frames.window_update(stream_id, grown))

    def _give_back(self, size: int) -> None:
        self._consumed += size
        if 2 * self._consumed >= self._limits.connection_window_bytes:
            self._out.append(frames.window_update(0, self._consumed))
            self._window += self._consumed
            self._consumed = 0

    def _forget(self, stream_id: int, stream: _Stream) -> None:
        del self._streams[stream_id]
        if stream.unread:
            self._give_back(stream.unread)
        if stream.unsent:
            self._unsent -= stream.unsent
            self._waiting.pop(stream_id, None)

    # --- answers; a stream that has ended, because the peer reset it meanwhile, takes none

    def respond(self, stream_id: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Answer with two header blocks and the data between them; the stream ends."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.trailers is not None:
            return
        size = len(data)
        if (
            size > stream.send_window
            or size > self._send_window
            or max(len(head), size, len(trailers)) > self._peer_frame_bytes
            or self._block_prefix
            or not size
        ):
            self.send_head(stream_id, head)
            self.send_data(stream_id, data)
            self.send_trailers(stream_id, trailers)
            return
        self._send_window -= size
        self._out.append(
            _pack_head(len(head) << 8 | HEADERS, END_HEADERS, stream_id)
            + head
            + _pack_head(size << 8 | DATA, 0, stream_id)
            + data
            + _pack_head(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, stream_id)
            + trailers
        )
        self._end(stream_id, stream)

    def send_head(self, stream_id: int, head: bytes) -> None:
        """Send a header block (`header_blocks.block`)."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.trailers is None:
            self._send_block(stream_id, head, 0)

    def send_data(self, stream_id: int, data: bytes) -> bool:
        """Send data, as far as the client's windows allow; the rest waits for them (`unsent_bytes`).

        Returns whether the stream is open: it is reset when more than `Http2Limits.max_unsent_bytes` would wait.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.trailers is not None:
            return False
        if not data:
            return True
        stream.queued.append(memoryview(data))
        stream.unsent += len(data)
        self._unsent += len(data)
        while stream.unsent and stream.send_window > 0 and self._send_window > 0:
            self._send_frame(stream_id, stream)
        if stream.unsent and stream.send_window > 0:
            self._waiting[stream_id] = stream
        if self._unsent > self._limits.max_unsent_bytes:
            self.reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            return False
        return True

    def send_trailers(self, stream_id: int, trailers: bytes, *, drop_queued: bool = False) -> None:
        """End the stream with a header block. It follows the data that waits, which ``drop_queued`` drops instead."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.trailers is not None:
            return
        if stream.unsent and not drop_queued:
            stream.trailers = trailers
        else:
            self._send_block(stream_id, trailers, END_STREAM)
            self._end(stream_id, stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End the stream at once; data that waits is dropped."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._out.append(frames.rst_stream(stream_id, code))
            self._forget(stream_id, stream)

    def _send_block(self, stream_id: int, block: bytes, flags: int) -> None:
        block, self._block_prefix = self._block_prefix + block, b""
        self._out.append(frames.header_frames(stream_id, block, flags, self._peer_frame_bytes))

    def _send_frame(self, stream_id: int, stream: _Stream) -> None:
        """Send as much of the first piece of queued data as the windows and one frame allow."""
        piece = stream.queued[0]
        size = min(len(piece), stream.send_window, self._send_window, self._peer_frame_bytes)
        if size == len(piece):
            del stream.queued[0]
        else:
            stream.queued[0] = piece[size:]
        stream.unsent -= size
        self._unsent -= size
        stream.send_window -= size
        self._send_window -= size
        self._out.append(_pack_head(size << 8 | DATA, 0, stream_id))
        self._out.append(bytes(piece[:size]))

    def _send_waiting(self, events: list[Event]) -> None:
        """Send queued data as far as the windows allow, a frame of each stream in turn."""
        waiting = self._waiting
        while waiting and self._send_window > 0:
            stream_id, stream = waiting.popitem(last=False)
            if stream.send_window > 0:
                self._send_frame(stream_id, stream)
            if not stream.unsent:
                self._data_sent(stream_id, stream, events)
            elif stream.send_window > 0:
                waiting[stream_id] = stream

    def _data_sent(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        events.append(WindowOpened(stream_id))
        if stream.trailers is not None:
            self._send_block(stream_id, stream.trailers, END_STREAM)
            self._end(stream_id, stream)

    def _end(self, stream_id: int, stream: _Stream) -> None:
        """The answer has gone out."""
        self._forget(stream_id, stream)
        if not stream.is_request_over:
            # The client need not send the rest of its request (RFC 9113, 8.1).
            self._out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))

    # --- the connection

    def ping(self) -> None:
        """Ask the peer for a sign of life: `PingAnswered`."""
        self._ping(_KEEPALIVE_PING)

    def go_away(self) -> None:
        """Ask the peer to open no more streams; those that it opens meanwhile are served.

        `PingAnswered` with ``is_leaving`` says that the peer has read this: then call `go_away_now`.
        """
        if not self._is_leaving and self._failure is None:
            self._is_leaving = True
            self._out.append(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._ping(_LEAVING_PING)

    def go_away_now(self) -> None:
        """Refuse all streams from now on, so that the client opens them elsewhere. Streams opened before are served."""
        if not self._refuses_streams and self._failure is None:
            self._is_leaving = self._refuses_streams = True
            self._out.append(frames.goaway(self._last_taken_id, ErrorCode.NO_ERROR))

    def close(self, code: ErrorCode, text: str) -> None:
        """End the connection for a rule of the caller, as after an error: `take` gives the GOAWAY."""
        if self._failure is None:
            self._fail(code, text)

    def _ping(self, payload: bytes) -> None:
        if self._failure is not None:
            return
        self._pings.append(payload)
        self._out.append(frames.frame(PING, 0, 0, payload))


def _preface(limits: Http2Limits) -> bytes:
    """The server's first frames: its limits, and the window of the connection."""
    values = [
        (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
        (frames.INITIAL_WINDOW_SIZE, limits.initial_window_bytes),
        (frames.MAX_FRAME_SIZE, limits.max_frame_bytes),
        (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
        (frames.HEADER_TABLE_SIZE, limits.header_table_bytes),
    ]
    grown = limits.connection_window_bytes - FIRST_WINDOW_BYTES
    return frames.settings(values) + (frames.window_update(0, grown) if grown > 0 else b"")


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame's padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def _check_size(what: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes")


_Handler = Callable[[ServerConnection, int, int, bytes, list[Event]], None]

_unknown: Final[_Handler] = ServerConnection._on_other
# Handlers of frames by kind: for the first frame, within a header block, and otherwise.
_AT_START: Final[Mapping[int, _Handler]] = {SETTINGS: ServerConnection._on_settings}
_IN_BLOCK: Final[Mapping[int, _Handler]] = {CONTINUATION: ServerConnection._on_continuation}
_USUAL: Final[Mapping[int, _Handler]] = {
    DATA: ServerConnection._on_data,
    HEADERS: ServerConnection._on_headers,
    PRIORITY: ServerConnection._on_priority,
    RST_STREAM: ServerConnection._on_rst_stream,
    SETTINGS: ServerConnection._on_settings,
    PUSH_PROMISE: ServerConnection._on_misplaced,
    PING: ServerConnection._on_ping,
    GOAWAY: ServerConnection._on_goaway,
    WINDOW_UPDATE: ServerConnection._on_window_update,
    CONTINUATION: ServerConnection._on_misplaced,
}
