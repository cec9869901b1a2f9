"""Reads while brokers are away, busy, or not where they were."""

import pytest
import trio

from skylark.mqcommon.errors import BrokerError, RouteNotFound
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import HeartbeatData
from skylark.sdk import broker_api
from skylark.sdk.consumer.pull import PullConsumer
from tests.sdk.consumer.sets import broker_set
from tests.sdk.fakes import Answer, FakeBroker, FakeNamesrv, queue, serving
from tests.support.waiting import until


def failing_first(broker: FakeBroker, code: int, answer: Answer, times: int = 3) -> Answer:
    """``code`` for the first requests, then ``answer``."""
    asked: list[Command] = []

    def answer_later(request: Command) -> object:
        asked.append(request)
        return request.respond(code, "not now") if len(asked) <= times else answer(request)

    return answer_later  # type: ignore[return-value]  # what the answer gives


async def test_a_stream_without_an_end_goes_through_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set(slaves=0, timeout_ms=1_000) as brokers:
        brokers.put(b"a", b"b")
        found: list[bytes] = []
        got = trio.Event()

        async def read() -> None:
            nonlocal got
            async for message in brokers.consumer.messages(queue(), 0, wait_ms=10):
                found.append(message.body)
                got.set()
                got = trio.Event()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: found == [b"a", b"b"], "the first are read", 10)
            brokers.master.stop()
            brokers.master.close_connections()
            await until(lambda: "the stream is waiting at offset 2" in caplog.text, "the reader waits", 10)
            brokers.put(b"c")
            await brokers.start(0)
            await until(lambda: found == [b"a", b"b", b"c"], "it goes on", 10)
            nursery.cancel_scope.cancel()
        assert "the stream continues at offset 2" in caplog.text
        assert caplog.text.count("the stream is waiting") == 1


async def test_a_stream_starts_before_its_servers(caplog: pytest.LogCaptureFixture) -> None:
    namesrv, broker = FakeNamesrv(), FakeBroker()
    async with serving(namesrv), serving(broker):
        pass  # they have addresses now, and nobody listens there
    broker.put("t", 0, b"a")
    async with (
        PullConsumer(namesrv.addr, heartbeat=False, timeout_ms=1_000, start_timeout_ms=None) as consumer,
        trio.open_nursery() as nursery,
    ):
        found: list[bytes] = []

        async def read() -> None:
            async for message in consumer.messages(queue(), 0, wait_ms=10):
                found.append(message.body)

        nursery.start_soon(read)
        await until(lambda: "the stream is waiting" in caplog.text, "the reader waits", 10)
        async with serving(namesrv), serving(broker):
            await namesrv.wait_asked(105)
            namesrv.add("t", broker)
            await until(lambda: found == [b"a"], "it is read", 10)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("code", [16, 17, 29])
async def test_a_stream_ends_with_its_topic_its_queue_or_its_permission(code: int) -> None:
    async with broker_set(slaves=0) as brokers:
        brokers.put(b"a")
        async with brokers.consumer.stream(queue(), 0) as stream:
            assert [message.body for message in await anext(stream)] == [b"a"]
            brokers.master.on(11, lambda request: request.respond(code, "gone"))
            brokers.master.close_connections()
            with pytest.raises(BrokerError, match="gone"):
                await anext(stream)


@pytest.mark.parametrize("code", [2, 14, 1500])
async def test_a_busy_broker_is_asked_again(code: int) -> None:
    async with broker_set(slaves=0) as brokers:
        brokers.put(b"a")
        brokers.master.on(11, failing_first(brokers.master, code, brokers.master._pull))
        result = await brokers.consumer.pull(queue(), 0)
        assert [message.body for message in result.messages] == [b"a"]
        assert len(brokers.master.asked(11)) == 4
        brokers.master.on(30, failing_first(brokers.master, code, lambda request: {"offset": 1}))
        assert await brokers.consumer.max_offset(queue()) == 1


async def test_while_the_master_is_busy_a_slave_is_read() -> None:
    async with broker_set() as brokers:
        brokers.put(b"a")
        brokers.master.on(11, lambda request: request.respond(2, "busy"))
        result = await brokers.consumer.pull(queue(), 0)
        assert result.broker_id == 1 and [message.body for message in result.messages] == [b"a"]


async def test_a_slaves_refusal_is_no_verdict() -> None:
    async with broker_set(timeout_ms=10_000) as brokers:
        brokers.put(b"a")
        for code in (11, 30):
            brokers.slave.on(code, lambda request: request.respond(17, "the slave does not know the topic yet"))
        brokers.master.stop()
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                result = await brokers.consumer.pull(queue(), 0)
                assert result.broker_id == 0 and len(result.messages) == 1
                assert await brokers.consumer.max_offset(queue()) == 1

            nursery.start_soon(read)
            await brokers.slave.wait_asked(11)
            await brokers.start(0)


async def test_a_restart_costs_reads_time_and_no_error() -> None:
    async with broker_set(slaves=0, timeout_ms=20_000) as brokers:
        brokers.put(b"a")
        assert await brokers.consumer.max_offset(queue()) == 1
        brokers.master.stop()
        bounds: list[int] = []

        async def ask() -> None:
            bounds.append(await brokers.consumer.min_offset(queue()))
            bounds.append(len((await brokers.consumer.pull(queue(), 0)).messages))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            addr = brokers.master.addr
            await until(lambda: addr in brokers.consumer._replicas._suspects.addrs, "it is found to be away", 10)
            await brokers.start(0)
        assert bounds == [0, 1]


async def test_another_broker_at_the_old_address_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set(slaves=0, timeout_ms=2_000) as brokers:
        brokers.put(b"a")
        await brokers.consumer.max_offset(queue())
        brokers.master.stop()
        stranger = FakeBroker("broker-z")
        stranger.announces, stranger.addr = "broker-z", brokers.master.addr
        stranger.put("t", 0, b"not", b"these")
        async with serving(stranger):
            await broker_api.heartbeat(brokers.consumer._instance.at(stranger.addr), HeartbeatData())
            with pytest.raises(RouteNotFound, match="another broker listens there"):
                await brokers.consumer.pull(queue(), 0)
            assert "broker-z listens at" in caplog.text
            brokers.master.addr = ""
            await brokers.start(0)
            brokers.addrs[0] = brokers.master.addr
            result = await brokers.consumer.pull(queue(), 0)
            assert [message.body for message in result.messages] == [b"a"]
            await brokers.consumer.commit_offset(queue(), 1)
            assert brokers.master.committed == {("g", "t", 0): 1}
            assert not stranger.asked(11) and not stranger.asked(15)


async def test_a_broker_that_is_not_the_one_refuses_the_first_read() -> None:
    async with broker_set(slaves=0, timeout_ms=1_000) as brokers:

        def refuse(request: Command) -> Command:
            assert (request.ext or {})["bname"] == "broker-a"
            return request.respond(501, "not the broker that is meant")

        brokers.master.on(11, refuse)
        brokers.master.announces = "broker-z"
        with pytest.raises(RouteNotFound, match="another broker listens there"):
            await brokers.consumer.pull(queue(), 0)
        assert len(brokers.master.asked(11)) == 1
