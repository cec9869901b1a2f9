"""`OffsetStore`: where a push consumer keeps its offsets. `GroupOffsets` is the one that members of a group share."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.commits import Commits
from sdk.consumer.replicas import Replicas

logger = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """The offsets of one group."""

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> int | None:
        """The offset of the queue, None when there is none.

        ``zero_if_new``: 0 instead, when the queue still has its first message in memory.
        """

    async def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Keep these offsets; what cannot be kept now is logged.

        An offset that the group is past already is not taken unless ``is_reset``: it may be that of a former owner of
        the queue, which hears late of the change.
        """

    def forget(self, mq: MessageQueue) -> None:
        """The queue is another member's now."""


class GroupOffsets:
    """Offsets at the brokers."""

    def __init__(
        self,
        replicas: Replicas,
        commits: Commits,
        group: str,
        note: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        self._replicas = replicas
        # Told why offsets are refused, and None when they are taken.
        self._note = note
        self._commits = commits
        self._group = group

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> int | None:
        kept = self._commits.kept(mq)
        if kept is not None:
            return kept
        return await self._replicas.ask(
            mq,
            lambda at: broker_api.committed_offset(at, self._group, mq.topic, mq.queue_id, zero_if_new=zero_if_new),
        )

    async def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Commit them: side by side to different brokers, so that one that does not answer delays no other."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for mq in offsets:
            by_broker.setdefault(mq.broker_name, []).append(mq)
        async with trio.open_nursery() as nursery:
            for queues in by_broker.values():
                nursery.start_soon(self._save, {mq: offsets[mq] for mq in queues}, is_reset)

    def forget(self, mq: MessageQueue) -> None:
        self._commits.forget(mq)

    @enable_ki_protection
    async def _save(self, offsets: Mapping[MessageQueue, int], is_reset: bool) -> None:
        for mq, offset in offsets.items():
            try:
                await self._commits.commit(mq, offset, forward_only=not is_reset)
            except SkylarkError as error:
                logger.warning("offset %d of %s is not committed: %s", offset, mq, error)
                self._note(error)
            else:
                self._note(None)
