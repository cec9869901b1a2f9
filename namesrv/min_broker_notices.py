"""Tells slaves that the lowest member of their set changed (905), so that they start or stop acting as master at once.

A notice is sent once, to the address that the slave registered, without waiting for an answer. When several changes
of a set wait, only the last is sent. A lost notice is logged and does little harm: slaves that may act as masters ask
for the members of their set every second anyway.
Neighbours: routes.py (what changed), namesrv.py (calls `queue_changes` after all that may change routes).
"""

import logging

import trio

from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.signal import Signal
from skylark.namesrv.routes import MinBrokerChange
from skylark.namesrv.state import State
from skylark.remoting.net import sockets
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.transport import Connect
from skylark.remoting.protocol.requests.registrations import (
    NOTIFY_MIN_BROKER_ID_CHANGE,
    NotifyMinBrokerIdChangeRequestHeader,
)

logger = logging.getLogger(__name__)

MAX_WAITING = 1_000
# The time limit for all slaves of a set together.
TELL_TIMEOUT_MS = 300


class MinBrokerNotices:
    """Sends the notices while `run` runs; `queue_changes` may be called before that, too."""

    def __init__(self, state: State) -> None:
        self._state = state
        # By set, the last change that was not sent yet.
        self._waiting: dict[str, MinBrokerChange] = {}
        self._wake = Signal()

    def queue_changes(self) -> None:
        """Queue notices of the changes since the last call, unless the options switch them off."""
        for change in self._state.routes.min_broker_changes():
            if not self._state.options.notify_min_broker_id_changed or not change.slaves:
                continue
            if len(self._waiting) >= MAX_WAITING and change.broker_name not in self._waiting:
                logger.warning("%d notices wait, this one is not sent: %s", MAX_WAITING, change)
                continue
            # In place of a change of the same set that still waits: slaves need the last state only.
            self._waiting[change.broker_name] = change
            self._wake.set()

    async def run(self, connect: Connect = sockets.connect) -> None:
        """Send notices until cancelled."""
        async with open_client(credentials=self._state.options.inner_credentials, connect=connect) as client:
            while True:
                while not self._waiting:
                    await self._wake.wait()
                change = self._waiting.pop(next(iter(self._waiting)))
                logger.info(
                    "lowest broker of %s is %d at %s, offline: %s, notified: %s",
                    change.broker_name,
                    change.min_broker_id,
                    change.min_broker_addr,
                    change.offline_broker_addr,
                    " ".join(change.slaves),
                )
                with trio.move_on_after(TELL_TIMEOUT_MS / 1000):
                    async with trio.open_nursery() as nursery:
                        for addr in change.slaves:
                            nursery.start_soon(_tell, client, addr, change)


async def _tell(client: RemotingClient, addr: str, change: MinBrokerChange) -> None:
    header = NotifyMinBrokerIdChangeRequestHeader(
        change.min_broker_id,
        change.broker_name,
        change.min_broker_addr,
        change.offline_broker_addr,
        change.ha_broker_addr,
    )
    try:
        await client.oneway(addr, NOTIFY_MIN_BROKER_ID_CHANGE.oneway(header))
    except RemotingError as error:
        logger.info("slave not notified of its lowest broker: %s", error)
    except Exception:
        logger.exception("slave at %s not notified of its lowest broker", addr)
