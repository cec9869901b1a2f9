"""Leases and settlements of one queue's tasks, with a broker that refuses, and time that is a MockClock's."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, ConnectionLost, SkylarkError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.integrations.kombu.feed import DUE, RETURN_S, Deliveries, Feed, GiveBacks, Held, Prefetch
from skylark.sdk.integrations.kombu.mailbox import Mailbox
from skylark.sdk.integrations.kombu.names import EXPIRES, TransportSettings

VISIBILITY_S = 60
BUSY = BrokerError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", "b:1")
AWAY = ConnectionLost("b:1")
OVER = BrokerError(ResponseCode.NO_MESSAGE, "its invisible time is over", "b:1")


@dataclass
class Popped:
    """A consumer whose broker has these messages, and refuses changes of their times while there is an error."""

    messages: list[Any]
    error: SkylarkError | None = None
    changes: list[tuple[float, int]] = field(default_factory=list)
    acked: list[Any] = field(default_factory=list)
    #: Whether it does not answer acknowledgements.
    is_away: bool = False

    async def receive(self, most: int, wait_ms: int, *, invisible_ms: int) -> list[Any]:
        found, self.messages = self.messages[:most], self.messages[most:]
        return found

    async def wait(self, wait_ms: int) -> None:
        await trio.sleep(wait_ms / 1000)

    async def ack(self, messages: list[Any]) -> None:
        if self.is_away:
            raise AWAY
        self.acked += messages

    async def change_invisible_time(self, message: Any, invisible_ms: int) -> None:
        self.changes.append((trio.current_time(), invisible_ms))
        if self.error is not None:
            raise self.error


@dataclass
class Joined:
    """The group of a queue that has its topic, and its consumer."""

    consumer: Any
    give_backs: GiveBacks = field(default_factory=GiveBacks)
    deliveries: Deliveries = field(default_factory=Deliveries)

    async def wait(self) -> None:
        raise AssertionError("it has joined")

    async def join(self) -> Any:
        return self.consumer


def task(msg_id: str = "1", attempt: int = 1, broker: str = "broker-a", **properties: str) -> Any:
    return SimpleNamespace(
        lease=SimpleNamespace(broker_name=broker), properties=properties, delivery_attempt=attempt, msg_id=msg_id,
        body=b"{}",
    )  # fmt: skip


@asynccontextmanager
async def feeding(consumer: Any, send_later: Callable[[Any, int], Awaitable[None]] | None = None) -> AsyncIterator[Any]:
    mailbox = Mailbox()
    feed = Feed(
        Joined(consumer), TransportSettings(visibility_timeout_ms=VISIBILITY_S * 1000), owner=None, queue="q",
        prefetch=Prefetch(10), mailbox=mailbox, matches=lambda message: True, send_later=send_later or _never,
        post=lambda work: work(),
        backoff=Backoff(0.1, 1.0, Random(1)), clock=SystemClock(),
    )  # fmt: skip
    await feed.join()
    async with trio.open_nursery() as nursery:
        await nursery.start(feed.run)
        feed.pull()
        await trio.testing.wait_all_tasks_blocked()
        yield feed, mailbox
        nursery.cancel_scope.cancel()
    mailbox.close()


async def _never(message: Any, due_ms: int) -> None:
    raise AssertionError("it is due")


def taken(mailbox: Mailbox) -> Held:
    parcel = mailbox.take()
    assert parcel is not None and isinstance(parcel.delivery, Held)
    return parcel.delivery


async def test_a_lease_is_renewed_again_after_a_broker_has_refused_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    consumer = Popped([task()], BUSY)
    async with feeding(consumer):
        await trio.sleep(VISIBILITY_S * 0.7)
        refused = len(consumer.changes)
        assert refused > 1
        consumer.error = None
        await trio.sleep(VISIBILITY_S * 2)
        assert refused + 3 <= len(consumer.changes) <= refused + 5


async def test_a_lease_that_is_over_is_not_renewed(autojump_clock: trio.testing.MockClock) -> None:
    consumer = Popped([task()], OVER)
    async with feeding(consumer):
        await trio.sleep(VISIBILITY_S * 3)
        assert len(consumer.changes) == 1


async def test_a_task_is_given_back_as_soon_as_a_broker_takes_it(autojump_clock: trio.testing.MockClock) -> None:
    consumer = Popped([task()], BUSY)
    async with feeding(consumer) as (feed, mailbox):
        taken(mailbox).settle(give_back=True)
        await trio.sleep(5)
        consumer.error = None
        await trio.sleep(5)
        assert {wanted for _, wanted in consumer.changes} == {0} and len(consumer.changes) > 2
        count = len(consumer.changes)
        await trio.sleep(VISIBILITY_S)
        assert len(consumer.changes) == count and not feed._held


async def test_a_task_that_no_broker_takes_back_is_forgotten_when_its_time_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    consumer = Popped([task()], BUSY)
    async with feeding(consumer) as (feed, mailbox):
        taken(mailbox).settle(give_back=True)
        await trio.sleep(VISIBILITY_S * 0.9)
        assert feed._held
        await trio.sleep(VISIBILITY_S * 0.2)
        assert not feed._held


async def test_a_time_that_is_no_number_is_for_whoever_reads_the_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with feeding(Popped([task(**{DUE: "tomorrow"})])) as (_, mailbox):
        assert taken(mailbox).message.properties == {DUE: "tomorrow"}


NEXT_YEAR = {DUE: str(SystemClock().now_ms() + 365 * 24 * 3600 * 1000)}


async def test_a_task_that_is_sent_on_while_its_feed_closes_is_not_given_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def send(message: Any, due_ms: int) -> None:
        await trio.sleep(1)

    message = task(**NEXT_YEAR)
    consumer = Popped([message])
    async with feeding(consumer, send) as (feed, _):
        await feed.close()
    assert (consumer.changes, consumer.acked) == ([], [message])


async def test_a_task_that_cannot_be_sent_on_is_given_back_when_its_feed_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def send(message: Any, due_ms: int) -> None:
        raise BUSY

    consumer = Popped([task(**NEXT_YEAR)])
    async with feeding(consumer, send) as (feed, _):
        await feed.close()
    assert ([wanted for _, wanted in consumer.changes], consumer.acked) == ([0], [])


async def test_an_expired_message_is_not_delivered(autojump_clock: trio.testing.MockClock) -> None:
    now_ms = SystemClock().now_ms()
    texts = str(now_ms - 1), "soon", str(now_ms + 60_000)
    messages = [task(text, **{EXPIRES: text}) for text in texts]
    consumer = Popped(list(messages))
    async with feeding(consumer) as (_, mailbox):
        assert [taken(mailbox).message for _ in range(2)] == messages[1:] and mailbox.take() is None
        await trio.testing.wait_all_tasks_blocked()
        assert consumer.acked == messages[:1]


async def test_what_was_given_back_is_waited_for_until_it_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    given = GiveBacks()
    assert await given.wait_ms() == 0
    given.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_after, given, RETURN_S / 2)
        # The wait for a broker that does not answer is no longer than the wait for a broker that does.
        assert await given.wait_ms() == RETURN_S * 1000 and trio.current_time() == RETURN_S / 2
    given.came_again()
    assert await given.wait_ms() == 0
    given.begin()
    given.end()
    await trio.sleep(RETURN_S)
    # Another worker has got it.
    assert await given.wait_ms() == 0


async def _end_after(given: GiveBacks, after_s: float) -> None:
    await trio.sleep(after_s)
    given.end()


@pytest.mark.parametrize("broker", ["broker-a", "broker-b"])
async def test_a_second_delivery_of_what_the_process_has_renews_its_lease(
    autojump_clock: trio.testing.MockClock, broker: str
) -> None:
    first, second = task(), task(attempt=2, broker=broker)
    consumer = Popped([first], OVER)
    async with feeding(consumer) as (feed, mailbox):
        held = taken(mailbox)
        await trio.sleep(VISIBILITY_S)
        assert len(consumer.changes) == 1
        consumer.error = None
        consumer.messages.append(second)
        await trio.sleep(VISIBILITY_S * 2)
        assert mailbox.take() is None and len(consumer.changes) > 2 and feed._prefetch.room == 9
        held.settle(give_back=False)
        await trio.testing.wait_all_tasks_blocked()
        assert consumer.acked == [second] and feed._prefetch.room == 10
        # It was acknowledged in time: who sends it once more means it.
        consumer.messages.append(task())
        await trio.sleep(VISIBILITY_S)
        assert taken(mailbox).message.msg_id == "1"


@pytest.mark.parametrize("is_settled_before", [True, False])
async def test_a_second_delivery_of_what_was_acknowledged_too_late_is_acknowledged(
    autojump_clock: trio.testing.MockClock, is_settled_before: bool
) -> None:
    first, second, other = task(), task(attempt=2), task("2")
    consumer = Popped([first], AWAY, is_away=True)
    async with feeding(consumer) as (_, mailbox):
        held = taken(mailbox)
        if is_settled_before:
            held.settle(give_back=False)
        await trio.sleep(VISIBILITY_S * 1.1)
        held.settle(give_back=False)
        consumer.error, consumer.is_away = None, False
        await trio.sleep(2)
        assert consumer.acked == [first]
        consumer.messages += [second, other]
        await trio.sleep(VISIBILITY_S)
        assert taken(mailbox).message is other and mailbox.take() is None
        assert consumer.acked == [first, second]


async def test_a_second_delivery_before_the_late_acknowledgement_is_what_is_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    second = task(attempt=2)
    consumer = Popped([task()], AWAY, is_away=True)
    async with feeding(consumer) as (feed, mailbox):
        taken(mailbox).settle(give_back=False)
        await trio.sleep(VISIBILITY_S * 1.1)
        consumer.messages.append(second)
        await trio.sleep(VISIBILITY_S)
        consumer.error, consumer.is_away = None, False
        await trio.sleep(2)
        assert consumer.acked == [second] and mailbox.take() is None and not feed._held and feed._prefetch.room == 10


async def test_what_was_given_back_too_late_is_delivered_again(autojump_clock: trio.testing.MockClock) -> None:
    second = task(attempt=2)
    consumer = Popped([task()], AWAY)
    async with feeding(consumer) as (_, mailbox):
        taken(mailbox).settle(give_back=True)
        await trio.sleep(VISIBILITY_S / 2)
        consumer.messages.append(second)
        await trio.sleep(VISIBILITY_S)
        assert taken(mailbox).message is second
