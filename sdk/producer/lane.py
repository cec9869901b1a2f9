"""Sends that share a way: what gathers while requests are in flight travels as one batch, with no added delay.

A lane belongs to a topic (any queue will do) or to one queue (order is kept: one request in flight). Its task runs once
after all tasks that are ready to run have queued their sends; then it fills every broker that has a free slot.
A failed request is tried elsewhere until its sends' deadlines; one bad message in a batch fails alone. An error that
nobody expected is raised in the sender whose message brought it; the lane's task goes on.
"""

from collections import deque
from typing import Any, Protocol

import trio

from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    RequestTimeout,
    SendFailed,
    SkylarkError,
)
from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from remoting.net.client import RemotingClient
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from sdk.producer.bulk import make_message_rows
from sdk.producer.faults import Faults
from sdk.producer.pick import Turns
from sdk.producer.result import SendResult, SendStatus, StoredBatch
from sdk.producer.wire import RETRIABLE_CODES, Row, send_request, stored
from sdk.routes import TopicRoute

# Above these a batch gains nothing and only waits longer.
MAX_BATCH_COUNT = 2_000
# Fewer sends than this are not divided among free slots.
MIN_SHARE = 64
MAX_BATCH_BYTES = 512 * 1024
# Two requests keep a broker busy: it works on one while the other is on its way.
SLOTS_PER_BROKER = 2
RETRY_PAUSE_S = 0.05

STATUS = {status.value: status for status in SendStatus}


class PendingSend:
    """One send that waits for its result: of a message, or (with ``rows`` given) of a batch of a bulk send.

    It is what its task is woken with: trio calls `unwrap` there, which spares an object per send.
    """

    __slots__ = ("alone", "avoid", "deadline", "error", "message", "result", "rows", "size", "task", "tries")

    def __init__(self, message: Message | None, rows: list[Row] | None, timeout_s: float, task: Any) -> None:
        self.message = message
        self.rows = rows
        self.size = len(message.body) if message is not None else 0
        # How long from now; the lane makes a time of it when it takes the send up.
        self.deadline = timeout_s
        self.task = task
        self.alone = rows is not None
        self.tries = 0
        self.avoid: tuple[str, ...] = ()
        self.result: SendResult | StoredBatch | None = None
        self.error: Exception | None = None

    def finish(self) -> None:
        """Wake the sender, unless it has gone away; ``result`` or ``error`` is set."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task, self)  # type: ignore[arg-type]  # all that trio does with it is unwrap()

    def fail(self, error: Exception) -> None:
        """Wake the sender with an error, unless it has its result already."""
        if self.task is not None:
            self.error = error
            self.finish()

    def unwrap(self) -> "SendResult | StoredBatch | None":
        """What the sender gets."""
        if self.error is not None:
            raise self.error
        return self.result

    def abort(self, _: Any) -> trio.lowlevel.Abort:
        """The sender was cancelled; what is on its way cannot be called back."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


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

    def new_keys(self, count: int) -> list[bytes]: ...

    def route_of(self, topic: str) -> TopicRoute | None: ...

    def want_route(self, topic: str) -> None: ...

    def suspect(self, addr: str) -> None: ...

    def try_timeout_ms(self, left_ms: float) -> float: ...


class Lane:
    """The sends of ``topic``, or of ``queue`` alone."""

    def __init__(
        self,
        owner: LaneOwner,
        nursery: trio.Nursery,
        topic: str,
        queue: MessageQueue | None,
        batching: bool,
        turns: Turns,
    ) -> None:
        self._owner = owner
        self._nursery = nursery
        self._topic = topic
        self._queue = queue
        self._batching = batching
        self._slots = SLOTS_PER_BROKER if queue is None and batching else 1 if queue is not None else 1_000_000
        self._turns = turns
        self._in_flight: dict[str, int] = {}
        # Of many sends at once: how many are left, and each queue's share of them.
        self._burst_left = 0
        self._burst_share = 0
        self._wake = trio.Event()
        self._awake = False
        self._incoming: list[PendingSend] = []
        self.pending: deque[PendingSend] = deque()

    def add(self, send: PendingSend) -> None:
        """Queue a send; the lane's task takes it up after those that are ready to run now."""
        self._incoming.append(send)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def wake(self) -> None:
        """Look again: a broker may be used that could not be before."""
        self._wake.set()

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._awake = False
            self._take_in()
            used: dict[str, None] = {}
            while self.pending:
                self._drop_late()
                try:
                    target = self._target()
                except Exception as error:
                    if self.pending:
                        self.pending.popleft().fail(error)
                    continue
                if target is None:
                    break
                self._start(*target)
                used[target[0]] = None
            for addr in used:
                self._owner.remoting.flush(addr)

    def _take_in(self) -> None:
        incoming, self._incoming = self._incoming, []
        now = trio.current_time()
        for send in incoming:
            send.deadline += now
        if len(incoming) > MIN_SHARE and not self.pending and not any(self._in_flight.values()):
            # Nothing is under way: as many requests as queues, one for each. While some are, what gathers is divided
            # among free slots: as few and large requests as keep the brokers busy, and each goes to the next queue.
            route = self._owner.route_of(self._topic)
            self._burst_left = len(incoming)
            self._burst_share = -(-len(incoming) // max(len(route.writable) if route is not None else 1, 1))
        self.pending.extend(incoming)

    def _drop_late(self) -> None:
        """Fail the first sends in the queue whose deadline has passed."""
        now = trio.current_time()
        while self.pending and self.pending[0].deadline <= now:
            self.pending.popleft().fail(SendFailed(f"no broker took the message for {self._topic} in time"))

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
        avoid = self.pending[0].avoid
        usable = [addr for addr in route.writable_at if owner.faults.usable(addr, now_ms)] or list(route.writable_at)
        # Rather a slot of a broker that has not failed this send than a free one where it did.
        best = [addr for addr in usable if addr not in avoid] or usable
        open_at = {addr: route.writable_at[addr] for addr in best if in_flight.get(addr, 0) < slots}
        if not open_at:
            if not route.writable_at:
                owner.want_route(self._topic)
                self._later(RETRY_PAUSE_S)
            return None
        return self._turns.next(open_at, lambda addr: True)

    def _later(self, seconds: float) -> None:
        async def wake() -> None:
            await trio.sleep(seconds)
            self._wake.set()

        self._nursery.start_soon(wake)

    def _take(self, free_slots: int) -> list[PendingSend]:
        """The sends of the next request: their share of what waits, so that client and broker work at the same time."""
        pending = self.pending
        share = self._burst_share if self._burst_left > 0 else -(-len(pending) // free_slots)
        most = min(max(share, MIN_SHARE), MAX_BATCH_COUNT)
        first = pending.popleft()
        sends = [first]
        if first.alone or not self._batching:
            return sends
        free_bytes = MAX_BATCH_BYTES
        while pending and len(sends) < most:
            send = pending[0]
            if send.alone:
                break
            free_bytes -= send.size
            if free_bytes < 0:
                break
            sends.append(pending.popleft())
        return sends

    def _start(self, addr: str, queue: MessageQueue) -> None:
        in_flight = self._in_flight.get(addr, 0)
        sends = self._take(self._slots - in_flight)
        self._burst_left -= len(sends)
        self._in_flight[addr] = in_flight + 1
        if self._owner.remoting.connected(addr):
            self._submit(addr, queue, sends)
        else:
            self._nursery.start_soon(self._connect_and_submit, addr, queue, sends)

    async def _connect_and_submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        try:
            await self._owner.remoting.channel(addr, self._try_ms(sends))
        except RemotingError as error:
            self._failed(addr, sends, error)
        except Exception as error:
            self._broken(addr, sends, error)
        else:
            self._submit(addr, queue, sends)

    def _try_ms(self, sends: list[PendingSend]) -> float:
        return self._owner.try_timeout_ms((sends[0].deadline - trio.current_time()) * 1000)

    def _submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        try:
            self._request(addr, queue, sends)
        except RemotingError as error:
            self._failed(addr, sends, error)
        except Exception as error:
            self._broken(addr, sends, error)

    def _request(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        owner = self._owner
        started = trio.current_time()
        rows = self._rows(sends)
        command = send_request(owner.group, queue, rows, owner.now_ms())

        def answered(result: Command | RemotingError) -> None:
            try:
                if isinstance(result, RemotingError):
                    _keep_rows(sends, rows)
                    self._failed(addr, sends, result)
                    return
                owner.faults.answered(addr, (trio.current_time() - started) * 1000, started * 1000)
                self._answered(addr, queue, sends, rows, result)
            except Exception as error:
                # They may be stored, so none is sent again.
                for send in sends:
                    send.fail(error)

        try:
            owner.remoting.prepare(addr, command)
            owner.remoting.submit(addr, command, self._try_ms(sends), answered)
        except RemotingError:
            _keep_rows(sends, rows)
            raise

    def _rows(self, sends: list[PendingSend]) -> list[Row]:
        """What the sends store. A message keeps its unique key over its tries: see `_keep_rows`."""
        if sends[0].message is None:
            return sends[0].rows or []
        fresh = [send.message for send in sends if send.rows is None and send.message is not None]
        made = make_message_rows(fresh, self._owner.new_keys(len(fresh)))
        if len(fresh) == len(sends):
            return made
        rest = iter(made)
        return [send.rows[0] if send.rows else next(rest) for send in sends]

    def _answered(
        self, addr: str, queue: MessageQueue, sends: list[PendingSend], rows: list[Row], answer: Command
    ) -> None:
        status = STATUS.get(answer.code)
        if status is None:
            _keep_rows(sends, rows)
            self._refused(addr, sends, BrokerError(answer.code, answer.remark, addr))
            return
        self._release(addr)
        where = stored(answer, len(rows))
        if where.queue_id != queue.queue_id:
            queue = queue._replace(queue_id=where.queue_id)
        batch = StoredBatch(where, status, queue, rows, sends[0].tries + 1)
        if status is not SendStatus.SEND_OK and not self._owner.accept_weaker:
            for send in sends:
                send.fail(SendFailed(f"stored, but not as safely as the broker is set to ({status.name}): {batch}"))
        elif sends[0].message is None:
            sends[0].result = batch
            sends[0].finish()
        else:
            for number, send in enumerate(sends):
                send.result = SendResult(batch, number, send.tries + 1)
                send.finish()

    def _refused(self, addr: str, sends: list[PendingSend], error: BrokerError) -> None:
        if error.code in RETRIABLE_CODES:
            if error.code == ResponseCode.GO_AWAY:
                self._owner.suspect(addr)
            self._failed(addr, sends, error)
        else:
            self._broken(addr, sends, _failure(self._topic, error))

    def _broken(self, addr: str, sends: list[PendingSend], error: Exception) -> None:
        """An error that another broker would not mend: of several sends one is bad, and alone each gets its verdict."""
        self._release(addr)
        if len(sends) == 1:
            sends[0].fail(error)
            return
        for send in reversed(sends):
            send.alone = True
            self.pending.appendleft(send)

    def _failed(self, addr: str, sends: list[PendingSend], error: SkylarkError) -> None:
        """Try elsewhere, or give up on those whose tries or time are over."""
        owner = self._owner
        self._release(addr)
        if isinstance(error, (RequestTimeout, ConnectFailed, ConnectionLost)):
            owner.suspect(addr)
        owner.want_route(self._topic)
        now = trio.current_time()
        # A queue of its own has no elsewhere: it is tried there until the deadline.
        patient = self._queue is not None
        for send in reversed(sends):
            send.tries += 1
            send.avoid = (*send.avoid, addr)
            if send.deadline <= now or (send.tries > owner.retries and not patient):
                send.fail(_failure(self._topic, error))
            elif send.task is not None:
                owner.retried += 1
                self.pending.appendleft(send)
        if patient and self.pending:
            self._later(RETRY_PAUSE_S)

    def _release(self, addr: str) -> None:
        self._in_flight[addr] -= 1
        self._wake.set()


def _keep_rows(sends: list[PendingSend], rows: list[Row]) -> None:
    """The next try of a message is to carry the same unique key."""
    if sends[0].message is not None:
        for send, row in zip(sends, rows, strict=True):
            send.rows = [row]


def _failure(topic: str, error: SkylarkError) -> SendFailed:
    failed = SendFailed(f"message for {topic} was not stored: {error}")
    failed.__cause__ = error
    return failed
