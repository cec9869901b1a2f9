"""The producer against brokers that answer, refuse, fall silent and die."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from skylark import PullConsumer
from skylark.mqcommon.errors import InvalidArgument, RouteNotFound, SendFailed, UserError
from skylark.mqcommon.message.batch import decode_batch, encode_offsets
from skylark.mqcommon.message.ids import encode_host, offset_msg_id
from skylark.mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.producer import Producer, SendStatus
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.waiting import DEADLINE_S

HOST = encode_host("127.0.0.1", 10911)


class StoringBroker(FakeBroker):
    """Keeps what it is sent: (queue, body) in the order it came."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stored: list[tuple[int, bytes]] = []
        self.requests_of = 0
        self.code = 0
        self.refused_bodies: set[bytes] = set()
        #: As RocketMQ's brokers: the body of a request, of one message or of a batch, is not larger.
        self.max_message_bytes = 4 * 1024 * 1024
        self.is_silent = False
        for code in (SEND_MESSAGE_V2.code, SEND_BATCH_MESSAGE.code):
            self.on(code, self.answer)

    def answer(self, request: Command) -> Command | None:
        assert request.ext is not None
        self.requests_of += 1
        if self.is_silent:
            return None
        batch = request.code == SEND_BATCH_MESSAGE.code
        bodies = [body for _, body, _ in decode_batch(request.body)[0]] if batch else [request.body]
        if self.refused_bodies.intersection(bodies) or len(request.body) > self.max_message_bytes:
            return request.respond(13, "illegal")
        if self.code in (1, 16):
            return request.respond(self.code, "not now")
        queue_id = int(request.ext["e"])
        first = sum(stored_queue == queue_id for stored_queue, _ in self.stored)
        places = [len(self.stored) * 100 + n * 100 for n in range(len(bodies))]
        self.stored += [(queue_id, body) for body in bodies]
        ext = {"queueId": queue_id, "queueOffset": first, "msgId": offset_msg_id(HOST, places[0])}
        if batch and request.codec != CBOR:
            ext["msgId"] = ",".join(offset_msg_id(HOST, place) for place in places)
        body = encode_offsets(places) if batch and request.codec == CBOR else b""
        return request.respond(self.code, None, ext, body)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[str, StoringBroker, StoringBroker]]:
    names, a, b = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    async with serving(names), serving(a), serving(b):
        names.add("t", a, b)
        yield names.addr, a, b


def bodies(*brokers: StoringBroker) -> list[bytes]:
    return [body for broker in brokers for _, body in broker.stored]


async def test_a_result_says_where_the_message_is() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        result = await producer.send(Message("t", b"x", tags="a", keys=["k1", "k2"]))
        assert result.status is SendStatus.SEND_OK
        assert result.queue.topic == "t" and result.queue_offset == 0 and result.tries == 1
        assert result.offset_msg_id == offset_msg_id(HOST, 0)
        assert len(result.msg_id) == 32
        assert bodies(a, b) == [b"x"]


async def test_sends_that_gather_travel_together_and_each_gets_its_own_result() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        results = {}

        async def send(number: int) -> None:
            results[number] = await producer.send(Message("t", b"%d" % number))

        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(send, number)
        assert sorted(bodies(a, b)) == sorted(b"%d" % n for n in range(500))
        places = {(result.queue, result.queue_offset) for result in results.values()}
        assert len(places) == 500 == len({result.msg_id for result in results.values()})
        for number, result in results.items():
            broker = a if result.queue.broker_name == "broker-a" else b
            in_queue = [body for queue_id, body in broker.stored if queue_id == result.queue.queue_id]
            assert in_queue[result.queue_offset] == b"%d" % number
        assert a.requests_of + b.requests_of < 100


async def test_without_batching_every_send_is_a_request() -> None:
    async with two_brokers() as (names, a, b), Producer(names, batching=False) as producer:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(producer.send, Message("t", b"%d" % number))
        assert a.requests_of + b.requests_of == 50


async def test_a_refused_send_goes_to_the_other_broker() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        a.code = 1
        for number in range(10):
            assert (await producer.send(Message("t", b"%d" % number))).queue.broker_name == "broker-b"
        assert len(b.stored) == 10
        assert producer.retried > 0


async def test_a_refused_send_waits_for_a_busy_broker_rather_than_going_there_again() -> None:
    names, a, b = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    async with serving(names), serving(a), serving(b), Producer(names.addr) as producer:
        names.add("t", a)
        a.is_silent = True
        results = []

        async def send() -> None:
            results.append(await producer.send(Message("t", b"x")))

        async with trio.open_nursery() as nursery:
            for busy in (1, 2):  # that many requests at once is all that one broker gets
                nursery.start_soon(send)
                await a.wait_asked(SEND_MESSAGE_V2.code, busy)
            names.add("t", b)
            producer.brokers.want_route("t")
            while len(await producer.queues("t")) < 4:
                await trio.lowlevel.checkpoint()
            b.code = 1
            nursery.start_soon(send)
            await b.wait_asked(SEND_MESSAGE_V2.code)
            a.is_silent = False
            for request in a.asked(SEND_MESSAGE_V2.code):
                answer = a.answer(request)
                assert answer is not None
                a.channels[0].reply(request, answer)
        assert [result.queue.broker_name for result in results] == ["broker-a"] * 3
        assert len(b.asked(SEND_MESSAGE_V2.code)) == 1


async def test_one_bad_message_of_a_batch_fails_alone() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        a.refused_bodies = b.refused_bodies = {b"7"}
        failed = []

        async def send(number: int) -> None:
            try:
                await producer.send(Message("t", b"%d" % number))
            except SendFailed as error:
                failed.append((number, str(error)))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, number)
        assert [number for number, _ in failed] == [7] and "illegal" in failed[0][1]
        assert sorted(bodies(a, b)) == sorted(b"%d" % n for n in range(20) if n != 7)


async def test_a_silent_broker_costs_one_share_of_the_time_and_gets_no_more() -> None:
    async with two_brokers() as (names, a, _b), Producer(names, send_timeout_ms=2_000) as producer:
        await producer.send(Message("t", b"warm"))
        a.is_silent = True
        asked_before = a.requests_of
        results = []

        async def send(number: int) -> None:
            results.append(await producer.send(Message("t", b"%d" % number)))

        for wave in range(5):
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(send, wave * 10 + number)
        assert len(results) == 50
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        # At most what its slots held before the first of them timed out.
        assert a.requests_of - asked_before <= 3


async def test_slaves_get_no_sends_whatever_becomes_of_their_master() -> None:
    slave = StoringBroker("broker-a")
    namesrv, a, b = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    async with serving(namesrv), serving(a), serving(b), serving(slave):
        namesrv.add("t", a, b)
        names, route = namesrv.addr, namesrv.routes["t"]
        route.broker_datas[0].broker_addrs[1] = slave.addr
        async with Producer(names) as producer:
            for number in range(4):
                await producer.send(Message("t", b"%d" % number))
            a.stop()
            for number in range(4):
                assert (await producer.send(Message("t", b"%d" % number))).queue.broker_name == "broker-b"
            del route.broker_datas[0].broker_addrs[0]  # as a NameServer tells it
        async with Producer(names) as producer:
            for number in range(4):
                assert (await producer.send(Message("t", b"%d" % number))).queue.broker_name == "broker-b"
            assert {queue.broker_name for queue in await producer.queues("t")} == {"broker-b"}
    assert slave.requests_of == 0
    assert len(b.stored) >= 8


async def test_the_caller_may_choose_the_queue() -> None:
    async with two_brokers() as (names, _a, _b), Producer(names) as producer:
        queue = MessageQueue("t", "broker-b", 1)
        assert (await producer.send(Message("t", b"x"), queue=queue)).queue == queue
        result = await producer.send(Message("t", b"y"), selector=lambda queues, message: queues[0])
        assert result.queue == MessageQueue("t", "broker-a", 0)


async def test_many_bodies_at_once() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        sent = [b"%d" % n for n in range(5_000)]
        results = await producer.send_many("t", sent)
        assert len(results) == 5_000
        assert sorted(bodies(a, b)) == sorted(sent)
        assert results[0].queue_offset == 0 and results[-1].msg_id != results[0].msg_id
        with pytest.raises(IndexError):
            results[5_000]


@pytest.mark.parametrize("status", [status for status in SendStatus if status is not SendStatus.SEND_OK])
async def test_a_weaker_outcome_raises_unless_it_is_accepted(status: SendStatus) -> None:
    async with two_brokers() as (names, a, b):
        a.code = b.code = status.value
        async with Producer(names) as producer:
            with pytest.raises(SendFailed, match=status.name):
                await producer.send(Message("t", b"x"))
        async with Producer(names, accept_weaker=True) as producer:
            assert (await producer.send(Message("t", b"x"))).status is status


async def test_what_no_broker_takes_is_refused_at_once() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        with pytest.raises(ValueError, match="at most"):
            await producer.send(Message("t", bytes(5 << 20)))
        with pytest.raises(ValueError, match="at most"):
            await producer.send(Message("t", b"", properties={"p": "x" * 33_000}))
        with pytest.raises(RouteNotFound, match="nowhere"):
            await producer.send(Message("nowhere", b""))
        with pytest.raises(UserError, match="The specified topic contains illegal characters"):
            await producer.send(Message("a b", b""))
        assert not bodies(a, b)
    with pytest.raises(UserError, match="contains illegal characters"):
        Producer("127.0.0.1:1", group="a b")


async def test_oneway_sends_arrive() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        for number in range(10):
            await producer.send_oneway(Message("t", b"%d" % number))
        with trio.fail_after(DEADLINE_S):
            while len(bodies(a, b)) < 10:
                await trio.lowlevel.checkpoint()


async def test_a_retried_message_keeps_its_unique_key() -> None:
    seen: list[bytes] = []

    class Refusing(StoringBroker):
        def answer(self, request: Command) -> Command | None:
            assert request.ext is not None
            seen.append(request.ext["i"].encode() or decode_batch(request.body)[0][0][2])
            return request.respond(1, "not now") if len(seen) < 3 else super().answer(request)

    names, a, b = FakeNamesrv(), Refusing("broker-a"), Refusing("broker-b")
    async with serving(names), serving(a), serving(b):
        names.add("t", a, b)
        async with Producer(names.addr) as producer:
            result = await producer.send(Message("t", b"x"))
    assert result.tries == 3 and len(seen) == 3
    assert {find_property(properties, b"UNIQ_KEY") for properties in seen} == {result.msg_id.encode()}


TOPIC = "one"


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\x01b", "x" * 256])
def test_keys_that_cannot_be_stored_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="a unique key must be"):
        OwnKeyMessage(TOPIC, b"x", unique_key=key)


def test_each_message_of_many_needs_its_key() -> None:
    with pytest.raises(InvalidArgument, match="there are 2 messages and 1 unique_keys"):
        WithOwnKeys([b"a", b"b"], ["K1"])
    with pytest.raises(InvalidArgument, match=r"a unique key must be .* not str 'a b'"):
        WithOwnKeys([b"a", b"b"], ["K1", "a b"])
    assert list(WithOwnKeys([b"a", b"b"], ["K1", "K2"])[1:]) == [b"b"]


async def test_own_keys_are_stored(tmp_path: Path) -> None:
    async with push_cluster(tmp_path) as cluster:
        async with Producer(cluster.nameserver, compression="zlib") as producer:
            for key, message in {
                "K1": OwnKeyMessage(TOPIC, b"plain", unique_key="K1"),
                "K2": OwnKeyMessage(TOPIC, b"keyed", unique_key="K2", sharding_key="s", properties={"a": "b"}),
                "K3": OwnKeyMessage(TOPIC, b"z" * 5_000, unique_key="K3"),
            }.items():
                assert (await producer.send(message)).msg_id == key
            many = WithOwnKeys(
                [Message(TOPIC, b"%d" % n) if n % 2 else b"%d" % n for n in range(2_000)],
                [f"M{n}" for n in range(2_000)],
            )
            assert [result.msg_id for result in await producer.send_many(TOPIC, many)] == [
                f"M{n}" for n in range(2_000)
            ]
            with pytest.raises(InvalidArgument, match=r"messages\[0\] has a unique key of its own"):
                await producer.send_many(TOPIC, [OwnKeyMessage(TOPIC, b"x", unique_key="K5")])
        async with PullConsumer(cluster.nameserver) as consumer:
            (mq,) = await consumer.message_queues(TOPIC)
            async with consumer.stream(mq, 0, 2_003) as batches:
                found = {message.msg_id: message.body async for batch in batches for message in batch}
            assert found["K1"] == b"plain"
            assert [found[f"M{n}"] for n in range(2_000)] == [b"%d" % n for n in range(2_000)]
