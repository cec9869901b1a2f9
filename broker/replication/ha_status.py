"""The state of replication: 907 shows it, 908 sets how far a slave believes its master's disk to be.

Neighbours: stats.py (a master's slaves), progress.py (a slave's copying).
"""

import logging

from broker.observe.meter import SECOND_MS, Window
from broker.part import Part
from broker.replication.progress import SlaveProgress
from broker.replication.role import RoleMachine
from broker.replication.stats import RATE_SPAN_MS, ReplicationStats
from broker.store.store import MessageStore
from mqcommon.clock import Clock
from mqcommon.errors import RequestRefused
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.brokers import (
    GET_BROKER_HA_STATUS,
    RESET_MASTER_FLUSH_OFFSET,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)

logger = logging.getLogger(__name__)


class HaHandlers(Part):
    """``replication`` is for a master, ``progress`` for a slave."""

    tick_interval_ms = SECOND_MS

    def __init__(
        self,
        role: RoleMachine,
        store: MessageStore,
        replication: ReplicationStats,
        progress: SlaveProgress,
        clock: Clock,
    ) -> None:
        self._role = role
        self._store = store
        self._replication = replication
        self._progress = progress
        self._clock = clock
        self._received = Window(RATE_SPAN_MS, SECOND_MS, clock.now_ms(), (0,))

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_BROKER_HA_STATUS.code: self.status,
            RESET_MASTER_FLUSH_OFFSET.code: self.reset_master_flush_offset,
        }

    def tick(self) -> None:
        """Take samples for the rates."""
        self._replication.sample()
        self._received.sample(self._clock.now_ms(), (self._progress.received_bytes,))

    def status(self, channel: Channel, request: Command) -> Command:
        """907."""
        return answer_with(GET_BROKER_HA_STATUS, request, self._slave() if self._role.now.follows else self._master())

    def reset_master_flush_offset(self, channel: Channel, request: Command) -> Command:
        """908: a master accepts it and does nothing, as in RocketMQ."""
        offset = RESET_MASTER_FLUSH_OFFSET.header(request).master_flush_offset
        if offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"masterFlushOffset is {offset}, it must not be below 0"
            )
        if self._role.now.follows:
            self._progress.master_flush_offset = offset
            logger.info("master flush offset set to %d by %s", offset, channel.remote)
        return request.respond()

    def _master(self) -> HARuntimeInfo:
        slaves = self._replication.slaves()
        rows = [
            HAConnectionRuntimeInfo(
                each.addr, each.acked, each.behind_bytes, each.in_sync, each.bytes_per_second, each.next_offset
            )
            for each in slaves
        ]
        return HARuntimeInfo(True, self._store.log.end, sum(each.in_sync for each in slaves), rows)

    def _slave(self) -> HARuntimeInfo:
        progress = self._progress
        seconds, (before,) = self._received.since(self._clock.now_ms())
        client = HAClientRuntimeInfo(
            progress.master_addr or None,
            round((progress.received_bytes - before) / seconds),
            self._store.log.end,
            progress.last_read_ms,
            progress.last_write_ms,
            progress.master_flush_offset,
        )
        return HARuntimeInfo(False, ha_client_runtime_info=client)
