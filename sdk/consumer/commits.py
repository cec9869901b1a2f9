"""Offsets that a consumer commits. Only the master accepts them; while it is unreachable they are kept here.

The newest offset of each queue is committed when the master is back, or when the consumer closes. If the process ends
before that, the group reads some messages again, but never skips one. A consumer that closes waits CLOSING_S for a
broker and no longer: one that does not answer, as a frozen machine, must not hold up the end of a program.

Commits of one queue are sent one after another: two on their way could arrive in the wrong order. When a queue becomes
another member's, what is kept for it is dropped (`forget`), since that member has committed later offsets meanwhile.
"""

import logging
from collections.abc import Callable

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.replicas import Replicas
from sdk.runtime import survived
from sdk.shared import ClientHandle

logger = logging.getLogger(__name__)

RETRY_S = 1.0
CLOSING_S = 0.5


class Commits:
    """The offsets that one group commits to the masters."""

    def __init__(
        self,
        client: ClientHandle,
        replicas: Replicas,
        group: str,
        note: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        # Told why offsets are kept, and None when they are committed.
        self._note = note
        self._client = client
        self._replicas = replicas
        self._group = group
        # (offset, whether it may not go back).
        self._kept: dict[MessageQueue, tuple[int, bool]] = {}
        # For each queue: the lock of the commit that is on its way; how often the queue was forgotten.
        self._locks: dict[MessageQueue, trio.Lock] = {}
        self._forgotten: dict[MessageQueue, int] = {}
        # (topic, broker name) of broker sets that were in a route once. When all brokers of a set are down it leaves
        # the route, but its offsets are still kept.
        self._sets: dict[tuple[str, str], None] = {}
        self._is_retrying = False
        self._is_closing = False
        # Brokers that have not answered since the consumer closes.
        self._silent: set[str] = set()

    def kept(self, mq: MessageQueue) -> int | None:
        """The kept offset of the queue, which the master has not accepted yet."""
        kept = self._kept.get(mq)
        return None if kept is None else kept[0]

    async def commit(self, mq: MessageQueue, offset: int, *, forward_only: bool = False) -> None:
        """Commit the offset, or keep it. RouteNotFound for an unknown broker set; BrokerError when refused.

        ``forward_only``: a Skylark broker ignores an offset that the group is past already.
        """
        if not self._is_closing:
            await self._commit(mq, offset, forward_only)
        elif mq.broker_name not in self._silent:
            # The lock may be held for a commit that waits for the same broker.
            with trio.move_on_after(CLOSING_S) as scope:
                await self._commit(mq, offset, forward_only)
            if scope.cancelled_caught and mq.broker_name not in self._silent:
                self._silent.add(mq.broker_name)
                logger.warning(
                    "broker %s did not answer within %g s: its offsets are not committed, and the group %s reads some"
                    " messages again",
                    mq.broker_name, CLOSING_S, self._group,
                )  # fmt: skip

    async def _commit(self, mq: MessageQueue, offset: int, forward_only: bool) -> None:
        forgotten = self._forgotten.get(mq, 0)
        async with self._lock(mq):
            self._kept.pop(mq, None)
            route = await self._client.instance.route(mq.topic)
            if mq.broker_name in route.brokers:
                self._sets[mq.topic, mq.broker_name] = None
            try:
                await self._send(mq, offset, forward_only)
            except (RemotingError, RouteNotFound) as error:
                if (mq.topic, mq.broker_name) not in self._sets:
                    raise
                if self._forgotten.get(mq, 0) == forgotten:
                    self._keep(mq, offset, forward_only, error)

    def forget(self, mq: MessageQueue) -> None:
        """The queue is another member's now: drop its kept offset, and do not keep one that is on its way."""
        self._kept.pop(mq, None)
        self._forgotten[mq] = self._forgotten.get(mq, 0) + 1

    def _lock(self, mq: MessageQueue) -> trio.Lock:
        return self._locks.setdefault(mq, trio.Lock())

    def begin_close(self) -> None:
        """From now on a commit waits for CLOSING_S only."""
        self._is_closing = True

    async def close(self) -> None:
        """Try once more to commit the kept offsets."""
        with trio.move_on_after(CLOSING_S):
            for mq in list(self._kept):
                if mq.broker_name not in self._silent:
                    await self._retry(mq)
        if self._kept:
            logger.warning(
                "offsets of %d queues could not be committed: the group %s reads some messages again",
                len(self._kept), self._group,
            )  # fmt: skip

    def _keep(self, mq: MessageQueue, offset: int, forward_only: bool, error: SkylarkError) -> None:
        if not self._kept:
            logger.warning("keeping offsets until the master of broker %s is back: %s", mq.broker_name, error)
        self._kept[mq] = offset, forward_only
        self._note(error)
        if not self._is_retrying:
            self._is_retrying = True
            self._client.nursery.start_soon(self._retry_often)

    @enable_ki_protection
    async def _retry_often(self) -> None:
        while self._kept:
            await trio.sleep(RETRY_S)
            with survived("committing offsets"):
                for mq in list(self._kept):
                    await self._retry(mq)
        self._is_retrying = False
        self._note(None)

    async def _retry(self, mq: MessageQueue) -> None:
        async with self._lock(mq):
            kept = self._kept.get(mq)
            if kept is None:
                return
            offset, forward_only = kept
            try:
                await self._send(mq, offset, forward_only)
            except (RemotingError, RouteNotFound):
                return
            except BrokerError as error:
                logger.warning("offset %d of %s is not committed: %s", offset, mq, error)
            self._kept.pop(mq, None)

    async def _send(self, mq: MessageQueue, offset: int, forward_only: bool) -> None:
        await self._replicas.ask_master(
            mq,
            lambda at: broker_api.commit_offset(
                at, self._group, mq.topic, mq.queue_id, offset, forward_only=forward_only
            ),
        )
