"""Locks of queues, so that only one orderly consumer of a group reads a queue: requests 41 (lock) and 42 (unlock).

Every member of a set answers these requests, whatever its role, as in RocketMQ: consumers ask the master, or the slave
that acts for it. Locks are in memory only, and slaves do not copy them. After a change of the master or a restart,
consumers lock their queues again within 20 s; a queue that moved to another consumer meanwhile may have two readers
until then.
Neighbour: redelivery.py (an orderly consumer's message to the retry topic is a dead letter).
"""

import logging
from collections.abc import Iterable

from skylark.broker.part import Part
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_group
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.consuming import (
    LOCK_BATCH_MQ,
    UNLOCK_BATCH_MQ,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)

logger = logging.getLogger(__name__)


#: RocketMQ's rebalance.lockMaxLiveTime.
LIFE_MS = 60_000


@lazy_dataclass(slots=True)
class _Lock:
    owner: str
    renewed_ms: float

    def is_expired(self, now_ms: float) -> bool:
        return now_ms - self.renewed_ms > LIFE_MS


class LockTable:
    """The owners of consumer groups' queues. Times are arguments: milliseconds of one clock that never goes back.

    A lock lasts `LIFE_MS` from its last renewal. A consumer renews its locks every 20 s, so a consumer that died, or is
    cut off, loses its queues within a minute. A closed connection releases no lock: the consumer may connect again.
    Invariant: a queue of a group has at most one owner.
    There are at most ``max_locks``, counting expired ones until `drop_expired`.
    """

    def __init__(self, max_locks: int) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._max_locks = max_locks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, owner: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """Lock ``queues`` or renew the owner's locks; returns the queues that the owner has now, in their order."""
        locks = self._groups.setdefault(group, {})
        owned: list[MessageQueue] = []
        for queue in queues:
            known = locks.get(queue)
            if known is None:
                if self._count >= self._max_locks:
                    continue
                locks[queue] = _Lock(owner, now_ms)
                self._count += 1
            elif known.owner == owner or known.is_expired(now_ms):
                known.owner, known.renewed_ms = owner, now_ms
            else:
                continue
            owned.append(queue)
        if not locks:
            del self._groups[group]
        return owned

    def unlock(self, group: str, owner: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks that ``owner`` has of ``queues``."""
        locks = self._groups.get(group, {})
        for queue in queues:
            known = locks.get(queue)
            if known is not None and known.owner == owner:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def is_ordered(self, group: str, now_ms: float) -> bool:
        """Whether a member of the group has a lock, which only orderly consumers have."""
        return any(not lock.is_expired(now_ms) for lock in self._groups.get(group, {}).values())

    def drop_expired(self, now_ms: float) -> None:
        """Forget the locks that have expired."""
        for group, locks in list(self._groups.items()):
            left = {queue: lock for queue, lock in locks.items() if not lock.is_expired(now_ms)}
            self._count -= len(locks) - len(left)
            if left:
                self._groups[group] = left
            else:
                del self._groups[group]


# A lock takes 200 bytes.
MAX_LOCKS = 200_000
MAX_CLIENT_ID = 1_024
# A request names the queues that one client has on this broker.
BODY = BodyLimits(max_bytes=1 << 20, max_entries=40_000)


class QueueLocks(Part):
    """Handles the requests of orderly consumers to lock (41) and unlock (42) queues."""

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
        """42: give up a client's locks of queues."""
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
