"""What cannot work raises where a producer or consumer starts; what may pass does not keep it from starting."""

import asyncio
from functools import partial
from typing import Any

import pytest
import trio

from skylark import (
    Client,
    Credentials,
    Problem,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    aio,
    blocking,
)
from skylark.mqcommon.errors import BrokerError, NoNameServer, NotNameServer, NotRocketMQ
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import ConsumerIdList
from skylark.sdk.starting import check_start_timeout
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.waiting import DEADLINE_S, until

NOWHERE = "127.0.0.1:1"
NO_RIGHT = "User:a has no permission to access Group:g"
WANTED = {"group": "g", "subscriptions": {"t": "*"}}

KINDS: dict[str, dict[str, Any]] = {
    "Producer": {}, "TransactionProducer": {"group": "g"}, "PullConsumer": {"group": "g"},
    "PushConsumer": WANTED, "SimpleConsumer": WANTED,
}  # fmt: skip
TRIO: dict[str, Any] = {
    "Producer": Producer, "TransactionProducer": TransactionProducer, "PullConsumer": PullConsumer,
    "PushConsumer": PushConsumer, "SimpleConsumer": SimpleConsumer,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
async def test_without_a_nameserver_nothing_starts(name: str) -> None:
    with pytest.raises(NoNameServer, match=f"no NameServer of {NOWHERE} answers") as raised:
        async with TRIO[name](NOWHERE, start_timeout_ms=20, **KINDS[name]):
            raise AssertionError("it starts")
    assert raised.value.__notes__ == ["waited for start_timeout_ms=20; with None the start does not wait"]


@pytest.mark.parametrize("name", KINDS)
def test_nor_in_threads_and_in_asyncio(name: str) -> None:
    with pytest.raises(NoNameServer), getattr(blocking, name)(NOWHERE, start_timeout_ms=20, **KINDS[name]):
        raise AssertionError("it starts")

    async def use() -> None:
        async with getattr(aio, name)(NOWHERE, start_timeout_ms=20, **KINDS[name]):
            raise AssertionError("it starts")

    with pytest.raises(NoNameServer):
        asyncio.run(use())


@pytest.mark.parametrize("name", KINDS)
async def test_the_address_of_a_broker_is_refused_as_that_of_a_nameserver(name: str) -> None:
    async with serving(FakeBroker()) as broker:
        with trio.fail_after(DEADLINE_S), pytest.raises(NotNameServer, match=f"{broker.addr} is no NameServer"):
            async with TRIO[name](broker.addr, **KINDS[name]):
                raise AssertionError("it starts")


@pytest.mark.parametrize("credentials", [None, Credentials("key", "secret")])
@pytest.mark.parametrize("name", KINDS)
async def test_a_server_that_speaks_http_is_refused_at_once(name: str, credentials: Credentials | None) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        addr = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(NotRocketMQ, match=f"{addr} speaks HTTP, not RocketMQ's: give the address of a NameServer"):
            async with TRIO[name](addr, start_timeout_ms=DEADLINE_S * 1000, credentials=credentials, **KINDS[name]):
                raise AssertionError("it starts")
        nursery.cancel_scope.cancel()


async def test_a_nameserver_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    async with serving(FakeNamesrv()) as frozen:
        frozen.on(106, lambda request: None)
        with trio.fail_after(DEADLINE_S), pytest.raises(NoNameServer, match="no answer within 50 ms"):
            async with Producer(frozen.addr, start_timeout_ms=50):
                raise AssertionError("it starts")


async def test_a_nameserver_that_comes_in_time_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    namesrv = FakeNamesrv()
    async with serving(namesrv):
        pass  # it has an address now, and nobody listens there
    async with trio.open_nursery() as nursery:
        opened = trio.Event()

        async def use() -> None:
            async with PushConsumer(namesrv.addr, **WANTED, start_timeout_ms=60_000):
                opened.set()

        nursery.start_soon(use)
        await until(lambda: "waiting for a NameServer, 60.0 s at most" in caplog.text, "it says that it waits")
        async with serving(namesrv):
            await opened.wait()


@pytest.mark.parametrize("name", KINDS)
async def test_a_client_that_no_broker_lets_in_does_not_start(name: str) -> None:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        namesrv.add("t", broker)
        broker.on(34, lambda request: request.respond(ResponseCode.NO_PERMISSION, NO_RIGHT))
        with pytest.raises(BrokerError, match=NO_RIGHT):
            async with TRIO[name](namesrv.addr, **KINDS[name]):
                raise AssertionError("it starts")
        async with TRIO[name](namesrv.addr, start_timeout_ms=None, **KINDS[name]):
            pass


@pytest.mark.parametrize("name", KINDS)
async def test_what_may_pass_keeps_nobody_from_starting(name: str) -> None:
    """A busy broker, a broker that cannot be reached, and a topic that does not exist yet."""
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        away = FakeBroker("broker-b")
        async with serving(away):
            pass
        broker.on(34, lambda request: request.respond(ResponseCode.SYSTEM_BUSY, "later"))
        for brokers in ([], [away], [broker, away]):
            namesrv.routes.clear()
            if brokers:
                namesrv.add("t", *brokers)
            async with TRIO[name](namesrv.addr, **KINDS[name]):
                pass


async def test_one_broker_that_lets_it_in_is_enough() -> None:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as one, serving(FakeBroker("b")) as other:
        namesrv.add("t", one, other)
        one.on(34, lambda request: request.respond(ResponseCode.NO_PERMISSION, NO_RIGHT))
        other.on(38, lambda request: ConsumerIdList([]))
        problems: list[Problem] = []
        async with PushConsumer(namesrv.addr, **WANTED, on_problem=problems.append):
            await until(lambda: f"heartbeats to {one.addr}" in [problem.what for problem in problems], "it is told")


async def test_a_broker_that_hangs_holds_up_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeats of the shared client wait for it."""
    monkeypatch.setattr("skylark.sdk.starting.OWN_HEARTBEAT_S", 0.01)
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as hangs, serving(FakeBroker("b")) as works:
        namesrv.add("hung", hangs)
        namesrv.add("t", works)
        hangs.on(34, lambda request: None)
        async with Client(namesrv.addr, timeout_ms=600_000) as client, trio.open_nursery() as nursery:
            nursery.start_soon(
                opened, SimpleConsumer(client, group="h", subscriptions={"hung": "*"}, start_timeout_ms=600_000)
            )
            await hangs.wait_asked(34)
            with trio.fail_after(DEADLINE_S):
                async with SimpleConsumer(client, **WANTED, start_timeout_ms=600_000):
                    nursery.cancel_scope.cancel()


async def opened(client: Any) -> None:
    async with client:
        await trio.sleep_forever()


async def test_an_application_that_may_not_list_brokers_sends_all_the_same() -> None:
    async with serving(FakeNamesrv()) as namesrv, serving(FakeBroker()) as broker:
        namesrv.add("t", broker)
        namesrv.on(106, lambda request: request.respond(ResponseCode.NO_PERMISSION, "only administrators"))
        async with Producer(namesrv.addr) as producer:
            assert len(await producer.queues("t")) == 2
        namesrv.on(106, lambda request: request.respond(ResponseCode.NO_PERMISSION, "check signature failed"))
        with pytest.raises(BrokerError, match="check signature failed"):
            async with Producer(namesrv.addr):
                raise AssertionError("it starts")


def test_the_time_is_checked() -> None:
    check_start_timeout(None)
    for value, error in ((-1, ValueError), ("5", TypeError)):
        with pytest.raises(error, match="start_timeout_ms"):
            Producer(NOWHERE, start_timeout_ms=value)  # type: ignore[arg-type]
        with pytest.raises(error, match="start_timeout_ms"):
            PushConsumer(NOWHERE, **WANTED, start_timeout_ms=value)
