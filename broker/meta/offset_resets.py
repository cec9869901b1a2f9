"""Offsets that an administrator has set while consumers of the group are connected.

A connected consumer continues at its own offset in memory, and commits it. So the new offset of a queue is kept here
until the group's next pull of the queue: the pull is answered with "offset moved" and the new offset, and commits until
then are ignored. A held pull is answered at once. When the group has no connected consumers, setting the committed
offset is enough. Pending offsets are in memory only, as in RocketMQ: after a restart or a change of the role, connected
consumers continue at their old offsets.
"""

import logging
from collections.abc import Callable

from skylark.broker.meta.clients import Clients
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.remoting.net.channel import Channel

logger = logging.getLogger(__name__)

# Queues whose groups have not pulled since; the oldest are given up.
MAX_PENDING = 100_000


class OffsetResets:
    """Offsets that wait for the next pull of a group. ``pending`` is nearly always empty: check it first for speed."""

    def __init__(
        self, offsets: ConsumerOffsets, clients: Clients, release_group: Callable[[tuple[str, int], str], object]
    ) -> None:
        """``release_group`` answers the pulls of a queue (topic and number) that are held for a group."""
        self._offsets = offsets
        self._clients = clients
        self._release_group = release_group
        # By group, topic and number of the queue.
        self.pending: dict[tuple[str, str, int], int] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let the group continue at ``offset``."""
        # A group without connected consumers only needs the commit. For a connected group the new offset becomes
        # pending before the held pull is released, since the pull is answered with it.
        self._offsets.commit(group, topic, queue_id, offset)
        key = group, topic, queue_id
        self.pending.pop(key, None)
        if self._clients.consumer_group(group) is None:
            return
        if len(self.pending) >= MAX_PENDING:
            given_up = next(iter(self.pending))
            del self.pending[given_up]
            logger.warning("consumers of group %s may not notice the new offset of %s queue %d", *given_up)
        self.pending[key] = offset
        self._release_group((topic, queue_id), group)

    def pop(self, channel: Channel, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the offset at which a member's pull of the queue must continue; None when none is pending.

        A reader without heartbeats is not a member: it chooses its own offsets, and must not consume an offset that is
        meant for a member.
        """
        members = self._clients.consumer_group(group)
        if members is None or channel not in members.members:
            return None
        return self.pending.pop((group, topic, queue_id), None)

    def covers(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a commit must be ignored, as the consumer does not know the new offset yet."""
        key = group, topic, queue_id
        if key not in self.pending:
            return False
        if self._clients.consumer_group(group) is None:
            del self.pending[key]
            return False
        return True

    def topic_deleted(self, name: str) -> None:
        """Forget the offsets of a deleted topic: a later topic of the same name has other offsets."""
        for key in [key for key in self.pending if key[1] == name]:
            del self.pending[key]

    def clear(self) -> None:
        """Forget all pending offsets: this broker is no longer the master, and its consumers ask another broker."""
        self.pending.clear()
