"""Consumers that filter by properties, against a broker of ours in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from skylark import Admin, Problem, Producer, PullConsumer, PullStatus, PushConsumer, Sql, aio, blocking
from skylark.mqcommon.errors import BrokerError, InvalidArgument
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import CHECK_CLIENT_CONFIG
from tests.support.in_process import Servers, servers
from tests.support.waiting import DEADLINE_S, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    """Topic ``one`` has one queue."""
    async with servers(tmp_path, {"one": 1}, enable_property_filter=True, config_black_list="") as made:
        yield made


def paid(number: int) -> Message:
    return Message(
        "one", b"%d" % number, properties={"amount": str(number), "shop": "north" if number % 2 else "south"}
    )


WANTED = Sql("amount > 5 AND shop = 'north' AND amount < 12")


async def test_a_pull_returns_what_matches(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        for number in range(20):
            await producer.send(paid(number))
        (mq,) = await consumer.message_queues("one")
        found = await consumer.pull(mq, 0, expression=WANTED)
        assert [message.body for message in found.messages] == [b"7", b"9", b"11"]
        assert found.next_offset == 20
        found = await consumer.pull(mq, 0, expression=WANTED, max_count=2)
        assert ([message.body for message in found.messages], found.next_offset) == ([b"7", b"9"], 11)
        found = await consumer.pull(mq, 12, expression=WANTED)
        assert (found.status, found.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 20)
        async with consumer.stream(mq, 0, 20, expression=WANTED) as batches:
            streamed = [message.body async for batch in batches for message in batch]
        assert streamed == [b"7", b"9", b"11"]
        consumer.assign([mq], expression=WANTED)
        consumer.seek(mq, 0)
        polled: list[MessageExt] = []
        while len(polled) < 3:
            polled += await consumer.poll()
        assert [message.body for message in polled] == [b"7", b"9", b"11"]


async def test_a_held_pull_waits_for_a_message_that_matches(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        await producer.send(paid(1))
        (mq,) = await consumer.message_queues("one")
        found: list[bytes] = []

        async def pull() -> None:
            at = 1
            while not found:
                got = await consumer.pull(mq, at, expression=WANTED, wait_ms=30_000)
                at = got.next_offset
                found.extend(message.body for message in got.messages)

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pull)
                for number in (2, 3, 7):
                    await producer.send(paid(number))
        assert found == [b"7"]


async def test_a_push_consumer_gets_what_matches(cluster: Servers) -> None:
    got: list[bytes] = []
    enough = trio.Event()

    def handle(message: MessageExt) -> None:
        got.append(message.body)
        if len(got) == 3:
            enough.set()

    async with Producer(cluster.nameserver) as producer:
        for number in range(20):
            await producer.send(paid(number))
        async with PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": WANTED}, handler=handle
        ) as consumer:
            with trio.fail_after(DEADLINE_S):
                await enough.wait()
            async with Admin(cluster.nameserver) as admin:
                row = (await admin.consumer_connection("g", cluster.broker)).subscription_table["one"]
            assert (row.expression_type, row.sub_string) == ("SQL92", WANTED.text)
            await consumer.subscribe("one", Sql("amount = 3"))
    assert sorted(got) == [b"11", b"7", b"9"]


def test_a_mistake_is_raised_where_it_was_made() -> None:
    with pytest.raises(InvalidArgument, match="character 9: the expression ends"):
        Sql("amount >")
    with pytest.raises(TypeError, match="text must be"):
        Sql(b"a = 1")  # type: ignore[arg-type]
    for consumer in (PushConsumer, blocking.PushConsumer, aio.PushConsumer):
        with pytest.raises(TypeError, match=r"subscriptions\['one'\] must be a str with tags, or an Sql"):
            consumer("127.0.0.1:1", group="g", subscriptions={"one": 5}, handler=print)  # type: ignore[arg-type]


async def ask(addr: str, expression: str, kind: str) -> Command:
    """46, as Java clients send it."""
    data = f'{{"topic":"one","subString":"{expression}","expressionType":"{kind}","subVersion":1}}'
    body = f'{{"clientId":"me","group":"g","subscriptionData":{data}}}'.encode()
    async with open_client() as client:
        return await client.invoke(addr, Command(CHECK_CLIENT_CONFIG.code, {}, body))


async def test_a_client_may_ask_first(cluster: Servers) -> None:
    assert (await ask(cluster.broker, "a > 5", "SQL92")).code == ResponseCode.SUCCESS
    assert (await ask(cluster.broker, "a || b", "TAG")).code == ResponseCode.SUCCESS
    answer = await ask(cluster.broker, "a > ", "SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "character 5: the expression ends" in (answer.remark or "")
    assert (await ask(cluster.broker, "a", "LUA")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    async with Admin(cluster.nameserver) as admin:
        await admin.update_broker_config(cluster.broker, {"enablePropertyFilter": "false"})
    answer = await ask(cluster.broker, "a > 5", "SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (answer.remark or "")
    async with PullConsumer(cluster.nameserver) as consumer:
        (mq,) = await consumer.message_queues("one")
        with pytest.raises(BrokerError, match="does not support consumer to filter message by SQL92"):
            await consumer.pull(mq, 0, expression=WANTED)


async def test_a_subscription_that_brokers_refuse_raises_at_the_start_and_where_it_is_made(
    cluster: Servers,
) -> None:
    async with Admin(cluster.nameserver) as admin:
        await admin.update_broker_config(cluster.broker, {"enablePropertyFilter": "false"})
    refused = {"match": "does not support consumer to filter message by SQL92"}
    wanted = {"group": "g", "subscriptions": {"one": WANTED}}

    async def aio_starts() -> None:
        async with aio.PushConsumer(cluster.nameserver, **wanted):
            raise AssertionError("it starts")

    def blocking_starts() -> None:
        with blocking.PushConsumer(cluster.nameserver, **wanted):
            raise AssertionError("it starts")

    with pytest.raises(BrokerError, **refused) as raised:
        async with PushConsumer(cluster.nameserver, **wanted):
            raise AssertionError("it starts")
    assert raised.value.__notes__ == [f"the subscription to one is refused: {WANTED}"]
    for starts in (blocking_starts, lambda: asyncio.run(aio_starts())):
        with pytest.raises(BrokerError, **refused):
            await trio.to_thread.run_sync(starts)
    async with PushConsumer(cluster.nameserver, group="g", subscriptions={}) as consumer:
        with pytest.raises(BrokerError, **refused):
            await consumer.subscribe("one", WANTED)
        assert not consumer._parts.subscriptions.keys() & {"one"}
    told: list[Problem] = []
    async with PushConsumer(cluster.nameserver, **wanted, start_timeout_ms=None, on_problem=told.append):
        await until(lambda: "SQL92" in " ".join(map(str, told)), "the program is told")
