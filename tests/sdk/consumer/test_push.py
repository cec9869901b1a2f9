"""PushConsumer against a broker of ours: what handlers get, and what becomes of what they do not consume."""

import logging
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark import Admin, Client, ConsumeFrom, ConsumeResult, Later, Producer, PullConsumer, PushConsumer
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import ConsumeStatus
from skylark.sdk.consumer.push import CrossingMessages
from skylark.sdk.consumer.reader import PullResult, Reader
from skylark.sdk.runtime import local_ip
from tests.sdk.consumer.push_cluster import QUEUES
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known
from tests.support.waiting import DEADLINE_S


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def send(cluster: Servers, *bodies: bytes, topic: str = "t", tags: str | None = None) -> None:
    async with Producer(cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags))


async def test_each_message_is_handled_once_and_the_next_member_goes_on(cluster: Servers) -> None:
    got: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        got.append(message.body)

    def handle_plainly(message: MessageExt) -> ConsumeResult:
        got.append(message.body)
        return ConsumeResult.SUCCESS

    for number, handler in enumerate((handle, handle_plainly)):
        await send(cluster, *numbered(50, 50 * number))
        async with PushConsumer(cluster.nameserver, group="g", subscriptions={"t": "*"}, handler=handler) as consumer:
            await until(lambda: consumer.consumed >= 50)
            assert (consumer.pulled, consumer.consumed, consumer.failed, consumer.cached) == (50, 50, 0, 0)
    assert sorted(got, key=int) == numbered(100)


async def test_handlers_come_before_the_next_pull(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    pull = Reader.pull

    async def noted(self: Reader, mq: MessageQueue, offset: int, **more: Any) -> PullResult:
        if mq.topic == "one":
            events.append(f"pull at {offset}")
        return await pull(self, mq, offset, **more)

    async def handle(message: MessageExt) -> None:
        events.append(f"message {message.queue_offset}")

    def has_events(count: int) -> bool:
        return len(events) == count

    monkeypatch.setattr(Reader, "pull", noted)
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle):
        await until(partial(has_events, 1))
        for _ in range(10):
            more = partial(has_events, len(events) + 2)
            await send(cluster, b"x", topic="one")
            await until(more)
    # In pairs, after the first pull: a message, and the pull for the next one.
    assert events[1:] == [text for n in range(10) for text in (f"message {n}", f"pull at {n + 1}")]


async def test_batches(cluster: Servers) -> None:
    got: list[list[bytes]] = []

    async def handle(messages: list[MessageExt]) -> None:
        got.append([message.body for message in messages])

    await send(cluster, *numbered(25), topic="one")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, batch_handler=handle, batch_size=10
    ) as consumer:
        await until(lambda: consumer.consumed == 25)
    assert [len(batch) for batch in got] == [10, 10, 5]
    assert [body for batch in got for body in batch] == numbered(25)


async def test_tags_and_topics_change_while_it_runs(cluster: Servers) -> None:
    got: list[bytes] = []
    await send(cluster, b"a", tags="A")
    await send(cluster, b"b", tags="B")
    await send(cluster, b"other", topic="one")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "A"}, handler=lambda message: got.append(message.body)
    ) as consumer:
        await until(lambda: got == [b"a"])
        await consumer.subscribe("one")
        await until(lambda: got == [b"a", b"other"])
        await consumer.unsubscribe("t")
        await until(lambda: {mq.topic for mq in consumer.queues} == {"one", "%RETRY%g"})


async def test_queues_are_shared_and_taken_over(cluster: Servers) -> None:
    """By a notice: no member waits for the next regular round."""

    def handler(message: MessageExt) -> None:
        pass

    def member() -> PushConsumer:
        return PushConsumer(cluster.nameserver, group="g", subscriptions={"t": "*"}, handler=handler)

    def own(consumer: PushConsumer) -> set[int]:
        return {mq.queue_id for mq in consumer.queues if mq.topic == "t"}

    async with member() as first:
        await until(lambda: len(own(first)) == QUEUES)
        async with member() as second:
            await until(lambda: len(own(first)) == len(own(second)) == QUEUES // 2)
            assert not own(first) & own(second)
        await until(lambda: len(own(first)) == QUEUES)


async def test_what_fails_comes_again_with_its_topic_and_becomes_a_dead_letter(
    cluster: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[bytes, str, int]] = []

    async def handle(message: MessageExt) -> Later | None:
        seen.append((message.body, message.topic, message.reconsume_times))
        if message.body == b"bad":
            raise ZeroDivisionError
        return Later(delay_level=1) if message.reconsume_times == 0 else None

    await send(cluster, b"bad", b"later")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "*"}, handler=handle, max_reconsume_times=1
    ) as consumer:
        await until(lambda: len(seen) == 4 and consumer.failed == 3)
        assert sorted(seen) == [(b"bad", "t", 0), (b"bad", "t", 1), (b"later", "t", 0), (b"later", "t", 1)]
    assert "ZeroDivisionError" in caplog.text
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
    async with PullConsumer(cluster.nameserver) as reader:
        (mq,) = await reader.message_queues("%DLQ%g")
        (dead,) = (await reader.pull(mq, 0, wait_ms=10_000)).messages
        assert dead.body == b"bad"


async def test_messages_of_a_stream_are_acknowledged(cluster: Servers) -> None:
    got: list[tuple[bytes, int]] = []
    await send(cluster, b"a", b"b", topic="one")
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}) as consumer:
        async for message in consumer:
            got.append((message.body, message.reconsume_times))
            if message.body == b"a" and not message.reconsume_times:
                await message.nack(delay_level=1)
            else:
                await message.ack()
            if len(got) == 3:
                break
    assert got == [(b"a", 0), (b"b", 0), (b"a", 1)]


async def test_tasks_that_share_a_stream_work_side_by_side_on_what_one_pull_brings(cluster: Servers) -> None:
    begun: list[bytes] = []
    all_begun = trio.Event()

    async def work() -> None:
        message = await anext(consumer)
        begun.append(message.body)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        await message.ack()

    async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}) as consumer:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery, Producer(cluster.nameserver) as producer:
                for _ in range(3):
                    nursery.start_soon(work)
                await producer.send_many("one", [b"a", b"b", b"c"])
    assert begun == [b"a", b"b", b"c"]


class Pulls:
    """A consumer whose pulls are what the test puts into ``pulls``; an empty one is the end."""

    def __init__(self) -> None:
        self.put, self._pulls = trio.open_memory_channel[list[Any]](10)

    async def take(self, most: int) -> list[Any]:
        return await self._pulls.receive()


async def test_those_who_wait_for_messages_that_cross_are_woken_for_one_each_and_one_goes_on(
    nursery: trio.Nursery,
) -> None:
    pulls, taken = Pulls(), CrossingMessages(cast(Any, SimpleNamespace(soon=None)))
    told: list[bool] = []

    async def fill(scope: trio.CancelScope) -> None:
        with scope:
            told.append(await taken.fill(cast(PushConsumer, pulls)))

    scopes = [trio.CancelScope() for _ in range(6)]
    for scope in scopes:
        nursery.start_soon(fill, scope)
        await trio.testing.wait_all_tasks_blocked()
    for pull, filled in (("ab", 2), ("c", 3)):
        pulls.put.send_nowait(list(pull))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [True] * filled
        taken._messages.clear()
    scopes[0].cancel()
    await trio.testing.wait_all_tasks_blocked()
    pulls.put.send_nowait(["d"])
    await trio.testing.wait_all_tasks_blocked()
    assert told == [True] * 4
    taken._messages.clear()
    pulls.put.send_nowait([])
    await trio.testing.wait_all_tasks_blocked()
    assert told == [True] * 4 + [False]


async def test_what_is_not_acknowledged_in_time_is_delivered_again(cluster: Servers) -> None:
    await send(cluster, b"a", topic="one")
    async with (
        PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, consume_timeout_ms=100
        ) as consumer,
        Admin(cluster.nameserver) as admin,
    ):  # fmt: skip
        kept = await anext(consumer)
        again = await anext(consumer)
        await kept.ack()
        assert (again.body, again.reconsume_times, consumer.failed, consumer.consumed) == (b"a", 1, 1, 0)
        await again.ack()
        rates = (await admin.consumer_running_info("g", consumer._client.instance.client_id)).status_table
        assert (rates["one"].consume_failed_msgs, rates["one"].consume_ok_tps) == (1, 0)
        assert rates["%RETRY%g"].consume_ok_tps > 0 and rates["%RETRY%g"].consume_rt > 0


async def test_what_is_not_acknowledged_is_delivered_to_the_next(cluster: Servers) -> None:
    await send(cluster, b"a", b"b", b"c", topic="one")
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}) as consumer:
        first, second = await anext(consumer), await anext(consumer)
        assert (first.body, second.body) == (b"a", b"b")
        await first.ack()
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}) as consumer:
        assert (await anext(consumer)).body == b"b"


async def test_order_is_kept_over_failures_and_members(cluster: Servers) -> None:
    got: list[bytes] = []
    failed: list[bytes] = []

    async def handle(message: MessageExt) -> ConsumeResult:
        await trio.lowlevel.checkpoint()
        if message.body in (b"3", b"7") and message.body not in failed:
            failed.append(message.body)
            if message.body == b"3":
                raise ZeroDivisionError
            return ConsumeResult.SUSPEND
        got.append(message.body)
        return ConsumeResult.SUCCESS

    def member() -> PushConsumer:
        return PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, orderly=True, suspend_ms=1
        )

    await send(cluster, *numbered(10), topic="one")
    async with member() as first:
        await until(lambda: len(got) >= 5)
    async with member() as second:
        await until(lambda: first.consumed + second.consumed == 10)
        assert first.failed + second.failed == 1
    assert got == numbered(10)


async def test_an_orderly_message_that_always_fails_lets_the_others_pass_in_the_end(
    cluster: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []

    def handle(message: MessageExt) -> None:
        if message.body == b"0":
            raise ZeroDivisionError
        got.append(message.body)

    await send(cluster, *numbered(3), topic="one")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, orderly=True, suspend_ms=1,
        max_reconsume_times=2,
    ) as consumer:  # fmt: skip
        await until(lambda: got == [b"1", b"2"])
        assert consumer.failed == 3
    said = [
        re.split(r"; | \(", record.getMessage())[1] for record in caplog.records if "failed with" in record.getMessage()
    ]
    again = "the message is tried again in 1 ms, and its queue waits for it"
    assert said == [again, again, "the message goes to %DLQ%g, after 3 failures"]


async def test_all_members_of_a_broadcast_get_everything_and_go_on_after_a_restart(
    cluster: Servers, tmp_path: Path
) -> None:
    got: dict[str, list[bytes]] = {"x": [], "y": []}

    def member(name: str) -> PushConsumer:
        return PushConsumer(
            cluster.nameserver, group="g", subscriptions={"t": "*"}, broadcast=True, instance_name=name,
            consume_from=ConsumeFrom.FIRST_OFFSET, local_offsets_dir=str(tmp_path),
            handler=lambda message: got[name].append(message.body),
        )  # fmt: skip

    await send(cluster, *numbered(8))
    async with member("x"), member("y"):
        await until(lambda: len(got["x"]) == len(got["y"]) == 8)
        with pytest.raises(InvalidArgument, match="instance_name"):
            await member("x").__aenter__()
    await send(cluster, b"new")
    async with member("x"):
        await until(lambda: len(got["x"]) == 9)
    assert got["x"][-1] == b"new"
    assert (tmp_path / f"{local_ip()}@x" / "g" / "offsets.json").is_file()


async def test_who_hears_late_of_a_change_does_not_set_the_group_back(cluster: Servers) -> None:
    """Another member has had the queue meanwhile, and has committed what it consumed."""
    release = trio.Event()

    async def handle(message: MessageExt) -> None:
        await release.wait()

    await send(cluster, b"1", b"2", b"3", topic="one")
    async with PullConsumer(cluster.nameserver, group="g", heartbeat=False) as other:
        (mq,) = await other.message_queues("one")
        async with PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, concurrency=1
        ) as consumer:
            await until(lambda: consumer.cached == 3)
            await other.commit_offset(mq, 3)
            release.set()
        assert consumer.consumed < 3
        assert await other.committed_offset(mq) == 3


async def test_a_group_that_is_set_back_commits_what_it_consumed_since(cluster: Servers) -> None:
    """If what it has in memory were committed, a crash now would skip the rest."""
    got: list[bytes] = []
    release = [trio.Event(), trio.Event()]

    async def handle(message: MessageExt) -> None:
        got.append(message.body)
        if message.body == b"2":
            await release[got.count(b"2") - 1].wait()

    async def until_committed(wanted: int) -> None:
        while await reader.committed_offset(mq) != wanted:
            await trio.lowlevel.checkpoint()

    await send(cluster, b"1", b"2", b"3", topic="one")
    async with (
        PullConsumer(cluster.nameserver, group="g", heartbeat=False) as reader,
        Admin(cluster.nameserver) as admin,
        PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, concurrency=1,
            commit_interval_ms=20,
        ) as consumer,
    ):  # fmt: skip
        (mq,) = await reader.message_queues("one")
        await until_committed(1)
        await admin.reset_offsets("g", "one", 0)
        await until_committed(0)
        await until(lambda: consumer.pulled == 6)
        release[0].set()
        await until_committed(1)
        release[1].set()
        await until_committed(3)
    assert got == [b"1", b"2", b"1", b"2", b"3"]


async def test_a_cancelled_block_lets_handlers_finish_and_commits(cluster: Servers) -> None:
    started, finished = trio.Event(), trio.Event()

    async def handle(message: MessageExt) -> None:
        started.set()
        await trio.sleep(0.05)
        finished.set()

    await send(cluster, b"a", topic="one")
    with trio.CancelScope() as scope:
        async with PushConsumer(cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle):
            await started.wait()
            scope.cancel()
            await trio.sleep_forever()
    assert finished.is_set()
    async with PullConsumer(cluster.nameserver, group="g") as reader:
        (mq,) = await reader.message_queues("one")
        assert await reader.committed_offset(mq) == 1


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_comes_again(cluster: Servers) -> None:
    times: list[int] = []

    async def handle(message: MessageExt) -> None:
        times.append(message.reconsume_times)
        if len(times) == 1:
            await trio.sleep_forever()

    await send(cluster, b"a", topic="one")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_timeout_ms=50
    ) as consumer:
        await until(lambda: consumer.consumed == 1)
    assert times == [0, 1]


async def test_a_paused_topic_is_not_pulled(cluster: Servers) -> None:
    got: list[bytes] = []
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=lambda message: got.append(message.body)
    ) as consumer:
        await consumer.pause("one")
        await until(lambda: len(consumer.queues) == 2)
        await send(cluster, b"a", topic="one")
        assert got == []
        await consumer.resume("one")
        await until(lambda: got == [b"a"])


async def test_offsets_are_reset_and_status_is_told(cluster: Servers) -> None:
    got: list[bytes] = []
    await send(cluster, *numbered(5), topic="one")
    async with (
        PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=lambda message: got.append(message.body)
        ) as consumer,
        Admin(cluster.nameserver) as admin,
    ):
        await until(lambda: consumer.consumed == 5)
        (mq,) = [mq for mq in consumer.queues if mq.topic == "one"]
        member = consumer._parts.member
        assert member.queue_offsets("one") == {mq: 5}
        member.reset_offsets("one", {mq: 3})
        await until(lambda: len(got) == 7)
        assert got[5:] == [b"3", b"4"]
        info = await admin.consumer_running_info("g", consumer._client.instance.client_id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.mq_table[mq].cached_msg_count == 0
        rates = info.status_table
        assert rates.keys() == {"one", "%RETRY%g"} and rates["%RETRY%g"] == ConsumeStatus()
        assert rates["one"].pull_rt > 0 and rates["one"].pull_tps >= rates["one"].consume_ok_tps > 0
        assert rates["one"].consume_rt > 0 and rates["one"].consume_failed_msgs == 0
        assert (await admin.consumer_connection("g")).subscription_table["one"].sub_string == "*"


async def test_wrong_arguments_are_refused(cluster: Servers) -> None:
    def handle(message: MessageExt) -> None:
        pass

    wrong = [
        ({"handler": handle, "batch_handler": handle}, "not both"),
        ({"orderly": True}, "needs a handler"),
        ({"handler": handle, "orderly": True, "broadcast": True}, "exclude"),
        ({"handler": handle, "consume_from": ConsumeFrom.TIMESTAMP}, "consume_timestamp_ms"),
        ({"handler": handle, "strategy": "best"}, "averagely"),
        ({"handler": handle, "subscriptions": {"t": "||"}}, "names no tag"),
        ({"handler": handle, "subscriptions": {"a b": "*"}}, "illegal"),
    ]
    for named, text in wrong:
        with pytest.raises(InvalidArgument, match=text):
            PushConsumer(cluster.nameserver, group="g", **{"subscriptions": {"t": "*"}, **named})
    async with (
        Client(cluster.nameserver) as client,
        PushConsumer(client, group="g", subscriptions={"t": "*"}, handler=handle),
    ):
        with pytest.raises(InvalidArgument, match="already has a consumer"):
            await PushConsumer(client, group="g", subscriptions={"t": "*"}, handler=handle).__aenter__()


async def test_a_new_group_begins_where_it_was_told(cluster: Servers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await send(cluster, *numbered(4), topic="one")
    async with PullConsumer(cluster.nameserver) as reader:
        (mq,) = await reader.message_queues("one")
        stored = (await reader.pull(mq, 0)).messages
    times = [message.store_timestamp for message in stored]
    cases = [
        (ConsumeFrom.FIRST_OFFSET, None, 0),
        (ConsumeFrom.LAST_OFFSET, None, 0),  # a queue that still has its first message
        (ConsumeFrom.TIMESTAMP, times[2], times.index(times[2])),
        (ConsumeFrom.TIMESTAMP, times[-1] + 1000, 4),
    ]
    for number, (consume_from, timestamp_ms, first) in enumerate(cases):
        got: list[int] = []
        async with PushConsumer(
            cluster.nameserver, group=f"g{number}", subscriptions={"one": "*"}, consume_from=consume_from,
            consume_timestamp_ms=timestamp_ms, handler=lambda message, got=got: got.append(message.queue_offset),
        ) as consumer:  # fmt: skip
            await until(lambda consumer=consumer: mq in consumer.queues)
            await until(lambda consumer=consumer: consumer._parts.member.queue_offsets("one") == {mq: 4})
        assert got == list(range(first, 4))


@pytest.mark.parametrize(("length", "namespace"), [(249, ""), (255, ""), (245, "shop")])
def test_a_group_that_could_not_give_a_message_back_is_refused(length: int, namespace: str) -> None:
    made = partial(PushConsumer, "127.0.0.1:1", subscriptions={"t": "*"}, handler=print, namespace=namespace)
    with pytest.raises(InvalidArgument, match=r"too long to give a message back: .* may have 248 characters"):
        made(group="g" * length)
    made(group="g" * length, broadcast=True)
    made(group="g" * (248 - len(namespace and f"{namespace}%")))
