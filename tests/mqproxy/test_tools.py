"""Clients of the proxy as administrators see them, and what they ask of these clients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
import trio

from skylark import Admin, ConsumeFrom, Message, PushConsumer, blocking
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.support.proxies import Proxy, Telling, call, proxy, started
from tests.support.waiting import until


@pytest.fixture(scope="module")
def channel(served: Proxy) -> Iterator[grpc.Channel]:
    with served.channel() as opened:
        yield opened


@contextmanager
def consumer(
    channel: grpc.Channel, client_id: str, group: str, topic: str, kind: wire.ClientType = wire.PUSH_CONSUMER
) -> Iterator[Telling]:
    entry = wire.SubscriptionEntry(
        topic=wire.Resource(name=topic), expression=wire.FilterExpression(type=wire.TAG, expression="tea")
    )
    settings = wire.Settings(
        client_type=kind,
        subscription=wire.Subscription(group=wire.Resource(name=group), subscriptions=[entry]),
        user_agent=wire.UA(language=wire.NODE_JS, version="1.0.8"),
    )
    telling = Telling(channel, client_id, settings)
    try:
        yield telling
    finally:
        telling.close()


async def members(cluster: Cluster, group: str) -> list[tuple[str, str]]:
    """(id, language) of the members of a group, as tools list them."""
    async with Admin(cluster.nameserver) as admin:
        try:
            found = await admin.consumer_connection(group)
        except SkylarkError:  # no broker has the group yet, or no member of it
            return []
    return sorted((one.client_id, one.language) for one in found.connection_set)


async def listed(cluster: Cluster, group: str, *expected: tuple[str, str]) -> None:
    async def is_so() -> bool:
        return await members(cluster, group) == list(expected)

    await until(is_so, f"{expected} in group {group}")


def test_consumers_are_listed_until_they_end(
    cluster: Cluster, channel: grpc.Channel, topic: str, make_topic: Callable[..., str]
) -> None:
    make_topic()
    group = f"g-{topic}"[-60:]
    with (
        consumer(channel, "push-1", group, topic),
        consumer(channel, "simple-1", group, topic, wire.SIMPLE_CONSUMER),
    ):
        trio.run(listed, cluster, group, ("push-1", "NODE_JS"), ("simple-1", "NODE_JS"))
        with blocking.Admin(cluster.nameserver) as admin:
            found = admin.consumer_connection(group)
            assert found.subscription_table[topic].sub_string == "tea"
            assert found.connection_set[0].client_addr.startswith("127.0.0.1:")
        ending = wire.NotifyClientTerminationRequest(group=wire.Resource(name=group))
        call(channel, "NotifyClientTermination", ending, wire.NotifyClientTerminationResponse, "push-1")
        trio.run(listed, cluster, group, ("simple-1", "NODE_JS"))


@pytest.mark.process
def test_an_official_producer_is_listed(
    cluster: Cluster, served: Proxy, topic: str, make_topic: Callable[..., str]
) -> None:
    make_topic("TRANSACTION")

    async def listed_as(client_id: str) -> None:
        async def is_listed() -> bool:
            async with Admin(cluster.nameserver) as admin:
                try:
                    found = await admin.producer_connection(topic, topic)
                except BrokerError:  # it has no producer yet
                    return False
            return (client_id, "PYTHON") in [(one.client_id, one.language) for one in found.connection_set]

        await until(is_listed, client_id)

    with started("transact", served.address, topic=topic, messages=[], answers={}, tells_id=True) as producer:
        trio.run(listed_as, producer.answer())
        producer.end()


def test_a_consumer_prints_the_stacks_of_its_threads(
    cluster: Cluster, channel: grpc.Channel, topic: str, make_topic: Callable[..., str]
) -> None:
    make_topic()
    group = f"g-{topic}"[-60:]

    async def ask(client: Telling) -> None:
        await listed(cluster, group, ("push-1", "NODE_JS"))
        async with Admin(cluster.nameserver) as admin, trio.open_nursery() as nursery:
            plain = await admin.consumer_running_info(group, "push-1")
            assert plain.jstack is None
            assert plain.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert [each.topic for each in plain.subscription_set] == [topic]

            async def answer() -> None:
                command = await trio.to_thread.run_sync(client.read)
                nonce = command.print_thread_stack_trace_command.nonce
                told = wire.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
                client.tell(wire.TelemetryCommand(status=wire.Status(code=wire.OK), thread_stack_trace=told))

            nursery.start_soon(answer)
            assert (await admin.consumer_running_info(group, "push-1", jstack=True)).jstack == "main: waits"

    with consumer(channel, "push-1", group, topic) as client:
        trio.run(ask, client)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (wire.OK, "CR_SUCCESS"),
        (wire.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (wire.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (wire.INTERNAL_ERROR, "CR_THROW_EXCEPTION"),
    ],
)
def test_a_message_is_given_to_one_consumer(
    cluster: Cluster, channel: grpc.Channel, topic: str, make_topic: Callable[..., str], code: wire.Code, result: str
) -> None:
    make_topic()
    group = f"g-{topic}"[-60:]
    with blocking.Producer(cluster.nameserver) as producer:
        sent = producer.send(Message(topic, b"a cup of tea", tags="tea"))

    async def ask(client: Telling) -> None:
        await listed(cluster, group, ("push-1", "NODE_JS"))
        async with Admin(cluster.nameserver) as admin, trio.open_nursery() as nursery:

            async def answer() -> None:
                verify = (await trio.to_thread.run_sync(client.read)).verify_message_command
                assert (verify.message.body, verify.message.system_properties.tag) == (b"a cup of tea", "tea")
                told = wire.VerifyMessageResult(nonce=verify.nonce)
                client.tell(wire.TelemetryCommand(status=wire.Status(code=code), verify_message_result=told))

            nursery.start_soon(answer)
            (message,) = await admin.view_messages(sent.offset_msg_id)
            found = await admin.consume_message_directly(group, "push-1", message)
            assert found.consume_result == result

    with consumer(channel, "push-1", group, topic) as client:
        trio.run(ask, client)


def test_an_answer_of_another_client_does_not_count(
    cluster: Cluster, channel: grpc.Channel, topic: str, make_topic: Callable[..., str]
) -> None:
    make_topic()
    group = f"g-{topic}"[-60:]

    async def ask(client: Telling, other: Telling) -> None:
        await listed(cluster, group, ("push-1", "NODE_JS"), ("push-2", "NODE_JS"))
        async with Admin(cluster.nameserver) as admin, trio.open_nursery() as nursery:

            async def answer() -> None:
                command = await trio.to_thread.run_sync(client.read)
                nonce = command.print_thread_stack_trace_command.nonce
                for telling, text in ((other, "forged"), (client, "true")):
                    told = wire.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
                    telling.tell(wire.TelemetryCommand(status=wire.Status(code=wire.OK), thread_stack_trace=told))
                    if telling is other:
                        # Settings that are answered: what was told before has been read.
                        telling.tell(wire.TelemetryCommand(settings=wire.Settings(publishing=wire.Publishing())))
                        await trio.to_thread.run_sync(telling.read)

            nursery.start_soon(answer)
            assert (await admin.consumer_running_info(group, "push-1", jstack=True)).jstack == "true"

    with consumer(channel, "push-1", group, topic) as client, consumer(channel, "push-2", group, topic) as other:
        trio.run(ask, client, other)


@pytest.mark.process
def test_members_of_both_protocols_share_the_messages_of_a_group(
    cluster: Cluster, topic: str, make_topic: Callable[..., str]
) -> None:
    make_topic(queues=4)
    group = f"g-{topic}"[-60:]
    sent: list[bytes] = []
    pushed: list[bytes] = []
    official: list[bytes] = []

    def send() -> None:
        with blocking.Producer(cluster.nameserver) as producer:
            for _ in range(10):
                sent.append(b"%d" % len(sent))
                producer.send(Message(topic, sent[-1]))

    async def share(address: str) -> None:
        async with Admin(cluster.nameserver) as admin:
            await admin.set_consume_mode(cluster.brokers[0].address, topic, group, "POP")
        async with (
            PushConsumer(
                cluster.nameserver, group=group, subscriptions={topic: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET,
                handler=lambda message: pushed.append(message.body),
            ),
            trio.open_nursery() as nursery,
        ):  # fmt: skip

            async def run_official() -> None:
                with started("push", address, topic=topic, group=group, count=5) as running:
                    consumed = await trio.to_thread.run_sync(running.end)
                official.extend(message["body"].encode() for message in consumed)

            nursery.start_soon(run_official)
            # It gets some while the other one wants them, too.
            while not official:
                await trio.to_thread.run_sync(send)
            # What it had not begun with comes again.
            await until(lambda: {*pushed, *official} == {*sent}, "all messages")

    short = {
        "default_invisible_time_mills": 3_000,
        "renew_ahead_time_millis": 1_000,
        "renew_schedule_period_millis": 100,
    }
    with proxy(cluster.nameserver, **short) as served:
        trio.run(share, served.address)
    assert pushed and official
    assert len(pushed) == len(set(pushed))
    # An acknowledgement may be lost when a client ends.
    assert len({*pushed} & {*official}) <= 5
