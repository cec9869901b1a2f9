"""The master's side of replication: a port for slaves, and a task pair for each of them.

A slave is sent what follows its end as soon as it is appended (`wake`, after each turn of the loop), and what is
older out of files, in a thread, so that a slave which catches up does not slow sends down. One range is on its way to
a slave at a time, so memory is bounded however slow it is. What a slave reports goes to the ledger.
Neighbours: session.py (what is done), link.py (what is said), broker.py (runs this), wiring.py (wakes it).
"""

import logging
import math
import os
from collections.abc import Awaitable, Callable

import trio

from broker.replication.admission import Admission
from broker.replication.frames import CHUNK_BYTES
from broker.replication.hello import NONCE_BYTES, Claim
from broker.replication.link import Bounds, LinkTerms, MasterLink, Range
from broker.replication.pieces import other_bytes_at
from broker.replication.session import MasterSession
from broker.store.log.commitlog import CommitLog
from broker.writing.acks import AckLedger
from mqcommon.addresses import split_address
from mqcommon.errors import FileClosed, ProtocolError
from mqcommon.signal import Signal
from remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 4096
# Where a rate is set, it comes in pieces: heartbeats come in time.
PIECES_A_SECOND = 10
# A line about connections that are no slave's is logged at most as often.
STRANGERS_LOG_S = 10.0
PEER_CLOSED = "it closed the connection"


class Master:
    """Serves slaves of one log; `wake` it when something was appended.

    ``rate``: bytes a second that each slave gets at the most; 0: no limit.
    """

    def __init__(self, log: CommitLog, acks: AckLedger, terms: LinkTerms, rate: Callable[[], int]) -> None:
        self._log = log
        self._acks = acks
        self._terms = terms
        self._rate = rate
        self._connections: set[_Connection] = set()
        self._admission: Admission[_Connection] = Admission()
        self._told = -1
        self._strangers_logged_at = -math.inf
        self._strangers_not_logged = 0

    async def serve_on(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on listeners that are open, until cancelled."""
        task_status.started(listeners[0].address)
        await trio.serve_listeners(self._serve, list[trio.abc.Listener[Transport]](listeners))

    def wake(self) -> None:
        """After a turn of the loop: the log may have grown."""
        if self._connections and self._log.end != self._told:
            self._told = self._log.end
            for connection in self._connections:
                connection.wake()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all slaves that follow have all, at most so long: for a stop."""
        with trio.move_on_after(timeout_s):
            # Looked at once in a process's life: not worth an event that every report would have to keep.
            while any(connection.behind for connection in self._connections):  # noqa: ASYNC110
                await trio.sleep(0.005)

    async def _serve(self, transport: Transport) -> None:
        addr = transport.remote
        connection = _Connection(transport, self._log, self._acks, self._terms, self._rate, self._admit)
        if (crowded := self._admission.arrived(connection, split_address(addr)[0])) is not None:
            crowded.close("newer connections need its place, and it did not say who it is")
        self._connections.add(connection)
        reason = "this broker stops, or is the master no more"
        try:
            await connection.run()
            reason = connection.closed_reason or PEER_CLOSED
        finally:
            self._connections.discard(connection)
            self._admission.gone(connection)
            connection.ended()
            if connection.follows:
                log = logger.info if reason == PEER_CLOSED else logger.warning
                log("connection of slave %s ended: %s", addr, reason)
            else:
                self._log_stranger(addr, reason)

    def _log_stranger(self, addr: str, reason: str) -> None:
        """A connection ended before anything was sent to it: anybody can make many of these."""
        now = trio.current_time()
        if now < self._strangers_logged_at + STRANGERS_LOG_S:
            self._strangers_not_logged += 1
            return
        others = f"; {self._strangers_not_logged} others did so since the last such line"
        more = others if self._strangers_not_logged else ""
        logger.warning("%s connected to the HA port and did not become a slave: %s%s", addr, reason, more)
        self._strangers_logged_at, self._strangers_not_logged = now, 0

    def _admit(self, connection: "_Connection", said_hello: bool) -> None:
        """A connection is about to follow. ProtocolError when too many do."""
        admitted, crowded = self._admission.follows(connection, said_hello=said_hello)
        if crowded is not None:
            crowded.close("slaves that say hello need its place")
        if not admitted:
            raise ProtocolError("too many slaves follow already")


class _Connection:
    """One slave's."""

    def __init__(
        self,
        transport: Transport,
        log: CommitLog,
        acks: AckLedger,
        terms: LinkTerms,
        rate: Callable[[], int],
        admit: Callable[["_Connection", bool], None],
    ) -> None:
        """``admit`` is called when the slave is about to follow, with whether it said hello."""
        self._scope = trio.CancelScope()
        self.closed_reason = ""
        self._transport = transport
        self._addr = transport.remote
        self._log = log
        self._rate = rate
        now = trio.current_time()
        self._link = MasterLink(terms, self._bounds, os.urandom(NONCE_BYTES), now)
        self._session = MasterSession(self._link, acks, self._addr, now, lambda said_hello: admit(self, said_hello))
        self._something = Signal()
        # The sender has nothing to do; part of a frame that the connection did not take.
        self._idle = False
        self._rest = b""
        self._free_at = 0.0

    @property
    def behind(self) -> bool:
        """Whether the slave follows, and lacks something."""
        return self._link.ready and self._link.acked < self._log.end

    def wake(self) -> None:
        """There is more to send."""
        if not self._send_now():
            self._something.set()

    @property
    def follows(self) -> bool:
        """Whether a slave was let in."""
        return self._session.slave is not None

    def ended(self) -> None:
        """After `run`: the slave counts no longer."""
        self._session.ended()

    async def run(self) -> None:
        """Until the slave closes the connection, or `close`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_closed, self._send)
                await self._until_closed(self._receive)
                nursery.cancel_scope.cancel()

    def close(self, reason: str) -> None:
        """End it; `run` returns soon."""
        self.closed_reason = self.closed_reason or reason
        self._scope.cancel()

    async def _until_closed(self, work: Callable[[], Awaitable[None]]) -> None:
        """What a peer can cause closes the connection here: an exception that leaves a nursery keeps all that the
        connection holds until the next garbage collection.
        """
        try:
            await work()
        except ProtocolError as error:
            self.close(str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("the connection broke")

    def _bounds(self) -> Bounds:
        log = self._log
        return Bounds(log.start, log.end, log.chain.segment_bytes)

    async def _receive(self) -> None:
        link, session = self._link, self._session
        while True:
            data = None
            with trio.move_on_at(link.silent_at()):
                data = await self._transport.receive(RECEIVE_BYTES)
            now = trio.current_time()
            if data is None:
                link.check(now)
                continue
            if not data:
                return
            followed = self.follows
            session.receive(data, now)
            if not followed and self.follows:
                self._log_follower()
                # From now on it gets heartbeats.
                self._something.set()
            if not self._something.is_set() and not link.idle:
                self._something.set()

    def _log_follower(self) -> None:
        hello = self._link.hello
        who = f"broker {hello.broker_id} at {hello.addr}" if hello else "a plain peer"
        logger.info("slave %s (%s) follows from offset %d", self._addr, who, self._link.next_offset)

    async def _send(self) -> None:
        session, transport = self._session, self._transport
        while True:
            if self._rest:
                rest, self._rest = self._rest, b""
                await transport.send_all(rest)
            now, rate = trio.current_time(), self._rate()
            step = session.next_step(now, max(rate // PIECES_A_SECOND, 1) if rate else CHUNK_BYTES)
            if step is None:
                self._idle = True
                with trio.move_on_at(self._link.beat_at()):
                    await self._something.wait()
                self._idle = False
            elif isinstance(step, bytes):
                await transport.send_all(step)
            elif isinstance(step, Claim):
                difference = await trio.to_thread.run_sync(other_bytes_at, self._log, step.tails)
                session.judge(difference, trio.current_time())
                if self.follows:
                    self._log_follower()
            else:
                await self._send_range(step)
                session.sent(step.size)
                if rate:
                    self._free_at = max(self._free_at, now) + step.size / rate
                    await trio.sleep_until(self._free_at)

    async def _send_range(self, found: Range) -> None:
        if not found.size:
            await self._transport.send_all(found.header)
        elif self._log.is_recent(found.offset):
            await self._transport.send_all(found.header + self._log.copy(found.offset, found.size))
        else:
            await self._send_file(found)

    async def _send_file(self, found: Range) -> None:
        """Out of the file, in a thread."""
        file, at, size = self._log.span(found.offset, found.offset + found.size)
        await self._transport.send_all(found.header)
        try:
            await self._transport.send_file(file, at, size)
        except FileClosed as error:
            raise ProtocolError(f"what it needs was deleted: {error}") from None

    def _send_now(self) -> bool:
        """Send what was appended without a turn of the loop; False when that is not for now."""
        link, log = self._link, self._log
        if not self._idle or self._something.is_set() or self._rate() or not log.is_recent(link.next_offset):
            return False
        found = link.next_range(trio.current_time())
        if found is None:
            return False
        data = found.header + (log.copy(found.offset, found.size) if found.size else b"")
        try:
            taken = self._transport.try_send([data])
        except trio.BrokenResourceError:
            taken = 0  # whoever sends the rest meets it, too
        self._session.sent(found.size)
        self._rest = data[taken:]
        return not self._rest and link.next_offset == log.end
