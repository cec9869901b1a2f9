"""A broker that gives whole batches: consumers see their messages, each at its offset, none twice."""

from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from skylark import PullConsumer
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import decode_properties
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.pops import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader
from skylark.remoting.protocol.requests.pulls import PULL_UNWRAPS
from skylark.sdk.arrow import decode as decoding
from skylark.sdk.consumer.popped import bits_by_lease, received
from skylark.sdk.consumer.reader import PullStatus
from tests.sdk.consumer.test_push_faults import Group
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, record, serving, until
from tests.support.inner import inner_batch, rows_of
from tests.support.waiting import DEADLINE_S

# Each batch holds offsets from its first up to the next one's.
FIRSTS, END = (0, 4, 5, 12), 20
EVERY = list(range(END))


def fill(broker: FakeBroker, topic: str = "t", tags: tuple[str, ...] = ("",), compression: str | None = None) -> None:
    """Queue 0 of ``topic`` in batches; messages of ``tags`` in turn. Another queue has none."""
    stored = []
    for first, end in zip(FIRSTS, (*FIRSTS[1:], END), strict=True):
        rows = [row for at in range(first, end) for row in rows_of(1, at, tag=tags[at % len(tags)])]
        raw = inner_batch(rows, first, topic=topic, physical=1000 * first, compression=compression)
        stored.append((first, end, raw))

    def pull(request: Command) -> Command | None:
        ext = request.ext or {}
        if ext["topic"] != topic:
            return broker._pull(request)
        asked, end = int(ext["queueOffset"]), END if int(ext["queueId"]) == 0 else 0
        bounds = {"minOffset": 0, "maxOffset": end, "suggestWhichBrokerId": 0}
        if asked >= end:
            return None if int(ext["sysFlag"]) & 2 else request.respond(19, ext={**bounds, "nextBeginOffset": end})
        at = bisect_right(FIRSTS, asked) - 1
        given = stored[at : at + 2]
        # As of a batch: at least one, and no more than asked for if there are two.
        if given[-1][1] - given[0][0] > int(ext["maxMsgNums"]):
            del given[1:]
        data = b"".join([raw for _, _, raw in given])
        return request.respond(0, ext={**bounds, "nextBeginOffset": given[-1][1]}, body=data)

    broker.on(11, pull)
    broker.on(30, lambda request: {"offset": END})


@asynccontextmanager
async def consumer_of(
    topic: str = "t", tags: tuple[str, ...] = ("",), compression: str | None = None, **named: Any
) -> AsyncIterator[PullConsumer]:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add(topic, broker)
        fill(broker, topic, tags, compression)
        async with PullConsumer(namesrv.addr, group="g", heartbeat=False, **named) as consumer:
            yield consumer
        assert all(int((request.ext or {})["sysFlag"]) & PULL_UNWRAPS for request in broker.asked(11))


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


async def test_a_pull_from_the_middle_of_a_batch_begins_there() -> None:
    async with consumer_of() as consumer:
        for start in EVERY:
            result = await consumer.pull(queue(), start, max_count=1)
            assert offsets(result.messages) == list(range(start, result.next_offset))
            assert result.next_offset in (*FIRSTS, END)
            assert [message.body for message in result.messages][:1] == [b"%d" % start]
            assert result.messages[0].msg_id == f"K{start}"


async def test_streams_and_polls_return_each_message_once() -> None:
    async with consumer_of() as consumer:
        stream = consumer.stream(queue(), 2, 14)
        assert [offset for batch in [offsets(batch) async for batch in stream] for offset in batch] == EVERY[2:14]
        consumer.assign([queue()])
        consumer.seek(queue(), 6)
        found: list[int] = []
        while len(found) < END - 6:
            batch = await consumer.poll(max_count=3, timeout_ms=5_000)
            assert len(batch) <= 3
            found += offsets(batch)
            assert consumer.position(queue()) == found[-1] + 1
        assert found == EVERY[6:]


@pytest.mark.parametrize("most", [1, decoding.CONTENT_BYTES])
async def test_record_batches_have_a_row_for_each_message(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when compressed batches hold too much together, so that the later ones are pulled again."""
    monkeypatch.setattr(decoding, "CONTENT_BYTES", most)
    async with consumer_of(tags=("Aa", "BB"), compression="zlib") as consumer:
        for expression, step in (("*", 1), ("Aa", 2)):
            async with consumer.arrow(
                queue(), 2, 14, expression=expression, columns=["queueOffset", "msgId"]
            ) as stream:
                found = [row for batch in [batch async for batch in stream] for row in batch.to_pylist()]
            assert found == [{"queueOffset": at, "msgId": f"K{at}"} for at in range(2, 14, step)]


async def test_tags_are_those_of_the_messages() -> None:
    async with consumer_of(tags=("Aa", "BB")) as consumer:
        result = await consumer.pull(queue(), 1, expression="BB")
        assert offsets(result.messages) == [1, 3]
        result = await consumer.pull(queue(), 4, max_count=1, expression="BB")
        assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 5)


async def test_messages_of_a_namespace_show_their_plain_topic() -> None:
    async with consumer_of("prod%t", namespace="prod") as consumer:
        result = await consumer.pull(queue(), 2)
        assert offsets(result.messages) == [2, 3, 4]
        assert {(message.topic, message.queue) for message in result.messages} == {("t", queue())}


async def test_a_push_consumer_handles_each_once_and_sends_back_single_messages() -> None:
    handled: list[int] = []

    def handle(message: MessageExt) -> None:
        handled.append(message.queue_offset)
        if message.queue_offset in (0, 13):
            raise ZeroDivisionError

    with trio.fail_after(DEADLINE_S):
        async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
            assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
            group = Group(namesrv, broker)
            fill(broker)
            broker.committed["g", "t", 0] = 0
            async with group.consumer(handler=handle, max_queue_messages=4) as consumer:
                await until(lambda: len(handled) == END and consumer.cached == 0)
            assert sorted(handled) == EVERY
            assert broker.committed["g", "t", 0] == END
            # The broker knows the place of the batch only: a request for that would send back all of it.
            assert not broker.asked(36)
            names = [decode_properties(sent["i"])["ORIGIN_MESSAGE_ID"] for sent in group.sent]
            assert sorted(names) == ["K0", "K13"]
            assert {sent["body"] for sent in group.sent} == {b"0", b"13"}


# --- pops: a broker of RocketMQ hands out a batch as one message


HEADER = PopMessageResponseHeader(
    pop_time=1_700_000_000_000, invisible_time=60_000, revive_qid=2, rest_num=0, start_offset_info="0 0 7"
)
PLAIN = record("t", 0, 7, b"plain")
DATA = PLAIN + inner_batch(rows_of(3, 8), 8, physical=5_000)


@pytest.fixture
def messages() -> list[Any]:
    found = received(DATA, HEADER, "t", "g", "broker-a", "")
    assert [message.queue_offset for message in found] == [7, 8, 9, 10]
    return [*found]


def acknowledged(messages: list[Any]) -> list[int]:
    """The offsets that are acknowledged with these messages."""
    found = []
    for lease, bits in bits_by_lease(messages).items():
        found += [lease.start_offset + place for place in range(bits.bit_length()) if bits >> place & 1]
    return found


def test_a_popped_batch_is_acknowledged_with_its_last_message(messages: list[Any]) -> None:
    assert acknowledged(messages[:2]) == [7]
    assert acknowledged([messages[3], messages[3], messages[1]]) == []
    assert acknowledged([messages[2]]) == [8]
    assert acknowledged([messages[1]]) == [8]  # again, when that request failed
    assert acknowledged(messages) == [7, 8]


def test_a_popped_batch_has_one_lease(messages: list[Any]) -> None:
    handles = [message.receipt_handle for message in messages]
    assert handles[1] == handles[2] == handles[3] != handles[0]
    answer = ChangeInvisibleTimeResponseHeader(pop_time=1_800_000_000_000, invisible_time=5, revive_qid=1)
    changed = messages[2]
    changed.renew(changed.lease.renewed(changed.leased_offset, answer))
    assert {message.receipt_handle for message in messages[1:]} == {messages[1].receipt_handle}
    assert messages[1].receipt_handle != handles[1] and messages[0].receipt_handle == handles[0]
    assert acknowledged(messages[1:]) == [8]
