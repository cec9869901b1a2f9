"""`GivenOffsets`: of which topics the offsets are that a caller has got, by queue. Pure.

Callers of a `PullConsumer` keep offsets as plain numbers, and give them back later: to pull, to seek, to commit. Each
counts as an offset of the topic of which this consumer gave the last messages, or else the last offset. So an offset of
a topic that was deleted is noticed, and not taken for one of the topic that has the name now.
"""

from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position


class GivenOffsets:
    """Creation stamps of topics: of the messages that were returned, and of answers about offsets."""

    def __init__(self) -> None:
        self._read: dict[MessageQueue, int] = {}
        self._asked: dict[MessageQueue, int] = {}
        self._trails: dict[MessageQueue, Trail] = {}
        # The offset of the pull that was told last that the topic was made again.
        self._told: dict[MessageQueue, int] = {}

    def position(self, mq: MessageQueue, offset: int) -> Position:
        """An offset that the caller gives."""
        return Position(offset, self._read.get(mq, self._asked.get(mq)))

    def note_read(self, mq: MessageQueue, created_ms: int | None) -> None:
        """The caller got messages of the topic with this stamp."""
        if created_ms is not None:
            self._read[mq] = created_ms

    def note_asked(self, mq: MessageQueue, position: Position) -> int:
        """The caller gets an offset, which is returned."""
        if position.created_ms is not None:
            self._asked[mq] = position.created_ms
        return position.offset

    def trail(self, mq: MessageQueue, offset: int) -> Trail:
        """The trail for a pull at an offset that the caller gives; give it to `note_pulled`."""
        told = self._told.get(mq)
        if told is not None and told != offset:
            # The caller has heard that the topic was made again, and chose an offset of the new one.
            del self._told[mq]
            del self._trails[mq]
        known = self._trails.get(mq)
        return Trail(self.position(mq, offset).created_ms) if known is None else known.copy()

    def note_pulled(
        self, mq: MessageQueue, trail: Trail, offset: int, created_ms: int | None, *, is_made_again: bool
    ) -> None:
        """A pull has ended. A caller that did not hear that the topic was made again is told so once more."""
        if is_made_again:
            self._told[mq] = offset
            self._trails.setdefault(mq, Trail(self.position(mq, offset).created_ms))
        else:
            self._told.pop(mq, None)
            self._trails[mq] = trail
        self.note_read(mq, created_ms)
