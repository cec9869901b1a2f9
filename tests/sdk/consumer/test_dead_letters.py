"""What becomes of messages that a handler fails on, as a retry policy says, and what dead letters tell of it."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from skylark import (
    Admin,
    ConsumeFrom,
    ConsumeResult,
    InvalidArgument,
    Later,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryPolicy,
)
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known
from tests.support.waiting import DEADLINE_S


class BadOrderError(ValueError):
    """A message that no further try helps."""


class OldNewsError(Exception):
    """A message that nobody needs any more."""


async def send(cluster: Servers, *bodies: bytes, topic: str = "one") -> None:
    async with Producer(cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


def consumer(cluster: Servers, handler: Callable[[MessageExt], Any], **more: Any) -> PushConsumer:
    return PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handler,
        consume_from=ConsumeFrom.FIRST_OFFSET, **more,
    )  # fmt: skip


async def dead_letters(cluster: Servers, count: int) -> list[MessageExt]:
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
    found: list[MessageExt] = []
    async with PullConsumer(cluster.nameserver) as reader:
        (mq,) = await reader.message_queues("%DLQ%g")
        while len(found) < count:
            found += (await reader.pull(mq, len(found), wait_ms=10_000)).messages
    return found


def note_of(message: MessageExt) -> FailureNote:
    note = FailureNote.of(message.properties)
    assert note is not None
    return note


async def pop(cluster: Servers) -> None:
    """The group pops from now on."""
    async with Admin(cluster.nameserver) as admin:
        await admin.create_group(cluster.broker, SubscriptionGroupConfig("g"))
        await admin.set_consume_mode(cluster.broker, "one", "g", "POP")


@pytest.mark.parametrize("way", ["concurrent", "orderly", "popped"])
async def test_an_exception_makes_a_dead_letter_at_once_and_its_queue_goes_on(cluster: Servers, way: str) -> None:
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise BadOrderError("no\namount")

    if way == "popped":
        await pop(cluster)
    await send(cluster, b"bad", b"good")
    policy = RetryPolicy(dead_letter_on=BadOrderError)
    async with consumer(cluster, handle, retry=policy, orderly=way == "orderly") as made:
        await until(lambda: made.consumed == 1 and made.failed == 1 and made.cached == 0)
        client_id = made._client.instance.client_id
    assert sorted(seen) == [b"bad", b"good"], "no second try"
    (dead,) = await dead_letters(cluster, 1)
    note = note_of(dead)
    assert dead.body == b"bad" and dead.properties["RETRY_TOPIC"] == "one"
    assert note.reason.startswith(f"{__name__}.BadOrderError: no amount (test_dead_letters.py:")
    assert note.client == client_id
    assert 0 <= dead.store_timestamp - note.time_ms < 60_000


@pytest.mark.parametrize("way", ["concurrent", "orderly", "popped"])
async def test_a_dropped_message_is_logged_and_counted(
    cluster: Servers, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: MessageExt) -> None:
        if message.body == b"old":
            raise OldNewsError("of yesterday")

    if way == "popped":
        await pop(cluster)
    await send(cluster, b"old", b"new", b"old")
    async with consumer(cluster, handle, retry=RetryPolicy(drop_on=OldNewsError), orderly=way == "orderly") as made:
        await until(lambda: made.consumed == 1 and made.dropped == 2 and made.cached == 0)
        assert made.failed == 0
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("dropped message")]
    assert len(lines) == 2 and all("OldNewsError: of yesterday" in line for line in lines)
    async with Admin(cluster.nameserver) as admin:
        assert "%DLQ%g" not in await admin.topic_list()


async def test_the_last_reason_stays_when_the_attempts_are_over(cluster: Servers) -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> Later | ConsumeResult:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise BadOrderError("first")
        if message.reconsume_times == 1:
            return ConsumeResult.LATER
        return Later(reason="the shop is closed")

    await send(cluster, b"bad")
    async with consumer(cluster, handle, retry=RetryPolicy(attempts=3, delays_ms=[1])) as made:
        await until(lambda: made.failed == 3)
    assert seen == [0, 1, 2]
    (dead,) = await dead_letters(cluster, 1)
    assert note_of(dead).reason == "the shop is closed"


async def test_an_orderly_consumer_waits_for_the_pauses_of_its_policy(cluster: Servers) -> None:
    times: list[int] = []

    async def handle(message: MessageExt) -> None:
        times.append(message.reconsume_times)
        raise BadOrderError

    await send(cluster, b"bad")
    # With its suspend_ms the second try would not come within the time of a test.
    policy = RetryPolicy(attempts=3, delays_ms=[1])
    async with consumer(cluster, handle, retry=policy, orderly=True, suspend_ms=3_600_000) as made:
        await until(lambda: made.failed == 3)
    assert times == [0, 1, 2]
    assert "BadOrderError" in note_of((await dead_letters(cluster, 1))[0]).reason


async def test_a_popped_message_comes_again_after_the_pause_of_the_policy(cluster: Servers) -> None:
    times: list[int] = []

    async def handle(message: MessageExt) -> None:
        times.append(message.reconsume_times)
        raise BadOrderError

    await pop(cluster)
    await send(cluster, b"bad")
    # RocketMQ's first pause is 10 s, its second 30 s: the three tries would take longer than this test may.
    with trio.fail_after(DEADLINE_S):
        async with consumer(cluster, handle, retry=RetryPolicy(attempts=3, delays_ms=[1_000])) as made:
            await until(lambda: made.failed == 3 and made.cached == 0)
    assert times == [0, 1, 2]
    assert "BadOrderError" in note_of((await dead_letters(cluster, 1))[0]).reason


async def test_a_broadcast_has_no_dead_letters_but_tells_what_it_drops(
    cluster: Servers, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise BadOrderError
        if message.reconsume_times < 2:
            raise OldNewsError

    await send(cluster, b"bad", b"slow")
    policy = RetryPolicy(dead_letter_on=BadOrderError, attempts=3, delays_ms=[1])
    async with consumer(cluster, handle, retry=policy, broadcast=True, local_offsets_dir=str(tmp_path)) as made:
        await until(lambda: made.dropped == 1 and made.consumed == 1)
    assert sorted(seen) == [b"bad", b"slow", b"slow", b"slow"]
    assert "broadcasting has no dead letters" in caplog.text


async def test_a_stream_tells_why_it_refuses_a_message(cluster: Servers) -> None:
    await send(cluster, b"bad")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET,
        max_reconsume_times=0,
    ) as stream:  # fmt: skip
        async for message in stream:
            await message.nack(reason="not mine")
            break
    assert note_of((await dead_letters(cluster, 1))[0]).reason == "not mine"


async def test_a_policy_and_a_number_of_tries_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="give a retry policy, whose attempts say how often"):
        PushConsumer("127.0.0.1:1", group="g", subscriptions={}, retry=RetryPolicy(), max_reconsume_times=3)
    with pytest.raises(TypeError, match="retry must be a RetryPolicy"):
        PushConsumer("127.0.0.1:1", group="g", subscriptions={}, retry=3)  # type: ignore[arg-type]
