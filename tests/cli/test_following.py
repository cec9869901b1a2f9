"""Which queues `skylark tail` reads, and from where, while brokers come and go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from skylark.cli import following
from skylark.cli.durations import FIRST, LAST
from skylark.cli.following import Following
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import NoNameServer, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue

BEGAN_S = 1_000.0
FIRST_QUEUE, LATE_QUEUE = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)
LOWEST, HIGHEST, COMMITTED = 5, 90, 70


class Consumer:
    """A consumer whose look-ups of queues give ``answers``, the last one again and again.

    The first look-up only finds out whether the topic exists.
    """

    def __init__(self, *answers: list[MessageQueue] | Exception, has_group: bool = False) -> None:
        self._answers = list(answers)
        self._has_group = has_group
        # Queue → the offset from which it is read.
        self.begun: dict[MessageQueue, int] = {}

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        return COMMITTED if self._has_group else None

    async def min_offset(self, queue: MessageQueue) -> int:
        return LOWEST

    async def max_offset(self, queue: MessageQueue) -> int:
        return HIGHEST

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return timestamp_ms

    async def stream(self, queue: MessageQueue, begin: int, *rest: object, **named: object) -> AsyncIterator[list[Any]]:
        self.begun[queue] = begin
        await trio.sleep_forever()
        yield []


async def begun(consumer: Consumer, start: str | int, group: str | None = None) -> tuple[int, int]:
    """The offsets from which the two queues are read."""

    class Doubles:
        @asynccontextmanager
        async def consumer(self, group: str) -> AsyncIterator[Consumer]:
            yield consumer

    session = cast(Session, Doubles())
    with trio.move_on_after(10 * following._NEW_QUEUES_S):
        await Following(session, "t", group, start, "*", None, in_json=False).run(follow=True)
    return consumer.begun[FIRST_QUEUE], consumer.begun[LATE_QUEUE]


@pytest.mark.parametrize(
    ("start", "group", "offsets"),
    [
        (LAST, None, (HIGHEST, int(BEGAN_S * 1000))),
        (FIRST, None, (LOWEST, LOWEST)),
        (12_345, None, (12_345, 12_345)),
        (LAST, "g", (COMMITTED, COMMITTED)),
    ],
)
@pytest.mark.parametrize("gap", [RouteNotFound("t"), NoNameServer("n:1", "refused")])
async def test_a_queue_that_is_found_late_is_read_from_the_same_place(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    capsys: pytest.CaptureFixture[str],
    start: str | int,
    group: str | None,
    offsets: tuple[int, int],
    gap: Exception,
) -> None:
    monkeypatch.setattr(following.time, "time", lambda: BEGAN_S)
    # All brokers of the topic restart at the same time.
    consumer = Consumer([FIRST_QUEUE], [FIRST_QUEUE], gap, [FIRST_QUEUE, LATE_QUEUE], has_group=group is not None)
    assert await begun(consumer, start, group) == offsets
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("group", ["g", None])
async def test_a_group_without_offsets_is_told(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], group: str | None
) -> None:
    await begun(Consumer([FIRST_QUEUE, LATE_QUEUE]), LAST, group)
    told = (
        "group g has no offsets of topic t, which is read from its end; skylark admin consumerProgress lists all groups"
    )
    assert capsys.readouterr().err.splitlines() == ([told] if group else [])
