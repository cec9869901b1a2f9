"""The blocking classes against fakes: they are called in a worker thread, the fakes live in the test's loop."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import sdk
from mqcommon.errors import RouteNotFound, SkylarkError, UserError
from mqcommon.message.ids import offset_msg_id
from remoting.protocol.command import Command
from remoting.protocol.requests.query import ConsumeQueueEntries
from sdk import blocking
from sdk.consumer.reader import PullStatus
from tests.sdk.fakes import FakeBroker, FakeNamesrv, queue, serving


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[FakeNamesrv, FakeBroker]]:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        assert isinstance(namesrv, FakeNamesrv) and isinstance(broker, FakeBroker)
        namesrv.add("t", broker)
        yield namesrv, broker


async def test_a_consumer() -> None:
    def consume(nameserver: str) -> None:
        with blocking.PullConsumer(nameserver, group="g") as consumer:
            assert consumer.group == "g"
            assert consumer.message_queues("t") == [queue(0), queue(1)]
            assert (consumer.min_offset(queue()), consumer.max_offset(queue())) == (0, 3)
            assert consumer.search_offset(queue(), 2000) == 2
            consumer.search_offset(queue(), 2000, "UPPER")
            assert consumer.earliest_store_time(queue()) == 1
            result = consumer.pull(queue(), 1)
            assert result.status is PullStatus.FOUND
            assert [message.body for message in result.messages] == [b"b", b"c"]
            assert consumer.pull_bytes(queue(), 3).status is PullStatus.NO_NEW_MESSAGE
            assert consumer.committed_offset(queue()) is None
            consumer.commit_offset(queue(), 2)
            assert consumer.committed_offset(queue()) == 2
            assert [len(batch) for batch in consumer.stream(queue(), 0, 3, max_count=2)] == [2, 1]
            assert [message.body for message in consumer.messages(queue(), 0, 2)] == [b"a", b"b"]
            following = consumer.messages(queue(), 2)
            assert next(following).body == b"c"
            following.close()  # type: ignore[attr-defined]
            with pytest.raises(RouteNotFound):
                consumer.message_queues("u")

    async with cluster() as (namesrv, broker):
        broker.put("t", 0, b"a", b"b", b"c")
        broker.on(32, lambda request: {"timestamp": 1})
        await trio.to_thread.run_sync(consume, namesrv.addr)
        assert broker.asked(35)
        assert [(request.ext or {})["boundaryType"] for request in broker.asked(29)] == ["LOWER", "UPPER"]


async def test_what_a_producer_tells_of_itself() -> None:
    def produce(nameserver: str) -> tuple[str, int, int, int]:
        with blocking.Producer(nameserver, group="g") as producer:
            before = producer.retried
            tries = producer.send(sdk.Message("t", b"x")).tries
            return producer.group, before, tries, producer.retried

    async with cluster() as (namesrv, broker):
        answers = iter([2])

        def busy_at_first(request: Command) -> Command:
            place = {"msgId": offset_msg_id(b"\x7f\0\0\1\0\0\0\1", 0), "queueId": 0, "queueOffset": 0}
            return request.respond(next(answers, 0), "", place)

        broker.on(310, busy_at_first)
        assert await trio.to_thread.run_sync(produce, namesrv.addr) == ("g", 0, 2, 1)


async def test_an_admin() -> None:
    def administer(nameserver: str, broker: FakeBroker) -> None:
        with blocking.Admin(nameserver, timeout_ms=2000) as admin:
            assert admin.brokers_of_cluster("c1") == [broker.addr]
            assert admin.broker_addr_of("broker-a") == broker.addr
            assert admin.max_offset(queue()) == 1
            assert admin.search_offset(queue(), 0, "UPPER") == 0
            assert admin.earliest_store_time(queue()) == 1
            assert admin.query_consume_queue(broker.addr, "t", 0, 0).max_queue_index == 1
            admin.delete_expired_commit_log(broker.addr)
            admin.clean_expired_consume_queue(broker.addr)
            admin.clean_unused_topic(broker.addr)
            with pytest.raises(RouteNotFound):
                admin.topic_route("u")

    async with cluster() as (namesrv, broker):
        broker.put("t", 0, b"a")
        broker.on(32, lambda request: {"timestamp": 1})
        broker.on(321, lambda request: ConsumeQueueEntries(max_queue_index=1))
        for code in (306, 316, 329):
            broker.on(code, lambda request: {})
        await trio.to_thread.run_sync(administer, namesrv.addr, broker)
        assert [len(broker.asked(code)) for code in (306, 316, 329)] == [1, 1, 1]


async def test_several_share_a_client_and_its_thread() -> None:
    def use(nameserver: str, broker: FakeBroker) -> None:
        with blocking.Client(nameserver) as client:
            with blocking.PullConsumer(client, group="c") as consumer:
                with blocking.Producer(client, group="p") as producer, blocking.Admin(client) as admin:
                    assert producer.queues("t") == tuple(consumer.message_queues("t"))
                    assert admin.max_offset(queue()) == 2
                    assert client.client_id
                with pytest.raises(SkylarkError, match="closed"):
                    producer.queues("t")
                assert len(broker.channels) == 1
                assert [message.body for message in consumer.messages(queue(), 0, 2)] == [b"a", b"b"]
            late = blocking.Admin(client).open()
        with pytest.raises(SkylarkError, match="closed"):
            late.max_offset(queue())

    async with cluster() as (namesrv, broker):
        broker.put("t", 0, b"a", b"b")
        await trio.to_thread.run_sync(use, namesrv.addr, broker)


def test_a_bad_address_is_told_where_it_was_given() -> None:
    for cls in (blocking.Admin, blocking.PullConsumer, blocking.Producer, blocking.Client):
        with pytest.raises(UserError, match="host:port"):
            cls("nonsense")


# Under a heading "used by ...": not for users.
INSIDE = {
    "Producer": (
        "now_ms",
        "new_keys",
        "route_of",
        "make_ticket",
        "straight_size",
        "make_send",
        "add_send",
        "place_ticket",
        "put_ticket",
    ),
    "PullConsumer": ("wait_for_poll", "finish_poll"),
    "PushConsumer": ("take",),
}


OF_BASES = ("sdk.admin.", "sdk.producer.", "sdk.consumer.")


# A ticket of a thread waits in `result`, that of a task is awaited.
@pytest.mark.parametrize("name", [name for name in blocking.__all__ if name != "Ticket"])
def test_both_sorts_have_the_same_methods(name: str) -> None:
    """Same names, same parameters with the same defaults."""

    def methods(cls: type) -> dict[str, list[tuple[str, object, object]]]:
        return {
            key: [(each.name, each.kind, each.default) for each in inspect.signature(value).parameters.values()]
            for base in (
                cls,
                *[each for each in cls.__bases__ if each.__module__.startswith(OF_BASES)],
            )
            for key, value in vars(base).items()
            if inspect.isfunction(value) and (not key.startswith("_") or key == "__init__")
        }

    waiting, ready = methods(getattr(sdk, name)), methods(getattr(blocking, name))
    for key in INSIDE.get(name, ()):
        del waiting[key]
    assert ready == waiting
