"""Tells the brokers of a set who its master is (1008), without waiting for an answer.

A lost notice does little harm: brokers ask every few seconds (1004). Only the last notice of a set is sent.
"""

import logging

import trio

from mqcommon.errors import RemotingError
from mqcommon.signal import Signal
from namesrv.controller.replicas import BrokerSet
from namesrv.controller.view import View
from remoting.net.client import RemotingClient
from remoting.protocol.requests.controller import NOTIFY_BROKER_ROLE_CHANGED, MasterHeader, SyncStateSet

logger = logging.getLogger(__name__)

TELL_TIMEOUT_S = 1.0
SENDERS = 20


class RoleNotices:
    """``tell`` never waits; ``run`` sends."""

    def __init__(self, view: View, client: RemotingClient) -> None:
        self._view = view
        self._client = client
        self._waiting: dict[str, BrokerSet] = {}
        self._wake = Signal()
        self._limit = trio.CapacityLimiter(SENDERS)

    def tell(self, known: BrokerSet) -> None:
        """Tell those of ``known`` that are alive."""
        if self._view.options.notify_broker_role_changed:
            self._waiting[known.name] = known
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                while self._waiting:
                    known = self._waiting.pop(next(iter(self._waiting)))
                    for broker_id in self._view.heard(known):
                        addr = known.address(broker_id)
                        if addr is not None:
                            nursery.start_soon(self._send, known, addr)

    async def _send(self, known: BrokerSet, addr: str) -> None:
        header = MasterHeader(known.master, known.address(known.master), known.master_epoch, known.sync_state_set_epoch)
        body = SyncStateSet(sorted(known.sync_state_set), known.sync_state_set_epoch)
        try:
            async with self._limit:
                with trio.move_on_after(TELL_TIMEOUT_S):
                    await self._client.oneway(addr, NOTIFY_BROKER_ROLE_CHANGED.oneway(header), body=body)
        except RemotingError as error:
            logger.info("broker not told of its master: %s", error)
