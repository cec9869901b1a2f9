"""What an election by Controllers, or in a DLedger group, means for writes and reads. Other brokers have no `Elected`.

Replication sets its attributes; Durability and the reads for consumers use them.
- Consumers see no message that ends after ``confirm_offset``: every log that an election can choose has all messages
  before this offset.
- Without its lease this broker stores no message of a client, not even with WAIT=false, and answers FLUSH_SLAVE_TIMEOUT
  (in a DLedger group SYSTEM_ERROR) instead of SUCCESS: another master may have been elected. The lease is checked at
  the put, and again at the moment of the answer, since this process may have been stopped for long.
- The master waits as a SYNC_MASTER does, whatever its brokerRole. With allAckInSyncStateSet, and always in a DLedger
  group, it waits until the message is confirmed: in Controller mode until all members of the SyncStateSet have it.
  inSyncReplicas has no effect then.
- minInSyncReplicas counts the members of the SyncStateSet. As in RocketMQ, it does not refuse sends with WAIT=false. By
  default it is as high as the loss of one broker allows, but at most 2: 2 in a set of three or more, 1 in a smaller
  set.
"""

import math
from collections.abc import Callable


class Elected:
    """The lease and the confirm offset of an elected broker. At first nothing is confirmed and there is no lease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the seconds of a monotonic clock that goes on while this process is stopped."""
        self._clock = clock
        #: Members of the SyncStateSet, with the master.
        self.set_size = 1
        #: Registered brokers of the set that can be members of the SyncStateSet.
        self.replicas = 1
        #: Moved by `confirmed` and `cut` only.
        self.confirm_offset = 0
        self.lease_until = -math.inf
        #: Whether this broker may be elected, as far as its disk is concerned.
        self.has_sound_disk: Callable[[], bool] = _always
        #: Called with the confirm offset after each advance; the functions must not raise.
        self.observers: list[Callable[[int], None]] = []
        #: Called with the offset of each cut, when the log and its queues have been cut.
        self.on_cut: list[Callable[[int], None]] = []

    @property
    def default_min_size(self) -> int:
        """minInSyncReplicas, if the options do not say it."""
        return 2 if self.replicas > 2 else 1

    @property
    def is_leased(self) -> bool:
        """Whether this broker may acknowledge messages now."""
        return self._clock() < self.lease_until

    def confirmed(self, offset: int) -> None:
        """Advance the confirm offset to ``offset``; a lower offset than the present one changes nothing."""
        if offset > self.confirm_offset:
            self.confirm_offset = offset
            for observer in self.observers:
                observer(offset)

    def cut(self, offset: int) -> None:
        """Lower the confirm offset to ``offset``, where the log was cut: only a cut may lower it."""
        self.confirm_offset = min(self.confirm_offset, offset)
        for observer in self.on_cut:
            observer(offset)


def _always() -> bool:
    return True
