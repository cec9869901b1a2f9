"""Several users of one client: what they share, and what each has for itself."""

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import sdk
from mqcommon.errors import InvalidArgument, RequestTimeout, SkylarkError, UserError
from sdk import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from tests.sdk.fakes import Fake, queue
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.sdk.test_client import cluster, heartbeats


async def test_they_share_connections_routes_and_heartbeats() -> None:
    async with two_brokers() as (names, a, b), AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(names))
        first = await stack.enter_async_context(Producer(client, group="p"))
        second = await stack.enter_async_context(Producer(client, group="q"))
        consumer = await stack.enter_async_context(PullConsumer(client, group="c"))
        admin = await stack.enter_async_context(Admin(client))
        for number in range(4):
            await first.send(Message("t", b"first %d" % number))
            await second.send(Message("t", b"second %d" % number))
        assert len(await consumer.message_queues("t")) == 4
        assert await admin.broker_addr_of("broker-a") == a.addr
        assert len(bodies(a, b)) == 8
        for broker in (a, b):
            assert len(broker.channels) == 1
            await broker.wait_asked(34)
            told = heartbeats(broker)[-1]
            assert told.client_id == client.client_id
            assert {each.group_name for each in told.producer_data_set} == {"p", "q"}
            assert {each.group_name for each in told.consumer_data_set} == {"c"}


async def test_each_alone_has_its_own() -> None:
    async with cluster() as (namesrv, broker), Admin(namesrv.addr) as one, Admin(namesrv.addr) as other:
        for admin in (one, other):
            await admin.max_offset(queue())
        assert len(broker.channels) == 2


async def test_closing_one_leaves_its_group_and_the_others_go_on() -> None:
    async with cluster() as (namesrv, broker), Client(namesrv.addr) as client:
        broker.put("t", 0, b"a")
        async with PullConsumer(client, group="c") as consumer:
            async with Producer(client, group="p") as producer:
                async with Producer(client, group="p") as other:
                    assert await producer.queues("t") == await other.queues("t")
                    await broker.wait_asked(34)
                    await wait_all_tasks_blocked(0.05)
                with pytest.raises(SkylarkError, match="the client was closed"):
                    await other.queues("t")
                assert await producer.queues("t")
                assert not broker.asked(35), "the group still has a producer here"
            with pytest.raises(SkylarkError, match="the client was closed"):
                await producer.queues("t")
            assert left(broker) == [("p", None)]
            assert (await consumer.pull(queue(), 0)).messages[0].body == b"a"
        assert left(broker) == [("p", None), (None, "c")]
        async with PullConsumer(client, group="c") as consumer:
            assert (await consumer.pull(queue(), 0)).messages[0].body == b"a"


async def test_after_the_client_was_closed_all_of_them_say_so() -> None:
    async with cluster() as (namesrv, broker), trio.open_nursery() as nursery:
        client = Client(namesrv.addr)
        producer, consumer, admin = Producer(client), PullConsumer(client), Admin(client)
        for user in (producer, consumer, admin):
            with pytest.raises(RuntimeError, match="async with"):
                await user.__aenter__()

        async def use(user: Producer | PullConsumer | Admin, task_status: trio.TaskStatus[None]) -> None:
            async with user:
                task_status.started()
                await trio.sleep_forever()

        broker.put("t", 0, b"a")
        async with client:
            producer, consumer, admin = Producer(client), PullConsumer(client), Admin(client)
            for user in (producer, consumer, admin):
                await nursery.start(use, user)
            await producer.queues("t")
            await consumer.pull(queue(), 0)
            await admin.max_offset(queue())
        for call in (
            lambda: producer.send(Message("t", b"x")),
            lambda: producer.queues("t"),
            lambda: consumer.pull(queue(), 0),
            lambda: consumer.message_queues("t"),
            lambda: consumer.max_offset(queue()),
            lambda: consumer.commit_offset(queue(), 1),
            lambda: admin.max_offset(queue()),
            lambda: admin.topic_route("t"),
            lambda: admin.topic_list(),
            lambda: admin.broker_config(broker.addr),
        ):
            with pytest.raises(SkylarkError, match="the client was closed"):
                await call()  # type: ignore[no-untyped-call]
        nursery.cancel_scope.cancel()


async def test_what_waits_fails_when_its_producer_is_closed() -> None:
    async with two_brokers() as (names, a, _b), Client(names) as client, trio.open_nursery() as nursery:
        a.is_silent = True
        failed: list[str] = []

        async def send(producer: Producer, to: MessageQueue) -> None:
            with pytest.raises(SkylarkError) as caught:
                await producer.send(Message("t", b"x"), queue=to)
            failed.append(str(caught.value))

        async with Producer(names) as alone, Producer(client) as shared:
            first_queue = (await alone.queues("t"))[0]
            for producer in (alone, shared):
                nursery.start_soon(send, producer, first_queue)
            await a.wait_asked(310, 2)
            for producer in (alone, shared):
                for _ in range(3):
                    nursery.start_soon(send, producer, first_queue)
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        # The one on its way to a broker whose connection lives on gets its answer, or has its timeout.
        assert failed == ["the client was closed"] * 7
        nursery.cancel_scope.cancel()


async def test_a_group_has_one_consumer_in_a_client() -> None:
    async with cluster() as (namesrv, broker), Client(namesrv.addr) as client:
        broker.put("t", 0, b"a")
        async with PullConsumer(client, group="c") as first, PullConsumer(client, group="c", heartbeat=False) as reader:
            with pytest.raises(InvalidArgument, match="already has a consumer of group 'c'"):
                async with PullConsumer(client, group="c"):
                    pass
            for consumer in (first, reader):
                assert (await consumer.pull(queue(), 0)).messages[0].body == b"a"


async def test_each_has_its_own_timeout() -> None:
    async with (
        cluster() as (namesrv, broker),
        Client(namesrv.addr) as client,
        Admin(client, timeout_ms=20) as impatient,
        PullConsumer(client, timeout_ms=60_000) as patient,
    ):
        broker.on(30, lambda request: None)
        with pytest.raises(RequestTimeout):
            await impatient.max_offset(queue())
        broker.on(30, lambda request: {"offset": "7"})
        assert await patient.max_offset(queue()) == 7
        assert patient._client.at(broker.addr).timeout_ms == 60_000


async def test_a_client_without_nameservers_serves_an_admin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    async with cluster() as (_, broker), Client() as client, Admin(client) as admin:
        broker.on(321, lambda request: request.respond(1, "no such queue"))
        with pytest.raises(sdk.BrokerError, match="no such queue"):
            await admin.query_consume_queue(broker.addr, "t", 0, 0)
        for cls in (Producer, PullConsumer):
            with pytest.raises(UserError, match="no NameServer is given"):
                cls(client)


def left(broker: Fake) -> list[tuple[str | None, str | None]]:
    """The (producer group, consumer group) of each request that left one."""
    asked = [request.ext or {} for request in broker.asked(35)]
    return [(ext.get("producerGroup"), ext.get("consumerGroup")) for ext in asked]
