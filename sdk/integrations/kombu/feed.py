"""Tasks of one queue for one channel: pops them, keeps their leases, acknowledges them or gives them back.

A task belongs to this worker while it renews the task's invisible time at the broker, whether it waits here, in the
worker, or runs. So a worker that is killed loses its tasks to other workers after that time, and a worker that works
for hours does not. A pop is never cancelled, only waits are: the messages of an unread answer would be hidden for that
time. This module runs in the session's loop, except `Held.settle`.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.consumer.popped import ReceivedMessage
from skylark.sdk.consumer.read_retry import FailureLines
from skylark.sdk.consumer.simple import MAX_COUNT, SimpleConsumer
from skylark.sdk.integrations.kombu.mailbox import Mailbox, Parcel
from skylark.sdk.integrations.kombu.names import TransportSettings, deliver_at_ms, is_expired

logger = logging.getLogger(__name__)

#: The property with the time when a task is due, in ms, of a task that reaches it in steps.
DUE = "KOMBU_DUE_MS"
# How long a broker may hold the request whether there is a message.
WAIT_MS = 15_000
# While messages come, a broker holds the pop itself, which saves a round trip. A channel that closes waits for the
# pop's end, and other queues of the channel cannot use the room meanwhile, so the hold is short, and only for channels
# with one queue.
HELD_MS = 200
BUSY_S = 1.0
# A broker that says there is a message, and gives none, is asked again after this pause.
EMPTY_PAUSE_S = 0.05
# How long a `get` waits for messages that were given back before it.
RETURN_S = 1.0
# How many messages are remembered that were acknowledged too late, and may come once more.
MOST_LATE = 10_000
# Renewals at a time.
RENEWALS = 16


class GiveBacks:
    """Messages that all feeds of a group in this process have given back, and that have not come again.

    A broker delivers a given-back message within a moment: after the give-back is stored, and after the broker's next
    check, ten times a second. Another worker may get the message, so a feed waits no longer than RETURN_S for it.
    """

    def __init__(self) -> None:
        self._on_the_way = 0
        self._stored = trio.lowlevel.ParkingLot()
        #: The end of the wait for each stored give-back, oldest first.
        self._until: deque[float] = deque(maxlen=MAX_COUNT)

    def begin(self) -> None:
        self._on_the_way += 1

    def end(self) -> None:
        """Let a wait for the message begin, as its give-back is stored; call it once for each `begin`."""
        self._on_the_way -= 1
        self._until.append(trio.current_time() + RETURN_S)
        self._stored.unpark_all()

    def came_again(self) -> None:
        """Stop waiting for one of the given-back messages: one was delivered again."""
        if self._until:
            self._until.popleft()

    async def wait_ms(self) -> int:
        """How long to wait for given-back messages, once they are stored; 0 when there are none to wait for."""
        with trio.move_on_after(RETURN_S):
            while self._on_the_way:
                await self._stored.park()
        left_s = self._until[-1] - trio.current_time() if self._until else 0.0
        if left_s <= 0:
            self._until.clear()
        return max(int(left_s * 1000), 0)


class Deliveries:
    """The messages of a group that this process holds, by id, and messages that it acknowledged too late.

    When a broker is away for longer than the invisible time, no lease can be renewed there, and the broker delivers
    messages again that this process still holds. Such a second delivery only brings a new lease.
    """

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._late: dict[str, None] = {}

    def finish(self, held: "Held", *, is_late: bool) -> None:
        """Hold ``held`` no longer: it is acknowledged, or given back.

        ``is_late``: it may have been acknowledged after the lease's end.
        """
        if self.held.get(held.message.msg_id) is held:
            del self.held[held.message.msg_id]
        if is_late and not held.give_back:
            self._late[held.message.msg_id] = None
            if len(self._late) > MOST_LATE:
                del self._late[next(iter(self._late))]

    def take_late(self, msg_id: str) -> bool:
        """Whether a message was acknowledged too late before; True only once per message."""
        return self._late.pop(msg_id, msg_id) is None


class Prefetch:
    """How many messages a channel may have that are not acknowledged, of all its queues (AMQP's prefetch count)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = trio.lowlevel.ParkingLot()
        #: One queue pops at a time, so that two queues do not both fill the same room.
        self.turn = trio.Lock()
        #: The feeds that pop.
        self.pulling = 0

    @property
    def room(self) -> int:
        return self._limit - self._held

    def set_limit(self, limit: int) -> None:
        self._limit = limit
        self._changed.unpark_all()

    def take(self, count: int) -> None:
        self._held += count

    def release(self) -> None:
        self._held -= 1
        self._changed.unpark_all()

    async def wait_for_room(self) -> None:
        while self.room <= 0:
            await self._changed.park()


class Held:
    """One task that this process holds, until its acknowledgement is stored or it was given back."""

    __slots__ = ("_feed", "give_back", "is_over", "is_passed_on", "is_renewing", "is_settled", "message", "renew_at")

    def __init__(self, feed: "Feed", message: ReceivedMessage, renew_at: float) -> None:
        self._feed = feed
        self.message = message
        self.renew_at = renew_at
        #: Whether the broker has said that the lease is over.
        self.is_over = False
        self.is_settled = False
        self.give_back = False
        #: Whether the task is not due yet, and is being sent on its next step.
        self.is_passed_on = False
        self.is_renewing = False

    @property
    def is_again(self) -> bool:
        return self.message.delivery_attempt > 1

    def hold_on(self, message: ReceivedMessage) -> None:
        """Hold the task by the lease of ``message``, its second delivery, from now on."""
        self._feed.hold_on(self, message)

    def settle(self, *, give_back: bool) -> None:
        """Acknowledge the task or give it back. Any thread may call this; it does not wait for the broker."""
        self._feed.post(lambda: self._feed.settle(self, give_back=give_back))


class _Broker:
    """The tasks that this feed holds of one broker. A broker that is away holds up no other broker's tasks."""

    __slots__ = ("held", "settled", "to_settle")

    def __init__(self) -> None:
        self.held: dict[Held, None] = {}
        self.settled: list[Held] = []
        self.to_settle = Signal()


class Group(Protocol):
    """The group of a queue, whose consumer all feeds of the queue in this process share."""

    @property
    def give_backs(self) -> GiveBacks:
        """The messages that this process gave back to the group."""

    @property
    def deliveries(self) -> Deliveries:
        """The messages of the group that this process holds."""

    async def wait(self) -> None:
        """Return when the topic of the queue exists."""

    async def join(self) -> SimpleConsumer | None:
        """The consumer; None while there is no topic. Feeds with `Feed.has_joined` must leave the group later."""


class Feed:
    """The tasks of ``queue`` for the channel ``owner``, by way of the consumer of ``group``."""

    def __init__(
        self,
        group: Group,
        settings: TransportSettings,
        *,
        owner: object,
        queue: str,
        prefetch: Prefetch,
        mailbox: Mailbox,
        matches: Callable[[ReceivedMessage], bool],
        send_later: Callable[[ReceivedMessage, int], Awaitable[None]],
        post: Callable[[Callable[[], object]], object],
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        self._group = group
        self._consumer: SimpleConsumer | None = None
        self._joining = trio.Lock()
        self._settings = settings
        self._owner = owner
        self._queue = queue
        self._prefetch = prefetch
        self._mailbox = mailbox
        self._matches = matches
        self._send_later = send_later
        #: Runs a function in the loop, from any thread.
        self.post = post
        self._backoff = backoff
        self._clock = clock
        self._held: dict[Held, None] = {}
        self._brokers: dict[str, _Broker] = {}
        self._finished = trio.lowlevel.ParkingLot()
        self._is_stopped = False
        self._is_pulling = False
        self._last_found = -inf
        self._waiting = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()
        #: Whether somebody has called `close`, which is done once.
        self.is_closing = False
        self.ended = trio.Event()

    # --- life

    @enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep leases and settle, until `close`. `pull` begins the pops."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            for held in self._held:
                self._group.deliveries.finish(held, is_late=held.is_settled)
                if held.give_back:
                    self._group.give_backs.end()  # nobody tries again
            self.ended.set()

    @property
    def has_joined(self) -> bool:
        """Whether this feed is a user of the group's consumer."""
        return self._consumer is not None

    @property
    def consumer(self) -> SimpleConsumer:
        """The consumer from which this feed gets messages."""
        assert self._consumer is not None
        return self._consumer

    async def join(self) -> SimpleConsumer | None:
        """The group's consumer; None while the queue has no topic, or when this feed closes."""
        async with self._joining:
            if self._consumer is None and not self.is_closing:
                self._consumer = await self._group.join()
        return self._consumer

    def pull(self) -> None:
        """Begin to pop."""
        assert self._nursery is not None
        self._nursery.start_soon(self._pull)

    def stop(self) -> None:
        """Pop no more. Tasks that were handed out stay with their consumers, and can be settled."""
        if self._is_pulling:
            self._is_pulling = False
            self._prefetch.pulling -= 1
        self._is_stopped = True
        self._waiting.cancel()

    async def settled(self) -> None:
        """Return when all handed-out tasks are settled, or the feed has ended. A stopped feed may then be closed."""
        while self._held and not self._closed.is_set():
            await self._finished.park()

    async def close(self) -> None:
        """Give back tasks that are not settled, and end; waits for brokers for ``close_timeout_ms`` at most."""
        self.is_closing = True
        self.stop()
        assert self._nursery is not None
        with trio.move_on_after(self._settings.close_timeout_ms / 1000) as patience:
            # A pop in flight holds the turn, and may still bring tasks, which are given back, too.
            async with self._joining, self._prefetch.turn:
                for held in list(self._held):
                    # A task that is being sent on is settled by `_pass_on`: given back as well, it would be executed
                    # twice.
                    if not held.is_passed_on:
                        self.settle(held, give_back=True)
            await self.settled()
        if patience.cancelled_caught and self._held:
            logger.warning(
                "%d tasks of queue %s could not be acknowledged or given back within %d ms; workers get them again",
                len(self._held),
                self._queue,
                self._settings.close_timeout_ms,
            )
        self._closed.set()
        self._finished.unpark_all()
        await self.ended.wait()

    # --- messages

    async def get(self) -> Held | None:
        """One message now, if there is one."""
        return await self._get(0)

    async def get_given_back(self) -> Held | None:
        """One message that was given back before, which a broker may not deliver again yet."""
        while (wait_ms := await self._group.give_backs.wait_ms()) and not self._is_stopped:
            if (held := await self._get(wait_ms)) is not None:
                return held
        return None

    async def _get(self, wait_ms: int) -> Held | None:
        consumer = await self.join()
        if consumer is None:
            return None
        visible_after_ms = self._settings.visibility_timeout_ms
        for message in await consumer.receive(1, wait_ms, invisible_ms=visible_after_ms):
            self._prefetch.take(1)
            if (held := self._hold(message)) is not None:
                return held
        return None

    @enable_ki_protection
    async def _pull(self) -> None:
        failures, empty = FailureLines(), 0
        while not self._is_stopped:
            try:
                consumer = await self._joined()
                if consumer is None:
                    continue
                with self._wait():
                    await self._prefetch.wait_for_room()
                found = await self._pop(consumer)
                if found:
                    empty = 0
                    self._mailbox.put([Parcel(self._owner, self._queue, each) for each in found])
                elif not self._is_stopped and self._prefetch.room > 0:
                    # A request held at the broker costs nothing while the queue is empty, and takes no lease: other
                    # queues of the channel may pop meanwhile.
                    with self._wait():
                        if empty:
                            await trio.sleep(EMPTY_PAUSE_S)
                        started = trio.current_time()
                        await consumer.wait(WAIT_MS)
                        empty = 1 if trio.current_time() - started < EMPTY_PAUSE_S else 0
                failures = FailureLines()
            except SkylarkError as error:
                (logger.warning if failures.add(error) else logger.debug)(
                    "queue %s cannot be read now, trying again: %s", self._queue, error
                )
                with self._wait():
                    await trio.sleep(self._backoff.pause_s(failures.count))

    async def _joined(self) -> SimpleConsumer | None:
        """The consumer, once there is a topic; None when the topic vanished at once, or when the feed stops."""
        consumer = self._consumer
        if consumer is None:
            with self._wait():
                await self._group.wait()
                consumer = await self.join()
                if consumer is None:
                    await trio.sleep(self._backoff.pause_s(1))
        if consumer is not None and not self._is_pulling and not self._is_stopped:
            self._is_pulling = True
            self._prefetch.pulling += 1
        return consumer

    def _wait(self) -> trio.CancelScope:
        """The scope of a wait that `stop` ends."""
        self._waiting = trio.CancelScope()
        if self._is_stopped:
            self._waiting.cancel()
        return self._waiting

    async def _pop(self, consumer: SimpleConsumer) -> list[Held]:
        async with self._prefetch.turn:
            room = min(self._prefetch.room, MAX_COUNT)
            if self._is_stopped or room <= 0:
                return []
            is_busy = trio.current_time() - self._last_found < BUSY_S
            messages = await consumer.receive(
                room,
                HELD_MS if is_busy and self._prefetch.pulling == 1 else 0,
                invisible_ms=self._settings.visibility_timeout_ms,
            )
            if messages:
                self._last_found = trio.current_time()
            self._prefetch.take(len(messages))
            found = [held for message in messages if (held := self._hold(message)) is not None]
            # The channel closed while the broker answered: its consumer is gone, but another worker may have the tasks
            # at once instead of after the invisible time.
            if not self._is_stopped:
                return found
            for held in found:
                self.settle(held, give_back=True)
            return []

    def _hold(self, message: ReceivedMessage) -> Held | None:
        """The lease of a message that was popped; None when it is not for the channel now."""
        deliveries = self._group.deliveries
        former = deliveries.held.get(message.msg_id)
        if former is not None and not former.give_back:
            self._prefetch.release()
            former.hold_on(message)
            return None
        held = Held(self, message, self._next_renewal())
        self._held[held] = None
        deliveries.held[message.msg_id] = held
        self._broker_of(held).held[held] = None
        if deliveries.take_late(message.msg_id):
            self.settle(held, give_back=False)
            return None
        if held.is_again:
            self._group.give_backs.came_again()
        # The broker filters by the hash of at most one tag. A message that the bindings do not match is not for this
        # queue.
        if not self._matches(message) or is_expired(message.properties, self._clock.now_ms()):
            self.settle(held, give_back=False)
            return None
        due_ms = _due_ms(message)
        if due_ms is not None and deliver_at_ms(due_ms, self._clock.now_ms(), self._settings) is not None:
            assert self._nursery is not None
            held.is_passed_on = True
            self._nursery.start_soon(self._pass_on, held, due_ms)
            return None
        return held

    @enable_ki_protection
    async def _pass_on(self, held: Held, due_ms: int) -> None:
        """Send a task that is not due yet on its next step."""
        failures = 0
        while True:
            if self.is_closing:
                self.settle(held, give_back=True)
                return
            try:
                await self._send_later(held.message, due_ms)
                break
            except SkylarkError as error:
                failures += 1
                logger.warning("a task of queue %s that is due later cannot be sent on: %s", self._queue, error)
                await trio.sleep(self._backoff.pause_s(failures))
        # Settle only now: if the worker dies before, the task comes again, and is sent on once more.
        self.settle(held, give_back=False)

    # --- leases

    def hold_on(self, held: Held, message: ReceivedMessage) -> None:
        """Renew the lease of ``held`` by a second delivery, which may come from another broker."""
        logger.warning(
            "a task of queue %s was delivered again, since its time was over before its broker could be reached; this"
            " process still has it, and goes on with it",
            self._queue,
        )
        former = self._broker_of(held)
        held.message, held.renew_at, held.is_over = message, self._next_renewal(), False
        broker = self._broker_of(held)
        if broker is not former:
            broker.held[held] = former.held.pop(held)
            if held in former.settled:
                former.settled.remove(held)
                broker.settled.append(held)
                broker.to_settle.set()

    def _next_renewal(self) -> float:
        return trio.current_time() + self._settings.visibility_timeout_ms / 2000

    def _broker_of(self, held: Held) -> _Broker:
        name = held.message.lease.broker_name
        broker = self._brokers.get(name)
        if broker is None:
            assert self._nursery is not None
            broker = self._brokers[name] = _Broker()
            self._nursery.start_soon(self._renew_leases, broker)
            self._nursery.start_soon(self._settle_all, broker)
        return broker

    @enable_ki_protection
    async def _renew_leases(self, broker: _Broker) -> None:
        # A lease is renewed at half of its time, and checked four times until then, so that one or two failures of a
        # broker do not lose the lease.
        every_s = self._settings.visibility_timeout_ms / 8000
        while True:
            await trio.sleep(every_s)
            now = trio.current_time()
            due = [held for held in broker.held if held.renew_at <= now and not held.is_settled]
            for first in range(0, len(due), RENEWALS):
                async with trio.open_nursery() as nursery:
                    for held in due[first : first + RENEWALS]:
                        nursery.start_soon(self._renew, held)

    @enable_ki_protection
    async def _renew(self, held: Held) -> None:
        if held.is_settled:
            return
        # An acknowledgement that overtakes a renewal would name the old lease, and the task would come again.
        held.is_renewing = True
        message = held.message
        try:
            await self.consumer.change_invisible_time(message, self._settings.visibility_timeout_ms)
            held.renew_at = self._next_renewal()
        except SkylarkError as error:
            if held.message is not message:
                return  # it has a new lease by now
            if _is_over(error):
                held.is_over, held.renew_at = True, inf
                logger.warning("the time of a task of queue %s was over, it is delivered again: %s", self._queue, error)
                return
            # A broker that refuses for now, as without enough slaves, is tried again at the next check, too.
            logger.debug("the time of a task of queue %s is not prolonged yet: %s", self._queue, error)
        finally:
            held.is_renewing = False
            if held.is_settled:
                self._broker_of(held).to_settle.set()

    # --- settlements

    def settle(self, held: Held, *, give_back: bool) -> None:
        """Acknowledge ``held`` or give it back, soon; only the first call counts."""
        if held.is_settled or held not in self._held:
            return
        held.is_settled, held.give_back = True, give_back
        if give_back:
            self._group.give_backs.begin()
        self._prefetch.release()
        broker = self._broker_of(held)
        broker.settled.append(held)
        broker.to_settle.set()

    @enable_ki_protection
    async def _settle_all(self, broker: _Broker) -> None:
        failures = 0
        while True:
            await broker.to_settle.wait()
            # A task whose lease is being renewed waits: its handle changes in a moment, and `_renew` then sets the
            # signal.
            batch = [held for held in broker.settled if not held.is_renewing]
            broker.settled = [held for held in broker.settled if held.is_renewing]
            failed = await self._settle(batch, is_first_failure=not failures)
            if failed:
                failures += 1
                broker.settled += failed
                await trio.sleep(self._backoff.pause_s(failures))
                broker.to_settle.set()
            else:
                failures = 0

    async def _settle(self, batch: list[Held], *, is_first_failure: bool) -> list[Held]:
        """Settle the tasks; returns the tasks to try again."""
        failed: list[Held] = []
        acks = {held: held.message for held in batch if not held.give_back}
        try:
            if acks:
                await self.consumer.ack(list(acks.values()))
                self._finish([held for held, message in acks.items() if held.message is message])
                # Tasks that were delivered again meanwhile have another lease.
                failed += [held for held, message in acks.items() if held.message is not message]
        except SkylarkError as error:
            failed += acks
            self._log_failure(error, is_first_failure)
        for held in batch:
            if held.give_back:
                try:
                    await self.consumer.change_invisible_time(held.message, 0)
                    self._finish([held])
                except SkylarkError as error:
                    ends_at = held.renew_at + self._settings.visibility_timeout_ms / 2000
                    if not _is_over(error) and trio.current_time() < ends_at:
                        failed.append(held)
                        self._log_failure(error, is_first_failure and len(failed) == 1)
                        continue
                    # Its invisible time was over: another worker has the task already, or gets it now.
                    logger.debug("a task of queue %s was not given back: %s", self._queue, error)
                    self._finish([held])
        return failed

    def _log_failure(self, error: SkylarkError, is_first_failure: bool) -> None:
        (logger.warning if is_first_failure else logger.debug)(
            "tasks of queue %s cannot be acknowledged now, trying again: %s", self._queue, error
        )

    def _finish(self, finished: list[Held]) -> None:
        for held in finished:
            if held.give_back:
                self._group.give_backs.end()
            # Three quarters of the time are over: the last quarter allows for the network, and for the broker's clock.
            ends_soon_at = held.renew_at + self._settings.visibility_timeout_ms / 4000
            is_late = held.is_over or trio.current_time() > ends_soon_at
            self._group.deliveries.finish(held, is_late=is_late)
            del self._held[held]
            del self._broker_of(held).held[held]
        self._finished.unpark_all()


def _due_ms(message: ReceivedMessage) -> int | None:
    """When a task that reaches its time in steps is due; None for now, and for times that kombu did not write."""
    try:
        return int(message.properties[DUE])
    except (KeyError, ValueError):
        return None


def _is_over(error: SkylarkError) -> bool:
    """Whether a broker says that the time of a task is over. Refusals for other reasons are transient."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_MESSAGE
