"""PushConsumer with a group that the broker says consumes by pop."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark import Admin, ConsumeFrom, Producer, PullConsumer, PushConsumer
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer import popped, popping
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.popped import Lease, ReceivedMessage
from skylark.sdk.consumer.popping import PopBatch, Popping
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import FlowControl, Ready
from skylark.sdk.consumer.rates import Rates
from skylark.sdk.consumer.window import Window
from skylark.sdk.endpoint import Endpoint
from tests.sdk import fakes
from tests.sdk.consumer.test_workers import Scripted, settings_of
from tests.sdk.fakes import until
from tests.support.in_process import Servers, until_known
from tests.support.waiting import DEADLINE_S

FIRST = ConsumeFrom.FIRST_OFFSET
ANY = MessageQueue("t", "broker-a", -1)
LEASE = Lease("t", "g", "broker-a", 0, 0, 0, 60_000, 0, "0")


async def set_mode(cluster: Servers, mode: str) -> None:
    async with Admin(cluster.nameserver) as admin:
        assert mode in ("POP", "PULL")
        await admin.set_consume_mode(cluster.broker, "t", "g", "POP" if mode == "POP" else "PULL")


async def send(cluster: Servers, *bodies: bytes, tags: str | None = None) -> None:
    async with Producer(cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message("t", body, tags=tags))


async def committed(cluster: Servers) -> int:
    async with PullConsumer(cluster.nameserver, group="g") as consumer:
        return sum([await consumer.committed_offset(mq) or 0 for mq in await consumer.message_queues("t")])


async def test_members_share_all_queues_and_each_message_is_handled_once(cluster: Servers) -> None:
    await set_mode(cluster, "POP")
    await send(cluster, *(b"%d" % number for number in range(40)), tags="A")
    await send(cluster, b"other", tags="B")
    got: list[tuple[str, bytes]] = []

    def consumer(name: str) -> PushConsumer:
        return PushConsumer(
            cluster.nameserver, group="g", subscriptions={"t": "A"}, consume_from=FIRST,
            handler=lambda message: got.append((name, message.body)),
        )  # fmt: skip

    async with consumer("a") as first, consumer("b") as second:
        await until(lambda: len(got) == 40)
        await until(lambda: ANY in first.queues and ANY in second.queues)
        await send(cluster, *(b"%d" % number for number in range(40, 60)), tags="A")
        await until(lambda: len(got) == 60)
        assert first.consumed + second.consumed == 60
        await until(lambda: first.cached == second.cached == 0)
    assert Counter(body for _, body in got) == Counter(b"%d" % number for number in range(60))
    with trio.fail_after(DEADLINE_S):
        while await committed(cluster) < 61:  # noqa: ASYNC110  the broker commits once its check points are safe
            await trio.sleep(0.05)


async def test_what_a_handler_fails_on_comes_again_and_then_is_a_dead_letter(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "PAUSES_S", (1,))
    await set_mode(cluster, "POP")
    await send(cluster, b"bad", b"good")
    got: list[tuple[bytes, int, str]] = []

    def handle(message: MessageExt) -> None:
        got.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"bad":
            raise ZeroDivisionError

    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "*"}, consume_from=FIRST, handler=handle,
        max_reconsume_times=1,
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.failed == 2 and consumer.cached == 0)
    assert sorted(got) == [(b"bad", 0, "t"), (b"bad", 1, "t"), (b"good", 0, "t")]
    async with Admin(cluster.nameserver) as admin:
        await until_known(admin, "%DLQ%g")
    async with PullConsumer(cluster.nameserver, group="reader", consume_from=FIRST) as reader:
        (mq,) = await reader.message_queues("%DLQ%g")
        assert [message.body for message in (await reader.pull(mq, 0)).messages] == [b"bad"]


async def test_a_lease_is_renewed_while_the_handler_works_and_the_new_one_is_acknowledged(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "LEASE_CHECK_S", 0.05)
    monkeypatch.setattr(popping, "RENEW_S", 0.0)
    acknowledged: list[Lease] = []
    plain = popped.acknowledge

    async def acknowledge(at: Endpoint, bits: Mapping[Lease, int]) -> None:
        await plain(at, bits)
        acknowledged.extend(bits)

    monkeypatch.setattr(popped, "acknowledge", acknowledge)
    leases: list[Lease] = []

    async def handle(message: MessageExt) -> None:
        assert isinstance(message, ReceivedMessage)
        leases.append(message.lease)
        for _ in range(2):
            await until(lambda: message.lease != leases[-1])
            leases.append(message.lease)

    await set_mode(cluster, "POP")
    await send(cluster, b"slow")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "*"}, consume_from=FIRST, handler=handle
    ) as consumer:
        await until(lambda: consumer.consumed == 1 and bool(acknowledged))
    assert len(leases) == 3 and acknowledged[0] not in leases[:2]


class Unreachable:
    """The client of a broker that cannot be reached before ``until``: notes when it was asked and has answered."""

    timeout_ms = 3_000

    def __init__(self, until: float) -> None:
        self.instance = SimpleNamespace(backoff=Backoff(1, 1, Random(0)))
        self.answered: list[float] = []
        self._until = until

    async def ask_master(self, mq: MessageQueue, call: Any) -> Lease:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._until:
            raise RemotingError("no answer")
        self.answered.append(trio.current_time())
        return LEASE


async def test_a_renewal_that_no_broker_answers_is_tried_again_before_the_lease_is_over(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    began = trio.current_time()
    client: Any = Unreachable(began + 40)
    context = PushContext(client, settings_of(lambda _: None), Problems())
    flow = FlowControl(context.settings, context.clock, Rates())
    one = Popping(context, cast(Any, None), flow, Ready(), cast(Any, None))
    await nursery.start(one.run)
    message = ReceivedMessage(fakes.record("t", 0, 0, b"x"), 0, "broker-a", LEASE, "")
    PopBatch(Window(ANY, 0), [message], lambda _: None, one._live)
    await trio.sleep(popping.INVISIBLE_MS / 1000)
    assert len(client.answered) == 1
    nursery.cancel_scope.cancel()


async def test_messages_whose_handler_was_not_called_before_the_queue_was_given_up_are_left_to_others(
    cluster: Servers,
) -> None:
    await set_mode(cluster, "POP")
    await send(cluster, *(b"%d" % number for number in range(4)))
    handlers = Scripted()
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "*"}, consume_from=FIRST, handler=handlers
    ) as consumer:
        leased = consumer._parts.popping._live
        await until(lambda: len(handlers.jobs) == 4)
        await consumer.unsubscribe("t")
        await until(lambda: ANY not in consumer.queues)
        assert sum(batch.left for batch in leased) == 4
        handlers.end(handlers.jobs.popleft())
        handlers.stop()
        await until(lambda: not leased)
        assert consumer.consumed == 1


async def test_a_group_changes_between_pull_and_pop_while_it_runs(cluster: Servers) -> None:
    got: list[bytes] = []

    def consumer() -> PushConsumer:
        return PushConsumer(
            cluster.nameserver, group="g", subscriptions={"t": "*"}, consume_from=FIRST,
            handler=lambda message: got.append(message.body),
        )  # fmt: skip

    def of_topic(one: PushConsumer) -> list[int]:
        return [mq.queue_id for mq in one.queues if mq.topic == "t"]

    async with consumer() as first:
        await until(lambda: of_topic(first) == [0, 1, 2, 3])
        await send(cluster, *(b"%d" % number for number in range(20)))
        await until(lambda: len(got) == 20)
        await set_mode(cluster, "POP")
        # Members look again when their number changes.
        async with consumer() as second:
            await until(lambda: of_topic(first) == of_topic(second) == [-1])
            await send(cluster, *(b"%d" % number for number in range(20, 40)))
            await until(lambda: len(set(got)) == 40)
            await set_mode(cluster, "PULL")
        await until(lambda: of_topic(first) == [0, 1, 2, 3])
        await send(cluster, *(b"%d" % number for number in range(40, 60)))
        await until(lambda: len(set(got)) == 60)
    # While the mode changes, a message that is pulled by one member may be popped by another, and the other way round.
    assert set(got) == {b"%d" % number for number in range(60)}


@pytest.mark.parametrize("how", [{"orderly": True}, {"broadcast": True}])
async def test_orderly_and_broadcasting_consumers_pull_all_the_same(
    cluster: Servers, how: dict[str, bool], tmp_path: Path
) -> None:
    await set_mode(cluster, "POP")
    async with PushConsumer(
        cluster.nameserver, group="g", subscriptions={"t": "*"}, handler=lambda message: None,
        local_offsets_dir=str(tmp_path / "offsets"), **how,
    ) as consumer:  # fmt: skip
        await until(lambda: [mq.queue_id for mq in consumer.queues if mq.topic == "t"] == [0, 1, 2, 3])
