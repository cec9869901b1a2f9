"""Reading queues for commands, from a consumer whose pulls give whole batches, however many messages were asked for."""

from types import SimpleNamespace
from typing import Any

import pytest

from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.admin.reports.reading import read_queue

QUEUE = MessageQueue("b", "broker-a", 0)
BATCHES = (range(25), range(25, 50), range(50, 59), range(59, 60))


class Consumer:
    """Pulls the rest of the batch that has an offset."""

    def __init__(self) -> None:
        self.pulls: list[int] = []

    async def pull(self, queue: MessageQueue, offset: int, **more: Any) -> Any:
        self.pulls.append(offset)
        (batch,) = (batch for batch in BATCHES if offset in batch)
        messages = [SimpleNamespace(queue_offset=at) for at in batch]
        return SimpleNamespace(messages=messages, next_offset=batch.stop, status=SimpleNamespace(name="FOUND"))


@pytest.mark.parametrize(
    ("end", "most", "last", "pulls"),
    [
        (60, None, 59, [3, 25, 50, 59]),
        (60, 30, 32, [3, 25]),
        (60, 22, 24, [3]),
        (30, None, 29, [3, 25]),
    ],
)
async def test_no_message_outside_of_the_span_or_beyond_the_count_is_taken(
    end: int, most: int | None, last: int, pulls: list[int]
) -> None:
    consumer: Any = Consumer()
    taken: list[int] = []
    status, at = await read_queue(
        consumer, QUEUE, 3, end,
        lambda _, found: taken.extend(message.queue_offset for message in found), most=most,
    )  # fmt: skip
    assert taken == list(range(3, last + 1))
    assert consumer.pulls == pulls
    assert status == "NO_NEW_MSG"
    assert at == last + 1 or at >= end
