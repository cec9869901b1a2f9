"""`QueueOwnership`: the queues that are this member's now; taking and giving up queues, and committing their offsets.

An orderly queue is locked before its offset is read, and unlocked after its offset is committed, so that the next
member goes on where this one stopped. A queue's handler finishes before its offset is committed; the other queues need
not wait for that handler.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from math import inf

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import RemotingError, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.signal import Signal
from skylark.sdk import broker_api
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.first_offsets import FirstOffsets
from skylark.sdk.consumer.offsets import OffsetStore
from skylark.sdk.consumer.process_queue import FlowControl, ProcessQueue, Ready
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.position import Position
from skylark.sdk.retry import is_transient
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

# A broker forgets a lock 60 s after it was renewed. Locks are renewed every 20 s, and a member that could not renew a
# lock for 30 s gives its queue up, long before another member can get the lock.
RENEW_INTERVAL_S = 20.0
CERTAIN_S = 30.0
# How long a consumer that closes waits for the answer to an unlock.
CLOSING_S = 0.1
# How long a consumer that closes waits for the commits and unlocks of queues that were being given up before the close.
LEFT_S = 0.5
# How many queues of one broker are taken or given up side by side.
AT_ONCE = 16
# How long a queue's former owner has to commit its last offset before the offset is read. Messages after its last
# commit come again.
TAKE_OVER_S = 0.2


class QueueOwnership:
    """The queues ``owned`` by one member. Each function in ``serve`` is a task of each queue until it is given up."""

    def __init__(
        self,
        context: PushContext,
        replicas: Replicas,
        offsets: OffsetStore,
        flow: FlowControl,
        ready: Ready,
        serve: Sequence[Callable[[ProcessQueue], Awaitable[None]]],
        rebalance_soon: Callable[[], None],
    ) -> None:
        client, settings = context.client, context.settings
        self._problems = context.problems
        # Queues that could not be taken, and were reported as problems.
        self._failed_to_take: dict[MessageQueue, None] = {}
        self._client = client
        self._settings = settings
        self._offsets = offsets
        self._first = FirstOffsets(settings.group, settings, offsets, replicas)
        self._flow = flow
        self._ready = ready
        self._serve = serve
        self._rebalance_soon = rebalance_soon
        self._locks = Locks(client, replicas, settings.group, self._lost) if settings.orderly else None
        # By the name of the broker, so that a broker that does not answer delays no queue of other brokers.
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        # Queues that were given up while their broker was in no route: their kept offsets are dropped when the queues
        # are back as another member's.
        self._absent: dict[MessageQueue, None] = {}
        # Queues that are being given up: their handlers still run, or their offsets are being committed.
        self._leaving: dict[MessageQueue, ProcessQueue] = {}
        # Fires when a leaving queue was given up.
        self._left = Signal()
        self._nursery: trio.Nursery | None = None
        self.owned: dict[MessageQueue, ProcessQueue] = {}
        # Topics and queues that are paused, also while they are another member's.
        self.paused: dict[str | MessageQueue, None] = {}

    @enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Run the tasks of queues, and renew their locks."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            if self._locks is not None:
                await self._locks.renew_often(lambda: self._kept().values())
            await trio.sleep_forever()

    async def change(self, wanted: Mapping[MessageQueue, str | Sql], is_shared: bool) -> bool:
        """Own exactly the queues ``wanted``. Returns whether all are owned now; some may be unreadable or locked.

        ``is_shared``: another member may have owned these queues until now; that member learns of the change at the
        same time.
        """
        self._forget_absent(wanted)
        for mq in [mq for mq in self._failed_to_take if mq not in wanted]:
            del self._failed_to_take[mq]
            self._problems.report(_taking_problem(mq), None)
        # Queues are given up before others are taken: the next owner waits for the commits of this one. An orderly
        # queue cannot be waited for, as its handler may take long: its lock keeps the next owner out.
        given_up = [mq for mq in self.owned if mq not in wanted]
        taken = [mq for mq in wanted if mq not in self.owned]
        for mq, queue in self.owned.items():
            queue.expression = wanted.get(mq, queue.expression)
        assert self._nursery is not None
        async with trio.open_nursery() as nursery:
            for mq in given_up:
                # The handler of an orderly queue may need long to finish.
                (self._nursery if self._settings.orderly else nursery).start_soon(self._give_up, self.owned.pop(mq))
        # Without locks the former owner has a moment to commit. Messages that it consumes after that come again here.
        if taken and is_shared and self._locks is None:
            await trio.sleep(TAKE_OVER_S)
        unanswering: dict[str, None] = {}
        async with trio.open_nursery() as nursery:
            for mq in taken:
                nursery.start_soon(self._acquire, mq, wanted[mq], unanswering)
        self._first.log_passed()
        if given_up or taken:
            logger.info("group %s: owning %d queues", self._settings.group, len(self.owned))
        await self.commit(repeat=True)
        return all(mq in self.owned for mq in wanted)

    async def commit(self, *, repeat: bool = False) -> None:
        """Commit the offsets that have changed; ``repeat``: all of them.

        Commits are repeated after each change of the group: a late commit of the former owner may overwrite this
        member's first commit, and would stay until the queue gets another message.
        """
        positions: dict[MessageQueue, Position] = {}
        for mq, queue in self.owned.items():
            position = queue.position
            if repeat or position != queue.committed:
                positions[mq] = queue.committed = position
        await self._offsets.save(positions)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on with these queues at these offsets, if they are this member's."""
        assert self._nursery is not None
        for mq, offset in offsets.items():
            queue = self.owned.pop(mq, None)
            # `_give_up` closes the window, which discards later results of handlers. The queue is then taken again with
            # a new window that begins at the offset.
            if queue is not None:
                self._nursery.start_soon(self._give_up, queue, offset)

    async def commit_unfinished(self) -> None:
        """Commit the offsets of queues that were not given up, as their handlers did not finish in time."""
        kept = self._kept()
        await self._offsets.save({mq: queue.position for mq, queue in kept.items() if queue.reset_to is None})
        resets = {mq: queue.position for mq, queue in kept.items() if queue.reset_to is not None}
        await self._offsets.save(resets, is_reset=True)

    def _kept(self) -> dict[MessageQueue, ProcessQueue]:
        """The owned queues, and leaving queues whose handlers have not finished; without queues whose lock is lost."""
        return {mq: queue for mq, queue in (self.owned | self._leaving).items() if not queue.is_lost}

    async def give_up_all(self) -> None:
        """Commit the offsets of all queues, and give the queues up, when their handlers have finished: at the close."""
        if self._locks is not None:
            self._locks.begin_close()
        queues = list(self.owned.values())
        self.owned.clear()
        async with trio.open_nursery() as nursery:
            for queue in queues:
                nursery.start_soon(self._give_up, queue)
        if self._locks is not None:
            await self._wait_for_leaving()

    async def _wait_for_leaving(self) -> None:
        """Wait for orderly queues that were being given up before the close, in tasks of their own."""
        for queue in list(self._leaving.values()):
            async with queue.working:
                pass
        # The requests of leaving queues may have begun before the close, with a longer timeout.
        with trio.move_on_after(LEFT_S):
            while self._leaving:
                await self._left.wait()

    def set_paused(self, what: Iterable[str | MessageQueue], *, paused: bool) -> None:
        """Pause topics and queues, or let them be pulled again."""
        for each in what:
            if paused:
                self.paused[each] = None
            else:
                self.paused.pop(each, None)
        for queue in self.owned.values():
            queue.is_paused = self.is_paused(queue.mq)
            queue.wake.set()

    def is_paused(self, mq: MessageQueue) -> bool:
        """Whether the queue, or its topic, is paused."""
        return mq.topic in self.paused or mq in self.paused

    @enable_ki_protection
    async def _acquire(self, mq: MessageQueue, expression: str | Sql, unanswering: dict[str, None]) -> None:
        """Take one queue. ``unanswering``: brokers that did not answer; their queues are left to the next change."""
        # The queue left and came back while its handler still runs. It is taken in the next round, after its offset is
        # committed.
        if mq in self._leaving:
            return
        locked_until, is_locked = 0.0, False
        async with self._limiter(mq):
            if mq.broker_name in unanswering:
                return
            try:
                if self._locks is not None:
                    locked_until, locked = await self._locks.lock([mq])
                    if mq not in locked:
                        return
                    is_locked = True
                start = await self._first.of(mq)
            except SkylarkError as error:
                logger.warning("%s cannot be read now: %s", mq, error)
                self._failed_to_take[mq] = None
                self._problems.report(_taking_problem(mq), error)
                if is_transient(error):
                    unanswering[mq.broker_name] = None
                # Without an answer the lock is left to run out: an unlock might arrive after the next try has locked
                # the queue.
                if self._locks is not None and is_locked and not isinstance(error, RemotingError):
                    await self._locks.unlock(mq)
                return
            except trio.Cancelled:
                # The consumer closes. The broker may hold the lock although its answer has not come.
                if self._locks is not None:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
                        await self._locks.unlock(mq)
                raise
        if mq in self._failed_to_take:
            del self._failed_to_take[mq]
            self._problems.report(_taking_problem(mq), None)
        queue = self.owned[mq] = self._flow.own(mq, expression, start)
        queue.locked_until = locked_until
        queue.is_paused = self.is_paused(mq)
        assert self._nursery is not None
        for serve in self._serve:
            self._nursery.start_soon(serve, queue)

    @enable_ki_protection
    async def _give_up(self, queue: ProcessQueue, reset_to: int | None = None) -> None:
        """Stop with the queue; then commit its offset, or ``reset_to``, unless the queue is lost."""
        mq = queue.mq
        queue.reset_to = reset_to
        # The order of these steps keeps the promise that nothing is skipped: no more pulls; no more messages to
        # handlers; wait for the handler of an orderly queue; commit what was consumed; only then let another member
        # have the lock.
        self._leaving[mq] = queue
        queue.is_given_up = True
        queue.scope.cancel()
        queue.work.set()
        self._ready.drop(queue.window)
        async with queue.working:
            position = queue.position
            self._flow.drop(queue)
        if not queue.is_lost:
            async with self._limiter(mq):
                with survived("committing offsets"):
                    await self._offsets.save({mq: position}, is_reset=reset_to is not None)
        # A kept offset must not be committed after the next owner has committed a later one. While a queue's broker is
        # in no route, this member cannot know whether the queue has another owner, so the offset is kept until the
        # route says more.
        if reset_to is None:
            if queue.is_lost or self._is_in_route(mq):
                self._offsets.forget(mq)
            else:
                self._absent[mq] = None
        if self._locks is not None and not queue.is_lost:
            await self._locks.unlock(mq)
        del self._leaving[mq]
        self._left.set()
        if self._locks is not None or reset_to is not None:
            self._rebalance_soon()

    def _lost(self, queue: ProcessQueue) -> None:
        """Give up the queue, whose lock belongs to another member, or is too old."""
        if self.owned.get(queue.mq) is queue:
            logger.warning("the lock of %s is lost", queue.mq)
            assert self._nursery is not None
            queue.is_lost = True
            self._nursery.start_soon(self._give_up, self.owned.pop(queue.mq))

    def _limiter(self, mq: MessageQueue) -> trio.CapacityLimiter:
        return self._limiters.setdefault(mq.broker_name, trio.CapacityLimiter(AT_ONCE))

    def _is_in_route(self, mq: MessageQueue) -> bool:
        route = self._client.instance.routes.get(mq.topic)
        return route is not None and mq in route.readable

    def _forget_absent(self, wanted: Mapping[MessageQueue, str | Sql]) -> None:
        for mq in list(self._absent):
            if mq in wanted:
                del self._absent[mq]
            elif self._is_in_route(mq):
                del self._absent[mq]
                self._offsets.forget(mq)


def _taking_problem(mq: MessageQueue) -> str:
    """The name of the problem that a queue cannot be taken."""
    return f"taking {mq}"


class Locks:
    """The queue locks of one member of ``group``. ``lost`` is called with each queue whose lock is lost or too old."""

    def __init__(
        self, client: ClientHandle, replicas: Replicas, group: str, lost: Callable[[ProcessQueue], None]
    ) -> None:
        self._client = client
        self._replicas = replicas
        self._group = group
        self._lost = lost
        self._unlock_s = inf

    async def lock(self, mqs: Collection[MessageQueue]) -> tuple[float, list[MessageQueue]]:
        """Lock queues of one broker: returns until when the locks are certain, and the locked queues."""
        asked_at = trio.current_time()
        client_id = self._client.instance.client_id
        locked = await self._replicas.ask_master(
            next(iter(mqs)), lambda at: broker_api.lock_queues(at, self._group, client_id, list(mqs))
        )
        return asked_at + CERTAIN_S, locked

    def begin_close(self) -> None:
        """Let each unlock wait for CLOSING_S only, from now on."""
        self._unlock_s = CLOSING_S

    async def unlock(self, mq: MessageQueue) -> None:
        """Unlock the queue for other members. If the request fails, they must wait until the lock runs out."""
        client_id = self._client.instance.client_id
        try:
            with trio.move_on_after(self._unlock_s):
                await self._replicas.ask_master(
                    mq, lambda at: broker_api.unlock_queues(at, self._group, client_id, [mq])
                )
        except SkylarkError as error:
            logger.info("the lock of %s is left to its end: %s", mq, error)

    async def renew_often(self, queues: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Renew the locks of ``queues()`` every 20 s."""
        while True:
            await trio.sleep(RENEW_INTERVAL_S)
            with survived("renewing locks"):
                by_broker: dict[str, list[ProcessQueue]] = {}
                for queue in queues():
                    by_broker.setdefault(queue.mq.broker_name, []).append(queue)
                async with trio.open_nursery() as nursery:
                    for some in by_broker.values():
                        nursery.start_soon(self._renew, some)

    @enable_ki_protection
    async def _renew(self, queues: list[ProcessQueue]) -> None:
        try:
            until, locked = await self.lock([queue.mq for queue in queues])
        except SkylarkError as error:
            logger.warning("the locks of %d queues are not renewed: %s", len(queues), error)
            # A missing answer does not lose the lock: it is certain until ``locked_until``, and the queue is consumed
            # until then.
            until, locked = trio.current_time(), [queue.mq for queue in queues]
        now = trio.current_time()
        for queue in queues:
            if queue.mq not in locked or now >= queue.locked_until:
                self._lost(queue)
            else:
                queue.locked_until = max(queue.locked_until, until)
