"""Health pages of a broker, as a part: there whether it has metrics or not."""

from collections.abc import Callable

import trio

from broker.options import BrokerOptions
from broker.part import Part
from broker.replication.role import Kind, RoleMachine
from broker.store.store import MessageStore
from remoting.metrics.health import Health


class HealthPages(Part):
    """``registered`` says how many NameServers have the broker."""

    def __init__(
        self, options: BrokerOptions, store: MessageStore, role: RoleMachine, registered: Callable[[], int]
    ) -> None:
        self._options = options
        self._store = store
        self._role = role
        self._registered = registered
        self.health = Health(options, self.unready)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the pages at ``healthPort``, if that is set, until cancelled."""
        await self.health.run(task_status=task_status)

    def unready(self) -> str:
        """Why clients should not be sent here; "" if they may be."""
        if reason := self._store.refusal:
            return f"the store takes no messages: {reason}"
        if self._options.namesrv_addrs and not self._registered():
            return "not registered with a NameServer yet"
        if self._role.now.kind is Kind.TAKING_OVER:
            return "this broker is becoming the master"
        return ""
