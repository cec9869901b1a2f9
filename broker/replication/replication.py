"""Replication as a part of the broker: it runs the master's side or the slave's side, as the role says.

The order of steps at a role change keeps the log's single writer (see role.py) and loses no message that was answered:
- Demotion: the first observer of the role has messages refused at once (writing/admission.py). Then slaves are given
  up to `DRAIN_TIMEOUT_S` to copy the rest of the log, since one of them may be the next master. Only then are they
  disconnected, and this broker starts to copy.
- Promotion: copying stops, then `LogCopier.finish` cuts a partial record at the end of the log and completes the
  queues. Messages appended before that would follow a torn record, or get queue offsets that are already in use. If the
  log cannot be finished, the broker stops instead; if the broker is not elected any more by then, it follows again.
  Then the HA port opens, because NameServers give its address to slaves as soon as this broker is the master.
  `took_over` is last.
Neighbours: role.py, master.py and slave.py, or dledger/; slave_sync.py; wiring/replication.py makes this.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from skylark.broker.part import Part
from skylark.broker.replication.link import CONFIRM_S
from skylark.broker.replication.master import HaServer
from skylark.broker.replication.role import Role, RoleKind, RoleMachine
from skylark.broker.replication.slave_sync import SlaveSync
from skylark.mqcommon.errors import DiskFull, StoreCorrupt, StoreError, UserError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.transport import Listener

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 2.0
# Pause between tries of a promoted slave to open its HA port.
LISTEN_PAUSE_S = 1.0


class LogServer(Protocol):
    """Gives the log to the others of the set while this broker is the master."""

    @property
    def strangers(self) -> int:
        """How many connections have ended before they became a member's."""

    async def open(self) -> None:
        """Open what the others need: this broker is about to be the master."""

    async def serve(self) -> None:
        """Serve until cancelled."""

    async def drain(self, timeout_s: float) -> None:
        """Wait until the others have the log, for ``timeout_s`` at most."""

    def wake(self) -> None:
        """Send what the log has grown by; called after each turn of the event loop."""

    def beat(self) -> None:
        """Do what is due by time; called at intervals."""

    async def close(self) -> None: ...


class LogCopier(Protocol):
    """Gets the log from the master."""

    async def run(self) -> None:
        """Run until cancelled, or until the log is found corrupt; then call `finish`."""

    async def leave(self) -> None:
        """Before a graceful stop: let the master answer the sends that wait for this copy. Returns soon."""

    async def finish(self) -> None:
        """Make the store an ordinary one, to which messages can be appended. StoreCorrupt or DiskFull if it is not."""


class HaPort:
    """The HA port and the `HaServer` behind it.

    ``listeners``: the open port of a broker that starts as the master. ``listen`` opens it when a slave is promoted; it
    may raise UserError.
    """

    def __init__(
        self, master: HaServer, listeners: list[Listener], listen: Callable[[], Awaitable[list[Listener]]]
    ) -> None:
        self._master = master
        self._listeners = listeners
        self._listen = listen

    @property
    def strangers(self) -> int:
        return self._master.strangers

    async def open(self) -> None:
        try:
            self._listeners = await self._listen()
        except UserError as error:
            logger.error("slaves cannot connect to this master, still trying: %s", error)

    async def serve(self) -> None:
        while not self._listeners:
            await trio.sleep(LISTEN_PAUSE_S)
            await self.open()
        listeners, self._listeners = self._listeners, []
        await self._master.serve_on(listeners)

    async def drain(self, timeout_s: float) -> None:
        await self._master.drain(timeout_s)

    def wake(self) -> None:
        self._master.wake()

    def beat(self) -> None:
        self._master.beat()

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.aclose()


class Replication(Part):
    """Runs the master's side or the slave's side. `role_changed` is an observer of the role."""

    tick_interval_ms = CONFIRM_S * 1000

    def __init__(
        self,
        role: RoleMachine,
        server: LogServer,
        new_slave: Callable[[], LogCopier],
        slave_sync: SlaveSync,
        before_leading: Callable[[], Awaitable[bool]],
    ) -> None:
        """``new_slave`` is called each time this broker starts to copy a master. ``before_leading`` is the last step of
        a promotion before messages are accepted; it returns whether this broker still is to lead.
        """
        self._role = role
        self._server = server
        self._new_slave = new_slave
        self._slave_sync = slave_sync
        self._before_leading = before_leading
        self._changed = Signal()
        # What copies now, or has copied last.
        self._slave: LogCopier | None = None

    @property
    def strangers(self) -> int:
        """How many connections to the log have ended before they became a member's."""
        return self._server.strangers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        task_status.started()
        while True:
            unfinished: StoreError | None = None
            # Cleared before the role is looked at: a change that comes after this ends the side that is started below.
            self._changed.clear()
            if self._role.now.is_master:
                await self._lead(self._changed)
            elif self._role.now.follows:
                unfinished = await self._follow(self._changed)
            # The copying has ended above, so the log does not grow any more. The remaining steps before this broker
            # stores messages are done here, in order; a demotion meanwhile waits until they have ended.
            if self._role.now.kind is RoleKind.TAKING_OVER:
                if unfinished is not None:
                    # The log has confirmed bytes, which new messages of this broker would overwrite. If this broker
                    # stops, another broker that has these bytes can be elected.
                    logger.error(
                        "this broker was elected, but stops, so that another one is: its log cannot be finished. Mend"
                        " what the line before says, and start it again"
                    )
                    raise unfinished
                if await self._before_leading():
                    await self._server.open()
                    self._role.took_over()
                else:
                    self._role.stepped_back()

    def role_changed(self, before: Role, now: Role) -> None:
        """Stop the running side if it does not fit the new role, or has announced another id to its master."""
        is_renumbered = now.follows and now.broker_id != before.broker_id
        if before.is_master is not now.is_master or before.follows is not now.follows or is_renumbered:
            self._changed.set()

    def master_moved(self) -> None:
        """Begin to copy another broker, which is the master now, if this broker is a slave."""
        if self._role.now.follows:
            self._changed.set()

    def after_turn(self) -> None:
        """Send what the log has grown by."""
        self._server.wake()

    def tick(self) -> None:
        """Send heartbeats that are due early, with Controllers, and in a DLedger group what no turn has proposed."""
        self._server.beat()

    async def stop(self) -> None:
        """Wait until the slaves have the rest of the log, at most `DRAIN_TIMEOUT_S`; or take leave of the master."""
        if self._role.now.follows and self._slave is not None:
            await self._slave.leave()
        await self._server.drain(DRAIN_TIMEOUT_S)

    async def close(self) -> None:
        await self._server.close()

    async def _lead(self, changed: Signal) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._server.serve)
            await changed.wait()
            # Messages are refused by now. A slave that lacks the last ones may become the next master.
            await self._server.drain(DRAIN_TIMEOUT_S)
            nursery.cancel_scope.cancel()

    async def _follow(self, changed: Signal) -> StoreError | None:
        """Copy until the role changes; returns why the store is not an ordinary one then, if it is not."""
        # A new slave for each master: nothing that was agreed with the former one holds for the next.
        slave = self._slave = self._new_slave()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._slave_sync.run)
                nursery.start_soon(slave.run)
                await changed.wait()
                nursery.cancel_scope.cancel()
        finally:
            # Queues get all whole records, and a part of a record at the end of the log is cut, before the role
            # changes: a master appends there.
            with trio.CancelScope(shield=True):
                unfinished = await _finish(slave)
        return unfinished


async def _finish(slave: LogCopier) -> StoreError | None:
    try:
        await slave.finish()
    except (StoreCorrupt, DiskFull) as error:
        logger.error("the queues of the slave are not complete: %s", error)
        return error
    return None
