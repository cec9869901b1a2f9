from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.message.message import decode_messages
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.consumer.reader import PullResult, PullStatus
from skylark.sdk.consumer.stream import MessageStream
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position
from tests.sdk.consumer.test_pull import cluster
from tests.sdk.fakes import queue, record

BACKOFF = Backoff(0.01, 0.02, Random(0))


class Source:
    """Pulls without a broker: ``size`` messages, ``step`` at a time; asking past the end waits for ever."""

    def __init__(self, size: int, step: int) -> None:
        self.size = size
        self.step = step
        self.asked: list[int] = []
        self.errors: list[Exception] = []

    async def pull(self, trail: Trail, offset: int) -> PullResult:
        self.asked.append(offset)
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        if offset >= self.size:
            await trio.sleep_forever()
        end = min(offset + self.step, self.size)
        data = b"".join(record("t", 0, at, b"%d" % at) for at in range(offset, end))
        return PullResult(PullStatus.FOUND, decode_messages(data), end, 0, self.size)


async def taken(stream: MessageStream) -> list[list[int]]:
    return [[message.queue_offset for message in batch] async for batch in stream]


async def test_batches_up_to_the_end(nursery: trio.Nursery) -> None:
    source = Source(size=10, step=4)
    stream = MessageStream(source.pull, nursery, Position(1), 10, BACKOFF)
    assert await taken(stream) == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert stream.next_offset == 10
    assert source.asked == [1, 5, 9]


async def test_the_end_cuts_a_batch(nursery: trio.Nursery) -> None:
    assert await taken(MessageStream(Source(10, 4).pull, nursery, Position(0), 6, BACKOFF)) == [[0, 1, 2, 3], [4, 5]]
    assert await taken(MessageStream(Source(10, 4).pull, nursery, Position(6), 6, BACKOFF)) == []


async def test_one_pull_ahead_and_no_more(nursery: trio.Nursery) -> None:
    source = Source(size=100, step=10)
    stream = MessageStream(source.pull, nursery, Position(0), None, BACKOFF)
    await anext(stream)
    await wait_all_tasks_blocked()
    assert source.asked == [0, 10]
    assert stream.next_offset == 10


async def test_an_error_is_raised_once(nursery: trio.Nursery) -> None:
    source = Source(size=4, step=2)
    source.errors = [BrokerError(2, "busy")]
    stream = MessageStream(source.pull, nursery, Position(0), 4, BACKOFF)
    with pytest.raises(BrokerError, match="busy"):
        await anext(stream)
    assert await taken(stream) == [[0, 1], [2, 3]]


async def test_a_cancelled_wait_loses_nothing(nursery: trio.Nursery) -> None:
    source = Source(size=2, step=1)
    stream = MessageStream(source.pull, nursery, Position(0), 2, BACKOFF)
    with trio.move_on_after(0):
        await anext(stream)
    assert await taken(stream) == [[0], [1]]
    assert source.asked == [0, 1]


async def test_closing_ends_the_pull_that_waits(nursery: trio.Nursery) -> None:
    source = Source(size=1, step=1)
    async with MessageStream(source.pull, nursery, Position(0), None, BACKOFF) as stream:
        assert [message.queue_offset for message in await anext(stream)] == [0]
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
    await wait_all_tasks_blocked()
    assert not nursery.child_tasks
    assert await taken(stream) == []


async def test_steps_without_messages_are_passed_over(nursery: trio.Nursery) -> None:
    answers = {
        0: PullResult(PullStatus.OFFSET_ILLEGAL, [], 5, 5, 9),
        5: PullResult(PullStatus.NO_MATCHED_MESSAGE, [], 8, 5, 9),
        8: PullResult(PullStatus.FOUND, decode_messages(record("t", 0, 8, b"x")), 9, 5, 9),
    }

    async def pull(trail: Trail, offset: int) -> PullResult:
        return answers[offset]

    assert await taken(MessageStream(pull, nursery, Position(0), 9, BACKOFF)) == [[8]]


async def test_a_broker_that_does_not_wait_is_not_asked_without_pause(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    asked: list[float] = []

    async def pull(trail: Trail, offset: int) -> PullResult:
        asked.append(trio.current_time())
        messages = decode_messages(record("t", 0, 0, b"x")) if len(asked) == 4 else []
        return PullResult(PullStatus.NO_NEW_MESSAGE, messages, len(messages), 0, 0)

    assert await taken(MessageStream(pull, nursery, Position(0), 1, BACKOFF)) == [[0]]
    assert all(later > earlier for earlier, later in pairwise(asked))


async def test_a_stream_of_a_closed_consumer_ends_in_an_error() -> None:
    async with cluster() as (namesrv, broker, _):
        broker.put("t", 0, b"a")
        async with PullConsumer(namesrv.addr, heartbeat=False) as consumer:
            stream = consumer.stream(queue(), 0)
            await anext(stream)
        with pytest.raises(SkylarkError, match="closed"):
            await anext(stream)
