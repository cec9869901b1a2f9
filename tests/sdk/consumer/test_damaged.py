"""A message that arrives damaged is left out and logged once, and its neighbours are consumed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from skylark import ConsumeFrom, PullConsumer, PushConsumer
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.blocking.handlers import ThreadHandlers
from skylark.sdk.consumer.damaged import log_left_out
from tests.sdk.consumer.test_push_faults import Group, group  # noqa: F401  a fixture
from tests.sdk.fakes import queue, record, until

GOOD = [b"0", b"2", b"3"]
WHOLE = record("t", 0, 1, b"1", TAGS="A")
# The byte of the record that is changed. With another size or magic it is not known where the next record begins.
DAMAGE = {
    "body": HEAD_V4.size,
    "length of the properties": HEAD_V4.size + len(b"1") + len(b"\x01t"),
    "size": HEAD_V4.places("size")[-1],
    "magic": HEAD_V4.places("magic")[0],
}


@dataclass
class Sent:
    """A typed handler's value, which is any number."""

    number: int = 0


@pytest.fixture(params=DAMAGE)
async def damaged(request: pytest.FixtureRequest, group: Group) -> AsyncIterator[Group]:  # noqa: F811
    """A queue of four messages, whose second is damaged."""
    log_left_out.cache_clear()
    at = DAMAGE[request.param]
    bad = WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :]
    good = {offset: record("t", 0, offset, b"%d" % offset, TAGS="A") for offset in (0, 2, 3)}
    group.broker.queues["t", 0] = [good[0], bad, good[2], good[3]]
    yield group


def check_lines(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = [line for line in caplog.messages if "damaged" in line]
    assert line.startswith("message 1 of queue 0 of topic t at broker broker-a is damaged and left out, its readers")
    assert line.endswith("broker verifyStore")


@pytest.mark.parametrize("way", ["one by one", "threads", "in order", "with a tag", "as values"])
async def test_a_push_consumer_goes_on(damaged: Group, way: str, caplog: pytest.LogCaptureFixture) -> None:
    got: list[bytes] = []

    def handle(message: MessageExt) -> None:
        assert message.tags == "A"
        got.append(message.body)

    def handle_value(sent: Sent) -> None:
        got.append(b"%d" % sent.number)

    if way == "as values":
        values = damaged.broker.queues["t", 0]
        damaged.broker.queues["t", 0] = [
            record("t", 0, offset, b'{"number": %d}' % offset, TAGS="A") if offset != 1 else values[1]
            for offset in range(4)
        ]
    named: dict[str, Any] = {
        "threads": {"handler": ThreadHandlers(handle)},
        "in order": {"handler": handle, "orderly": True},
        "as values": {"handler": handle_value},
    }.get(way, {"handler": handle})
    async with PushConsumer(
        damaged.nameserver, group="g", subscriptions={"t": "A" if way == "with a tag" else "*"}, wait_ms=0,
        consume_from=ConsumeFrom.FIRST_OFFSET, **named,
    ) as consumer:  # fmt: skip
        await until(lambda: damaged.broker.committed.get(("g", "t", 0)) == 4 or consumer.consumed == 3)
        await until(lambda: consumer.consumed == 3 and consumer.cached == 0)
    assert sorted(got) == GOOD and not damaged.sent
    assert damaged.broker.committed["g", "t", 0] == 4
    check_lines(caplog)


async def test_a_batch_with_it_is_given_back_without_it(damaged: Group, caplog: pytest.LogCaptureFixture) -> None:
    def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            assert message.body and message.tags == "A"

    async with PushConsumer(
        damaged.nameserver, group="g", subscriptions={"t": "*"}, wait_ms=0, batch_handler=handle, batch_size=4,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.consumed + consumer.failed == 3 and consumer.cached == 0)
        consumed = consumer.consumed
    assert damaged.broker.committed["g", "t", 0] == 4
    assert len(damaged.sent) == 3 - consumed and {sent["body"] for sent in damaged.sent} <= set(GOOD)
    check_lines(caplog)


@pytest.mark.parametrize("expression", ["*", "A"])
async def test_pulls_reach_the_end(damaged: Group, expression: str) -> None:
    found: list[MessageExt] = []
    async with PullConsumer(damaged.nameserver, group="g", heartbeat=False) as consumer:
        offset = 0
        while offset < 4:
            result = await consumer.pull(queue(), offset, expression=expression)
            assert result.next_offset > offset
            found += result.messages
            offset = result.next_offset
    readable = [message for message in found if message.queue_offset != 1]
    assert [message.body for message in readable] == GOOD
    # Without tags a message is decoded by who reads it, who then gets the error.
    assert len(found) == 3 or expression == "*"
