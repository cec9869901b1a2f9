"""A push consumer whose broker refuses or does not answer: nothing is lost, and nothing is set back."""

import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from skylark import ConsumeFrom, PushConsumer
from skylark.mqcommon.message.compression import COMPRESSIONS
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import HeartbeatData
from skylark.remoting.protocol.requests.consuming import LockBatchRequestBody, LockBatchResponseBody
from skylark.remoting.protocol.requests.groups import ConsumerIdList
from skylark.sdk.consumer import failures, ownership
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, record, serving, until
from tests.support.waiting import DEADLINE_S

PUSHED = 40


class Group:
    """A broker with topic ``t`` (two queues), which answers what members of group ``g`` ask."""

    def __init__(self, namesrv: FakeNamesrv, broker: FakeBroker) -> None:
        self.nameserver = namesrv.addr
        self.broker = broker
        self.others: list[str] = []
        self.locked: list[MessageQueue] | None = None
        self.sent: list[dict[str, Any]] = []
        self.refuses = False
        namesrv.add("t", broker)
        namesrv.add("%RETRY%g", broker, queues=1)
        broker.on(38, self._members)
        broker.on(36, self._back)
        broker.on(310, self._send)
        broker.on(41, self._lock)
        broker.on(42, lambda request: {})

    def consumer(self, **named: Any) -> PushConsumer:
        return PushConsumer(
            self.nameserver, group="g", subscriptions={"t": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET, wait_ms=0,
            **named,
        )  # fmt: skip

    def _members(self, request: Command) -> Command | ConsumerIdList:
        beats = self.broker.asked(34)
        if not beats:
            return request.respond(1, "no consumer for this group, g")
        own = decode_body(HeartbeatData, beats[-1].body, beats[-1].codec).client_id
        return ConsumerIdList([own, *self.others])

    def _back(self, request: Command) -> Command:
        return request.respond(1, "no")

    def _send(self, request: Command) -> Command:
        ext = dict(request.ext or {})
        if self.refuses:
            return request.respond(16, "no")
        self.sent.append({**ext, "body": request.body})
        return request.respond(ext={"msgId": "7F00000100002A9F0000000000000000", "queueId": 0, "queueOffset": 0})

    def _lock(self, request: Command) -> Command | LockBatchResponseBody:
        asked = decode_body(LockBatchRequestBody, request.body, request.codec).mq_set
        return LockBatchResponseBody([mq for mq in asked if self.locked is None or mq in self.locked])


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    async with _group() as made:
        yield made


@asynccontextmanager
async def _group() -> AsyncIterator[Group]:
    with trio.fail_after(DEADLINE_S):
        async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
            assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
            yield Group(namesrv, broker)


async def test_what_the_broker_does_not_take_back_is_sent_to_the_retry_topic(group: Group) -> None:
    def handle(message: MessageExt) -> None:
        raise ZeroDivisionError

    group.broker.put("t", 0, b"bad", UNIQ_KEY="key-1", TAGS="A")
    async with group.consumer(handler=handle) as consumer:
        await until(lambda: consumer.failed == 1 and consumer.cached == 0)
    (sent,) = group.sent
    assert (sent["b"], str(sent["j"]), str(sent["l"])) == ("%RETRY%g", "1", "16")
    properties = dict(pair.split("\x01") for pair in sent["i"].split("\x02") if pair)
    noted = {name: properties.pop(name) for name in list(properties) if name.startswith("CONSUME_FAIL_")}
    assert re.fullmatch(r"ZeroDivisionError \(test_push_faults\.py:\d+\)", noted["CONSUME_FAIL_REASON"])
    assert "@" in noted["CONSUME_FAIL_CLIENT"] and noted["CONSUME_FAIL_TIME"].isdigit()
    assert properties == {
        "UNIQ_KEY": "key-1", "TAGS": "A", "RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "key-1", "DELAY": "3",
    }  # fmt: skip
    assert group.broker.committed["g", "t", 0] == 1


@pytest.mark.parametrize("body", [zlib.compress(b"good" * 2_000), b"no zlib at all"])
async def test_a_compressed_body_is_sent_to_the_retry_topic_as_it_is(group: Group, body: bytes) -> None:
    """Whether it can be read or not: else a broken one would come back for ever."""

    def handle(message: MessageExt) -> None:
        raise ZeroDivisionError(message.body)

    flag = COMPRESSIONS["zlib"]
    group.broker.queues["t", 0] = [record("t", 0, 0, body, sys_flag=flag)]
    async with group.consumer(handler=handle) as consumer:
        await until(lambda: consumer.failed == 1 and consumer.cached == 0)
    (sent,) = group.sent
    assert (sent["body"], int(sent["f"])) == (body, flag)


async def test_what_no_broker_takes_is_kept_and_handled_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT_S", 0.005)
    times: list[int] = []

    def handle(message: MessageExt) -> None:
        times.append(message.reconsume_times)
        if len(times) < 3:
            raise ZeroDivisionError

    group.refuses = True
    group.broker.put("t", 0, b"bad", b"good")
    async with group.consumer(handler=handle, concurrency=1) as consumer:
        await until(lambda: consumer.consumed == 2)
    assert sorted(times) == [0, 0, 1, 1]
    assert group.broker.committed["g", "t", 0] == 2


async def test_offsets_are_committed_again_after_each_change_of_the_group(group: Group) -> None:
    """A late commit of a former owner has set the offset back, and no message comes that would move it."""
    group.broker.put("t", 0, b"a", b"b")
    async with group.consumer(handler=lambda message: None, commit_interval_ms=20) as consumer:
        await until(lambda: group.broker.committed.get(("g", "t", 0)) == 2)
        group.broker.committed["g", "t", 0] = 1
        consumer._parts.member.members_changed()
        await until(lambda: group.broker.committed["g", "t", 0] == 2)


async def test_the_queues_of_another_member_are_left_to_it(group: Group) -> None:
    async with group.consumer(handler=lambda message: None) as consumer:
        await until(lambda: len(consumer.queues) == 3)
        group.others = ["~last"]
        consumer._parts.member.members_changed()
        await until(lambda: consumer.queues == [queue(0, "%RETRY%g"), queue(0)])
        group.others = []
        consumer._parts.member.members_changed()
        await until(lambda: len(consumer.queues) == 3)


async def test_only_locked_queues_are_consumed_in_order_and_lost_ones_are_given_up(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "RENEW_INTERVAL_S", 0.01)
    got: list[bytes] = []
    group.locked = [queue(0)]
    group.broker.put("t", 0, b"0")
    group.broker.put("t", 1, b"1")
    async with group.consumer(handler=lambda message: got.append(message.body), orderly=True) as consumer:
        await until(lambda: got == [b"0"])
        assert consumer.queues == [queue(0)]
        group.locked = [queue(1)]
        await until(lambda: consumer.queues == [queue(1)])
        await until(lambda: got == [b"0", b"1"])
        group.broker.put("t", 0, b"2")
        group.locked = [queue(0)]
        await until(lambda: consumer.queues == [queue(0)])


async def test_flow_control_bounds_what_is_in_memory(group: Group) -> None:
    """Each queue may have ten messages in memory; a stuck handler lets it fill, and no more is pulled."""
    release = trio.Event()

    async def handle(message: MessageExt) -> None:
        await release.wait()

    group.broker.put("t", 0, *[b"x"] * PUSHED)
    async with group.consumer(handler=handle, concurrency=2, max_queue_messages=10, pull_count=4) as consumer:
        await until(lambda: consumer.cached == 10)
        pulls = len([1 for pull in group.broker.asked(11) if (pull.ext or {})["queueId"] in (0, "0")])
        await until(lambda: len(group.broker.asked(11)) > 2 * pulls + 4)
        assert consumer.cached == consumer.pulled == 10
        release.set()
        await until(lambda: consumer.consumed == PUSHED)
    assert group.broker.committed["g", "t", 0] == PUSHED


async def test_a_handler_that_does_not_end_does_not_keep_a_stopping_consumer_from_committing(group: Group) -> None:
    async def handle(message: MessageExt) -> None:
        if message.body == b"stuck":
            await trio.sleep_forever()

    group.broker.put("t", 0, b"a", b"b", b"stuck")
    async with group.consumer(handler=handle, commit_interval_ms=60_000, stop_timeout_ms=20) as consumer:
        await until(lambda: consumer.consumed == 2)
        # The first round has committed where it began.
        await until(lambda: group.broker.committed.get(("g", "t", 0)) is not None)
    assert group.broker.committed["g", "t", 0] == 2


@pytest.mark.parametrize("handler", [lambda: None, lambda message, context: None, lambda *, message: None, "handle", 5])
def test_a_handler_that_cannot_be_called_is_refused_when_the_consumer_is_made(handler: Any) -> None:
    for name in ("handler", "batch_handler"):
        with pytest.raises(TypeError, match=f"^{name} "):
            PushConsumer("127.0.0.1:1", group="g", subscriptions={"T": "*"}, **{name: handler})


@pytest.mark.parametrize("handler", [print, lambda message, context=None: None, lambda *messages: None, [].append])
def test_a_handler_that_can_be_called_is_taken(handler: Any) -> None:
    PushConsumer("127.0.0.1:1", group="g", subscriptions={"T": "*"}, handler=handler)
