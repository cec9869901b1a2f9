"""Replication as a part of the broker: the master's side or the slave's, as the role says.

When the role changes, one side ends and the other starts; connections of clients stay. A promoted slave gives its
queues all that it has copied before it takes messages; a demoted master takes no more messages before it follows.
Neighbours: role.py, master.py, slave.py, slave_sync.py; wiring/replication.py makes this.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from broker.part import Part
from broker.replication.master import Master
from broker.replication.role import Kind, Role, RoleMachine
from broker.replication.slave import Slave
from broker.replication.slave_sync import SlaveSync
from mqcommon.errors import UserError
from mqcommon.signal import Signal
from remoting.net.transport import Listener

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 2.0
# A promoted slave that cannot have the port for its slaves tries again as often.
LISTEN_PAUSE_S = 1.0


class Replication(Part):
    """See the module. Call `role_changed` when the role did."""

    def __init__(
        self,
        role: RoleMachine,
        master: Master,
        new_slave: Callable[[], Slave],
        slave_sync: SlaveSync,
        listeners: list[Listener],
        listen: Callable[[], Awaitable[list[Listener]]],
    ) -> None:
        """``listeners``: the open HA port of a broker that starts as a master; ``listen`` opens it for one that
        becomes one later, or raises UserError. ``new_slave`` is called each time that a master is to be followed.
        """
        self._role = role
        self._master = master
        self._new_slave = new_slave
        self._slave_sync = slave_sync
        self._listeners = listeners
        self._listen = listen
        self._changed = Signal()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        while True:
            self._changed.clear()
            if self._role.now.is_master:
                await self._lead(self._changed)
            elif self._role.now.follows:
                await self._follow(self._changed)
            if self._role.now.kind is Kind.TAKING_OVER:
                await self._open_port()  # NameServers tell slaves where it is as soon as this broker is the master
                self._role.took_over()

    def role_changed(self, before: Role, now: Role) -> None:
        """End the side that does not fit any more."""
        if before.is_master is not now.is_master or before.follows is not now.follows:
            self._changed.set()

    def after_turn(self) -> None:
        """The log may have grown."""
        self._master.wake()

    async def stop(self) -> None:
        """A master's slaves get what was written last, if they take it in time."""
        await self._master.drain(DRAIN_TIMEOUT_S)

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.aclose()

    async def _lead(self, changed: Signal) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_slaves)
            await changed.wait()
            # No message comes any more: the next master may be one of those that lack the last ones.
            await self._master.drain(DRAIN_TIMEOUT_S)
            nursery.cancel_scope.cancel()

    async def _serve_slaves(self) -> None:
        while not self._listeners:
            await trio.sleep(LISTEN_PAUSE_S)
            await self._open_port()
        listeners, self._listeners = self._listeners, []
        await self._master.serve_on(listeners)

    async def _open_port(self) -> None:
        try:
            self._listeners = await self._listen()
        except UserError as error:
            logger.error("no slave can follow this master, still trying: %s", error)

    async def _follow(self, changed: Signal) -> None:
        slave = self._new_slave()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._slave_sync.run)
                nursery.start_soon(slave.run)
                await changed.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await slave.finish()
