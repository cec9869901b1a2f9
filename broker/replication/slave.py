"""The slave's side of replication: it copies the master's log while this broker is a slave.

It connects to the master's HA port, appends the bytes that arrive, and reports how far it has the log: as soon as they
are appended, or with SYNC_FLUSH when they are on disk. Queues are built in small steps in between, so that the event
loop is not blocked; when they lag too far, nothing is received until they have caught up. A lost connection is tried
again after a growing pause. When the two logs differ (the slave has bytes that the master lacks) an administrator must
decide: that is logged once, and nothing is overwritten.
Neighbours: session.py (what is reported when), replica.py (the log), find_master.py (where to
connect).
"""

import logging
import math
from collections.abc import Awaitable, Callable
from random import Random

import trio

from skylark.broker.replication.copying import NEAR_BYTES, CopiedLog, QueueBuilding, add_file
from skylark.broker.replication.link import RESYNC
from skylark.broker.replication.replica import BadRecord
from skylark.broker.replication.session import Dialogue, MasterTarget, SlaveSide
from skylark.broker.replication.stats import SlaveProgress
from skylark.broker.replication.whole_records import WholeRecords
from skylark.mqcommon.addresses import server_address, split_address
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import DiskFull, ProtocolError, ReplicationRefused, StoreCorrupt, leaves
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal
from skylark.remoting.net import sockets
from skylark.remoting.net.transport import Connect, Transport

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 1024 * 1024
# Pieces of this size or more are written in a thread: copying them here would block the event loop.
THREAD_BYTES = 128 * 1024
CONNECT_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
REFUSED_PAUSE_S = 30.0
# After a connection that lasted this long the next pause is short again.
GOOD_S = 10.0
# How long a slave that stops waits for its master. Longer than the master needs for what is in flight.
LEAVE_S = 1.0
# How often the reason is logged while no master is followed.
LOG_S = 60.0


@lazy_dataclass(frozen=True, slots=True)
class MasterAccess:
    """How a slave finds its master and speaks with it.

    ``find`` waits until the master is known, and returns where it is. ``lost`` is called when a connection has ended.
    """

    find: Callable[[], Awaitable[MasterTarget]]
    dialogue: Dialogue
    lost: Callable[[], None]
    connect: Connect = sockets.connect


class HaClient:
    """Copies the master's log: `run` it."""

    def __init__(
        self,
        log: CopiedLog,
        master: MasterAccess,
        progress: SlaveProgress,
        clock: Clock,
        *,
        random: Random | None = None,
    ) -> None:
        self._replica = log.replica
        self._guard = log.guard
        self._flush = log.flush
        self._queues = QueueBuilding(log)
        self._master = master
        self._progress = progress
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S, random or Random())
        self._to_flush = Signal()
        self._sending = trio.Lock()
        self._records = WholeRecords.unchecked()
        # The connection over which the log comes, once the master goes on there.
        self._session: tuple[SlaveSide, Transport] | None = None
        self._is_leaving, self._may_leave = False, trio.Event()
        # HA address of the master whose log is being copied; "" when there is none.
        self.following = ""
        # Why copying has stopped until an administrator acts; "" while it has not.
        self.stopped = ""

    async def run(self) -> None:
        """Run until cancelled, or until files of queues are found corrupt; then call `finish`."""
        failures, logged_at = 0, -math.inf
        while True:
            started = trio.current_time()
            try:
                reason = await self._follow()
                # Readers see a message only when its queue has it, also while the master is away.
                await self._queues.build_rest()
            except (BadRecord, DiskFull) as error:
                reason = str(error)
            except ReplicationRefused as error:
                self._stop_copying(str(error))
                await trio.sleep(REFUSED_PAUSE_S)
                continue
            except StoreCorrupt as error:
                self._stop_copying(f"{error}; {RESYNC}")
                return
            failures = 1 if trio.current_time() - started > GOOD_S else failures + 1
            now = trio.current_time()
            if self.following or failures == 1 or now >= logged_at + LOG_S:
                logger.warning("the master is not followed, still trying: %s", reason)
                logged_at = now
            self.following, self._session = "", None
            self._may_leave.set()
            self._master.lost()
            await trio.sleep(self._backoff.pause_s(failures))

    async def leave(self) -> None:
        """Say to the master that this slave is about to stop, and copy what sends wait for, for `LEAVE_S` at most.

        Otherwise these sends would get a weaker status, and producers would store their messages a second time.
        """
        if self._session is None:
            return
        session, transport = self._session
        # Of this connection: the end of an earlier one has set the event.
        self._may_leave = trio.Event()
        with trio.move_on_after(LEAVE_S):
            try:
                self._is_leaving = session.link.leave(trio.current_time())
                if self._is_leaving:
                    await self._send(session, transport)
                    await self._may_leave.wait()
                if self._flush is not None:
                    await self._flush()
                    session.flushed(self._replica.log.raw_flushed, trio.current_time())
                    await self._send(session, transport)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the master is gone, or older than this request

    @property
    def problem(self) -> str:
        """The damaged record that keeps the messages after it from being shown; "" if there is none."""
        return self._queues.problem

    async def finish(self) -> None:
        """Call after `run`: adds all whole records to their queues, and cuts a partial record at the end of the log."""
        await self._queues.finish()

    def _stop_copying(self, reason: str) -> None:
        if not self.stopped:
            logger.error("replication stopped: %s", reason)
        self.following, self._session, self.stopped = "", None, reason

    async def _follow(self) -> str:
        """Copy over one connection; returns why it ended."""
        try:
            target = await self._master.find()
            self._progress.master_addr = target.ha_addr
            # With SYNC_FLUSH the first report must be true: bytes of an earlier connection may not be on disk yet.
            if self._flush is not None:
                await self._flush()
            session = await self._master.dialogue.begin(target)
            with trio.fail_after(CONNECT_TIMEOUT_S):
                transport = await self._master.connect(*split_address(target.ha_addr))
            session.link.connected_to(server_address(transport.remote))
            async with transport:
                self._sending = trio.Lock()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._queues.run)
                    if self._flush is not None:
                        nursery.start_soon(self._report_flushed, self._flush, session, transport)
                    await self._receive(session, transport, target)
                    nursery.cancel_scope.cancel()
        except trio.TooSlowError:
            return f"no connection to {self._progress.master_addr} in {CONNECT_TIMEOUT_S:.0f} s"
        except (OSError, ProtocolError, DiskFull) as error:
            return sockets.connect_reason(error)
        except BaseExceptionGroup as group:
            return _reason_of(group)
        return "the connection was closed"

    async def _receive(self, session: SlaveSide, transport: Transport, target: MasterTarget) -> None:
        replica = self._replica
        # One buffer for all reads: the kernel zeroes the pages of each new one.
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        if replica.behind < NEAR_BYTES:
            self._records = replica.whole_records()
        else:
            self._records = await trio.to_thread.run_sync(replica.whole_records)
        while True:
            await self._send(session, transport)
            size = None
            with trio.move_on_at(session.link.wake_at()):
                size = await transport.receive_into(buffer)
            now = trio.current_time()
            if size is None:
                session.link.tick(now)
                continue
            if not size:
                return
            data = buffer[:size]
            self._progress.received_bytes += len(data)
            self._progress.last_read_ms = self._clock.now_ms()
            for piece in await session.receive(data, now):
                await self._append(piece.offset, piece.data)
            if session.must_cut:
                # Complete the queues first: the truncation searches them for their new ends, and needs all entries.
                async with self._queues.complete():
                    await session.cut()
                self._records = replica.whole_records()
            session.settle()
            if session.link.ready and not self.following:
                self.following, self.stopped = target.ha_addr, ""
                self._session = session, transport
                logger.info("master %s is followed, from offset %d", target.ha_addr, replica.raw_end)
            # Report as soon as the bytes are in the log, before the queues have them: the master waits for copies of
            # its log, and queues can be built from the log at any time.
            if not replica.is_empty:
                session.appended(replica.raw_end, now)
                await self._send(session, transport)
            if self._is_leaving and session.link.may_leave:
                self._may_leave.set()
            self._queues.grown()
            await self._queues.wait_for_room()

    async def _append(self, offset: int, data: memoryview) -> None:
        replica = self._replica
        if replica.is_empty and self._records.is_empty:
            if replica.log.needs_file or replica.raw_end != offset:
                async with self._guard:
                    await trio.to_thread.run_sync(replica.begin_at, offset)
            self._records = replica.whole_records()
        data = self._records.add(data)
        if not data:
            return
        while data:
            if replica.log.needs_file:
                await add_file(replica.log)
            if len(data) < THREAD_BYTES:
                data = data[replica.append(data) :]
                continue
            file, at, size = replica.log.room(len(data))
            await trio.to_thread.run_sync(file.pwrite, at, data[:size])
            replica.log.copied(size)
            data = data[size:]
        self._to_flush.set()

    async def _send(self, session: SlaveSide, transport: Transport) -> None:
        # Without yielding to the event loop when the lock is free: sends to a SYNC_MASTER wait for these bytes.
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if output := session.link.take_output():
                self._progress.last_write_ms = self._clock.now_ms()
                await transport.send_all(output)
        finally:
            self._sending.release()

    async def _report_flushed(
        self, flush: Callable[[], Awaitable[None]], session: SlaveSide, transport: Transport
    ) -> None:
        """SYNC_FLUSH: one fsync for all bytes that arrived during the last one, then the report."""
        log = self._replica.log
        # Bytes that arrive during an fsync may miss it. So the signal is cleared before the next fsync begins, and each
        # report has the end that the last fsync covered.
        while True:
            session.flushed(log.raw_flushed, trio.current_time())
            await self._send(session, transport)
            if log.raw_flushed == log.raw_end:
                await self._to_flush.wait()
            self._to_flush.clear()
            await flush()


def _reason_of(group: BaseExceptionGroup[BaseException]) -> str:
    """Why a connection ended; raises errors after which the slave must not simply try again."""
    lost, others = group.split((ProtocolError, trio.BrokenResourceError, BadRecord, DiskFull, OSError))
    for error in leaves(others) if others else []:
        if isinstance(error, ReplicationRefused | StoreCorrupt):
            raise error from None
    if others:
        raise others
    assert lost is not None
    return "; ".join(dict.fromkeys(str(error) or "the connection broke" for error in leaves(lost)))
