"""Sends that share a way: what gathers while requests are in flight travels as one batch, with no added delay.

A lane belongs to a topic (any queue will do) or to one queue (order is kept: one request in flight). Its task runs once
after all tasks that are ready to run have queued their sends; then it fills every broker that has a free slot.
A failed request is tried elsewhere until its sends' deadlines; one bad message in a batch fails alone.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import outcome
import trio

from common.errors import BrokerError, ConnectFailed, RemotingError, RequestTimeout, SendFailed, SkylarkError
from common.message.queue import MessageQueue
from remoting.net.client import RemotingClient
from remoting.protocol.command import Command
from sdk.producer.bulk import StoredBatch
from sdk.producer.faults import Faults
from sdk.producer.pick import Turns
from sdk.producer.result import SendResult, SendStatus
from sdk.producer.wire import RETRIABLE_CODES, Row, send_request, stored
from sdk.routes import TopicRoute

# Above these a batch gains nothing and only waits longer.
MAX_BATCH_COUNT = 2_000
MAX_BATCH_BYTES = 512 * 1024
# Two requests keep a broker busy: it works on one while the other is on its way.
SLOTS_PER_BROKER = 2
RETRY_PAUSE_S = 0.05

STATUS = {status.value: status for status in SendStatus}


class PendingSend:
    """One send that waits for its result: a message, or (``unique_key`` None) the rows of a bulk send."""

    __slots__ = ("alone", "avoid", "deadline", "rows", "size", "task", "tries", "unique_key")

    def __init__(self, rows: list[Row], size: int, unique_key: str | None, deadline: float, task: Any, alone: bool):
        self.rows = rows
        self.size = size
        self.unique_key = unique_key
        self.deadline = deadline
        self.task = task
        self.alone = alone
        self.tries = 0
        self.avoid: tuple[str, ...] = ()

    def finish(self, result: "outcome.Outcome[Any]") -> None:
        """Give the sender its result, unless it has gone away."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task, result)


class LaneOwner(Protocol):
    """What a lane needs of its producer."""

    group: str
    retries: int
    faults: Faults
    accept_weaker: bool
    retried: int

    @property
    def remoting(self) -> RemotingClient: ...

    def now_ms(self) -> int: ...

    def route_of(self, topic: str) -> TopicRoute | None: ...

    def want_route(self, topic: str) -> None: ...

    def suspect(self, addr: str) -> None: ...

    def try_timeout_ms(self, left_ms: float) -> float: ...


class Lane:
    """The sends of ``topic``, or of ``queue`` alone."""

    def __init__(self, owner: LaneOwner, nursery: trio.Nursery, topic: str, queue: MessageQueue | None, batching: bool):
        self._owner = owner
        self._nursery = nursery
        self._topic = topic
        self._queue = queue
        self._batching = batching
        self._slots = SLOTS_PER_BROKER if queue is None and batching else 1 if queue is not None else 1_000_000
        self._turns = Turns()
        self._in_flight: dict[str, int] = {}
        self._wake = trio.Event()
        self.pending: deque[PendingSend] = deque()

    def add(self, send: PendingSend) -> None:
        """Queue a send; the lane's task takes it up after those that are ready to run now."""
        self.pending.append(send)
        self._wake.set()

    def wake(self) -> None:
        """Look again: a broker may be used that could not be before."""
        self._wake.set()

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self.pending:
                self._drop_late()
                target = self._target()
                if target is None:
                    break
                self._start(*target)

    @property
    def idle(self) -> bool:
        return not self.pending and not any(self._in_flight.values())

    def _drop_late(self) -> None:
        """Fail the first sends in the queue whose deadline has passed."""
        now = trio.current_time()
        while self.pending and self.pending[0].deadline <= now:
            send = self.pending.popleft()
            send.finish(outcome.Error(SendFailed(f"no broker took the message for {self._topic} in time")))

    def _target(self) -> tuple[str, MessageQueue] | None:
        """Where the first queued send can go now; None when every broker that may be used is busy."""
        owner = self._owner
        route = owner.route_of(self._topic)
        if route is None or not self.pending:
            return None
        in_flight, slots = self._in_flight, self._slots
        if self._queue is not None:
            addr = route.master(self._queue.broker_name)
            if addr is None:
                owner.want_route(self._topic)
                self._later(RETRY_PAUSE_S)
                return None
            return (addr, self._queue) if in_flight.get(addr, 0) < slots else None
        now_ms = trio.current_time() * 1000
        usable = [addr for addr in route.writable_at if owner.faults.usable(addr, now_ms)]
        open_at = {
            addr: queues
            for addr, queues in route.writable_at.items()
            if in_flight.get(addr, 0) < slots and (not usable or addr in usable)
        }
        if not open_at:
            if not route.writable_at:
                owner.want_route(self._topic)
                self._later(RETRY_PAUSE_S)
            return None
        return self._turns.next(open_at, lambda addr: True, self.pending[0].avoid)

    def _later(self, seconds: float) -> None:
        async def wake() -> None:
            await trio.sleep(seconds)
            self._wake.set()

        self._nursery.start_soon(wake)

    def _take(self) -> list[PendingSend]:
        """The sends of the next request."""
        pending = self.pending
        first = pending.popleft()
        sends = [first]
        if first.alone or not self._batching:
            return sends
        room = MAX_BATCH_BYTES - first.size
        while pending and len(sends) < MAX_BATCH_COUNT:
            send = pending[0]
            room -= send.size
            if send.alone or room < 0:
                break
            sends.append(pending.popleft())
        return sends

    def _start(self, addr: str, queue: MessageQueue) -> None:
        sends = self._take()
        self._in_flight[addr] = self._in_flight.get(addr, 0) + 1
        if self._owner.remoting.connected(addr):
            self._submit(addr, queue, sends)
        else:
            self._nursery.start_soon(self._connect_and_submit, addr, queue, sends)

    async def _connect_and_submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        try:
            await self._owner.remoting.channel(addr, self._try_ms(sends))
        except RemotingError as error:
            self._failed(addr, sends, error)
            return
        self._submit(addr, queue, sends)

    def _try_ms(self, sends: list[PendingSend]) -> float:
        return self._owner.try_timeout_ms((sends[0].deadline - trio.current_time()) * 1000)

    def _submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        owner = self._owner
        started = trio.current_time()
        rows = sends[0].rows if len(sends) == 1 else [send.rows[0] for send in sends]
        command = send_request(owner.group, queue, rows, owner.now_ms())

        def answered(result: Command | RemotingError) -> None:
            if isinstance(result, RemotingError):
                self._failed(addr, sends, result)
                return
            owner.faults.answered(addr, (trio.current_time() - started) * 1000, started * 1000)
            self._answered(addr, queue, sends, result)

        try:
            owner.remoting.prepare(addr, command)
            owner.remoting.submit(addr, command, self._try_ms(sends), answered)
        except (RemotingError, ValueError) as error:
            self._failed(addr, sends, error if isinstance(error, RemotingError) else ConnectFailed(addr, str(error)))

    def _answered(self, addr: str, queue: MessageQueue, sends: list[PendingSend], answer: Command) -> None:
        status = STATUS.get(answer.code)
        if status is None:
            self._refused(addr, sends, BrokerError(answer.code, answer.remark, addr))
            return
        try:
            where = stored(answer, len(sends[0].rows) if len(sends) == 1 else len(sends))
        except SkylarkError as error:
            self._release(addr)
            for send in sends:
                send.finish(outcome.Error(error))
            return
        self._release(addr)
        if where.queue_id != queue.queue_id:
            queue = queue._replace(queue_id=where.queue_id)
        finish: Callable[[Any], outcome.Outcome[Any]] = outcome.Value
        if status is not SendStatus.SEND_OK and not self._owner.accept_weaker:
            finish = _weaker
        if sends[0].unique_key is None:
            bulk = sends[0]
            bulk.finish(finish(StoredBatch(where, status, queue, bulk.rows, bulk.tries + 1)))
            return
        offset, host = where.queue_offset, where.host
        for send, physical in zip(sends, where.physical_offsets, strict=True):
            key = send.unique_key or ""
            send.finish(finish(SendResult(status, key, queue, offset, host, physical, send.tries + 1)))
            offset += 1

    def _refused(self, addr: str, sends: list[PendingSend], error: BrokerError) -> None:
        if error.code in RETRIABLE_CODES:
            self._failed(addr, sends, error)
            return
        self._release(addr)
        if len(sends) > 1:
            # One of them is bad; alone, each gets its own verdict.
            for send in reversed(sends):
                send.alone = True
                self.pending.appendleft(send)
        else:
            sends[0].finish(_failure(self._topic, error))

    def _failed(self, addr: str, sends: list[PendingSend], error: SkylarkError) -> None:
        """Try elsewhere, or give up on those whose tries or time are over."""
        owner = self._owner
        self._release(addr)
        if isinstance(error, (RequestTimeout, ConnectFailed)):
            owner.suspect(addr)
        owner.want_route(self._topic)
        now = trio.current_time()
        # A queue of its own has no elsewhere: it is tried there until the deadline.
        patient = self._queue is not None
        for send in reversed(sends):
            send.tries += 1
            send.avoid = (*send.avoid, addr)
            if send.deadline <= now or (send.tries > owner.retries and not patient):
                send.finish(_failure(self._topic, error))
            elif send.task is not None:
                owner.retried += 1
                self.pending.appendleft(send)
        if patient and self.pending:
            self._later(RETRY_PAUSE_S)

    def _release(self, addr: str) -> None:
        self._in_flight[addr] -= 1
        self._wake.set()


def _failure(topic: str, error: SkylarkError) -> "outcome.Error":
    failed = SendFailed(f"message for {topic} was not stored: {error}")
    failed.__cause__ = error
    return outcome.Error(failed)


def _weaker(result: SendResult | StoredBatch) -> "outcome.Outcome[Any]":
    return outcome.Error(
        SendFailed(f"stored, but not as safely as the broker is set to ({result.status.name}): {result!r}")
    )
