"""Sends to one topic or queue. Sends that arrive while requests are in flight become one batch, with no added delay.

A lane belongs to a topic (any queue may be used) or to one queue (order is kept: one request in flight). Its task runs
after all ready tasks have queued their sends, and then sends a batch to each broker with a free slot. A send that
arrives alone does not wait for that task: see `Lane.add`. A failed request is retried, at another broker if possible,
until the deadlines of its sends. sdk/retry.py says which failures are worth a retry, brokers.py which brokers rest
meanwhile. A bad message in a batch fails alone. An unexpected error is raised in the sender of the message that caused
it; the lane's task goes on. A message that a broker stores with less safety than it should (weak.py) is sent once more,
to another broker; if no broker stores it safely, its sender gets an error.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    RouteNotFound,
    SkylarkError,
    WrongBroker,
)
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import DEFERRED_BATCHES
from skylark.sdk.endpoint import check_broker_at
from skylark.sdk.loop_thread import closed
from skylark.sdk.producer.pending import (
    ALONE,
    DEFERRED,
    TOGETHER,
    LaneOwner,
    PendingSend,
    finish_all,
    keep_rows,
    not_stored,
    rows_of,
    take_batch,
)
from skylark.sdk.producer.result import STATUS_OF, SendStatus, StoredBatch
from skylark.sdk.producer.routing import Turns
from skylark.sdk.producer.weak import WeakCopy
from skylark.sdk.producer.wire import Row, send_request, stored
from skylark.sdk.retry import FailedTries, Outcome, outcome_of
from skylark.sdk.routes import TopicRoute

# Larger batches are not faster per message, and take longer.
MAX_BATCH_COUNT = 2_000
# Waiting sends are divided among free slots in batches of this many at least.
MIN_SHARE = 64
# Messages with times of delivery: each takes the broker's loop some 2 us, and up to 10 us when all times differ.
MAX_DEFERRED_COUNT = 500
# Two requests keep a broker busy: it works on one while the other is on the network.
SLOTS_PER_BROKER = 2
# For sends that each need a request of their own.
MANY_SLOTS = 1_000_000
# How often expired sends are looked for, and so how late after its deadline a send may fail.
EXPIRE_INTERVAL_S = 0.02


class Lane:
    """The sends of ``topic``, or of ``queue`` alone. Results name the topic ``plain_topic``, without a namespace."""

    def __init__(
        self,
        owner: LaneOwner,
        nursery: trio.Nursery,
        topic: str,
        queue: MessageQueue | None,
        batching: bool,
        turns: Turns,
        plain_topic: str,
        *,
        is_deferred: bool = False,
        level: int | None = None,
    ) -> None:
        """``is_deferred``: the lane's sends have times of delivery, and no chosen queue.

        ``level``: the lane's sends have a priority, and go to the queue of this number at each broker, or to its last.
        """
        self._owner = owner
        self._nursery = nursery
        self._topic, self._plain_topic = topic, plain_topic
        self._queue = queue
        self._batching = batching
        slots = SLOTS_PER_BROKER if queue is None and batching else 1 if queue is not None else MANY_SLOTS
        self._alarm = Alarm(nursery, self.wake)
        self._targets = Targets(
            owner,
            topic,
            queue,
            turns,
            self._alarm,
            slots,
            many_a_turn=not batching,
            is_deferred=is_deferred,
            level=level,
        )
        # Sends come one at a time: when the lane's task ran last, there was only one send.
        self._one_by_one = False
        # A send was answered at once since the lane's task ran last.
        self._was_alone = False
        # For a burst of sends (see `_admit`): how many are left, and how many each queue gets.
        self._burst_left = 0
        self._burst_share = 0
        self._wake = Signal()
        self._awake = False
        self._incoming: list[PendingSend] = []
        # A lower bound for the deadlines of all queued sends.
        self._soonest = inf
        self._is_closed = False
        self.pending: deque[PendingSend] = deque()

    @enable_ki_protection
    def add(self, send: PendingSend) -> None:
        """Send at once if sends come one at a time and no request is in flight; that saves two turns of the loop.

        Otherwise the lane's task takes the send after all tasks that are ready now have run. Raises SkylarkError when
        the lane is closed: a send queued there would never end, and its sender would wait forever.
        """
        if self._is_closed:
            raise closed()
        if (
            self._one_by_one
            and not self._targets.requests
            and not self._incoming
            and not self.pending
            # A task that does not wait yet must not be woken by an answer. A ticket has no such task.
            and (send.span is not None or not self._owner.remoting.answers_at_once)
        ):
            send.deadline += (now := trio.current_time())
            if not self._sent_at_once(send, now):
                self._put_back([send])
            elif not self._targets.requests:
                # A broker in this event loop has answered already. Sends that come before the lane's task runs are a
                # burst, which must become a batch.
                self._one_by_one, self._was_alone = False, True
                self._wake.set()
            return
        self._incoming.append(send)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def put(self, ticket: PendingSend) -> None:
        """Queue a ticket.

        A ticket's sender does not wait, and may have more tickets, so the ticket is not sent at once. With
        `has_many_senders` it is: the tickets then come from many senders, who wait for them. Raises SkylarkError when
        the lane is closed: a ticket queued there would never end.
        """
        if self._owner.has_many_senders:
            self.add(ticket)
            return
        if self._is_closed:
            raise closed()
        self._incoming.append(ticket)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def wake(self) -> None:
        """Wake the lane's task, which retries the queued sends: a broker may have become usable."""
        self._wake.set()

    @enable_ki_protection
    async def run(self) -> None:
        """Send queued sends until cancelled; sends that still wait then fail."""
        try:
            while True:
                await self._wake.wait()
                # Sends that arrive from now on wake this task again.
                self._awake = False
                if not self._incoming and not self.pending:
                    # No send has come since the send that was answered at once.
                    self._one_by_one, self._was_alone = self._one_by_one or self._was_alone, False
                    continue
                self._admit()
                used: dict[str, None] = {}
                self._drop_late()
                self._targets.new_turn()
                now = trio.current_time()
                while self.pending:
                    try:
                        target = self._targets.next(self.pending[0].failed, now)
                    except Exception as error:
                        self.pending.popleft().fail(error)
                        continue
                    # All brokers are busy or rest: the end of a request or the alarm wakes this task.
                    if target is None:
                        break
                    self._start(*target)
                    used[target[0]] = None
                # One write to each connection, however many requests were queued for it.
                for addr in used:
                    self._owner.remoting.flush(addr)
                if self.pending:
                    self._alarm.at(self._soonest)
        finally:
            self._is_closed = True
            self._put_back(self._incoming)

    def _admit(self) -> None:
        incoming, self._incoming = self._incoming, []
        now, soonest = trio.current_time(), self._soonest
        for send in incoming:
            # Until now ``deadline`` was the length of the send's time, see `PendingSend`.
            send.deadline += now
            if send.deadline < soonest:
                soonest = send.deadline
        self._soonest = soonest
        if incoming or self._was_alone:
            self._one_by_one, self._was_alone = len(incoming) <= 1, False
        if len(incoming) > MIN_SHARE and not self.pending and not self._targets.requests:
            # A burst of sends while the lane is idle is divided among all queues, one request for each. While requests
            # are in flight, one request for each free slot keeps the brokers busy with the fewest, largest requests.
            route = self._owner.route_of(self._topic)
            self._burst_left = len(incoming)
            self._burst_share = -(-len(incoming) // max(len(route.writable) if route is not None else 1, 1))
        self.pending.extend(incoming)

    def _drop_late(self) -> None:
        """Fail the queued sends whose deadline has passed."""
        now = trio.current_time()
        if now < self._soonest:
            return
        waiting, self.pending, self._soonest = self.pending, deque(), inf
        for send in waiting:
            if send.deadline <= now:
                send.fail(send.late(self._topic, self._targets.last_error))
            elif send.is_wanted:
                self.pending.append(send)
                self._soonest = min(self._soonest, max(send.deadline, now + EXPIRE_INTERVAL_S))

    def _next_sends(self, addr: str) -> list[PendingSend]:
        """The sends of the next request: a share of the waiting sends, so that client and broker work in parallel."""
        if self._targets.is_tried(addr):
            return take_batch(self.pending, 1)
        free_slots = self._targets.free_slots(addr)
        first, most_bytes = self.pending[0], self._owner.max_batch_bytes
        if first.alone == DEFERRED:
            if not self._batching or not self._takes_deferred(addr):
                return take_batch(self.pending, 1)
            share = -(-len(self.pending) // free_slots)
            return take_batch(self.pending, min(max(share, MIN_SHARE), MAX_DEFERRED_COUNT), DEFERRED, most_bytes)
        # Waiting sends are divided among the free slots: the next request is on the network while the broker works on
        # this one.
        share = self._burst_share if self._burst_left > 0 else -(-len(self.pending) // free_slots)
        most = min(max(share, MIN_SHARE), MAX_BATCH_COUNT) if self._batching else 1
        return take_batch(self.pending, most, TOGETHER, most_bytes)

    def _takes_deferred(self, addr: str) -> bool:
        """Whether the broker at ``addr`` is known to take batches of messages with times of delivery."""
        return self._owner.remoting.greets_with(addr, DEFERRED_BATCHES)

    def _start(self, addr: str, queue: MessageQueue) -> None:
        sends = self._next_sends(addr)
        self._burst_left -= len(sends)
        # The slot is taken before the request is queued: queuing may end it at once, and `ended` gives the slot back.
        self._targets.took(addr)
        if self._owner.remoting.connected(addr):
            self._submit(addr, queue, sends)
        else:
            self._nursery.start_soon(self._connect_and_submit, addr, queue, sends)

    @enable_ki_protection
    async def _connect_and_submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        try:
            await self._owner.remoting.channel(addr, self._try_ms(sends, trio.current_time()))
        except RemotingError as error:
            self._release(addr)
            self._failed(addr, sends, error)
        except Exception as error:
            self._release(addr)
            self._broken(sends, error)
        except trio.Cancelled:
            # The lane is closing, and its task fails all queued sends.
            self._put_back(sends)
            raise
        else:
            self._submit(addr, queue, sends)
            self._owner.remoting.flush(addr)

    def _sent_at_once(self, send: PendingSend, now: float) -> bool:
        """Send the only send of the lane from its sender's task. False when the lane's task must send or fail it.

        A failure cannot be delivered here, since the sender does not wait yet: the error occurs again in the lane's
        task.
        """
        targets, remoting = self._targets, self._owner.remoting
        targets.new_turn()
        try:
            target = targets.next(None, now)
        except Exception:
            return False
        if target is None:
            return False
        addr, queue = target
        sends = [send]
        # Before the request: a request that overflows the connection's buffer has ended when the call returns.
        targets.took(addr)
        if not remoting.connected(addr):
            self._nursery.start_soon(self._connect_and_submit, addr, queue, sends)
            return True
        try:
            self._request(addr, queue, sends, now)
        except Exception:
            targets.released(addr)
            return False
        # A broker in this event loop may have answered already.
        if targets.requests:
            remoting.flush(addr)
        return True

    def _try_ms(self, sends: list[PendingSend], now: float) -> float:
        """The timeout of a try: an equal share of the remaining time for each try that may still get no answer."""
        first = sends[0]
        unknown = 0 if first.failed is None else first.failed.unknown
        left_ms = (first.deadline - now) * 1000
        # A copy that is undone does not count against ``retries``, so there may be more tries than ``retries`` allows.
        return max(left_ms / max(self._owner.retries + 1 - unknown, 1), 1)

    def _submit(self, addr: str, queue: MessageQueue, sends: list[PendingSend]) -> None:
        if len(sends) > 1 and sends[0].alone == DEFERRED and not self._takes_deferred(addr):
            # The connection was replaced since these sends became a batch. It may lead to a broker of RocketMQ, which
            # would deliver them at once.
            self._release(addr)
            self._put_back(sends)
            return
        try:
            self._request(addr, queue, sends, trio.current_time())
        except RemotingError as error:
            self._release(addr)
            self._failed(addr, sends, error)
        except Exception as error:
            self._release(addr)
            self._broken(sends, error)

    def _request(self, addr: str, queue: MessageQueue, sends: list[PendingSend], now: float) -> None:
        owner, remoting = self._owner, self._owner.remoting
        # The address may belong to another broker since the route was read. Sent there, the message would be in the
        # wrong queue.
        check_broker_at(remoting, addr, queue.broker_name)
        # Rows get their unique keys now, and keep them over all tries: by its key a consumer recognizes a message that
        # was stored twice.
        rows = rows_of(sends, owner.new_keys)
        sys_flag, has_deferred = owner.sys_flag | sends[0].sys_flag, sends[0].alone == DEFERRED
        command = send_request(
            owner.wire_group,
            queue,
            rows,
            owner.now_ms(),
            sys_flag,
            has_deferred=has_deferred,
            only_if_safe=self._targets.may_move(addr, sends[0].failed, now),
        )

        request = _Request(self, addr, queue, sends, rows, now)
        try:
            remoting.prepare(addr, command)
            # The next step of these sends is `_Request.ended`, called with the answer or a failure.
            remoting.submit(addr, command, self._try_ms(sends, now), request.ended)
        except ConnectionLost as error:
            # The connection was closed before the request was queued.
            keep_rows(sends, rows)
            raise ConnectFailed(addr, error.reason) from None
        except RemotingError:
            keep_rows(sends, rows)
            raise

    def _answered(self, request: "_Request", answer: Command, took_ms: float) -> None:
        addr, queue, sends, rows = request.addr, request.queue, request.sends, request.rows
        # Three outcomes: the broker refused all sends, stored them with less safety than it should, or stored them.
        status = STATUS_OF.get(answer.code)
        if status is None:
            # This try stored nothing. A retry must have the same unique keys: the broker may have stored an earlier
            # try.
            keep_rows(sends, rows)
            if answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                found = self._owner.remoting.broker_name_at(addr)
                self._failed(addr, sends, WrongBroker(addr, queue.broker_name, found))
            else:
                self._failed(addr, sends, BrokerError(answer.code, answer.remark, addr))
            return
        self._owner.brokers.stored(addr, status)
        self._targets.last_error = None
        # The broker chooses the queue of a batch, and knows topics by their names with the namespace.
        where, wire_topic = stored(answer, len(rows)), queue.topic
        if where.queue_id != queue.queue_id or queue.topic != self._plain_topic:
            queue = queue._replace(topic=self._plain_topic, queue_id=where.queue_id)
        failed = sends[0].failed
        batch = StoredBatch(where, status, queue, rows, 1 if failed is None else failed.count + 1, wire_topic)
        if self._owner.traces is not None:
            self._owner.traces.stored(batch, addr, answer, took_ms, self._owner.now_ms(), sends[0].plain_bytes)
        if status is not SendStatus.SEND_OK:
            self._stored_weakly(addr, sends, batch)
            return
        if failed is not None and failed.weak is not None and self._owner.undo_copy is not None:
            self._owner.undo_copy(failed.weak.batch, failed.weak.addr)
        finish_all(sends, batch)

    def _stored_weakly(self, addr: str, sends: list[PendingSend], batch: StoredBatch) -> None:
        """The broker stored the sends, but not safely: send them once more, to another broker, or end them."""
        owner, now = self._owner, trio.current_time()
        target = None if self._is_closed else self._targets.elsewhere(addr, sends[0].failed, now)
        again, numbers = [], []
        for number, send in enumerate(sends):
            copy = WeakCopy(batch, number, addr, is_accepted=owner.accept_weaker)
            if target is None or send.deadline <= now or not self._may_copy(send.failed):
                send.end_weakly(copy)
            elif send.is_wanted:
                send.failed = send.failed or FailedTries()
                send.failed.add_weak(copy)
                again.append(send)
                numbers.append(number)
        if not again or target is None:
            return
        if again[0].body is not None:
            keep_rows(again, [batch.rows[number] for number in numbers])
        owner.retried += len(again)
        # Not through the lane's queue, where they could share a request with other sends, which may go to this broker.
        other, queue = target
        self._targets.took(other)
        if owner.remoting.connected(other):
            self._submit(other, queue, again)
            owner.remoting.flush(other)
        else:
            self._nursery.start_soon(self._connect_and_submit, other, queue, again)

    def _may_copy(self, failed: FailedTries | None) -> bool:
        """Whether a message may be stored once more. A copy that is undone is always allowed."""
        if self._owner.undo_copy is not None:
            return failed is None or failed.weak is None
        return (0 if failed is None else failed.unknown) < self._owner.retries

    def _broken(self, sends: list[PendingSend], error: Exception) -> None:
        """A request failed for good. If it had several sends, one of them may be bad: send each one alone."""
        if len(sends) == 1:
            sends[0].fail(error)
            return
        for send in sends:
            send.alone = ALONE
        self._put_back(sends)

    def _failed(self, addr: str, sends: list[PendingSend], error: SkylarkError) -> None:
        """Retry the sends, at another broker if possible; sends without tries or time left fail."""
        # REFUSED is final, but perhaps only for one message of the batch: then each message is sent alone. All other
        # outcomes are retried as long as there is time; UNKNOWN sends may be stored already, so they count against
        # ``retries``.
        owner, outcome = self._owner, outcome_of(error)
        if outcome is Outcome.REFUSED:
            self._broken(sends, not_stored(self._topic, error))
            return
        # Before the choice of the next broker: the failed broker may rest from now on, or be left out of the new route.
        self._targets.last_error = error
        rests = owner.brokers.failed(addr, error)
        owner.brokers.want_route(self._topic)
        now = trio.current_time()
        other_broker = self._targets.has_other(addr, sends[0].failed, now)
        again = []
        for send in sends:
            failed = send.failed = send.failed or FailedTries()
            failed.add(addr, error, outcome)
            if send.deadline <= now or not failed.may_go_on(outcome, owner.retries, other_broker=other_broker):
                send.fail(not_stored(self._topic, error, failed))
            elif failed.weak is not None and not other_broker:
                # The message is stored, and waiting would not make it safer.
                send.fail(error)
            elif send.is_wanted:
                owner.retried += 1
                again.append(send)
        # Another broker is tried at once, and a resting broker has a pause of its own. In the remaining case the only
        # broker refused without a fault: ask it again after a pause.
        if not again or other_broker or rests or self._is_closed:
            self._put_back(again)
        else:
            self._targets.paused = self._queue is not None
            self._nursery.start_soon(self._try_later, addr, again)

    @enable_ki_protection
    async def _try_later(self, addr: str, sends: list[PendingSend]) -> None:
        """All brokers were tried: retry after a pause. A lane of one queue is paused meanwhile, to keep the order."""
        first = sends[0].failed
        pause_s = self._owner.backoff.pause_s(1 if first is None else first.count)
        try:
            await trio.sleep_until(min(trio.current_time() + pause_s, *(send.deadline for send in sends)))
        finally:
            for send in sends:
                if send.failed is not None:
                    send.failed.avoid = (addr,)
            self._put_back(sends)
            self._targets.paused = False

    def _put_back(self, sends: list[PendingSend]) -> None:
        """Put the sends first in the queue, in their old order. In a closed lane all queued sends fail."""
        for send in reversed(sends):
            self._soonest = min(self._soonest, send.deadline)
            self.pending.appendleft(send)
        while self._is_closed and self.pending:
            self.pending.popleft().fail(closed())
        self._wake.set()

    def _release(self, addr: str) -> None:
        """Give the slot of a request to ``addr`` that has ended to the next sends."""
        self._targets.released(addr)
        # The senders that this answer wakes send again in random order, and the lane's task runs among them: sends
        # queued before the task runs leave at once, later sends gather while that request is in flight.
        if self.pending or not self._one_by_one:
            self._wake.set()


class _Request:
    """A request in flight: the sends that it carries, as ``rows``, to a queue of the broker at ``addr``."""

    __slots__ = ("_lane", "addr", "queue", "rows", "sends", "started")

    def __init__(
        self, lane: Lane, addr: str, queue: MessageQueue, sends: list[PendingSend], rows: Sequence[Row], started: float
    ) -> None:
        self._lane = lane
        self.addr = addr
        self.queue = queue
        self.sends = sends
        self.rows = rows
        self.started = started

    def ended(self, result: Command | RemotingError) -> None:
        """Called with the answer or the failure: the senders get their results, or the sends are tried again."""
        lane = self._lane
        # First: whatever is raised below, the slot must be free, otherwise the lane would stop forever.
        lane._release(self.addr)
        try:
            if isinstance(result, RemotingError):
                keep_rows(self.sends, self.rows)
                lane._failed(self.addr, self.sends, result)
                return
            took_ms = (trio.current_time() - self.started) * 1000
            lane._owner.brokers.faults.answered(self.addr, took_ms, self.started * 1000)
            lane._answered(self, result, took_ms)
        except Exception as error:
            # The messages may be stored, so they are not sent again.
            for send in self.sends:
                send.fail(error)


class Alarm:
    """Calls ``ring`` once, at the earliest of the times given to `at`; the later times are dropped."""

    def __init__(self, nursery: trio.Nursery, ring: Callable[[], None]) -> None:
        self._nursery = nursery
        self._ring = ring
        self._scope: trio.CancelScope | None = None
        self._when = inf

    def at(self, when: float) -> None:
        """Call ``ring`` at ``when`` (trio's time) or earlier."""
        if when >= self._when:
            return
        self._when = when
        if self._scope is None:
            self._scope = trio.CancelScope(deadline=when)
            self._nursery.start_soon(self._wait, self._scope)
        else:
            self._scope.deadline = when

    @enable_ki_protection
    async def _wait(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        self._scope, self._when = None, inf
        self._ring()


class Targets:
    """The brokers that may get sends of ``topic``, or of ``queue`` alone, with ``slots`` requests in flight each.

    When no broker can take a send, ``alarm`` is set to the time at which a broker may. With ``many_a_turn`` the brokers
    found are used again until `new_turn`.
    """

    def __init__(
        self,
        owner: LaneOwner,
        topic: str,
        queue: MessageQueue | None,
        turns: Turns,
        alarm: Alarm,
        slots: int,
        *,
        many_a_turn: bool,
        is_deferred: bool,
        level: int | None,
    ) -> None:
        self._owner = owner
        self._topic = topic
        self._queue = queue
        self._turns = turns
        self._alarm = alarm
        self._slots = slots
        self._many_a_turn = many_a_turn
        self._is_deferred = is_deferred
        self._level = level
        self._in_flight: dict[str, int] = {}
        # With ``many_a_turn``: the targets of this turn's sends that have not failed.
        self._open_at: Mapping[str, Sequence[MessageQueue]] = {}
        # While no broker is known: how often in a row the route was refreshed, and when it will be refreshed again.
        self._asked = 0
        self._asks_at = 0.0
        #: Requests that have no answer yet.
        self.requests = 0
        # Whether several brokers could take the send for which `next` was called last.
        self._has_choice = False
        #: In a lane of one queue: failed sends wait for their retry, and later sends must not overtake them.
        self.paused = False
        #: The last failure in this lane, reported by sends that time out before their first try.
        self.last_error: SkylarkError | None = None

    def took(self, addr: str) -> None:
        """Take a slot of ``addr``, to which a request begins."""
        if weak := self._owner.brokers.faults.weak:
            weak.requested(addr, trio.current_time() * 1000)
            self._open_at = {}
        self._in_flight[addr] = self._in_flight.get(addr, 0) + 1
        self.requests += 1

    def released(self, addr: str) -> None:
        """Give a slot of ``addr`` back, as a request has ended."""
        self._in_flight[addr] -= 1
        self.requests -= 1

    def free_slots(self, addr: str) -> int:
        """How many more requests ``addr`` takes."""
        slots = self._slots
        if self._is_deferred and not self._owner.remoting.greets_with(addr, DEFERRED_BATCHES):
            # This broker takes deferred sends one by one.
            slots = MANY_SLOTS
        return slots - self._in_flight.get(addr, 0)

    def new_turn(self) -> None:
        """Choose the usable brokers again, as some may have failed since the last turn."""
        self._open_at = {}

    def next(self, failed: FailedTries | None, now: float) -> tuple[str, MessageQueue] | None:
        """The address and queue for a send with these failed tries; None when every broker is busy or rests."""
        owner = self._owner
        faults = owner.brokers.faults
        # A lane without batching may start thousands of requests in a turn: the brokers are checked once per turn.
        if self._open_at and failed is None:
            return self._turns.next(self._open_at)
        route = owner.route_of(self._topic)
        if self._queue is not None:
            if (addr := None if route is None else route.master_of(self._queue)) is None:
                self._wait_for_route(now)
                return None
            self._asked = 0
            # One request at a time, to the chosen queue. No other broker may get the message, so wait while its broker
            # rests.
            is_free = not self.paused and self.free_slots(addr) > 0 and self._not_resting([addr], now)
            return (addr, self._queue) if is_free else None
        if route is None or not route.writable_at:
            self._wait_for_route(now)
            return None
        self._asked = 0
        if failed is None and not self.requests and self._level is None and faults.all_usable(now * 1000):
            # The usual case: every broker is usable and has a free slot.
            self._has_choice = len(route.writable_at) > 1
            return self._turns.next(route.writable_at)
        if failed is not None and failed.weak is not None:
            if (target := self.elsewhere("", failed, now)) is None:
                raise failed.error or failed.weak.error()
            return target
        rested = [addr for addr in route.writable_at if faults.usable(addr, now * 1000)]
        self._has_choice = len(rested) > 1
        # Isolated, suspect and weak brokers are better than none; resting brokers get no request at all.
        usable = rested or self._not_resting(route.writable_at, now)
        avoid = () if failed is None else failed.avoid
        # Waiting for a broker that has not failed this send is better than a free slot of a broker that has.
        best = [addr for addr in usable if addr not in avoid]
        if not best and faults.weak:
            # A message stored with less safety is better than a refused message.
            best = [
                addr
                for addr in route.writable_at
                if addr not in avoid and faults.usable(addr, now * 1000, weak_too=True)
            ]
        best = best or usable
        open_at = {addr: self._queues(route, addr) for addr in best if self.free_slots(addr) > 0}
        self._open_at = open_at if self._many_a_turn and not avoid else {}
        return self._turns.next(open_at) if open_at else None

    def has_other(self, addr: str, failed: FailedTries | None, now: float) -> bool:
        """Whether another usable broker can take a send that failed at ``addr``, and before as ``failed`` says.

        A weak broker can, unless a weak broker has stored the message already.
        """
        route = self._owner.route_of(self._topic)
        if route is None or self._queue is not None:
            return False
        avoid = () if failed is None else failed.avoid
        weak_too = failed is None or failed.weak is None
        usable = self._owner.brokers.faults.usable
        return any(
            at != addr and at not in avoid and usable(at, now * 1000, weak_too=weak_too) for at in route.writable_at
        )

    def is_tried(self, addr: str) -> bool:
        """Whether the next request to ``addr`` only tries whether the broker stores messages safely again."""
        weak = self._owner.brokers.faults.weak
        return bool(weak) and weak.is_due(addr, trio.current_time() * 1000)

    def may_move(self, addr: str, failed: FailedTries | None, now: float) -> bool:
        """Whether another broker may store a send safely that ``addr`` cannot; ``addr`` should then store no copy.

        Suspects do not count: a copy of less safety is better than a send that fails.
        """
        if failed is None:
            if self._has_choice:
                return True
        elif failed.weak is not None:
            # A copy is stored already, and a second one of less safety has no use.
            return True
        route = self._owner.route_of(self._topic)
        if self._queue is not None or route is None or len(route.writable_at) < 2:
            return False
        avoid = () if failed is None else failed.avoid
        faults, now_ms = self._owner.brokers.faults, now * 1000
        return any(
            at != addr and at not in avoid and not faults.weak.is_certain(at, now_ms) and faults.answers(at, now_ms)
            for at in route.writable_at
        )

    def elsewhere(self, addr: str, failed: FailedTries | None, now: float) -> tuple[str, MessageQueue] | None:
        """Where to send a message once more that is stored at ``addr``, but not safely; None if no broker can take it.

        Slots do not count: this request takes the place of the request that has ended.
        """
        route, faults, now_ms = self._owner.route_of(self._topic), self._owner.brokers.faults, now * 1000
        if route is None or self._queue is not None:
            return None
        avoid = (addr,) if failed is None else (addr, *failed.avoid)
        others = [at for at in route.writable_at if at not in avoid and not faults.weak.is_certain(at, now_ms)]
        usable = [at for at in others if faults.usable(at, now_ms)]
        strong = [at for at in usable if at not in faults.weak]
        # Brokers that were weak a while ago may be safe again.
        best = strong or usable or [at for at in others if faults.rests_until(at) <= now_ms]
        return self._turns.next({at: self._queues(route, at) for at in best})

    def _queues(self, route: TopicRoute, addr: str) -> Sequence[MessageQueue]:
        """The queues of a broker that may get the lane's sends."""
        queues, level = route.writable_at[addr], self._level
        return queues if level is None else queues[level : level + 1] or queues[-1:]

    def _not_resting(self, addrs: Iterable[str], now: float) -> list[str]:
        """The brokers that do not rest. When all rest, the alarm is set to the end of the first rest."""
        until_ms = {addr: self._owner.brokers.faults.rests_until(addr) for addr in addrs}
        found = [addr for addr, when_ms in until_ms.items() if when_ms <= now * 1000]
        if not found:
            # Add 1 ms, so that rounding does not make the alarm ring too early.
            self._alarm.at((min(until_ms.values()) + 1) / 1000)
        return found

    def _wait_for_route(self, now: float) -> None:
        """No known broker can take the first send: refresh the route, with growing pauses."""
        if now >= self._asks_at:
            lack = "has no broker that accepts sends" if self._queue is None else f"lacks {self._queue.broker_name}"
            self.last_error = RouteNotFound(self._topic, f"its route {lack} now; see mqadmin topicRoute")
            # The pause grows with each failed search, and is reset when a broker is found.
            self._asked += 1
            self._asks_at = now + self._owner.backoff.pause_s(self._asked)
            self._owner.brokers.want_route(self._topic)
        self._alarm.at(self._asks_at)
