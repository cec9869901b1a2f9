"""Offsets that a consumer commits. Only the master takes them; while it is away they are kept here.

The newest of each queue is committed when the master is back, or at the end if that is in time. What is lost with this
process costs messages seen twice, never one that is skipped.
"""

import logging

import trio

from mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.replicas import Replicas
from sdk.runtime import survived
from sdk.shared import ClientHandle

logger = logging.getLogger(__name__)

RETRY_S = 1.0
LAST_TRY_S = 1.0


class Commits:
    """The offsets of one group, on their way to the masters."""

    def __init__(self, client: ClientHandle, replicas: Replicas, group: str) -> None:
        self._client = client
        self._replicas = replicas
        self._group = group
        self._kept: dict[MessageQueue, int] = {}
        # Broker sets that are there, even when a NameServer has forgotten one whose brokers are all away.
        self._sets: dict[tuple[str, str], None] = {}
        self._is_retrying = False

    def kept(self, mq: MessageQueue) -> int | None:
        """The offset that waits for the master."""
        return self._kept.get(mq)

    async def commit(self, mq: MessageQueue, offset: int) -> None:
        """Commit, or keep it for later. RouteNotFound when there is no such broker set; BrokerError when refused."""
        self._kept.pop(mq, None)
        route = await self._client.instance.route(mq.topic)
        if mq.broker_name in route.brokers:
            self._sets[mq.topic, mq.broker_name] = None
        try:
            await self._send(mq, offset)
        except (RemotingError, RouteNotFound) as error:
            if (mq.topic, mq.broker_name) not in self._sets:
                raise
            self._keep(mq, offset, error)

    async def close(self) -> None:
        """A last try for what is kept."""
        with trio.move_on_after(LAST_TRY_S):
            for mq in list(self._kept):
                await self._retry(mq)
        if self._kept:
            logger.warning(
                "offsets of %d queues could not be committed: the group %s reads some messages again",
                len(self._kept), self._group,
            )  # fmt: skip

    def _keep(self, mq: MessageQueue, offset: int, error: SkylarkError) -> None:
        if not self._kept:
            logger.warning("offsets are kept here until the master of broker %s is back: %s", mq.broker_name, error)
        self._kept[mq] = offset
        if not self._is_retrying:
            self._is_retrying = True
            self._client.nursery.start_soon(self._retry_often)

    async def _retry_often(self) -> None:
        while self._kept:
            await trio.sleep(RETRY_S)
            with survived("committing offsets"):
                for mq in list(self._kept):
                    await self._retry(mq)
        self._is_retrying = False

    async def _retry(self, mq: MessageQueue) -> None:
        offset = self._kept.get(mq)
        if offset is None:
            return
        try:
            await self._send(mq, offset)
        except (RemotingError, RouteNotFound):
            return
        except BrokerError as error:
            logger.warning("offset %d of %s is not committed: %s", offset, mq, error)
        if self._kept.get(mq) == offset:
            del self._kept[mq]

    async def _send(self, mq: MessageQueue, offset: int) -> None:
        await self._replicas.ask_master(
            mq, lambda at: broker_api.commit_offset(at, self._group, mq.topic, mq.queue_id, offset)
        )
