"""Locks of queues at their brokers, which let only one member of a group consume a queue in order.

A broker forgets a lock 60 s after it was renewed. They are renewed every 20 s here, and a member that could not do so
for 30 s takes its queue for lost, long before another member can get it.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from math import inf

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.owned import OwnedQueue
from sdk.consumer.replicas import Replicas
from sdk.runtime import survived
from sdk.shared import ClientHandle

logger = logging.getLogger(__name__)

RENEW_INTERVAL_S = 20.0
CERTAIN_S = 30.0
# How long a consumer that closes waits for the answer to an unlock.
CLOSING_S = 0.1


class Locks:
    """The locks of one member of ``group``. ``lost`` is called with each queue whose lock is another's, or too old."""

    def __init__(
        self, client: ClientHandle, replicas: Replicas, group: str, lost: Callable[[OwnedQueue], None]
    ) -> None:
        self._client = client
        self._replicas = replicas
        self._group = group
        self._lost = lost
        self._unlock_s = inf

    async def lock(self, mqs: Collection[MessageQueue]) -> tuple[float, list[MessageQueue]]:
        """Lock queues of one broker: until when it is certain, and which of them. Raises SkylarkError."""
        asked_at = trio.current_time()
        client_id = self._client.instance.client_id
        locked = await self._replicas.ask_master(
            next(iter(mqs)), lambda at: broker_api.lock_queues(at, self._group, client_id, list(mqs))
        )
        return asked_at + CERTAIN_S, locked

    def begin_close(self) -> None:
        """From now on an unlock waits for CLOSING_S only."""
        self._unlock_s = CLOSING_S

    async def unlock(self, mq: MessageQueue) -> None:
        """Let another member lock the queue; when that fails, it must wait for the end of the lock."""
        client_id = self._client.instance.client_id
        try:
            with trio.move_on_after(self._unlock_s):
                await self._replicas.ask_master(
                    mq, lambda at: broker_api.unlock_queues(at, self._group, client_id, [mq])
                )
        except SkylarkError as error:
            logger.info("the lock of %s is left to its end: %s", mq, error)

    async def renew_often(self, queues: Callable[[], Iterable[OwnedQueue]]) -> None:
        """Renew the locks of ``queues()`` every 20 s."""
        while True:
            await trio.sleep(RENEW_INTERVAL_S)
            with survived("renewing locks"):
                by_broker: dict[str, list[OwnedQueue]] = {}
                for queue in queues():
                    by_broker.setdefault(queue.mq.broker_name, []).append(queue)
                async with trio.open_nursery() as nursery:
                    for some in by_broker.values():
                        nursery.start_soon(self._renew, some)

    @enable_ki_protection
    async def _renew(self, queues: list[OwnedQueue]) -> None:
        try:
            until, locked = await self.lock([queue.mq for queue in queues])
        except SkylarkError as error:
            logger.warning("the locks of %d queues are not renewed: %s", len(queues), error)
            until, locked = trio.current_time(), [queue.mq for queue in queues]
        now = trio.current_time()
        for queue in queues:
            if queue.mq not in locked or now >= queue.locked_until:
                self._lost(queue)
            else:
                queue.locked_until = max(queue.locked_until, until)
