"""`GivenOffsets`: for each queue, to which topic (by creation stamp) the caller's offsets belong. Pure.

Callers of a `PullConsumer` keep offsets as plain numbers, and pass them back later: to pull, to seek, to commit. An
offset counts as belonging to the topic whose messages, or else whose offset, this consumer returned last. So an offset
of a deleted topic is noticed, and is not mistaken for an offset of the topic that has the name now.
"""

from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position


class GivenOffsets:
    """The creation stamps of one consumer's queues: of returned messages, and of returned offsets."""

    def __init__(self) -> None:
        self._read: dict[MessageQueue, int] = {}
        self._asked: dict[MessageQueue, int] = {}
        self._trails: dict[MessageQueue, Trail] = {}
        # The offset of the last pull whose caller learned that the topic was made again.
        self._reported_at: dict[MessageQueue, int] = {}

    def position(self, mq: MessageQueue, offset: int) -> Position:
        """The position of an offset that the caller passes."""
        return Position(offset, self._read.get(mq, self._asked.get(mq)))

    def note_read(self, mq: MessageQueue, created_ms: int | None) -> None:
        """Note that the caller got messages of the topic with this stamp."""
        if created_ms is not None:
            self._read[mq] = created_ms

    def note_asked(self, mq: MessageQueue, position: Position) -> int:
        """Note that the caller gets the offset of ``position``; returns this offset."""
        if position.created_ms is not None:
            self._asked[mq] = position.created_ms
        return position.offset

    def trail(self, mq: MessageQueue, offset: int) -> Trail:
        """The trail for a pull at the caller's ``offset``; pass the trail to `note_pulled` afterwards."""
        reported_at = self._reported_at.get(mq)
        if reported_at is not None and reported_at != offset:
            # The caller has learned that the topic was made again, and chose an offset of the new topic.
            del self._reported_at[mq]
            del self._trails[mq]
        known = self._trails.get(mq)
        return Trail(self.position(mq, offset).created_ms) if known is None else known.copy()

    def note_pulled(
        self, mq: MessageQueue, trail: Trail, offset: int, created_ms: int | None, *, is_made_again: bool
    ) -> None:
        """Note the result of a pull.

        If its caller did not learn that the topic was made again, the next pull says so again.
        """
        if is_made_again:
            self._reported_at[mq] = offset
            self._trails.setdefault(mq, Trail(self.position(mq, offset).created_ms))
        else:
            self._reported_at.pop(mq, None)
            self._trails[mq] = trail
        self.note_read(mq, created_ms)
