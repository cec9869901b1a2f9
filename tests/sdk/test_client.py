from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import skylark
from skylark import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from skylark.mqcommon.errors import (
    BrokerError,
    InvalidArgument,
    NoNameServer,
    RequestTimeout,
    RouteNotFound,
    SkylarkError,
    UserError,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.clients import ConsumerRunningInfo, HeartbeatData
from skylark.remoting.protocol.requests.routes import TOPIC_IS_AWAY
from skylark.sdk.client import HEARTBEAT_RETRY_S, LEAVE_TIMEOUT_S, ClientInstance
from tests.sdk.fakes import Fake, FakeBroker, FakeNamesrv, queue, serving
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.waiting import DEADLINE_S


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[FakeNamesrv, FakeBroker]]:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add("t", broker)
        yield namesrv, broker


def heartbeats(broker: Fake) -> list[HeartbeatData]:
    return [decode_body(HeartbeatData, request.body, request.codec) for request in broker.asked(34)]


# --- routes


async def test_a_route_is_asked_for_once_and_cached() -> None:
    async with cluster() as (namesrv, _), ClientInstance(namesrv.addr) as client:
        route = await client.route("t")
        assert route.writable == (queue(0), queue(1))
        assert await client.route("t") is route
        assert len(namesrv.asked(105)) == 1
        assert await client.refresh("t") is route
        assert len(namesrv.asked(105)) == 2


async def test_many_who_wait_share_one_request() -> None:
    async with cluster() as (namesrv, _), ClientInstance(namesrv.addr) as client:
        got = []

        async def ask() -> None:
            got.append(await client.refresh("t"))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
            # one of them gives up; the others must not notice
            with trio.move_on_after(0):
                await client.refresh("t")
        assert len(got) == 100
        assert len(namesrv.asked(105)) == 1


async def test_a_topic_that_nobody_knows() -> None:
    async with cluster() as (namesrv, _), ClientInstance(namesrv.addr) as client:
        with pytest.raises(RouteNotFound) as caught:
            await client.route("u")
        assert "u" in str(caught.value) and "updateTopic" in str(caught.value)
        assert client.routes.get("u") is None


async def test_a_route_outlives_the_nameservers() -> None:
    async with cluster() as (namesrv, _), ClientInstance(namesrv.addr) as client:
        route = await client.route("t")
        del namesrv.routes["t"]
        with pytest.raises(RouteNotFound):
            await client.refresh("t")
        assert await client.route("t") is route
        namesrv.stop()
        await wait_all_tasks_blocked()
        with pytest.raises(NoNameServer, match="or give the right addresses"):
            await client.refresh("t")
        assert await client.route("t") is route


async def test_routes_in_use_are_polled(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, _broker), ClientInstance(namesrv.addr) as client:
        before = await client.route("t")
        namesrv.routes["t"].queue_datas[0].write_queue_nums = 5
        mock_clock.jump(29)
        await wait_all_tasks_blocked(0.05)
        assert client.routes.get("t") is before
        mock_clock.jump(1)
        await namesrv.wait_asked(105, 2)
        await wait_all_tasks_blocked(0.05)
        now = client.routes.get("t")
        assert now is not None and len(now.writable) == 5


async def test_a_failed_poll_is_not_the_last(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, _broker), ClientInstance(namesrv.addr) as client:
        route = await client.route("t")
        namesrv.on(105, lambda request: request.respond(2, "busy"))
        for count in (2, 3):
            mock_clock.jump(30)
            await namesrv.wait_asked(105, count)
            await wait_all_tasks_blocked(0.05)
        assert client.routes.get("t") is route


async def test_damage_from_a_nameserver_is_an_error_and_no_crash() -> None:
    async with cluster() as (namesrv, _), ClientInstance(namesrv.addr) as client:
        namesrv.on(105, lambda request: request.respond(body=b"{not json"))
        with pytest.raises(SkylarkError):
            await client.refresh("t")
        namesrv.on(105, lambda request: namesrv.routes["t"])
        assert (await client.refresh("t")).writable


async def test_waiting_for_a_route_ends_when_the_client_closes(nursery: trio.Nursery) -> None:
    async with cluster() as (namesrv, _):
        namesrv.on(105, lambda request: None)
        caught: list[SkylarkError] = []

        async def ask() -> None:
            try:
                await client.route("t")
            except SkylarkError as error:
                caught.append(error)

        async with ClientInstance(namesrv.addr) as client:
            nursery.start_soon(ask)
            await namesrv.wait_asked(105)
        await wait_all_tasks_blocked()
        assert caught


# --- life


async def test_a_bad_nameserver_is_told_before_anything_starts() -> None:
    with pytest.raises(UserError, match="host:port"):
        ClientInstance("nonsense")


async def test_it_must_be_opened_and_only_once() -> None:
    client = ClientInstance("127.0.0.1:9876")
    with pytest.raises(RuntimeError, match="async with"):
        await client.route("t")
    async with client:
        with pytest.raises(RuntimeError, match="open already"):
            await client.__aenter__()


async def test_client_ids_differ() -> None:
    async with ClientInstance("h:1") as one, ClientInstance("h:1") as two:
        assert one.client_id != two.client_id
    ip, _, rest = one.client_id.partition("@")
    pid, _, number = rest.partition("#")
    assert ip.count(".") == 3 and pid.isdigit() and number.isdigit()


# --- groups


async def test_heartbeats_start_when_a_broker_is_known_and_go_on(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, broker), ClientInstance(namesrv.addr) as client:
        client.membership.join_producer("pg")
        await client.route("t")
        await broker.wait_asked(34)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(30)
        await broker.wait_asked(34, 2)
        for data in heartbeats(broker):
            assert data.client_id == client.client_id
            assert [producer.group_name for producer in data.producer_data_set] == ["pg"]


async def test_no_heartbeats_without_a_group(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, broker), ClientInstance(namesrv.addr) as client:
        await client.route("t")
        mock_clock.jump(31)
        await namesrv.wait_asked(105, 2)
        await wait_all_tasks_blocked(0.05)
        assert not broker.requests


async def test_producers_greet_masters_and_consumers_all_brokers() -> None:
    async with cluster() as (namesrv, master), serving(FakeBroker()) as slave:
        namesrv.routes["t"].broker_datas[0].broker_addrs[1] = slave.addr
        async with ClientInstance(namesrv.addr) as client:
            client.membership.join_producer("pg")
            await client.route("t")
            await master.wait_asked(34)
            await wait_all_tasks_blocked(0.05)
            assert not slave.requests
        async with PullConsumer(namesrv.addr, group="cg") as consumer:
            await consumer.message_queues("t")
            await slave.wait_asked(34)


async def test_a_consumer_tells_what_it_reads() -> None:
    async with (
        cluster() as (namesrv, broker),
        PullConsumer(namesrv.addr, group="cg", start_timeout_ms=None) as consumer,
    ):
        await consumer.pull(queue(), 0, expression="A || B")
        (request,) = await broker.wait_asked(34)
        (data,) = decode_body(HeartbeatData, request.body, request.codec).consumer_data_set
        assert (data.group_name, data.consume_type, data.message_model) == ("cg", "CONSUME_ACTIVELY", "CLUSTERING")
        (subscription,) = data.subscription_data_set
        assert (subscription.topic, subscription.sub_string, subscription.tags_set) == ("t", "A || B", ["A", "B"])
        await consumer.pull(queue(), 0)
        await wait_all_tasks_blocked(0.05)
        assert len(broker.asked(34)) == 1


async def test_a_broker_that_misses_a_heartbeat_gets_another_soon(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, broker), ClientInstance(namesrv.addr) as client:
        broker.on(34, lambda request: request.respond(2, "busy"))
        client.membership.join_producer("pg")
        await client.route("t")
        await broker.wait_asked(34)
        await wait_all_tasks_blocked(0.05)
        await client.refresh("t")
        await wait_all_tasks_blocked(0.05)
        assert len(broker.asked(34)) == 1
        mock_clock.jump(HEARTBEAT_RETRY_S)
        await broker.wait_asked(34, 2)
        broker.on(34, lambda request: {})
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(HEARTBEAT_RETRY_S)
        await broker.wait_asked(34, 3)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(HEARTBEAT_RETRY_S)
        await wait_all_tasks_blocked(0.05)
        assert len(broker.asked(34)) == 3


async def test_a_broker_that_came_back_is_greeted_when_the_route_is_asked_for() -> None:
    async with cluster() as (namesrv, broker), ClientInstance(namesrv.addr) as client:
        client.membership.join_producer("pg")
        await client.route("t")
        await broker.wait_asked(34)
        broker.close_connections()
        await wait_all_tasks_blocked(0.05)
        await client.refresh("t")
        await broker.wait_asked(34, 2)


async def test_groups_are_left_at_the_end() -> None:
    async with cluster() as (namesrv, broker):
        async with PullConsumer(namesrv.addr, group="cg") as consumer:
            await consumer.message_queues("t")
            await broker.wait_asked(34)
            await wait_all_tasks_blocked(0.05)
        request, *_ = broker.asked(35)
        assert request.ext is not None
        assert request.ext["consumerGroup"] == "cg" and "producerGroup" not in request.ext
        assert request.ext["clientID"] == heartbeats(broker)[0].client_id


async def test_a_group_that_is_left_while_a_heartbeat_is_on_its_way_is_unregistered_after_it() -> None:
    async with (
        cluster() as (namesrv, broker),
        Client(namesrv.addr) as client,
        PullConsumer(client, group="stays") as consumer,
    ):
        async with PullConsumer(client, group="left"):
            await consumer.message_queues("t")
            await broker.wait_asked(34)
            await wait_all_tasks_blocked(0.01)
            answered = len(broker.asked(34))
            broker.on(34, lambda request: None)
            client._instance.membership.join_producer("pg")
            client._instance.tell_brokers()
            late = (await broker.wait_asked(34, answered + 1))[-1]
        assert len(broker.asked(35)) == 1
        broker.channels[0].reply(late, late.respond())
        with trio.fail_after(DEADLINE_S):
            _, again = await broker.wait_asked(35, 2)
        assert again.ext is not None and again.ext["consumerGroup"] == "left"
        await wait_all_tasks_blocked(0.01)
        assert len(broker.asked(35)) == 2


async def test_a_frozen_broker_does_not_keep_a_client_from_closing(mock_clock: MockClock) -> None:
    async with cluster() as (namesrv, broker), trio.open_nursery() as nursery:
        broker.on(35, lambda request: None)

        async def come_and_go() -> None:
            async with ClientInstance(namesrv.addr) as client:
                client.membership.join_producer("pg")
                await client.route("t")
                await broker.wait_asked(34)
                await wait_all_tasks_blocked(0.05)

        nursery.start_soon(come_and_go)
        await broker.wait_asked(35)
        mock_clock.jump(LEAVE_TIMEOUT_S)


def test_groups_are_counted() -> None:
    membership = ClientInstance("h:1").membership
    membership.join_producer("g")
    membership.join_producer("g")
    assert not membership.leave_producer("g")
    assert membership.any
    assert membership.leave_producer("g")
    assert not membership.any


# --- what brokers ask


async def ask_back(broker: FakeBroker, code: int, **ext: str) -> Command:
    return await broker.channels[0].invoke(Command(code, dict(ext)), 5000)


async def test_a_consumer_says_what_it_does() -> None:
    async with cluster() as (namesrv, broker), PullConsumer(namesrv.addr, group="cg") as consumer:
        await consumer.pull(queue(), 0)
        answer = await ask_back(broker, 307, consumerGroup="cg", clientId="x", jstackEnable="false")
        info = decode_body(ConsumerRunningInfo, answer.body, answer.codec)
        assert info.properties["PROP_NAMESERVER_ADDR"] == namesrv.addr
        assert [subscription.topic for subscription in info.subscription_set] == ["t"]
        assert (await ask_back(broker, 307, consumerGroup="other", clientId="x")).code == 1


async def test_other_requests_of_brokers_do_no_harm() -> None:
    async with cluster() as (namesrv, broker), PullConsumer(namesrv.addr, group="cg") as consumer:
        await consumer.pull(queue(), 0)
        assert (await ask_back(broker, 40, consumerGroup="cg")).code == 0
        assert (await ask_back(broker, 40)).code == 0
        assert (await ask_back(broker, 220, group="cg", topic="t", timestamp="0", isForce="true")).code == 1
        assert (await ask_back(broker, 326)).code == 1
        assert (await ask_back(broker, 39)).code == 1
        assert (await consumer.pull(queue(), 0)).next_offset == 0


async def test_a_second_consumer_of_a_group_is_refused() -> None:
    async with PullConsumer("127.0.0.1:9876", group="cg", start_timeout_ms=None) as consumer:
        membership = consumer._instance.membership
        with pytest.raises(ValueError, match="cg"):
            membership.join_consumer("cg", consumer._member)
        membership.leave_consumer("cg")
        assert not membership.any


async def test_without_any_broker_a_missing_topic_is_not_what_is_wrong() -> None:
    async with serving(FakeNamesrv()) as namesrv, PullConsumer(namesrv.addr, start_timeout_ms=None) as consumer:
        for _ in range(2):
            with pytest.raises(RouteNotFound, match=f"topic t: no broker is registered at {namesrv.addr}: start one"):
                await consumer._client.instance.refresh("t")
        namesrv.on(106, lambda request: request.respond(1, "not ready"))
        with pytest.raises(
            RouteNotFound, match=f"topic t: no NameServer of {namesrv.addr} knows it; mqadmin updateTop"
        ):
            await consumer._client.instance.refresh("t")


async def test_the_brokers_of_a_topic_are_named_when_all_brokers_are_away() -> None:
    async with serving(FakeNamesrv()) as namesrv, PullConsumer(namesrv.addr, start_timeout_ms=None) as consumer:
        away = f"no such topic\n{TOPIC_IS_AWAY}broker-a, broker-b"
        namesrv.on(105, lambda request: request.respond(ResponseCode.TOPIC_NOT_EXIST, away))
        with pytest.raises(RouteNotFound, match=r"topic t: the brokers that have it are away: broker-a, broker-b$"):
            await consumer._client.instance.refresh("t")


async def test_an_answer_without_its_fields_is_no_crash() -> None:
    async with cluster() as (namesrv, broker), PullConsumer(namesrv.addr, heartbeat=False) as consumer:
        for ext in ({}, {"offset": "many"}):
            broker.on(30, lambda request, ext=ext: dict(ext))  # type: ignore[misc]
            with pytest.raises(SkylarkError, match="offset"):
                await consumer.max_offset(queue())
        broker.on(11, lambda request: request.respond(0, body=b"\x00\x00\x00\x09garbage"))
        with pytest.raises(SkylarkError):
            await consumer.pull(queue(), 0)
        broker.on(30, lambda request: request.respond(99, None))
        with pytest.raises(BrokerError, match="code 99"):
            await consumer.max_offset(queue())


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
        with pytest.raises(skylark.BrokerError, match="no such queue"):
            await admin.query_consume_queue(broker.addr, "t", 0, 0)
        for cls in (Producer, PullConsumer):
            with pytest.raises(UserError, match="no NameServer is given"):
                cls(client)


def left(broker: Fake) -> list[tuple[str | None, str | None]]:
    """The (producer group, consumer group) of requests that left one; it may be left twice, see `Membership`."""
    asked = [request.ext or {} for request in broker.asked(35)]
    return list(dict.fromkeys((ext.get("producerGroup"), ext.get("consumerGroup")) for ext in asked))
