"""The requests of orderly consumers to lock queues (41) and to unlock them (42).

Every member of a set answers them, whatever its role, as in RocketMQ: consumers ask the master, or the slave that acts
for it. Locks are in memory only, and slaves do not have them. After a change of the master or a restart, consumers lock
their queues again within 20 s; a queue that moved to another consumer meanwhile may have two readers until then.
Neighbours: table.py; retry/part.py (dead letters of an ordered group go the direct way).
"""

import logging

from broker.delivery.locks.table import LockTable
from broker.part import Part
from mqcommon.clock import Clock
from mqcommon.errors import RequestRefused
from mqcommon.names import check_group
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.bounded_body import BodyLimits
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.consuming import (
    LOCK_BATCH_MQ,
    UNLOCK_BATCH_MQ,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)

logger = logging.getLogger(__name__)

# 200 bytes each.
MAX_LOCKS = 200_000
MAX_CLIENT_ID = 1_024
# A request names the queues that one client has on this broker.
BODY = BodyLimits(max_bytes=1 << 20, max_entries=40_000)


class QueueLocks(Part):
    """See the module."""

    tick_interval_ms = 10_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table = LockTable(MAX_LOCKS)
        self._full = False

    def handlers(self) -> dict[int, Handler]:
        return {LOCK_BATCH_MQ.code: self.lock, UNLOCK_BATCH_MQ.code: self.unlock}

    def lock(self, channel: Channel, request: Command) -> Command:
        """41: answered with the queues that the client owns now."""
        wanted = LOCK_BATCH_MQ.body(request, BODY)
        _check(wanted)
        now_ms = self._clock.monotonic_ms()
        owned = self._table.lock(wanted.consumer_group, wanted.client_id, wanted.mq_set, now_ms)
        return answer_with(LOCK_BATCH_MQ, request, LockBatchResponseBody(owned))

    def unlock(self, channel: Channel, request: Command) -> Command:
        """42."""
        given_up = UNLOCK_BATCH_MQ.body(request, BODY)
        _check(given_up)
        self._table.unlock(given_up.consumer_group, given_up.client_id, given_up.mq_set)
        return request.respond()

    def is_ordered(self, group: str) -> bool:
        """Whether a consumer of the group holds a lock now."""
        return self._table.is_ordered(group, self._clock.monotonic_ms())

    def tick(self) -> None:
        """Forget expired locks."""
        self._table.drop_expired(self._clock.monotonic_ms())
        full = len(self._table) >= MAX_LOCKS
        if full and not self._full:
            logger.error("%d queues are locked; more are not locked until some of these expire", MAX_LOCKS)
        self._full = full


def _check(body: LockBatchRequestBody | UnlockBatchRequestBody) -> None:
    check_group(body.consumer_group)
    if not 0 < len(body.client_id) <= MAX_CLIENT_ID:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the clientId has {len(body.client_id)} characters, it must have 1 to {MAX_CLIENT_ID}",
        )
