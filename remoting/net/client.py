"""Connections to servers by address, opened on demand and shared by all callers.

The first request on a connection is JSON and offers CBOR; when the server accepts, later requests are CBOR. When that
request ends without an answer, the next one makes the offer; oneway requests do not, as nothing answers them.
RocketMQ's own servers ignore the offer and go on in JSON. With credentials every request is signed just before it is
framed, as the signature covers all fields and the body. A new connection then carries no other request until the server
has answered a request for a challenge. A Skylark server gives a challenge: whole requests are signed with it, for the
address to which the client has connected. RocketMQ's servers get RocketMQ's signature, and old Skylark servers a
signature without the address, but only where the credentials allow this for the server's address, as the server may be
a stranger's. Otherwise the connection is not used. Answers are not signed.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from math import inf
from typing import Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.addresses import server_address, split_address
from skylark.mqcommon.errors import (
    ConnectFailed,
    NotRocketMQ,
    PlainSignatureOnly,
    RemotingError,
    RequestTimeout,
    TlsFailed,
)
from skylark.mqcommon.shielded_nursery import shielded_nursery
from skylark.mqcommon.signal import Signal
from skylark.remoting.net import sockets
from skylark.remoting.net.channel import SILENT_S, Answered, Channel
from skylark.remoting.net.server import Handler, failure
from skylark.remoting.net.transport import Connect, TlsError
from skylark.remoting.net.unanswered import Unanswered
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.cbor_header import encode_header
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import BROKER_NAME_FIELD, CBOR, JSON, OFFER_CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.requests.clients import CHALLENGE, ChallengeRequestHeader
from skylark.remoting.protocol.sealing import SEALED_FIELD, unseal
from skylark.remoting.protocol.signature import CHALLENGE_FIELD, SERVER_FIELD, Credentials, WholeSignatures, sign

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 3_000
# The least time between two sweeps for requests whose deadline has passed.
SWEEP_INTERVAL_S = 0.02
# A sweep that is later than this means that the process was busy or stopped: answers may have arrived and not be read
# yet.
LATE_S = 0.5
_UNBOUND = "a signature that does not cover the server's address"

# cbor2 runs Python code to learn the kind of a value, and drops an exception of that code: Ctrl-C would be lost there.
for _encodes in (encode_body, encode_header, WholeSignatures.sign):
    enable_ki_protection(_encodes)


class OnLost(Protocol):
    def __call__(self, addr: str) -> None: ...


class OpenClient(Protocol):
    """`open_client` with the settings of one server: how its requests to other servers are signed."""

    def __call__(self, *, on_lost: OnLost | None = None) -> AbstractAsyncContextManager["RemotingClient"]: ...


class _Attempt:
    """An attempt to connect."""

    __slots__ = ("has_ended", "has_succeeded")

    def __init__(self) -> None:
        self.has_ended = trio.Event()
        self.has_succeeded = False


class _Peer:
    """One address: its channel, or the attempt to get one."""

    __slots__ = ("addr", "attempt", "broker_name", "channel", "codec", "greeting", "offered", "signatures")

    def __init__(self, addr: str) -> None:
        self.addr = addr
        #: The name that the broker gave when it accepted CBOR; "" when it is not known.
        self.broker_name = ""
        #: All fields of the answer that accepted CBOR.
        self.greeting: Mapping[str, Any] = {}
        self.channel: Channel | None = None
        self.attempt: _Attempt | None = None
        self.codec = 0
        self.offered = False
        #: The signatures of requests over whole requests; None: RocketMQ's signature.
        self.signatures: WholeSignatures | None = None

    @property
    def open_channel(self) -> Channel | None:
        """The channel, unless it was closed a moment ago and its task has not ended yet."""
        channel = self.channel
        return channel if channel is not None and channel.closed_reason is None else None


class RemotingClient:
    """Sends requests to servers; made by `open_client`, which owns its tasks."""

    def __init__(
        self,
        nursery: trio.Nursery,
        handlers: Mapping[int, Handler],
        on_lost: OnLost | None,
        max_frame_bytes: int,
        connect: Connect,
        credentials: Credentials | None,
    ) -> None:
        #: The longest frame that is sent and accepted.
        self.max_frame_bytes = max_frame_bytes
        #: Whether a server in this event loop may answer a request while `submit` still runs.
        self.answers_at_once = False
        self._nursery = nursery
        self._handlers = handlers
        self._unanswered = Unanswered()
        self._on_lost = on_lost
        self._open_transport = connect
        self._credentials = credentials
        self._peers: dict[str, _Peer] = {}
        self._errors: dict[str, ConnectFailed] = {}
        # When the next sweep is due; a request with an earlier deadline wakes `sweep`.
        self._sweeps_at = inf
        self._due = Signal()

    async def invoke(
        self, addr: str, command: Command, timeout_ms: float = 3_000, *, body: Body | bytes | None = None
    ) -> Command:
        """The answer of ``addr``, whatever its code. ``body`` is encoded in the connection's dialect; bytes are JSON.

        Raises ConnectFailed, ConnectionLost, RequestTimeout, TooManyRequests or FrameTooLarge.
        """
        # One deadline for the connection and the answer together.
        deadline = trio.current_time() + timeout_ms / 1000
        channel = await self.channel(addr, timeout_ms)
        # Only now is it known whether the server speaks CBOR, and which number the signature must have.
        self.prepare(addr, command, body)
        peer = self._peers[addr]
        try:
            left_ms = (deadline - trio.current_time()) * 1000
            if left_ms <= 0:
                raise RequestTimeout(addr, command.code, timeout_ms)
            self._sign(peer, command)
            signatures = peer.signatures
            self._wake_sweep(trio.current_time() + left_ms / 1000)
            answer = await channel.invoke(command, left_ms)
        except BaseException:
            self._withdraw_offer(peer, channel, command)
            raise
        self._settle_offer(peer, channel, answer)
        if signatures is not None and answer.ext and SEALED_FIELD in answer.ext:
            self._unseal(answer, signatures)
        return answer

    async def oneway(self, addr: str, command: Command, *, body: Body | None = None) -> None:
        """Send without an answer; returns when the frame is queued."""
        channel = await self.channel(addr, CONNECT_TIMEOUT_MS)
        peer = self._peers[addr]
        self._encode(peer, command, body)
        command.flag |= 2
        self._sign(peer, command)
        channel.push(command)

    def push(self, addr: str, command: Command, *, wake: bool = True) -> None:
        """Queue a oneway request on the open connection to ``addr``; ConnectFailed when there is none.

        Without ``wake`` the caller calls `flush` next.
        """
        peer = self._peers.get(addr)
        channel = None if peer is None else peer.open_channel
        if peer is None or channel is None:
            raise ConnectFailed(addr, "not connected")
        self._encode(peer, command, None)
        self._sign(peer, command)
        channel.push(command, wake=wake)

    def submit(self, addr: str, command: Command, timeout_ms: float, answered: Answered) -> Channel:
        """Queue a prepared request on the open connection to ``addr``, for `flush` to send; see `Channel.submit`.

        Returns the connection, which `withdraw` takes. Raises ConnectFailed when there is no open connection: `channel`
        opens one.
        """
        peer = self._peers.get(addr)
        channel = None if peer is None else peer.open_channel
        if peer is None or channel is None:
            raise ConnectFailed(addr, "not connected")
        if command.ext and OFFER_FIELD in command.ext:
            answered = self._settling_offer(peer, channel, command, answered)
        self._sign(peer, command)
        try:
            due = channel.submit(command, timeout_ms, answered, wake=False)
        except RemotingError:
            self._withdraw_offer(peer, channel, command)
            raise
        self._wake_sweep(due)
        return channel

    def withdraw(self, addr: str, command: Command, channel: Channel) -> None:
        """Wait no longer for the answer to a request of `submit`; does nothing when the request has ended."""
        if channel.withdraw(command) and (peer := self._peers.get(addr)) is not None:
            self._withdraw_offer(peer, channel, command)

    def flush(self, addr: str) -> bool:
        """Send at once what waits for ``addr``, as far as its connection takes it; True if it is open and took all."""
        peer = self._peers.get(addr)
        channel = None if peer is None else peer.open_channel
        return channel is not None and channel.flush_now()

    def prepare(self, addr: str, command: Command, body: Body | bytes | None = None) -> None:
        """Give ``command`` the header type of the connection to ``addr``, and encode its body in its dialect.

        The command must be sent next, as it may carry the offer to speak CBOR.
        """
        # The first request on a connection offers CBOR, in a field that RocketMQ ignores. Until a Skylark has accepted,
        # requests have RocketMQ's JSON.
        peer = self._peers[addr]
        if peer.codec != CBOR and not peer.offered:
            peer.offered = True
            command.ext = {**(command.ext or {}), OFFER_FIELD: OFFER_CBOR}
        self._encode(peer, command, body)

    def _encode(self, peer: _Peer, command: Command, body: Body | bytes | None) -> None:
        command.codec = peer.codec
        if isinstance(body, bytes):
            command.body, command.codec = body, JSON
        elif body is not None:
            command.body = encode_body(body, Dialect.CBOR if peer.codec == CBOR else Dialect.STANDARD)

    def _sign(self, peer: _Peer, command: Command) -> None:
        """Sign ``command``, which is queued next for ``peer``: its number must be higher than those before."""
        if self._credentials is None:
            return
        if peer.signatures is None:
            sign(command, self._credentials)
        else:
            peer.signatures.sign(command, self._credentials)

    def _unseal(self, answer: Command, signatures: WholeSignatures) -> None:
        """Decrypt the body of ``answer``. ProtocolError when it is not for this client."""
        assert self._credentials is not None
        answer.body = unseal(signatures.sealing_key(self._credentials.secret_key), answer.body)

    def _settle_offer(self, peer: _Peer, channel: Channel, answer: Command) -> None:
        if answer.ext and answer.ext.get(OFFER_FIELD) == OFFER_CBOR and peer.channel is channel:
            peer.codec = CBOR
            peer.broker_name = str(answer.ext.get(BROKER_NAME_FIELD) or "")
            peer.greeting = answer.ext

    def _withdraw_offer(self, peer: _Peer, channel: Channel, command: Command) -> None:
        if command.ext and OFFER_FIELD in command.ext and peer.channel is channel:
            peer.offered = False

    def _settling_offer(self, peer: _Peer, channel: Channel, command: Command, answered: Answered) -> Answered:
        def settled(result: Command | RemotingError) -> None:
            if isinstance(result, Command):
                self._settle_offer(peer, channel, result)
            else:
                self._withdraw_offer(peer, channel, command)
            answered(result)

        return settled

    def speaks_cbor(self, addr: str) -> bool:
        """Whether the server at ``addr`` is known to be a Skylark."""
        peer = self._peers.get(addr)
        return peer is not None and peer.codec == CBOR

    def greets_with(self, addr: str, field: str) -> bool:
        """Whether the Skylark server at ``addr`` is known to have greeted with ``field``, which names an ability."""
        peer = self._peers.get(addr)
        return peer is not None and peer.codec == CBOR and field in peer.greeting

    def broker_name_at(self, addr: str) -> str:
        """The name of the broker that the open connection to ``addr`` leads to; "" when it is not known."""
        peer = self._peers.get(addr)
        return peer.broker_name if peer is not None and peer.open_channel is not None else ""

    def connected(self, addr: str) -> bool:
        """Whether a connection to ``addr`` is open."""
        peer = self._peers.get(addr)
        return peer is not None and peer.open_channel is not None

    def is_connection(self, addr: str, channel: Channel) -> bool:
        """Whether ``channel`` is the connection to ``addr``."""
        peer = self._peers.get(addr)
        return peer is not None and peer.channel is channel

    def close_connection(self, addr: str, reason: str = "closed by this client") -> None:
        """Close the connection to ``addr``, if any; its requests end in ConnectionLost."""
        peer = self._peers.get(addr)
        if peer is not None and peer.channel is not None:
            peer.channel.close(reason)

    async def channel(self, addr: str, timeout_ms: float) -> Channel:
        """The open connection to ``addr``; connects when there is none. Concurrent callers share one attempt."""
        peer = self._peers.get(addr)
        if peer is None:
            peer = self._peers[addr] = _Peer(addr)
        if peer.open_channel is not None:
            return peer.open_channel
        # In a task of the client: a caller that gives up must not end the attempt that others wait for.
        if peer.attempt is None:
            peer.attempt = _Attempt()
            self._nursery.start_soon(self._connect, peer, peer.attempt)
        with trio.move_on_after(timeout_ms / 1000):
            await peer.attempt.has_ended.wait()
        # The attempt may have ended, and the connection closed again, before this task runs.
        connected: Channel | None = peer.channel
        if connected is None:
            raise self._errors.get(addr) or ConnectFailed(addr, f"no connection within {timeout_ms:.0f} ms")
        return connected

    @enable_ki_protection
    async def _connect(self, peer: _Peer, attempt: _Attempt) -> None:
        try:
            host, port = split_address(peer.addr)
            with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                transport = await self._open_transport(host, port)
            channel = Channel(transport, max_frame_bytes=self.max_frame_bytes)
        except (OSError, ValueError, trio.TooSlowError) as error:
            reason = "timed out" if isinstance(error, trio.TooSlowError) else sockets.connect_reason(error)
            kind = TlsFailed if isinstance(error, TlsError) else ConnectFailed
            self._errors[peer.addr] = kind(peer.addr, reason)
            self._end(peer, attempt)
            return
        except BaseException:
            self._end(peer, attempt)
            raise
        # With credentials the connection is nobody's until the server has given its challenge: a request that is sent
        # earlier would have RocketMQ's signature, which a Skylark may not accept.
        if self._credentials is None:
            self._connected(peer, attempt, channel)
        else:
            self._nursery.start_soon(self._ask_for_challenge, peer, attempt, channel)
        try:
            await channel.run(lambda ch, command: self._dispatch(peer, ch, command))
        except* Exception as group:
            logger.error("connection to %s closed after an error", peer.addr, exc_info=group)
        finally:
            # A server with another protocol is an error of the requests to it.
            if channel.exceeded and channel.foreign is None:
                logger.warning("connection to %s closed: %s", peer.addr, channel.closed_reason)
            # After `close` the next connection may be open before this task runs again.
            if peer.channel is channel:
                peer.channel = None
            if attempt.has_succeeded:
                self._lost(peer.addr)

    @enable_ki_protection
    async def _ask_for_challenge(self, peer: _Peer, attempt: _Attempt, channel: Channel) -> None:
        """Send the first request of a connection with credentials, which is not signed, and take the challenge."""
        try:
            answer = await self._answer_to_challenge(peer.addr, channel)
            if isinstance(answer, ConnectFailed):
                self._errors[peer.addr] = answer
                channel.close(answer.reason)
                return
            server = server_address(channel.remote)
            fields = answer.ext or {}
            challenge, is_bound = fields.get(CHALLENGE_FIELD), fields.get(SERVER_FIELD) == server
            signatures = WholeSignatures(challenge, server if is_bound else "") if isinstance(challenge, str) else None
            is_safe, credentials = signatures is not None and is_bound, self._credentials
            if not (is_safe or credentials is None or credentials.may_sign_plainly_at(peer.addr)):
                error = PlainSignatureOnly(peer.addr, *([] if signatures is None else [_UNBOUND]))
                self._errors[peer.addr] = error
                channel.close(error.reason)
                return
            self._connected(peer, attempt, channel)
            peer.offered = True
            peer.signatures = signatures
            self._settle_offer(peer, channel, answer)
        finally:
            self._end(peer, attempt)

    async def _answer_to_challenge(self, addr: str, channel: Channel) -> Command | ConnectFailed:
        """The answer to the request for a challenge; or why the connection to ``addr`` cannot be used."""
        request = CHALLENGE.command(ChallengeRequestHeader(server_address(channel.remote)))
        request.ext = {**(request.ext or {}), OFFER_FIELD: OFFER_CBOR}
        try:
            with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                answer = await channel.invoke(request, CONNECT_TIMEOUT_MS)
        except trio.TooSlowError:
            return ConnectFailed(addr, f"no answer within {CONNECT_TIMEOUT_MS} ms")
        except NotRocketMQ as error:
            return error
        except RemotingError as error:
            return ConnectFailed(addr, str(error))
        is_ours = OFFER_FIELD in (answer.ext or {})
        if is_ours and answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            # The server stops, or has too much to do. Otherwise it would give a challenge.
            return ConnectFailed(addr, f"[{answer.code}] {answer.remark}")
        return answer

    def _connected(self, peer: _Peer, attempt: _Attempt, channel: Channel) -> None:
        # Another server may be at the address now, so nothing that was known of the former server is kept.
        self._errors.pop(peer.addr, None)
        peer.channel, peer.codec, peer.offered, peer.broker_name, peer.signatures = channel, 0, False, "", None
        attempt.has_succeeded = True
        self._end(peer, attempt)

    def _end(self, peer: _Peer, attempt: _Attempt) -> None:
        attempt.has_ended.set()
        if peer.attempt is attempt:
            peer.attempt = None

    def _lost(self, addr: str) -> None:
        if self._on_lost is not None:
            try:
                self._on_lost(addr)
            except Exception:
                logger.exception("on_lost failed for the connection to %s", addr)

    def _dispatch(self, peer: _Peer, channel: Channel, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            if not request.is_oneway:
                channel.reply(request, request.respond(3, f" request type {request.code} not supported"))
            return
        try:
            response = handler(channel, request)
        except Exception as error:
            response = failure(request, error)
        if response is not None:
            if request.is_oneway and response.code != ResponseCode.SUCCESS:
                self._unanswered.log(channel.remote, request, response, trio.current_time())
            channel.reply(request, response)

    def _wake_sweep(self, due: float) -> None:
        """Let `sweep` run at ``due``, in trio's time, when a request is late."""
        if due < self._sweeps_at:
            self._sweeps_at = due
            self._due.set()

    @enable_ki_protection
    async def sweep(self) -> None:
        """End requests whose deadline has passed, and connections that are dead; sleeps until the next one is due."""
        while True:
            now = trio.current_time()
            if now < self._sweeps_at:
                with trio.move_on_at(self._sweeps_at):
                    await self._due.wait()
                continue
            # One sweep for all requests: a timer for each would cost more than most requests do. A request ends late by
            # SWEEP_INTERVAL_S at most.
            channels = [peer.channel for peer in self._peers.values() if peer.channel is not None]
            is_late = now - self._sweeps_at > LATE_S
            for channel in channels:
                channel.expire_requests(now)
                # The next request then opens a new connection. The dead connection would lose all requests until TCP
                # gives up, many minutes later.
                if channel.is_silent(now) and not is_late:
                    logger.info("connection to %s closed: no answer for %g s", channel.remote, SILENT_S)
                    channel.close(f"no answer for {SILENT_S:g} s")
            self._sweeps_at = min([channel.next_deadline() for channel in channels], default=inf)
            await trio.sleep(SWEEP_INTERVAL_S)

    async def drain(self, timeout_ms: float) -> None:
        """Wait until what was queued is sent, then close all connections."""
        with trio.move_on_after(timeout_ms / 1000):
            for peer in self._peers.values():
                if peer.channel is not None:
                    with suppress(trio.ClosedResourceError):
                        await peer.channel.flush()
        for peer in list(self._peers.values()):
            if peer.channel is not None:
                peer.channel.close("client stopped")


@asynccontextmanager
async def open_client(
    handlers: Mapping[int, Handler] | None = None,
    *,
    on_lost: OnLost | None = None,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    connect: Connect = sockets.connect,
    credentials: Credentials | None = None,
) -> AsyncIterator[RemotingClient]:
    """A client whose connections live as long as the ``async with`` block.

    ``handlers`` answer what servers ask of their clients; ``on_lost(addr)`` is called for every connection that ended.
    With ``credentials`` all requests are signed.
    """
    async with shielded_nursery() as nursery:
        client = RemotingClient(nursery, handlers or {}, on_lost, max_frame_bytes, connect, credentials)
        nursery.start_soon(client.sweep)
        try:
            yield client
        finally:
            with trio.CancelScope(shield=True):
                await client.drain(500)
