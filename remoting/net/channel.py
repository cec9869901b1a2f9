"""One connection, as server and client both see it.

Frames to send gather in an outbox and leave with one ``send_all``: the reader flushes the answers of its own turn, the
writer task all that is queued in between. Requests that wait for an answer are rows of a table (opaque → deadline and
callback). A sweep ends those whose deadline has passed, so no request needs a task or timer of its own.
Bounds: bytes in the outbox, requests in flight, size of a frame. A channel over a bound is closed, with a reason.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import (
    CLOSED_BY_PEER,
    TLS_GUESS,
    ConnectionLost,
    FrameTooLarge,
    NotRocketMQ,
    ProtocolError,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.limits import BufferBudget
from skylark.remoting.net.transport import MAX_PIECES, DirectCalls, MustQueue, Transport
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, FLAG_ONEWAY, FLAG_RESPONSE, OFFER_CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.foreign import ANSWER_TO_HTTP, GRPC, HTTP, REMOTING, TLS, foreign_protocol
from skylark.remoting.protocol.frame import MAX_HEADER_BYTES, encode, encode_head
from skylark.remoting.protocol.signature import WholeSignatures

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 65_536
# A burst of requests is read in pieces that grow: the peer handles the first answers while this side handles the rest.
RECEIVE_BYTES_FIRST = 8_192
# A large frame is read in larger pieces, so that a bulk send costs few turns of the loop.
RECEIVE_BYTES_BULK = 1_048_576
# A body of this size or more is sent as a piece of its own, not copied into one buffer with its header.
APART_BYTES = 65_536
# Pieces that are smaller than this on average are joined before they are sent.
PIECE_BYTES = 16_384
# With this many bytes to send, a server serves other connections before it handles more requests of this one.
BULK_BYTES = 262_144
# After this time, too: the requests of one read may be hundreds that take a millisecond each.
TURN_S = 0.005
# Reading the clock costs some hundredths of a request, so it is read once before this many requests.
REQUESTS_PER_CLOCK_READ = 8
# Large frames are sent in parts of this size, so that a peer that reads slowly is not taken for a peer that does not
# read.
PART_BYTES = 262_144
# Larger requests and answers are not handed over inside of an event loop: as frames, their sizes are checked.
MOST_HANDED_BYTES = 32 * 1024
MAX_OUTBOX_BYTES = 64 * 1024 * 1024
# Answers are counted in the budget each time they have grown by this much.
CHARGE_BYTES = 65_536
MAX_IN_FLIGHT = 65_535
# A connection on which nothing arrives for this time, though a request has expired, is dead: a firewall or NAT on the
# way has forgotten it. An expired request with a shorter timeout proves less: a server may stall for a moment.
SILENT_S = 2.0
# How long a client reads on after a write has failed. The reader of a dead connection ends at once.
LAST_ANSWERS_S = 1.0
# How many of a peer's first bytes are kept, to name its protocol.
FIRST_BYTES = 16

Answered = Callable[[Command | RemotingError], None]
Dispatch = Callable[["Channel", Command], None]


class Channel:
    """A connection to ``remote``; ``attachments`` belongs to the code that serves it.

    With ``backpressure``, which servers use, reading stops while the peer does not read its answers. A client must
    always read on: if both sides stopped, they would wait for each other forever.
    """

    # More than 29 attributes without slots would make each call of a method slower in CPython 3.11.
    __slots__ = (
        "__weakref__",
        "_answer",
        "_backpressure",
        "_budget",
        "_cancel_scope",
        "_charged_bytes",
        "_connection",
        "_direct_calls",
        "_first_bytes",
        "_handed_over",
        "_hands_over",
        "_has_frame",
        "_in_turn",
        "_last_frame",
        "_last_wait",
        "_max_outbox_bytes",
        "_next_opaque",
        "_outbox",
        "_outbox_bytes",
        "_outbox_mark",
        "_partial_since",
        "_pending",
        "_request_bytes",
        "_sending",
        "_taken",
        "_transport",
        "_try_send",
        "_turn_bytes",
        "_unanswered_since",
        "_waiting_for_sent",
        "_wake",
        "attachments",
        "blocked_since",
        "closed_reason",
        "exceeded",
        "foreign",
        "greeting",
        "language",
        "last_read",
        "local",
        "max_frame_bytes",
        "remote",
        "signatures",
        "tasks",
        "version",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        max_frame_bytes: int,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_outbox_bytes: int = MAX_OUTBOX_BYTES,
        backpressure: bool = False,
        budget: BufferBudget | None = None,
    ) -> None:
        """``budget``: where a server counts what its connections hold in memory."""
        self._transport = transport
        self._try_send = transport.try_send
        self._direct_calls = transport.direct_calls
        # The request that was handed over and is being handled now, and its answer.
        self._taken: Command | None = None
        self._answer: Command | None = None
        # The numbers of the requests that were handed over and are not answered.
        self._handed_over: set[int] = set()
        # A client hands no request over in the callback of another: callbacks would nest without an end.
        self._hands_over = False
        self._connection = Connection(max_frame_bytes, max_header_bytes)
        #: The longest frame that is accepted from the peer, and sent to it.
        self.max_frame_bytes = max_frame_bytes
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._max_outbox_bytes = max_outbox_bytes
        self._budget = budget or BufferBudget(sys.maxsize)
        # The bytes of this channel that the budget counts, and the size of the outbox above which it is counted again.
        self._charged_bytes = 0
        self._outbox_mark = min(CHARGE_BYTES, max_outbox_bytes)
        # Bytes of the requests that are kept after the turn in which they came; bytes of the requests of a turn that
        # lets other connections be served.
        self._request_bytes = 0
        self._turn_bytes = 0
        self._wake = Signal()
        self._backpressure = backpressure
        self._in_turn = False
        # The beginning of what the peer has sent, and whether a whole frame of it has come.
        self._first_bytes = b""
        self._has_frame = False
        self._sending = False
        self._waiting_for_sent = trio.lowlevel.ParkingLot()
        # Opaque → deadline, timeout, code, callback, size of the frame.
        self._pending: dict[int, tuple[float, float, int, Answered, int]] = {}
        self._next_opaque = 0
        self._cancel_scope = trio.CancelScope()
        self.local, self.remote = transport.local, transport.remote
        self.closed_reason: str | None = None
        #: The protocol of a server that has sent something else than RocketMQ's frames, "" when it is unknown; None for
        #: all other peers.
        self.foreign: str | None = None
        #: The limit that the peer exceeded, if it was closed for that: a key of `limits.REFUSALS`.
        self.exceeded = ""
        self.blocked_since = 0.0
        self.last_read = trio.current_time()
        # When the reader last waited for the peer to take its answers.
        self._last_wait = 0.0
        # When whole frames arrived last; and since when a frame has been incomplete, as far as scans know.
        self._last_frame = self.last_read
        self._partial_since = 0.0
        # When the first of the requests was queued that expired while nothing was read.
        self._unanswered_since = -inf
        #: How many requests of the peer run as tasks; the server counts them.
        self.tasks = 0
        self.language = ""
        self.version = 0
        #: The signatures of the peer's requests, once the peer has asked for a challenge.
        self.signatures: WholeSignatures | None = None
        #: Ext fields of the answer that accepts the offer to speak CBOR.
        self.greeting: Mapping[str, str] = {OFFER_FIELD: OFFER_CBOR}
        self.attachments: dict[str, Any] = {}

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody else can read what is sent."""
        return self._transport.is_encrypted

    # --- sending

    def reply(self, request: Command, response: Command, *, wake: bool = True) -> None:
        """Queue the answer to ``request``; does nothing when it was oneway or the channel is closed.

        ``wake`` as for `queue`. If the request offered to speak CBOR, its answer accepts the offer, whether it is sent
        at once or later. This never raises: an answer that is too large or cannot be encoded is replaced by an error
        answer. The callback of a client in this event loop may run before this method returns.
        """
        if request.flag & FLAG_ONEWAY:
            return
        if self.attachments.get(OFFER_FIELD) == request.opaque:
            del self.attachments[OFFER_FIELD]
            response.ext = {**(response.ext or {}), **self.greeting}
        if request.opaque in self._handed_over:
            self._handed_over.discard(request.opaque)
            if len(response.body) <= MOST_HANDED_BYTES and self._hand_back(request, response):
                return
        try:
            head = encode_head(response, self.max_frame_bytes)
        except Exception as error:
            response = _cannot_answer(request, error)
            head = encode_head(response)
        body = response.body
        if not body:
            self.queue(head, wake=wake)
        elif len(body) < APART_BYTES:
            self.queue(head + body, wake=wake)
        elif self.closed_reason is None:
            self._outbox.append(head)
            self._outbox_bytes += len(head)
            self.queue(body, wake=wake)

    def _hand_back(self, request: Command, response: Command) -> bool:
        """Give the client in this event loop the answer as it is; False when that is not possible."""
        if request is self._taken:
            self._answer = response
            return True
        answered = None if self._direct_calls is None else self._direct_calls.answered
        if answered is None:
            return False
        answered(_received(response))
        return True

    def push(self, command: Command, *, wake: bool = True) -> None:
        """Queue a oneway request to the peer; ``wake`` as for `queue`. Raises FrameTooLarge."""
        command.opaque = self.take_opaque()
        self.queue(encode(command, self.max_frame_bytes), wake=wake)

    def queue(self, frame: bytes, *, wake: bool = True) -> None:
        """Queue whole frames; the channel is closed when the peer does not read and the outbox is full.

        Without ``wake`` the caller calls `flush_now` next, so that the writer has nothing to do.
        """
        if self.closed_reason is not None:
            return
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self._outbox_bytes > self._outbox_mark and self._outbox_is_full():
            self.close(f"peer does not read: {self._outbox_bytes} bytes wait for it", "answer_bytes")
        elif wake and not self._in_turn:
            self._wake.set()

    def take_opaque(self) -> int:
        """The next correlation id (a positive int32, it wraps)."""
        self._next_opaque = opaque = self._next_opaque + 1 & 0x7FFFFFFF
        return opaque

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent and no request waits for an answer."""
        return not self._outbox and not self._sending and not self._pending

    @property
    def buffered_bytes(self) -> int:
        """Bytes that this connection holds in memory: an incomplete frame, and the outbox."""
        return self._connection.pending_bytes + self._outbox_bytes

    def hold(self, request_bytes: int) -> bool:
        """Count a request of this size that is kept after its handler has returned; False when there is no room.

        The request counts until `let_go`, also when the channel has closed meanwhile.
        """
        if self._budget.used + request_bytes > self._budget.most:
            return False
        self._request_bytes += request_bytes
        self.charge()
        return True

    def let_go(self, request_bytes: int) -> None:
        """Stop counting a request that was counted by `hold`."""
        self._request_bytes -= request_bytes
        self.charge()

    def charge(self) -> None:
        """Tell the budget what this channel holds now."""
        held = self._request_bytes
        if self.closed_reason is None:
            held += self.buffered_bytes + self._turn_bytes + self._transport.buffered_bytes
        self._budget.used += held - self._charged_bytes
        self._charged_bytes = held
        self._outbox_mark = min(self._outbox_bytes + CHARGE_BYTES, self._max_outbox_bytes)

    def _outbox_is_full(self) -> bool:
        if self._outbox_bytes > self._max_outbox_bytes:
            return True
        self.charge()
        return False

    def incomplete_since(self, now: float) -> float:
        """Since when the frame that arrives now has been incomplete, as far as earlier calls saw it.

        Each scan calls it, so that a read need not record when frames begin. While the peer does not take its answers
        nothing is read, so the rest of its frame may wait in the socket.
        """
        if not self._connection.pending_bytes or self.blocked_since:
            self._partial_since = 0.0
            return now
        if not self._partial_since or self._last_frame > self._partial_since:
            self._partial_since = now
        return self._partial_since

    @property
    def idle_since(self) -> float:
        """When the peer last sent bytes, or took the answers for which the reader waited, or when this wait began."""
        return max(self.last_read, self.blocked_since, self._last_wait)

    @enable_ki_protection
    def flush_now(self) -> bool:
        """Send what the transport takes without waiting; whether nothing is left. The rest leaves as the peer reads.

        When the connection is broken, the writer closes the channel and not this function: its callers must not be
        interrupted by the callbacks of other requests.
        """
        if self._sending:
            # The task that is sending will send this frame, too.
            return False
        if not self._outbox:
            return True
        pieces = self._pieces()
        try:
            # Awaiting `send_all` instead would cost a turn of the loop.
            taken = self._try_send(pieces)
        except trio.BrokenResourceError:
            self._outbox = pieces
            self._wake.set()
            return False
        self._outbox_bytes -= taken
        for number, piece in enumerate(pieces):
            if taken < len(piece):
                self._outbox = [memoryview(piece)[taken:], *pieces[number + 1 :]]
                self._wake.set()
                self.charge()
                return False
            taken -= len(piece)
        if self._charged_bytes:
            self.charge()
        self._waiting_for_sent.unpark_all()
        return True

    async def flush(self) -> None:
        """Send all that waits; returns at once when another task is sending (it will take the rest)."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outbox:
                for piece in self._pieces():
                    for part in (piece,) if len(piece) <= PART_BYTES else _parts(piece):
                        self.blocked_since = trio.current_time()
                        await self._transport.send_all(part)
                        self._outbox_bytes -= len(part)
                self.charge()
        except trio.BrokenResourceError as error:
            if not self._backpressure:
                # A server that stops answers what it has read before it closes: these answers may wait in the
                # transport. The reader takes them, finds the end and closes the channel.
                with trio.move_on_after(LAST_ANSWERS_S):
                    await self._waiting_for_sent.park()
            self.close(str(error))
        finally:
            self.blocked_since = 0.0
            self._sending = False
            self._waiting_for_sent.unpark_all()

    async def sent(self) -> None:
        """Return when nothing waits to be sent, or the channel is closed."""
        while (self._outbox or self._sending) and self.closed_reason is None:
            await self._waiting_for_sent.park()

    async def _all_taken(self) -> None:
        """As `sent`, for the reader: also sends what others queue meanwhile, as nobody wakes the writer in its turn."""
        while not self.flush_now() and self.closed_reason is None:
            if self._sending:
                await self._waiting_for_sent.park()
            else:
                await self.flush()
        self._last_wait = trio.current_time()

    def _pieces(self) -> list[bytes | memoryview]:
        """Take the outbox: small frames joined into one piece, large bodies as they are."""
        pieces, self._outbox = self._outbox, []
        count = len(pieces)
        if count > 1 and (self._outbox_bytes < count * PIECE_BYTES or count > MAX_PIECES):
            return [b"".join(pieces)]
        return pieces

    # --- requests to the peer

    def submit(self, command: Command, timeout_ms: float, answered: Answered, *, wake: bool = True) -> float:
        """Queue a request; ``answered`` is called once, with the answer or with a RemotingError. ``wake``: see `queue`.

        Returns when the request is due, in trio's time. A server in this event loop may answer at once: ``answered`` is
        then called before this function returns, and the result is infinity. Raises ConnectionLost or NotRocketMQ when
        the channel is closed, TooManyRequests at the limit, FrameTooLarge.
        """
        if self.closed_reason is not None:
            raise self._lost(self.closed_reason)
        if len(self._pending) >= MAX_IN_FLIGHT:
            raise TooManyRequests(self.remote, MAX_IN_FLIGHT)
        opaque = command.opaque = self.take_opaque()
        now = trio.current_time()
        deadline = now + timeout_ms / 1000
        if self._direct_calls is not None and self._may_hand_over(self._direct_calls, command):
            self._pending[opaque] = (deadline, timeout_ms, command.code, answered, len(command.body))
            if self._hand_over(self._direct_calls, command, now):
                return deadline if opaque in self._pending else inf
            del self._pending[opaque]
        frame = encode(command, self.max_frame_bytes)
        self._pending[opaque] = (deadline, timeout_ms, command.code, answered, len(frame))
        self.queue(frame, wake=wake)
        return deadline

    def withdraw(self, command: Command) -> bool:
        """Drop the answer to a request of `submit` when it comes, or its error; False when the request has ended."""
        return self._pending.pop(command.opaque, None) is not None

    def _may_hand_over(self, direct_calls: DirectCalls, command: Command) -> bool:
        """Whether a server in this event loop may get the request as it is, and not before earlier requests."""
        return (
            direct_calls.handle is not None
            and not self._hands_over
            and not self._outbox
            and not self._sending
            # Only values in CBOR are the same on both sides.
            and command.codec == CBOR
            and len(command.body) <= MOST_HANDED_BYTES
        )

    def _hand_over(self, direct_calls: DirectCalls, command: Command, now: float) -> bool:
        """Let the server handle the request now; False when it is busy. An answer that is there ends the request."""
        assert direct_calls.handle is not None
        self._hands_over = True
        try:
            answer = direct_calls.handle(_received(command), now)
            # The clock is read again for a request that waits: `expire_requests` shall not take it for unread.
            self.last_read = trio.current_time() if answer is None else now
            if answer is not None and (row := self._pending.pop(command.opaque, None)) is not None:
                self._end_request(row[3], answer)
        except MustQueue:
            return False
        except BaseException:
            # Whoever sent it gets the error, and no answer besides.
            self._pending.pop(command.opaque, None)
            raise
        finally:
            self._hands_over = False
        return True

    def _end_request(self, answered: Answered, answer: Command) -> None:
        try:
            answered(answer)
        except Exception:
            logger.exception("answer to opaque %d of %s failed", answer.opaque, self.remote)

    async def invoke(self, command: Command, timeout_ms: float) -> Command:
        """Send a request and wait for its answer, whatever its code."""
        waiting = _Waiting(self._pending, command)
        # Sent from this task, which saves a turn of the loop. Requests that others queued leave with the writer.
        at_once = not self._outbox
        self.submit(command, timeout_ms, waiting.answered, wake=not at_once)
        if at_once:
            self.flush_now()
        if waiting.found is not None:
            await trio.lowlevel.checkpoint()
            return waiting.found.unwrap()
        waiting.is_asleep = True
        result: Command = await trio.lowlevel.wait_task_rescheduled(waiting.abort)
        return result

    def expire_requests(self, now: float) -> None:
        """End the requests whose deadline has passed; ``now`` is trio's time in seconds."""
        late = [opaque for opaque, row in self._pending.items() if row[0] <= now]
        for opaque in late:
            row = self._pending.pop(opaque, None)
            # The callback of another request may have closed this channel, or cancelled the task that waits for this
            # request.
            if row is None:
                continue
            deadline, timeout_ms, code, answered, _ = row
            asked_at = deadline - timeout_ms / 1000
            if asked_at >= self.last_read:
                is_first = self._unanswered_since < self.last_read
                self._unanswered_since = asked_at if is_first else min(asked_at, self._unanswered_since)
            _call_back(answered, RequestTimeout(self.remote, code, timeout_ms))

    def is_silent(self, now: float) -> bool:
        """Whether nothing was read for SILENT_S since a request was queued that has expired."""
        since = self._unanswered_since
        if since < self.last_read or now - since < SILENT_S:
            return False
        # A large request that was queued earlier may be on its way over a slow line, and the expired one after it.
        return not any(
            size >= APART_BYTES and deadline - timeout_ms / 1000 < since
            for deadline, timeout_ms, _, _, size in self._pending.values()
        )

    def next_deadline(self) -> float:
        """The earliest deadline of the requests that wait for an answer; infinite when no request waits."""
        return min([row[0] for row in self._pending.values()], default=inf)

    # --- life

    async def run(self, dispatch: Dispatch, after_turn: Callable[[], None] | None = None) -> None:
        """Read until the peer closes or `close` is called. ``dispatch`` gets every request of the peer.

        Faults of the peer close the channel and raise no exception. A nursery that ends with an exception is kept
        alive by its traceback until the next garbage collection, with this channel and all its buffers.
        """
        if self._direct_calls is not None:
            if self._backpressure:
                self._direct_calls.handle = partial(self._take, dispatch, after_turn)
            else:
                self._direct_calls.answered = self._take_late
        try:
            with self._cancel_scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_queued)
                    await self._read(dispatch, after_turn)
                    nursery.cancel_scope.cancel()
        finally:
            if self._direct_calls is not None:
                # They refer to this channel, which would stay in memory until a garbage collection.
                if self._backpressure:
                    self._direct_calls.handle = None
                else:
                    self._direct_calls.answered = None
            self.close(self._explained(CLOSED_BY_PEER))
            self._connection.release()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self._transport.aclose()

    def _take(
        self, dispatch: Dispatch, after_turn: Callable[[], None] | None, request: Command, now: float
    ) -> Command | None:
        """Handle a request that a client in this event loop hands over; see `DirectCalls`."""
        # Requests that came as bytes come first, and answers that the client has not taken stop it here, too.
        is_idle = not (self._outbox or self._sending or self._connection.pending_bytes or self._in_turn)
        if not is_idle or self._transport.buffered_bytes or self.closed_reason is not None:
            raise MustQueue
        self.last_read = self._last_frame = now
        self._in_turn, self._taken = True, request
        if not request.flag & FLAG_ONEWAY:
            self._handed_over.add(request.opaque)
        try:
            dispatch(self, request)
            if after_turn is not None:
                after_turn()
        except Exception:
            # As with a request that comes as bytes: the client gets no answer, and its connection ends.
            logger.exception("connection of %s closed after an error", self.remote)
            self.close("an error of the server")
        finally:
            self._in_turn, self._taken = False, None
        answer, self._answer = self._answer, None
        if self._outbox:
            self._wake.set()
        return None if answer is None else _received(answer)

    def _take_late(self, answer: Command) -> None:
        """Take the answer to a request that a server in this event loop has handled; see `DirectCalls`."""
        self.last_read = trio.current_time()
        # No row: the request has timed out or was cancelled.
        if (row := self._pending.pop(answer.opaque, None)) is not None:
            # The server is in the midst of some work: it handles no other request of this client meanwhile.
            hands_over, self._hands_over = self._hands_over, True
            try:
                self._end_request(row[3], answer)
            finally:
                self._hands_over = hands_over

    def _explained(self, reason: str) -> str:
        """The reason why the connection ended, with a guess if the peer has never said anything but a TLS alert."""
        # Inside of one event loop requests are answered without bytes, and nothing is encrypted.
        is_strange = self._pending and not self.is_encrypted and self._direct_calls is None
        if is_strange and (not self._first_bytes or self._connection.protocol_of_pending == TLS):
            return f"{reason} {TLS_GUESS}"
        return reason

    def _refuse_bytes(self, reason: str) -> None:
        """Close the channel of a peer whose bytes are no frames, for ``reason``, or are over a limit."""
        found = foreign_protocol(self._first_bytes)
        # After a whole frame, or with a frame at the beginning, the bytes are damaged or over a limit.
        if not self._has_frame and found != REMOTING:
            if found:
                reason = f"the peer speaks {found}"
            is_server = self._backpressure
            if is_server:
                if found in (HTTP, GRPC) and not self._outbox and not self._sending:
                    with suppress(trio.BrokenResourceError):
                        self._try_send([ANSWER_TO_HTTP])
            elif found == TLS:
                reason = f"{CLOSED_BY_PEER} {TLS_GUESS}"
            else:
                self.foreign = found
        self.close(reason, "bad_frames")

    def close(self, reason: str, exceeded: str = "") -> None:
        """Close now, for ``reason``; ``exceeded`` as the attribute.

        Requests in flight end in ConnectionLost, or in NotRocketMQ if the server speaks another protocol.
        """
        if self.closed_reason is None:
            # Set first: the callbacks at the end may call this channel again, and must find it closed.
            self.closed_reason = reason
            self.exceeded = exceeded
            self._cancel_scope.cancel()
            self._outbox.clear()
            self._outbox_bytes = 0
            # Now, not when the reader has ended: `BufferBudget.relieve` closes connections and must see that memory
            # becomes free.
            self._connection.release()
            self.charge()
            self._waiting_for_sent.unpark_all()
            pending, self._pending = self._pending, {}
            # A copy: a callback may cancel tasks that wait for other answers, which removes their rows.
            for _, _, _, answered, _ in list(pending.values()):
                _call_back(answered, self._lost(reason))

    def _lost(self, reason: str) -> RemotingError:
        """The error of requests on this channel, which is closed for ``reason``."""
        return ConnectionLost(self.remote, reason) if self.foreign is None else NotRocketMQ(self.remote, self.foreign)

    async def _read(self, dispatch: Dispatch, after_turn: Callable[[], None] | None) -> None:
        receive = self._transport.receive
        connection = self._connection
        budget = self._budget
        size = RECEIVE_BYTES_FIRST
        pending = 0
        # Each turn: read once, parse all that is whole, handle it without a switch of tasks, send the answers together.
        while True:
            try:
                data = await receive(size)
            except trio.BrokenResourceError as error:
                self.close(self._explained(str(error)))
                return
            if not data:
                return
            self.last_read = trio.current_time()
            if not self._first_bytes:
                self._first_bytes = data[:FIRST_BYTES]
            try:
                commands = connection.receive_data(data)
            except ProtocolError as error:
                self._refuse_bytes(str(error))
                return
            received = len(data)
            # The parser has its own copy of an incomplete frame; this buffer would stay alive while the turn waits.
            del data
            turn_bytes = pending + received
            pending = connection.pending_bytes
            if pending or self._charged_bytes:
                self.charge()
            # Between turns, never inside one: `relieve` closes channels, and a handler must not lose its own.
            if budget.used > budget.most:
                budget.relieve()
                if self.closed_reason is not None:
                    return
            if commands:
                self._last_frame = self.last_read
                self._has_frame = True
            self._in_turn = True
            try:
                turn_ends = self.last_read + TURN_S
                for first in range(0, len(commands), REQUESTS_PER_CLOCK_READ):
                    # A read full of requests that take long would hold up the other connections.
                    if first and self._backpressure and trio.current_time() > turn_ends:
                        await self._let_others_run(after_turn, turn_bytes)
                        turn_ends = trio.current_time() + TURN_S
                    for command in commands[first : first + REQUESTS_PER_CLOCK_READ]:
                        if command.flag & FLAG_RESPONSE:
                            row = self._pending.pop(command.opaque, None)
                            # No row: the request has timed out or was cancelled.
                            if row is not None:
                                self._end_request(row[3], command)
                        else:
                            dispatch(self, command)
                            if self._outbox_bytes >= BULK_BYTES and self._backpressure:
                                # Many large answers for one peer would hold up the other peers.
                                await self._let_others_run(after_turn, turn_bytes)
                                turn_ends = trio.current_time() + TURN_S
                if after_turn is not None:
                    after_turn()
            finally:
                self._in_turn = False
            if commands:
                # Otherwise they would stay in memory until something else arrives.
                commands.clear()
                del command
                self._turn_bytes = 0
            # The backpressure: a server reads no more requests of a peer that does not take its answers.
            # The writer may have taken the outbox, and still be sending it.
            if (self._outbox or self._sending) and not self.flush_now() and self._backpressure:
                await self._all_taken()
            # Reads grow while they fill their buffer, and begin small again with the next burst.
            if pending > RECEIVE_BYTES:
                size = RECEIVE_BYTES_BULK
            else:
                size = min(2 * size, RECEIVE_BYTES) if received == size else RECEIVE_BYTES_FIRST

    async def _let_others_run(self, after_turn: Callable[[], None] | None, turn_bytes: int) -> None:
        """In the middle of a turn: send the answers made so far, and serve other connections before the rest."""
        if after_turn is not None:
            after_turn()
        self.flush_now()
        self._turn_bytes = turn_bytes
        self.charge()
        await trio.lowlevel.checkpoint()
        if self._outbox or self._sending:
            await self._all_taken()

    @enable_ki_protection
    async def _write_queued(self) -> None:
        while True:
            await self._wake.wait()
            await self.flush()


class _Waiting:
    """A task in `Channel.invoke`: woken once, by the answer to its request, or by its cancellation."""

    __slots__ = ("_command", "_is_over", "_pending", "_task", "found", "is_asleep")

    def __init__(self, pending: dict[int, Any], command: Command) -> None:
        self._pending = pending
        self._command = command
        self._task = trio.lowlevel.current_task()
        self._is_over = False
        #: Whether the task waits; and the answer, when that came before.
        self.is_asleep = False
        self.found: outcome.Outcome[Command] | None = None

    def answered(self, result: Command | RemotingError) -> None:
        # trio forbids a second wake-up: a channel that closes may end a request whose task is cancelled already.
        if not self._is_over:
            self._is_over = True
            value = outcome.Error(result) if isinstance(result, RemotingError) else outcome.Value(result)
            if self.is_asleep:
                trio.lowlevel.reschedule(self._task, value)
            else:
                self.found = value

    def abort(self, _: Any) -> trio.lowlevel.Abort:
        self._is_over = True
        # An answer that comes later finds no row, and is dropped.
        self._pending.pop(self._command.opaque, None)
        return trio.lowlevel.Abort.SUCCEEDED


def _received(command: Command) -> Command:
    """``command`` as the other end of a connection receives it, in CBOR."""
    ext = command.ext
    if ext is not None:
        has_none = None in ext.values()
        ext = {name: value for name, value in ext.items() if value is not None} if has_none else ext.copy()
    body = bytes(command.body)
    return Command(
        command.code, ext, body, command.flag, command.opaque, command.remark, CBOR, command.language, command.version
    )


def _parts(piece: bytes | memoryview) -> Iterator[memoryview]:
    view = memoryview(piece)
    for start in range(0, len(view), PART_BYTES):
        yield view[start : start + PART_BYTES]


def _call_back(answered: Answered, result: RemotingError) -> None:
    """Call ``answered``. An exception in it is logged: it must not end other requests or connections."""
    try:
        answered(result)
    except Exception:
        logger.exception("the callback of a request failed; the request had ended with: %s", result)


def _cannot_answer(request: Command, error: Exception) -> Command:
    """The error answer that replaces an answer that cannot be encoded."""
    if isinstance(error, FrameTooLarge):
        logger.warning("answer to request %d was not sent: %s", request.code, error)
        return request.respond(ResponseCode.SYSTEM_ERROR, f"the answer is too large: {error}")
    logger.error("answer to request %d cannot be encoded", request.code, exc_info=error)
    return request.respond(ResponseCode.SYSTEM_ERROR, f"the answer cannot be encoded: {type(error).__name__}")
