import socket
from collections.abc import Iterator
from random import Random

import pytest
import trio
from trio.testing import MockClock

from mqcommon.errors import BrokerError, ConnectFailed, NoNameServer, NotNameServer, RequestTimeout, UserError
from remoting.net.client import RemotingClient, open_client
from remoting.protocol.command import Command
from sdk import namesrv_api
from sdk.endpoint import Endpoint
from sdk.nameserver_source import Known
from sdk.nameservers import NameServers
from tests.sdk.admin_at import admin_at
from tests.sdk.fakes import Fake, FakeBroker, FakeNamesrv, serving


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, kept so while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def starting_at(client: RemotingClient, *addrs: str) -> NameServers:
    """NameServers whose first choice is the first."""
    seed = next(seed for seed in range(100) if Random(seed).randrange(len(addrs)) == 0)
    return NameServers(client, Known(addrs), Random(seed))


async def route_brokers(servers: NameServers, topic: str = "t", timeout_ms: int = 2000) -> list[str]:
    route = await servers.ask(lambda at: namesrv_api.topic_route(at, topic), timeout_ms, not_known=(1, 17))
    return [data.broker_name for data in route.broker_datas]


async def test_the_next_one_is_asked_and_remembered(nobody: str) -> None:
    async with serving(FakeNamesrv()) as good, open_client() as client:
        assert isinstance(good, FakeNamesrv)
        good.add("t", FakeBroker("b"))
        servers = starting_at(client, nobody, good.addr)
        assert await route_brokers(servers) == ["b"]
        async with serving(FakeNamesrv()) as newcomer:
            newcomer.addr, _ = nobody, newcomer.addr
            assert await route_brokers(servers) == ["b"]
        assert len(good.requests) == 2


async def test_one_that_started_empty_is_passed_over() -> None:
    async with serving(FakeNamesrv()) as empty, serving(FakeNamesrv()) as full, open_client() as client:
        assert isinstance(full, FakeNamesrv)
        full.add("t", FakeBroker("b"))
        servers = starting_at(client, empty.addr, full.addr)
        assert await route_brokers(servers) == ["b"]
        assert len(empty.requests) == 1
        with pytest.raises(BrokerError) as caught:
            await route_brokers(servers, "u")
        assert caught.value.code == 17


async def test_a_frozen_one_costs_its_share_only() -> None:
    async with serving(FakeNamesrv()) as frozen, serving(FakeNamesrv()) as good, open_client() as client:
        assert isinstance(good, FakeNamesrv)
        frozen.on(105, lambda request: None)
        good.add("t", FakeBroker("b"))
        servers = starting_at(client, frozen.addr, good.addr)
        assert await route_brokers(servers, timeout_ms=2_000) == ["b"]
        assert await route_brokers(servers, timeout_ms=2_000) == ["b"]
        assert len(frozen.requests) == 1


async def test_when_none_answers_the_last_failure_counts(nobody: str) -> None:
    async with serving(FakeNamesrv()) as frozen, open_client() as client:
        frozen.on(105, lambda request: None)
        with pytest.raises(RequestTimeout):
            await route_brokers(starting_at(client, nobody, frozen.addr), timeout_ms=400)
        with pytest.raises(ConnectFailed, match=nobody):
            await route_brokers(starting_at(client, nobody))


async def test_other_errors_are_answers() -> None:
    async with serving(FakeNamesrv()) as first, serving(FakeNamesrv()) as second, open_client() as client:
        first.on(106, lambda request: request.respond(16, "disabled"))
        servers = starting_at(client, first.addr, second.addr)
        with pytest.raises(BrokerError, match="disabled"):
            await servers.ask(namesrv_api.cluster_info, 1000)
        assert not second.requests


async def test_clients_do_not_all_start_at_the_same() -> None:
    async with open_client() as client:
        firsts = {NameServers(client, Known(("a:1", "b:2", "c:3")), Random(seed))._good for seed in range(50)}
    assert firsts == {"a:1", "b:2", "c:3"}


async def test_a_new_list_takes_effect_at_once() -> None:
    async with serving(FakeNamesrv()) as old, serving(FakeNamesrv()) as new, open_client() as client:
        assert isinstance(old, FakeNamesrv) and isinstance(new, FakeNamesrv)
        old.add("t", FakeBroker("old"))
        new.add("t", FakeBroker("new"))
        servers = starting_at(client, old.addr)
        assert await route_brokers(servers) == ["old"]
        assert servers.replace((new.addr,))
        assert not servers.replace((new.addr,))
        assert (servers.addrs, servers.text) == ((new.addr,), new.addr)
        assert await route_brokers(servers) == ["new"]


async def test_a_list_that_changes_while_one_is_asked() -> None:
    async with serving(FakeNamesrv()) as first, serving(FakeNamesrv()) as second, open_client() as client:
        servers = starting_at(client, first.addr, second.addr)
        assert isinstance(second, FakeNamesrv)
        second.add("t", FakeBroker("b"))

        def change(request: Command) -> Command:
            servers.replace(("127.0.0.1:1",))
            return request.respond(17, "unknown")

        first.on(105, change)
        assert await route_brokers(servers) == ["b"]
        assert servers.addrs == ("127.0.0.1:1",)


async def test_an_address_server_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_client() as client, trio.open_nursery() as nursery:
        servers = NameServers(client, Known(url="http://h/x"), Random(0))
        with pytest.raises(NoNameServer, match="http://h/x"):
            await servers.ask(namesrv_api.cluster_info, 1000)
        assert trio.current_time() >= 1

        @nursery.start_soon
        async def list_later() -> None:
            await trio.sleep(1)
            servers.replace(("a:1",))

        assert await servers.wait_known(5000) == ("a:1",)


async def test_without_any_the_caller_is_told() -> None:
    async with open_client() as client:
        with pytest.raises(UserError, match="NAMESRV_ADDR"):
            await NameServers(client, Known(), Random(0)).ask(namesrv_api.cluster_info, 1000)


@pytest.mark.parametrize(
    ("name", "said"), [("broker-a", "(the broker broker-a listens there)"), ("", "(is it a broker's address?)")]
)
async def test_a_broker_that_is_asked_as_a_nameserver_is_named(name: str, said: str) -> None:
    async with serving(Fake()) as broker, open_client() as client:
        broker.announces, broker.json_only = name, not name
        for code in (105, 106, 319):
            broker.on(code, lambda request: request.respond(3, f" request type {request.code} not supported"))
        servers = starting_at(client, broker.addr)
        for ask in (lambda at: namesrv_api.topic_route(at, "t"), namesrv_api.cluster_info):
            with pytest.raises(NotNameServer) as caught:
                await servers.ask(ask, 2_000, not_known=(1, 17))
            assert str(caught.value).startswith(f"{broker.addr} is no NameServer {said}: give the address of a Name")
        with pytest.raises(NotNameServer):
            await admin_at(Endpoint(client, broker.addr)).namesrv_config()


async def test_a_broker_among_the_nameservers_is_told_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Fake()) as broker, serving(FakeNamesrv()) as good, open_client() as client:
        assert isinstance(good, FakeNamesrv)
        good.add("t", FakeBroker("b"))
        assert await route_brokers(starting_at(client, broker.addr, good.addr)) == ["b"]
    assert f"{broker.addr} is no NameServer" in caplog.text
