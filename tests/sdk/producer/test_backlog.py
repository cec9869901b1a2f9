"""The bookkeeping of sends without waiting, in virtual time: every ticket ends once, and no error is lost."""

from collections import Counter
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.errors import BufferFull, SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.producer.backlog import Backlog
from skylark.sdk.producer.pending import PendingSend, Watch, new_ticket
from skylark.sdk.producer.producer import Ticket
from skylark.sdk.runtime import SendsFailed
from tests.sdk.producer.lanes import LOSING, OK, REFUSING, SILENT, Sender, a_lane

MOST_COUNT, MOST_BYTES = 40, 300


class Model:
    """Sends into one lane, and what is known of them."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.backlog = Backlog(MOST_COUNT, MOST_BYTES)
        self.tickets: list[Ticket] = []
        self.watched: list[PendingSend] = []
        self.told: Counter[int] = Counter()
        self.waited_for: list[Ticket] = []
        self.seen: list[Exception] = []
        self.flushes = 0
        self.flushed: list[Exception] = []

    def send(self, size: int, timeout_s: float, *, watch: bool) -> None:
        try:
            self.backlog.count_in(size)
        except BufferFull:
            waiting = [ticket for ticket in self.tickets if not ticket.done()]
            assert len(waiting) >= MOST_COUNT or sum(ticket.size for ticket in waiting) >= MOST_BYTES
            return
        message = Message("t", (b"%d." % len(self.tickets)).ljust(size, b"x")[: max(size, 8)])
        told = Watch(lambda ticket: self.told.update([id(ticket)])) if watch else None
        ticket = new_ticket(Ticket, message, message.body, timeout_s, told, self.backlog.span, size)
        self.tickets.append(ticket)
        if watch:
            self.watched.append(ticket)
        self.sender.lane.put(ticket)

    async def wait_for(self, ticket: Ticket, patience_s: float) -> None:
        with trio.move_on_after(patience_s):
            try:
                await ticket
            except SkylarkError as error:
                self.seen.append(error)

    async def flush(self) -> None:
        before = list(self.tickets)
        await self.backlog.ended()
        assert all(ticket.done() for ticket in before)
        if (failed := self.backlog.take_unseen()) is not None:
            self.flushed += failed.exceptions
        self.flushes += 1

    async def room(self) -> None:
        await self.backlog.room()

    def check(self) -> None:
        """Check the invariants."""
        waiting = [ticket for ticket in self.tickets if not ticket.done()]
        assert self.backlog.waiting == len(waiting) <= MOST_COUNT
        assert self.backlog.waiting_bytes == sum(ticket.size for ticket in waiting) < MOST_BYTES + 200
        assert all(self.told[id(ticket)] == ticket.done() for ticket in self.watched)


TIMEOUTS = st.sampled_from([0.05, 1.0, 6.0])
SENDS = st.tuples(st.just("send"), st.integers(1, 30), st.integers(0, 200), TIMEOUTS, st.booleans())
STEPS = st.one_of(
    SENDS,
    SENDS,
    st.tuples(st.just("act"), st.sampled_from([OK, OK, REFUSING, LOSING, SILENT, 1, 2, 13])),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.001, 0.0015, 0.1, 3.0])),
    st.tuples(st.just("wait"), st.integers(0, 1_000), st.sampled_from([0.0, 0.001, 10.0])),
    st.just(("flush",)),
    st.just(("room",)),
)


async def play(steps: list[tuple[str, ...]], queue: MessageQueue | None) -> None:
    async with a_lane("a", "b", queue=queue, retries=1) as sender, trio.open_nursery() as nursery:
        model = Model(sender)
        started = 0
        for kind, *values in steps:
            match kind, values:
                case "send", [int(count), int(size), float(timeout_s), bool(watch)]:
                    for _ in range(count):
                        model.send(size, timeout_s, watch=watch)
                case "act", [int(act)]:
                    sender.cluster.acts = dict.fromkeys(sender.cluster.acts, act)
                case "sleep", [float(seconds)]:
                    await trio.sleep(seconds)
                case "wait", [int(number), float(patience_s)]:
                    if model.tickets:
                        nursery.start_soon(model.wait_for, model.tickets[number % len(model.tickets)], patience_s)
                case "flush", _:
                    started += 1
                    nursery.start_soon(model.flush)
                case _:
                    nursery.start_soon(model.room)
            model.check()
        await trio.sleep(20)
        model.check()
        assert model.flushes == started
        await model.flush()
        check_end(model)


def check_end(model: Model) -> None:
    """Every ticket has ended, and every error was seen by somebody: by flush only if by nobody else."""
    assert model.backlog.waiting == model.backlog.waiting_bytes == 0
    assert all(ticket.done() for ticket in model.tickets)
    stored = Counter(body for _, body in model.sender.cluster.stored)
    for ticket in model.tickets:
        if ticket.error is None:
            assert stored[ticket.message.body] >= 1
    watched = {id(ticket) for ticket in model.watched}
    failed = {id(ticket.error): ticket for ticket in model.tickets if ticket.error is not None}
    flushed = [id(error) for error in model.flushed]
    assert len(set(flushed)) == len(flushed)
    seen = {id(error) for error in model.seen}
    for number, ticket in failed.items():
        if id(ticket) in watched:
            assert number not in flushed
        else:
            assert number in flushed or number in seen


@given(steps=st.lists(STEPS, max_size=25), queue=st.sampled_from([None, MessageQueue("t", "a", 0)]))
def test_every_ticket_ends_once_and_no_error_is_lost(steps: list[tuple[str, ...]], queue: MessageQueue | None) -> None:
    trio.run(partial(play, steps, queue), clock=MockClock(autojump_threshold=0))


async def test_a_flush_does_not_wait_for_later_sends(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        model = Model(sender)
        model.send(1, 5, watch=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.flush)
            await wait_all_tasks_blocked()
            sender.cluster.acts["a:1"] = SILENT
            model.send(1, 9, watch=False)
            nursery.start_soon(model.flush)
        assert trio.current_time() > 5, "the second flush had to wait"
        assert model.flushes == 2


async def test_flushes_end_in_their_order(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        model, ends = Model(sender), []
        sender.cluster.acts["a:1"] = SILENT

        async def flush(number: int) -> None:
            await model.backlog.ended()
            ends.append((number, round(trio.current_time() - started)))

        async with trio.open_nursery() as nursery:
            started = trio.current_time()
            for number, timeout_s in enumerate((2, 8, 4)):
                model.send(1, timeout_s, watch=False)
                nursery.start_soon(flush, number)
                await wait_all_tasks_blocked()
        assert ends == [(0, 2), (1, 8), (2, 8)]


@pytest.mark.parametrize("act", [1, 2, REFUSING, LOSING])
async def test_a_closed_lane_ends_its_tickets(autojump_clock: MockClock, act: int) -> None:
    """Also tickets that wait for a resting broker, for a connection, or for their next try."""
    async with a_lane("a", retries=9) as sender:
        model = Model(sender)
        sender.cluster.acts["a:1"] = act
        for _ in range(3):
            model.send(1, 60, watch=True)
            await trio.sleep(0.005)
        model.send(1, 60, watch=False)
        await trio.sleep(0.005)
        assert not any(ticket.done() for ticket in model.tickets)
    model.check()
    assert all(str(ticket.error) == "the client was closed" for ticket in model.tickets)
    lost = model.backlog.take_lost()
    assert lost is not None and len(lost.exceptions) == 1
    with pytest.raises(SkylarkError, match="closed"):
        sender.lane.put(new_ticket(Ticket, Message("t"), b"", 1, None, model.backlog.span, 0))


def test_what_has_no_outcome_at_the_end_is_lost_too() -> None:
    backlog = Backlog(9, 9)
    backlog.count_in(1)
    lost = backlog.take_lost()
    assert isinstance(lost, SendsFailed) and "1 messages had no answer" in str(lost.exceptions[0])
