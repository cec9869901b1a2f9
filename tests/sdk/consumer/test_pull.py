from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from skylark.mqcommon.errors import BrokerError, ConnectFailed, RemotingError, RouteNotFound, UserError
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.consumer.reader import PullStatus
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, serving


@asynccontextmanager
async def cluster(timeout_ms: int = 3_000) -> AsyncIterator[tuple[FakeNamesrv, FakeBroker, PullConsumer]]:
    """A NameServer, one broker with topic t, and a consumer that sends no heartbeats."""
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add("t", broker)
        async with PullConsumer(
            namesrv.addr, group="g", heartbeat=False, timeout_ms=timeout_ms, start_timeout_ms=None
        ) as consumer:
            yield namesrv, broker, consumer


async def test_queues_of_a_topic() -> None:
    async with cluster() as (_, _, consumer):
        assert await consumer.message_queues("t") == [queue(0), queue(1)]
        with pytest.raises(RouteNotFound, match="unheard"):
            await consumer.message_queues("unheard")


async def test_queues_are_known_without_a_nameserver() -> None:
    async with cluster(timeout_ms=1_000) as (namesrv, _, consumer):
        namesrv.add("u", FakeBroker("broker-b"))
        queues = await consumer.message_queues("t")
        namesrv.stop()
        assert await consumer.message_queues("t") == queues
        with pytest.raises(RemotingError):
            await consumer.message_queues("u")


async def test_a_pull_says_what_it_wants() -> None:
    async with cluster() as (_, broker, consumer):
        broker.put("t", 0, b"x", TAGS="A")
        await consumer.pull(queue(), 0, max_count=7, max_bytes=1000, expression="A || B")
        (request,) = broker.asked(11)
        asked = {name: str(value) for name, value in (request.ext or {}).items() if name != "skylark"}
        assert asked == {
            "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "7", "sysFlag": "260",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "A || B", "subVersion": "0",
            "expressionType": "TAG", "maxMsgBytes": "1000", "bname": "broker-a",
        }  # fmt: skip
        assert request.version == 479


async def test_a_long_poll_asks_the_broker_to_wait() -> None:
    async with cluster() as (_, broker, consumer):
        broker.put("t", 0, b"x")
        await consumer.pull(queue(), 0, wait_ms=20_000)
        (request,) = broker.asked(11)
        assert request.ext is not None
        assert (request.ext["sysFlag"], request.ext["suspendTimeoutMillis"]) == ("262", "20000")


async def test_nothing_new_and_offsets_that_do_not_exist() -> None:
    async with cluster() as (_, broker, consumer):
        broker.put("t", 0, b"a", b"b", b"c")
        broker.min_offsets["t", 0] = 1
        assert (await consumer.pull(queue(), 3)).status is PullStatus.NO_NEW_MESSAGE
        early = await consumer.pull(queue(), 0)
        assert (early.status, early.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
        late = await consumer.pull(queue(), 99)
        assert (late.status, late.next_offset, late.messages) == (PullStatus.OFFSET_ILLEGAL, 3, [])


async def test_an_expression_without_tags_is_the_users_mistake() -> None:
    async with cluster() as (_, broker, consumer):
        with pytest.raises(UserError, match="names no tag"):
            await consumer.pull(queue(), 0, expression=" || ")
        with pytest.raises(UserError, match="names no tag"):
            await consumer.pull_bytes(queue(), 0, expression="||")
        assert not broker.asked(11)


async def test_many_queues_are_pulled_at_once_and_an_error_of_one_is_its_value() -> None:
    async with cluster() as (_, broker, consumer):
        broker.put("t", 0, b"a", b"b")
        broker.put("t", 1, b"c")
        here, other = queue(), queue()._replace(queue_id=1)
        found = await consumer.pull_bytes_of_queues({here: 1, other: 0})
        bodies = {mq: [message.body for message in decode_messages(one.data)] for mq, one in found.items()}  # type: ignore[union-attr]
        assert bodies == {here: [b"b"], other: [b"c"]}
        broker.on(11, lambda request: request.respond(26, "subscription group [g] does not exist"))
        error = (await consumer.pull_bytes_of_queues({here: 0}))[here]
        assert isinstance(error, BrokerError) and error.code == 26
        assert await consumer.pull_bytes_of_queues({}) == {}


async def test_an_error_code_is_an_error() -> None:
    async with cluster() as (_, broker, consumer):
        broker.on(11, lambda request: request.respond(26, "subscription group [g] does not exist"))
        with pytest.raises(BrokerError, match="does not exist") as caught:
            await consumer.pull(queue(), 0)
        assert (caught.value.code, caught.value.addr) == (26, broker.addr)


async def test_the_suggested_replica_is_read_and_left_when_it_fails() -> None:
    async with cluster() as (namesrv, master, consumer), serving(FakeBroker()) as slave:
        assert isinstance(slave, FakeBroker)
        master.put("t", 0, b"of the master")
        slave.put("t", 0, b"of the slave")
        slave.suggest = 1
        master.suggest = 1
        namesrv.routes["t"].broker_datas[0].broker_addrs[1] = slave.addr
        assert (await consumer.pull(queue(), 0)).messages[0].body == b"of the master"
        assert (await consumer.pull(queue(), 0)).messages[0].body == b"of the slave"
        slave.stop()
        assert (await consumer.pull(queue(), 0)).messages[0].body == b"of the master"


async def test_a_broker_that_moved_is_found_by_its_new_route() -> None:
    async with cluster() as (namesrv, old, consumer), serving(FakeBroker()) as new:
        assert isinstance(new, FakeBroker)
        old.put("t", 0, b"old")
        new.put("t", 0, b"new", b"newer")
        assert await consumer.max_offset(queue()) == 1
        namesrv.routes["t"].broker_datas[0].broker_addrs[0] = new.addr
        old.stop()
        assert (await consumer.pull(queue(), 0)).messages[0].body == b"new"
        assert await consumer.max_offset(queue()) == 2


async def test_a_broker_that_is_gone_is_an_error() -> None:
    async with cluster(timeout_ms=500) as (_, broker, consumer):
        await consumer.message_queues("t")
        broker.stop()
        with pytest.raises(ConnectFailed):
            await consumer.pull(queue(), 0)
        with pytest.raises(ConnectFailed):
            await consumer.max_offset(queue())
        with pytest.raises(RouteNotFound, match="broker-z"):
            await consumer.pull(queue(0, broker_name="broker-z"), 0)
        with pytest.raises(RouteNotFound, match="broker-z"):
            await consumer.max_offset(queue(0, broker_name="broker-z"))


async def test_a_connection_that_was_closed_is_opened_again() -> None:
    async with cluster() as (_, broker, consumer):
        broker.put("t", 0, b"a")
        await consumer.pull(queue(), 0)
        broker.close_connections()
        assert (await consumer.pull(queue(), 0)).status is PullStatus.FOUND
        asked = 0

        def drop_the_first(request: Command) -> dict[str, int]:
            nonlocal asked
            asked += 1
            if asked == 1:
                broker.close_connections()
            return {"offset": asked}

        broker.on(30, drop_the_first)
        assert await consumer.max_offset(queue()) == 2


async def test_an_error_of_the_block_stays_what_it_is() -> None:
    """No exception group, though there is a nursery inside."""
    async with serving(FakeNamesrv()) as namesrv:
        with pytest.raises(ZeroDivisionError):
            async with PullConsumer(namesrv.addr):
                raise ZeroDivisionError
        with trio.move_on_after(0) as scope:
            async with PullConsumer(namesrv.addr):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_cbor_is_spoken_to_servers_that_accept_it() -> None:
    async with cluster() as (namesrv, broker, consumer):
        broker.put("t", 0, b"a")
        for _ in range(3):
            await consumer.pull(queue(), 0)
            await consumer.message_queues("t")
        assert [request.codec for request in broker.requests] == [JSON, CBOR, CBOR]
        assert [request.codec for request in namesrv.requests] == [JSON, CBOR, CBOR, CBOR]
        broker.close_connections()
        await consumer.pull(queue(), 0)
        assert broker.requests[-1].codec == JSON
