"""An assignment in virtual time: queues in memory, without sockets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import trio
from trio.testing import MockClock

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.assigned import AssignedQueues
from skylark.sdk.consumer.reader import PullResult, PullStatus, Reader
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position
from tests.sdk.fakes import queue, record

A, B, C = (queue(number) for number in range(3))
QUEUES = (A, B, C)


@dataclass
class Store:
    """Queues in memory: the client and the reader of an assignment. A pull takes a little while."""

    nursery: trio.Nursery
    step: int = 4
    sizes: dict[MessageQueue, int] = field(default_factory=dict)
    committed_offsets: dict[MessageQueue, int] = field(default_factory=dict)
    first: dict[MessageQueue, int] = field(default_factory=dict)
    errors: dict[MessageQueue, list[SkylarkError]] = field(default_factory=dict)
    pulls: list[tuple[MessageQueue, int, int]] = field(default_factory=list)
    skipped: int = 0
    is_open: bool = True

    def __post_init__(self) -> None:
        self.backoff = Backoff(0.05, 0.5, Random(0))
        self.more = trio.Event()
        self.instance = self

    def put(self, mq: MessageQueue, count: int) -> None:
        self.sizes[mq] = self.sizes.get(mq, 0) + count
        self.more.set()
        self.more = trio.Event()

    def check_open(self) -> None:
        if not self.is_open:
            raise SkylarkError("the client was closed")

    tags_of = Reader.tags_of
    _tags: dict[str, frozenset[str]] = field(default_factory=dict)

    async def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str,
        wait_ms: int,
        trail: Trail,
    ) -> PullResult:
        self.pulls.append((mq, offset, max_bytes))
        await trio.sleep(0.01)
        if self.errors.get(mq):
            raise self.errors[mq].pop(0)
        while (size := self.sizes.get(mq, 0)) <= offset:
            await self.more.wait()
        end = min(offset + self.step, size)
        if offset < self.skipped:
            return PullResult(PullStatus.NO_MATCHED_MESSAGE, [], min(end, self.skipped), 0, size)
        data = b"".join(record("t", mq.queue_id, at, b"%d" % at) for at in range(offset, end))
        return PullResult(PullStatus.FOUND, decode_messages(data, mq.broker_name), end, 0, size)

    async def first_offset(self, mq: MessageQueue) -> Position:
        await trio.sleep(0.01)
        return Position(self.committed_offsets.get(mq, self.first.get(mq, 0)))

    async def commit(self, mq: MessageQueue, position: Position) -> None:
        await trio.sleep(0.01)
        if self.errors.get(mq):
            raise self.errors[mq].pop(0)
        self.committed_offsets[mq] = position.offset

    def assigned(self) -> AssignedQueues:
        me = cast(Any, self)
        return AssignedQueues(me, me, self.first_offset, self.commit)


def run(test: Callable[[Store, AssignedQueues], Awaitable[None]]) -> None:
    """``test`` in virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            store = Store(nursery)
            with trio.fail_after(1000):
                await test(store, store.assigned())
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def poll(queues: AssignedQueues, timeout_ms: int, max_count: int) -> list[MessageExt]:
    """As `PullConsumer.poll`."""
    await queues.wait(timeout_ms)
    return queues.take(max_count)


def places(messages: list[MessageExt]) -> list[tuple[MessageQueue, int]]:
    return [(message.queue, message.queue_offset) for message in messages]


def of(mq: MessageQueue, *offsets: int) -> list[tuple[MessageQueue, int]]:
    return [(mq, offset) for offset in offsets]
