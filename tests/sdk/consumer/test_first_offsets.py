"""A new group is told which messages it does not get."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from skylark import ConsumeFrom, PullConsumer, PushConsumer
from skylark.remoting.protocol.requests.groups import ConsumerIdList
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, serving
from tests.support.waiting import DEADLINE_S, until

LINE = (
    "group g has no offset of topic t yet and begins at its end: it does not get the messages before that (%d or "
    "more); to get them: mqadmin resetOffsetByTime -g g -t t -s 0; the next new group gets all messages with "
    "consume_from=ConsumeFrom.FIRST_OFFSET"
)


async def push(addr: str, broker: FakeBroker, consume_from: ConsumeFrom) -> None:
    consumer = PushConsumer(
        addr, group="g", subscriptions={"t": "*"}, handler=lambda _: None, consume_from=consume_from
    )
    broker.on(38, lambda _: ConsumerIdList([consumer._client.instance.client_id]))
    async with consumer:
        await until(lambda: len(consumer.queues) == 3)


async def pull(addr: str, broker: FakeBroker, consume_from: ConsumeFrom) -> None:
    async with PullConsumer(addr, group="g", consume_from=consume_from) as consumer:
        consumer.assign([queue(0)])
        await broker.wait_asked(11)
        consumer.assign([queue(1)])
        await broker.wait_asked(31, 2)


@pytest.mark.parametrize(
    ("consume", "consume_from", "is_known", "told"),
    [
        (push, ConsumeFrom.LAST_OFFSET, False, [LINE % 5]),
        (push, ConsumeFrom.FIRST_OFFSET, False, []),
        (push, ConsumeFrom.LAST_OFFSET, True, []),
        # Its queues begin one after another, and the first tells.
        (pull, ConsumeFrom.LAST_OFFSET, False, [LINE % 2]),
    ],
)
async def test_a_new_group_is_told_once_what_lies_before_its_beginning(
    consume: Callable[[str, FakeBroker, ConsumeFrom], Awaitable[None]],
    consume_from: ConsumeFrom,
    is_known: bool,
    told: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    namesrv, broker = FakeNamesrv(), FakeBroker()
    async with serving(namesrv), serving(broker):
        namesrv.add("t", broker, queues=3)
        broker.put("t", 0, b"a", b"b", b"c")
        broker.put("t", 1, b"a", b"b", b"c")
        broker.min_offsets["t", 0] = 1
        if is_known:
            broker.committed.update({("g", "t", number): 0 for number in range(3)})
        with trio.fail_after(DEADLINE_S):
            await consume(namesrv.addr, broker, consume_from)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "has no offset of topic" in line] == told


async def test_a_broker_that_does_not_say_what_lies_before_keeps_no_group_from_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namesrv, broker = FakeNamesrv(), FakeBroker()
    async with serving(namesrv), serving(broker):
        namesrv.add("t", broker, queues=3)
        broker.put("t", 0, b"a")
        broker.on(31, lambda request: request.respond(1, "no"))
        with trio.fail_after(DEADLINE_S):
            await push(namesrv.addr, broker, ConsumeFrom.LAST_OFFSET)
    assert "has no offset of topic" not in caplog.text
