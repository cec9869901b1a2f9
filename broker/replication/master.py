"""The master's side of replication: a port for slaves, and two tasks for each connection.

A slave that has caught up gets new bytes as soon as they are appended (`wake`, after each turn of the event loop). A
slave that catches up gets older bytes from files, in a thread, so that sends are not slowed down; a damaged block is
repaired first (compared_log.py). Only one range at a time is being sent to a slave, so memory is bounded however slow
the slave is. Reports of slaves go to the ack ledger.
Neighbours: session.py (the steps of a connection), replication.py (runs this and wakes it).
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from skylark.broker.replication.compared_log import ComparedLog
from skylark.broker.replication.frames import CHUNK_BYTES
from skylark.broker.replication.link import Range
from skylark.broker.replication.session import Examine, NewMasterSide, Peer
from skylark.broker.store.log.commitlog import CommitLog
from skylark.mqcommon.addresses import limited_network, server_address, split_address
from skylark.mqcommon.errors import FileClosed, ProtocolError, StoreError
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.transport import Listener, Transport

logger = logging.getLogger(__name__)


RECEIVE_BYTES = 4096
# With a rate limit ranges are cut to this many per second, so that heartbeats are not delayed.
PIECES_A_SECOND = 10
# At most one log line in this time about connections that did not become slaves.
STRANGERS_LOG_S = 10.0
PEER_CLOSED = "it closed the connection"


class HaServer:
    """Serves slaves of one log; `wake` it when something was appended.

    ``examine`` finds what speaks against a slave that made a claim: it reads the log, or asks the Controllers. It may
    raise ProtocolError. ``rate``: most bytes a second to each slave; 0: no limit.
    """

    def __init__(self, log: CommitLog, new_session: NewMasterSide, examine: Examine, rate: Callable[[], int]) -> None:
        self._log = log
        self._compared = ComparedLog(log)
        self._new_session = new_session
        self._examine = examine
        self._rate = rate
        self._connections: set[_Connection] = set()
        self._kept: HaConnections[_Connection] = HaConnections()
        self._woken_end = -1  # the end of the log at the last wake-up
        self._strangers_logged_at = -math.inf
        self._strangers_not_logged = 0
        #: Connections that ended before they became a slave's.
        self.strangers = 0

    async def serve_on(
        self, listeners: list[Listener], *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on open listeners, until cancelled."""
        task_status.started(listeners[0].address)
        await trio.serve_listeners(self._serve, list[trio.abc.Listener[Transport]](listeners))

    def beat(self) -> None:
        """Send heartbeats that are due before their time, where a protocol has such."""
        for connection in self._connections:
            connection.beat()

    def wake(self) -> None:
        """Send what the log has grown by; called after each turn of the event loop."""
        if self._connections and self._log.end != self._woken_end:
            self._woken_end = self._log.end
            for connection in self._connections:
                connection.wake()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all slaves have the whole log, or until the timeout."""
        await poll_until(lambda: not any(connection.behind for connection in self._connections), timeout_s)

    async def _serve(self, transport: Transport) -> None:
        addr = transport.remote
        connection = _Connection(
            transport, self._log, self._compared, self._new_session, self._examine, self._rate, self._admit
        )
        if (crowded := self._kept.arrived(connection, limited_network(split_address(addr)[0]))) is not None:
            crowded.close("too many connections, and this one did not identify itself in time")
        self._connections.add(connection)
        # Whatever ends the connection, the slave no longer counts as a copy: sends must not wait for it in vain, nor be
        # acknowledged for it.
        reason = "this broker stops, or is no longer the master"
        try:
            await connection.run()
            reason = connection.closed_reason or PEER_CLOSED
        finally:
            self._connections.discard(connection)
            self._kept.disconnected(connection)
            connection.ended()
            if connection.follows:
                log = logger.info if reason == PEER_CLOSED else logger.warning
                log("connection of slave %s ended: %s", addr, reason)
            elif reason == PEER_CLOSED and not connection.was_spoken_to:
                # As mqadmin doctor does. Anybody can make many of these, and they say nothing about slaves.
                logger.debug("%s looked whether the HA port is open", addr)
            else:
                self._log_stranger(addr, reason)

    def _log_stranger(self, addr: str, reason: str) -> None:
        """Log that a connection ended before it became a slave. Limited, since anybody can make many of these."""
        self.strangers += 1
        now = trio.current_time()
        if now < self._strangers_logged_at + STRANGERS_LOG_S:
            self._strangers_not_logged += 1
            return
        others = f"; {self._strangers_not_logged} others since the last such line"
        more = others if self._strangers_not_logged else ""
        logger.warning("%s connected to the HA port and did not become a slave: %s%s", addr, reason, more)
        self._strangers_logged_at, self._strangers_not_logged = now, 0

    def _admit(self, connection: "_Connection", said_hello: bool) -> None:
        """Called before a connection becomes a slave's. ProtocolError when there are too many slaves."""
        admitted, crowded = self._kept.follows(connection, said_hello=said_hello)
        if crowded is not None:
            crowded.close("too many slaves: a slave that says hello takes the place of a plain peer")
        if not admitted:
            raise ProtocolError("too many slaves are connected already")


class _Connection:
    """The connection of one slave."""

    def __init__(
        self,
        transport: Transport,
        log: CommitLog,
        compared: ComparedLog,
        new_session: NewMasterSide,
        examine: Examine,
        rate: Callable[[], int],
        admit: Callable[["_Connection", bool], None],
    ) -> None:
        self._scope = trio.CancelScope()
        self.closed_reason = ""
        #: Whether the peer has sent anything.
        self.was_spoken_to = False
        self._transport = transport
        self._addr = transport.remote
        self._log = log
        self._compared = compared
        self._examine = examine
        self._rate = rate
        self._session = new_session(
            Peer(self._addr, trio.current_time(), lambda said_hello: admit(self, said_hello), self.close)
        )
        self._session.link.accepted_at(server_address(transport.local))
        self._work_available = Signal()
        # Whether the sender has nothing to do.
        self._idle = False
        # The end of a frame that `_send_now` could not send at once.
        self._rest = b""
        self._free_at = 0.0

    @property
    def behind(self) -> bool:
        """Whether this is a slave that lags behind the end of the log."""
        return self._session.lags(self._log.end)

    def beat(self) -> None:
        """Wake the sender if a heartbeat is due already."""
        if self._idle and self._session.link.beat_at() <= trio.current_time():
            self._work_available.set()

    def wake(self) -> None:
        """Wake the sender: there is more to send."""
        if not self._send_now():
            self._work_available.set()

    @property
    def follows(self) -> bool:
        """Whether a slave was accepted."""
        return self._session.slave is not None

    def ended(self) -> None:
        """Call after `run`: the slave no longer counts."""
        self._session.ended()

    async def run(self) -> None:
        """Serve until the slave closes the connection, or `close` is called."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_closed, self._send)
                await self._until_closed(self._receive)
                nursery.cancel_scope.cancel()

    def close(self, reason: str) -> None:
        """End the connection; `run` returns soon."""
        self.closed_reason = self.closed_reason or reason
        self._scope.cancel()

    async def _until_closed(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``; errors that a peer can cause, and errors of reading the log, close the connection.

        They are caught here: an exception that leaves a nursery keeps the connection's memory alive until the next
        garbage collection, and an exception that leaves `HaServer` ends the broker.
        """
        try:
            await work()
        except ProtocolError as error:
            self.close(str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("the connection broke")
        except (OSError, StoreError) as error:
            # The master goes on without this slave, which connects again: no descriptor may be left for the moment, or
            # one old file may be unreadable.
            logger.error("the log cannot be read for %s: %s", self._addr, error)
            self.close("the log cannot be read")

    async def _receive(self) -> None:
        session = self._session
        while True:
            data = None
            with trio.move_on_at(session.link.times_out_at()):
                data = await self._transport.receive(RECEIVE_BYTES)
            now = trio.current_time()
            if data is None:
                session.link.check(now)
                continue
            if not data:
                return
            self.was_spoken_to = True
            followed = self.follows
            session.receive(data, now)
            if not followed and self.follows:
                self._log_follower()
                # From now on it gets heartbeats.
                self._work_available.set()
            if not self._work_available.is_set() and not session.link.idle:
                self._work_available.set()

    def _log_follower(self) -> None:
        session = self._session
        logger.info("slave %s (%s) follows from offset %d", self._addr, session.who, session.link.next_offset)

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
                with trio.move_on_at(session.link.beat_at()):
                    await self._work_available.wait()
                self._idle = False
            elif isinstance(step, bytes):
                await transport.send_all(step)
            elif isinstance(step, Range):
                await self._send_range(step)
                session.sent(step.size)
                if rate:
                    self._free_at = max(self._free_at, now) + step.size / rate
                    await trio.sleep_until(self._free_at)
            else:
                session.judge(await self._examine(step), trio.current_time())
                if self.follows:
                    self._log_follower()

    async def _send_range(self, found: Range) -> None:
        if not found.size:
            await self._transport.send_all(found.header)
        elif self._log.is_recent(found.offset):
            await self._transport.send_all(found.header + self._log.copy(found.offset, found.size))
        else:
            await self._compared.ready(found.offset, found.offset + found.size)
            await self._send_file(found)

    async def _send_file(self, found: Range) -> None:
        """Send a range from its file, in a thread."""
        file, at, size = self._log.span(found.offset, found.offset + found.size)
        await self._transport.send_all(found.header)
        try:
            await self._transport.send_file(file, at, size)
        except FileClosed as error:
            raise ProtocolError(f"the part of the log that it needs was deleted: {error}") from None

    def _send_now(self) -> bool:
        """Send new bytes without yielding to the event loop; False when the sender task must do the rest."""
        # Only while the sender task sleeps: two writers would mix their frames. And only bytes that are almost surely
        # in memory, since a page fault here would stop the event loop.
        session, log = self._session, self._log
        if (
            not self._idle
            or self._work_available.is_set()
            or self._rate()
            or not log.is_recent(session.link.next_offset)
        ):
            return False
        found = session.link.next_range(trio.current_time())
        if found is None:
            return False
        data = found.header + (log.copy(found.offset, found.size) if found.size else b"")
        try:
            taken = self._transport.try_send([data])
        except trio.BrokenResourceError:
            taken = 0  # the sender task gets the same error when it sends the rest
        session.sent(found.size)
        self._rest = data[taken:]
        return not self._rest and session.link.next_offset == log.end


C = TypeVar("C")
MAX_STRANGERS = 64
MAX_STRANGERS_OF_A_NETWORK = 16
# A set has a few slaves at most; more followers are a mistake or an attack.
MAX_FOLLOWERS = 100
MAX_FOLLOWERS_OF_A_NETWORK = 16
MAX_KNOWN_NETWORKS = 256


class HaConnections(Generic[C]):
    """Which connections the HA port keeps when there are too many. Pure; ``network``: the peer's `limited_network`.

    A connection is a stranger until it is accepted as a slave (a follower): until its hello is answered, or a plain
    peer has sent its offset. Strangers and followers have separate limits, so that silent connections cannot keep
    slaves out. When there are too many strangers the oldest is closed, first a stranger from a network that no slave
    ever came from. Followers are limited in all and per network. Above a limit a slave that says hello replaces a plain
    peer, and other slaves are refused. The owner closes the connections that the methods return.
    """

    def __init__(self) -> None:
        # oldest first
        self._strangers: dict[C, str] = {}
        # with whether it said hello
        self._followers: dict[C, tuple[str, bool]] = {}
        # where slaves with a hello came from, the latest last
        self._known: dict[str, None] = {}

    def arrived(self, connection: C, network: str) -> C | None:
        """A connection was made; returns the stranger to close for it, if any."""
        # A network that fills its own share loses its own oldest connection; only if all are full together does one
        # from elsewhere go, and then first from a network where no slave ever was.
        victim = None
        here = [other for other, its_network in self._strangers.items() if its_network == network]
        if len(here) >= MAX_STRANGERS_OF_A_NETWORK:
            victim = here[0]
        elif len(self._strangers) >= MAX_STRANGERS:
            victim = min(self._strangers, key=lambda other: self._strangers[other] in self._known)
        if victim is not None:
            del self._strangers[victim]
        self._strangers[connection] = network
        return victim

    def follows(self, connection: C, *, said_hello: bool) -> tuple[bool, C | None]:
        """(whether a stranger may follow, the plain peer to close for it). A closing connection may not."""
        network = self._strangers.pop(connection, None)
        if network is None:
            return False, None
        victim = None
        here = [other for other, (its_network, _) in self._followers.items() if its_network == network]
        full = here if len(here) >= MAX_FOLLOWERS_OF_A_NETWORK else list(self._followers)
        if full is here or len(full) >= MAX_FOLLOWERS:
            victim = next((other for other in full if not self._followers[other][1]), None) if said_hello else None
            if victim is None:
                return False, None
            del self._followers[victim]
        self._followers[connection] = network, said_hello
        if said_hello:
            self._known.pop(network, None)
            self._known[network] = None
            if len(self._known) > MAX_KNOWN_NETWORKS:
                del self._known[next(iter(self._known))]
        return True, victim

    def disconnected(self, connection: C) -> None:
        """Remove a connection that has ended."""
        self._strangers.pop(connection, None)
        self._followers.pop(connection, None)
