"""Who owns which queue of a consumer group. Pure: time comes in, as milliseconds of one clock that never goes back.

A lock lasts `LIFE_MS` from its last renewal. A consumer renews its locks every 20 s, so one that died, or is cut off,
loses its queues within a minute. The end of a connection releases nothing: the consumer may only connect again.
Invariant: a queue of a group has at most one owner.
Neighbour: part.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue

#: RocketMQ's rebalance.lockMaxLiveTime.
LIFE_MS = 60_000


@dataclass(slots=True)
class _Lock:
    owner: str
    renewed_ms: float

    def is_expired(self, now_ms: float) -> bool:
        return now_ms - self.renewed_ms > LIFE_MS


class LockTable:
    """The locks of all groups; at most ``max_locks``, counting expired ones until `drop_expired`."""

    def __init__(self, max_locks: int) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._max_locks = max_locks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, owner: str, queues: Iterable[MessageQueue], now_ms: float) -> list[MessageQueue]:
        """Lock ``queues`` or renew the owner's locks; returns those that it owns now, in their order."""
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
        """Release those of ``queues`` that ``owner`` has locked."""
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
