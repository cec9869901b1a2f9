"""What a receive call has taken from the broker, and its client does not get."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark.mqcommon.errors import RequestTimeout, SkylarkError
from skylark.mqproxy import polls as module
from skylark.mqproxy import popping as popping_module
from skylark.mqproxy import service as service_module
from skylark.mqproxy.brokers import Brokers, Pop
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.deliveries import Delivery, Receipt
from skylark.mqproxy.ending import Ending
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Poll, Polls
from skylark.mqproxy.popping import Popping
from skylark.mqproxy.receiving import ReceiveQuery
from skylark.mqproxy.renewals import RenewalCounts, Renewals
from skylark.mqproxy.service import Calls
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.stored import MessageEncoder
from skylark.mqproxy.wire import messaging_pb2 as wire
from tests.support.clock import ManualClock

WANTED = Pop("group", "topic", "broker-a", 32, 20_000, 5_000, "*", "TAG", False, None)
REQUEST = wire.ReceiveMessageRequest(group=wire.Resource(name="group"))
REQUEST.message_queue.topic.name = "topic"
REQUEST.invisible_duration.FromSeconds(20)


Ended = Callable[[Sequence[Delivery] | Exception], None]


class Answering:
    """Brokers whose pop ends when `answer` is called; notes what is given back and what is acknowledged."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.is_near = False
        self._ended: Ended | None = None
        self.was_cancelled = False
        self.withdrawn = 0
        self.given_back: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []
        self._may_answer = trio.Event()
        self._answer: Sequence[Delivery] | Exception = []

    def answer(self, answer: Sequence[Delivery] | Exception) -> None:
        self._answer = answer
        self._may_answer.set()
        if self._ended is not None:
            self._ended(answer)

    def pop_at_once(self, wanted: Pop, ended: Ended, again: Callable[[], None]) -> Callable[[], None] | None:
        """A broker in this process answers at once, or when `answer` is called."""
        if not self.is_near:
            return None
        self._ended = ended
        if self._may_answer.is_set():
            ended(self._answer)
        return self.withdraw

    def withdraw(self) -> None:
        self._ended = None
        self.withdrawn += 1

    async def pop(self, wanted: Pop) -> Sequence[Delivery]:
        self.asked.set()
        try:
            await self._may_answer.wait()
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def ack(self, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
        self.acknowledged += [receipt.offset for receipt in receipts]

    async def change_invisible_time(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
        self.given_back.append((receipt.offset, invisible_ms))
        return receipt


class World:
    """The polls of a session, whose brokers are `Answering`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.brokers = Answering()
        brokers = cast(Brokers, self.brokers)
        self.renewals = Renewals(brokers, ProxyOptions(), self.clock, lambda client: True, RenewalCounts())
        self.polls = Polls(brokers, self.renewals, Clients(ProxyOptions()))

    def delivery(self, offset: int, tag: str = "tea") -> Delivery:
        now_ms = self.clock.now_ms()
        receipt = Receipt.parse(f"{offset} {now_ms} 60000 0 0 broker-a 0 {offset} 7", now_ms)
        return Delivery(cast(Any, SimpleNamespace(tags=tag)), receipt, 1, 60_000)

    @contextmanager
    def begin(self, tags: Sequence[str] = ()) -> Iterator[Poll]:
        """A poll that ends with the block."""
        poll = self.polls.begin("client", WANTED, tags, is_renewed=True)
        try:
            yield poll
        finally:
            poll.end()

    async def cancelled_call(self, tags: Sequence[str] = ()) -> Popping:
        """The pop of a call that its client cancels while the broker holds it."""
        self.brokers.asked = trio.Event()
        with self.begin(tags) as poll:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll.deliveries)
                await self.brokers.asked.wait()
                nursery.cancel_scope.cancel()
        assert poll.popping is not None
        return poll.popping


class Asking:
    """A receive call, whose client takes the answer at once or never."""

    time_left_s = None

    def __init__(self, *, takes: bool = True) -> None:
        self.state = SimpleNamespace(session=SimpleNamespace(ending=Ending()), began_s=0.0)
        self.has_written = trio.Event()
        self.has_answered = False
        self.is_over = False
        self.most_bytes = inf
        self._takes = takes
        self._has_room = trio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def when_ended(self, callback: Callable[[], None]) -> None:
        if self.is_over:
            callback()
        self._callbacks.append(callback)

    def end(self) -> None:
        """The call ends."""
        self.is_over = True
        for callback in self._callbacks:
            callback()

    def has_room(self, size: int) -> bool:
        return self._takes and not self.is_over and size <= self.most_bytes

    async def write(self, *messages: bytes) -> None:
        self.has_written.set()

    async def drained(self) -> None:
        if not self._takes:
            await self._has_room.wait()

    def takes_all(self) -> None:
        """The client takes from now on what it is sent."""
        self._takes = True
        self._has_room.set()

    def answer(self, *messages: bytes) -> None:
        self.has_answered = True
        self.end()


class Waiting:
    """A receive call whose task waits for its messages, in a world with a broker in this process."""

    def __init__(self, world: World, call: Asking) -> None:
        self.world = world
        self.call = call
        self.calls = calls_of(world.polls.begin("client", WANTED, (), is_renewed=True))

    async def run(self) -> None:
        work = self.calls.receive_message(cast(Any, self.call), REQUEST.SerializeToString())
        assert isinstance(work, Coroutine)
        await finished(work, self.call)


@asynccontextmanager
async def waiting(monkeypatch: pytest.MonkeyPatch, call: Asking) -> AsyncIterator[Waiting]:
    """A receive that waits; the block ends when it is answered and what it did not get was given back."""
    monkeypatch.setattr(MessageEncoder, "popped", lambda encoder, delivery: b"a message")
    monkeypatch.setattr(popping_module, "are_packed", lambda found: False)
    async with a_world() as world:
        world.brokers.is_near = True
        receive = Waiting(world, call)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive.run)
            await wait_all_tasks_blocked()
            yield receive
        assert call.has_answered
        await world.polls.close()


def calls_of(poll: Poll) -> Calls:
    """Calls whose next receive has this poll."""

    async def begin(*arguments: Any) -> Poll:
        return poll

    calls = Calls(ProxyOptions(), cast(Any, None), cast(Any, None), 0)
    calls._poll = begin  # type: ignore[method-assign]
    calls._poll_at_once = lambda *arguments: poll  # type: ignore[method-assign]
    return calls


async def received(calls: Calls, call: Asking) -> None:
    """Carry out a receive call as a task."""
    await finished(calls._receive(cast(Any, call), ReceiveQuery.of(REQUEST, ProxyOptions()), None), call)


async def finished(work: Coroutine[Any, Any, Any], call: Asking) -> None:
    """Await the task of a receive call."""
    answer = await work
    if answer is not None:
        call.answer(*answer)


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    """A world whose polls run, and are closed at the end."""
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.polls.run)
        yield world
        await world.polls.close()


async def ended(popping: Popping) -> SkylarkError | None:
    """Wait for the end of a pop; returns its error."""
    try:
        await popping.result()
    except SkylarkError as error:
        return error
    return None


async def test_what_a_pop_brings_after_its_call_was_cancelled_is_given_back() -> None:
    async with a_world() as world:
        popping = await world.cancelled_call(["tea"])
        world.brokers.answer([world.delivery(1), world.delivery(2, "milk"), world.delivery(3)])
        await popping.result()
        await world.polls.close()
        # The other tag has the same hash: nobody of the group wants it.
        assert (world.brokers.acknowledged, world.brokers.was_cancelled) == ([2], False)
        given_back = sorted(world.brokers.given_back)
        assert given_back == [(1, module.BACK_AFTER_MS), (3, module.BACK_AFTER_MS)]


async def test_an_answer_that_comes_together_with_the_cancellation_is_given_back() -> None:
    async with a_world() as world:
        with world.begin() as poll:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll.deliveries)
                await world.brokers.asked.wait()
                world.brokers.answer([world.delivery(1)])
                assert poll.popping is not None
                await poll.popping.result()
                nursery.cancel_scope.cancel()
        await world.polls.close()
        assert world.brokers.given_back == [(1, module.BACK_AFTER_MS)]


async def test_what_a_pop_brings_after_a_stop_has_answered_its_call_is_given_back() -> None:
    async with a_world() as world:
        poll, call = world.polls.begin("client", WANTED, (), is_renewed=True), Asking()
        calls = calls_of(poll)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(received, calls, call)
            await world.brokers.asked.wait()
            calls.stop_waiting()
        assert call.has_answered
        world.brokers.answer([world.delivery(1)])
        assert poll.popping is not None
        await poll.popping.result()
        await world.polls.close()
        assert world.brokers.given_back == [(1, module.BACK_AFTER_MS)]


@pytest.mark.parametrize("takes", [True, False])
async def test_messages_that_wait_for_the_window_of_their_client_are_given_back(
    monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    monkeypatch.setattr(MessageEncoder, "popped", lambda encoder, delivery: b"")
    async with a_world() as world:
        world.brokers.answer([world.delivery(1)])
        poll, call = world.polls.begin("client", WANTED, (), is_renewed=True), Asking(takes=takes)
        call.most_bytes = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(received, calls_of(poll), call)
            await call.has_written.wait()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        if not takes:
            call.end()
        await world.polls.close()
        assert world.brokers.given_back == ([] if takes else [(1, module.BACK_AFTER_MS)])


@pytest.mark.parametrize("takes", [True, False])
async def test_messages_that_the_broker_has_at_once_go_out_in_the_turn_of_their_request_or_are_given_back(
    monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    monkeypatch.setattr(MessageEncoder, "popped", lambda encoder, delivery: b"a message")
    monkeypatch.setattr(popping_module, "are_packed", lambda found: False)
    async with a_world() as world:
        world.brokers.is_near = True
        world.brokers.answer([world.delivery(1)])
        poll, call = world.polls.begin("client", WANTED, (), is_renewed=True), Asking(takes=takes)
        answer = calls_of(poll).receive_message(cast(Any, call), REQUEST.SerializeToString())
        if takes:
            assert isinstance(answer, tuple) and answer[1:-1] == (b"a message",)
        else:
            # The connection is lost before the task of the call begins.
            assert isinstance(answer, Coroutine)
            answer.close()
        call.end()
        await world.polls.close()
        assert world.brokers.given_back == ([] if takes else [(1, module.BACK_AFTER_MS)])
        assert len(world.renewals) == int(takes)


@pytest.mark.parametrize("room", ["all", "some", "none"])
async def test_a_receive_that_waits_is_answered_in_the_turn_of_its_messages_or_by_its_task(
    monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    encoded: list[Delivery] = []

    def popped(encoder: MessageEncoder, delivery: Delivery) -> bytes:
        encoded.append(delivery)
        return b"a message"

    async with waiting(monkeypatch, call := Asking()) as receive:
        monkeypatch.setattr(MessageEncoder, "popped", popped)
        world = receive.world
        call.most_bytes = {"all": inf, "some": 1, "none": 0}[room]
        world.brokers.answer([world.delivery(1)])
        assert call.has_answered == (room == "all")
        assert len(encoded) == (room != "none"), "without room nothing is encoded in the turn of the sender"
    assert call.has_written.is_set() == (room != "all")
    assert len(encoded) == 1
    assert (world.brokers.given_back, len(world.renewals)) == ([], 1)


@pytest.mark.parametrize("is_near", [True, False])
async def test_a_call_that_ends_while_its_metadata_comes_sends_no_pop(is_near: bool) -> None:
    async with a_world() as world:
        world.brokers.is_near = is_near
        poll, call = world.polls.begin("client", WANTED, (), is_renewed=True), Asking()
        world.brokers.answer([world.delivery(1)])
        calls = calls_of(poll)

        async def begin(*arguments: Any) -> Poll:
            call.end()
            return poll

        calls._poll = begin  # type: ignore[method-assign]
        await received(calls, call)
        assert poll.popping is None
        await world.polls.close()


async def test_messages_that_come_while_a_stop_is_being_answered_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with waiting(monkeypatch, call := Asking(takes=False)) as receive:
        world = receive.world
        receive.calls.stop_waiting()
        # The task writes that there is no message, and waits for room.
        await call.has_written.wait()
        call.takes_all()
        world.brokers.answer([world.delivery(1)])
        assert not call.has_answered, "one call has one answer"
    assert world.brokers.given_back == [(1, module.BACK_AFTER_MS)]


async def test_messages_that_come_together_with_the_end_of_the_rights_of_their_user_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "ended", lambda session: Refused(wire.UNAUTHORIZED, "no rights"))
    async with waiting(monkeypatch, call := Asking()) as receive:
        world = receive.world
        # There is room for a byte, so the messages are encoded.
        call.most_bytes = 1
        call.state.session.ending.begin()
        world.brokers.answer([world.delivery(1)])
    assert (world.brokers.given_back, len(world.renewals)) == ([(1, module.BACK_AFTER_MS)], 0)


async def test_messages_that_are_not_written_are_given_back_and_none_is_renewed() -> None:
    async with a_world() as world:
        world.brokers.answer([world.delivery(offset) for offset in range(4)])
        with pytest.raises(ConnectionError), world.begin() as poll:
            # The last one cannot be read: it would come again and again.
            poll.hand_out((await poll.deliveries())[:3], [])
            poll.sending(1)
            poll.sent(1)
            poll.sending(1)
            assert len(world.renewals) == 2
            raise ConnectionError
        await world.polls.close()
        assert sorted(world.brokers.given_back) == [(1, module.BACK_AFTER_MS), (2, module.BACK_AFTER_MS)]
        assert len(world.renewals) == 0


async def test_messages_of_an_answer_that_its_client_got_are_renewed() -> None:
    async with a_world() as world:
        world.brokers.answer([world.delivery(offset) for offset in range(2)])
        with world.begin() as poll:
            deliveries = await poll.deliveries()
            poll.hand_out(deliveries, [])
            for _ in deliveries:
                poll.sending(1)
                poll.sent(1)
            poll.complete()
        await world.polls.close()
        assert (world.brokers.given_back, len(world.renewals)) == ([], 2)


async def test_a_pop_that_fails_gives_nothing_back() -> None:
    async with a_world() as world:
        popping = await world.cancelled_call()
        world.brokers.answer(RequestTimeout("broker-a", 200_050, 1.0))
        assert isinstance(await ended(popping), RequestTimeout)
        with pytest.raises(RequestTimeout), world.begin() as poll:
            await poll.deliveries()
        await world.polls.close()
        assert world.brokers.given_back == []


async def test_pops_that_wait_end_with_their_session() -> None:
    async with a_world() as world:
        await world.cancelled_call()
        await world.polls.close()
        assert world.brokers.was_cancelled


async def test_a_call_that_ends_after_its_session_gives_nothing_back() -> None:
    async with a_world() as world:
        world.brokers.answer([world.delivery(1)])
        with world.begin() as poll:
            poll.hand_out(await poll.deliveries(), [])
            await world.polls.close()
        assert world.brokers.given_back == []


async def test_there_is_a_limit_of_pops_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABANDONED", 1)
    async with a_world() as world:
        first = await world.cancelled_call()
        second = await world.cancelled_call()
        assert "given up" in str(await ended(second))
        assert not first.has_failed


async def test_a_pop_above_this_limit_keeps_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABANDONED", 1)
    async with a_world() as world:
        world.brokers.is_near = True
        for _ in range(3):
            with world.begin() as poll:
                poll.begin(lambda found: None)
            assert poll.popping is not None and poll.popping.when_found is None
        assert world.brokers.withdrawn == 2
