"""Requests and replies, against a broker of ours in this process."""

import asyncio
from functools import partial

import pytest
import trio

from skylark import Client, ConsumeFrom, Producer, PullConsumer, PushConsumer, aio, blocking
from skylark.mqcommon.errors import InvalidArgument, ReplyTimeout, SendFailed
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.remoting.protocol.requests.clients import HEART_BEAT
from tests.sdk.fakes import until
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.in_process import Servers
from tests.support.waiting import DEADLINE_S

TOPIC, GROUP = "one", "server"


class Server:
    """Answers each request with its body twice; the bodies in ``silent`` get no answer."""

    def __init__(self, nameserver: str, compression: str | None = None) -> None:
        self.producer = Producer(nameserver, group="replies", compression=compression)
        self.silent: set[bytes] = set()
        self.handled: list[MessageExt] = []
        self.failures: list[Exception] = []
        self.consumer = PushConsumer(
            nameserver, group=GROUP, subscriptions={TOPIC: "*"}, handler=self._handle,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )  # fmt: skip

    async def _handle(self, message: MessageExt) -> None:
        self.handled.append(message)
        if message.body not in self.silent:
            try:
                await self.producer.reply_to(message, message.body * 2, properties={"asked": message.msg_id})
            except SendFailed as error:
                self.failures.append(error)

    async def __aenter__(self) -> "Server":
        await self.producer.__aenter__()
        await self.consumer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.consumer.__aexit__(None, None, None)
        await self.producer.__aexit__(None, None, None)


async def test_a_large_reply_is_compressed(cluster: Servers) -> None:
    body = b"ask" * 4_000
    async with Server(cluster.nameserver, "zlib"), Producer(cluster.nameserver) as producer:
        with trio.fail_after(DEADLINE_S):
            reply = await producer.request(Message(TOPIC, body), timeout_ms=15_000)
    assert reply.body == body * 2
    assert reply.sys_flag & COMPRESSED


async def test_a_request_gets_its_reply(cluster: Servers) -> None:
    async with Server(cluster.nameserver) as server, Producer(cluster.nameserver) as producer:
        asked = Message(TOPIC, b"ask", keys="k", properties={"mine": "1"})
        with trio.fail_after(DEADLINE_S):
            reply = await producer.request(asked, timeout_ms=15_000)
        assert reply.body == b"askask"
        assert reply.properties["MSG_TYPE"] == "reply"
        assert dict(reply.headers) == {"asked": server.handled[0].msg_id}
        assert {"CORRELATION_ID", "PUSH_REPLY_TIME", "ARRIVE_TIME", "TTL", "UNIQ_KEY"} <= set(reply.properties)
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        assert reply.born_host.startswith("127.0.0.1:")
        assert asked.properties == {"KEYS": "k", "mine": "1"}  # the caller's message is as it was
        replies: dict[bytes, bytes] = {}

        async def ask(body: bytes) -> None:
            replies[body] = (await producer.request(Message(TOPIC, body), timeout_ms=15_000)).body

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(ask, b"%d" % number)
        assert replies == {b"%d" % number: b"%d" % number * 2 for number in range(50)}
    async with PullConsumer(cluster.nameserver) as consumer:
        (mq,) = await consumer.message_queues("DefaultCluster_REPLY_TOPIC")
        assert await consumer.max_offset(mq) == 51  # they are stored, too


async def test_a_request_without_a_reply_fails_and_hurts_no_other(cluster: Servers) -> None:
    async with Server(cluster.nameserver) as server, Producer(cluster.nameserver) as producer:
        server.silent.add(b"silent")
        failed: list[ReplyTimeout] = []

        async def ask_in_vain() -> None:
            with pytest.raises(ReplyTimeout, match="no reply to a request in topic one within 300 ms") as caught:
                await producer.request(Message(TOPIC, b"silent"), timeout_ms=300)
            failed.append(caught.value)

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_in_vain)
                assert (await producer.request(Message(TOPIC, b"x"), timeout_ms=15_000)).body == b"xx"
            assert failed
            # The reply comes when nobody waits for it any more.
            (late,) = [message for message in server.handled if message.body == b"silent"]
            await server.producer.reply_to(late, b"late")
            assert (await producer.request(Message(TOPIC, b"y"), timeout_ms=15_000)).body == b"yy"


async def test_a_reply_to_a_client_that_is_gone_fails_in_the_handler(cluster: Servers) -> None:
    async with Server(cluster.nameserver) as server:
        server.silent.add(b"x")
        async with Producer(cluster.nameserver) as producer:
            with trio.fail_after(DEADLINE_S):
                while not server.handled:
                    with pytest.raises(ReplyTimeout):
                        await producer.request(Message(TOPIC, b"x"), timeout_ms=200)
        asked = server.handled[0]
        with pytest.raises(SendFailed, match=r"channel of <.*> not found"):
            await server.producer.reply_to(asked, b"x")


async def test_what_was_not_a_request_has_no_reply(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        await producer.send(Message(TOPIC, b"x"))
        (mq,) = await consumer.message_queues(TOPIC)
        (message,) = (await consumer.pull(mq, 0)).messages
        with pytest.raises(InvalidArgument, match="request has no CORRELATION_ID and REPLY_TO_CLIENT"):
            await producer.reply_to(message, b"x")
        with pytest.raises(TypeError, match="body must be"):
            await producer.reply_to(message, "x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="request must be"):
            await producer.reply_to(b"x", b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="message must be"):
            await producer.request(b"x")  # type: ignore[arg-type]


async def test_clients_in_a_namespace_and_of_one_client_object(cluster: Servers) -> None:
    async with Client(cluster.nameserver) as client, Producer(client) as producer, Producer(client) as other:

        async def handle(message: MessageExt) -> None:
            await other.reply_to(message, b"shared")

        async with PushConsumer(client, group=GROUP, subscriptions={TOPIC: "*"}, handler=handle,
                                consume_from=ConsumeFrom.FIRST_OFFSET):  # fmt: skip
            with trio.fail_after(DEADLINE_S):
                assert (await producer.request(Message(TOPIC, b"x"), timeout_ms=15_000)).body == b"shared"


async def test_threads_and_asyncio(cluster: Servers) -> None:
    def blocking_side() -> bytes:
        with blocking.Producer(cluster.nameserver) as producer:
            return producer.request(Message(TOPIC, b"b"), timeout_ms=15_000).body

    async def aio_side() -> bytes:
        async with aio.Producer(cluster.nameserver) as producer:
            return (await producer.request(Message(TOPIC, b"a"), timeout_ms=15_000)).body

    def run_aio() -> bytes:
        return asyncio.run(aio_side())

    async with Server(cluster.nameserver):
        with trio.fail_after(DEADLINE_S):
            assert await trio.to_thread.run_sync(blocking_side) == b"bb"
            assert await trio.to_thread.run_sync(run_aio) == b"aa"


async def test_a_broker_that_does_not_answer_keeps_requests_from_no_other() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        b.is_silent = True
        b.on(HEART_BEAT.code, lambda request: None)

        async def is_stored_at_a(body: bytes, timeout_ms: int) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(producer.request, Message("t", body), timeout_ms=timeout_ms))
                await until(lambda: body in bodies(a))
                nursery.cancel_scope.cancel()

        # A part of the time goes to the silent broker, and of the next requests none.
        await is_stored_at_a(b"first", 1_500)
        for number in range(4):
            await is_stored_at_a(b"%d" % number, 60_000)
        assert b.asked(HEART_BEAT.code) and not b.requests_of
