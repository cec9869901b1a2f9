import socket
from collections.abc import Iterator
from random import Random

import pytest

from mqcommon.errors import BrokerError, ConnectFailed, InvalidArgument, RequestTimeout, UserError
from remoting.net.client import RemotingClient, open_client
from sdk import namesrv_api
from sdk.nameservers import NameServers, parse_nameservers
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving


def test_lists_of_addresses() -> None:
    assert parse_nameservers("a:1;b:2") == ("a:1", "b:2")
    assert parse_nameservers(" a:1 , b:2;;a:1") == ("a:1", "b:2")
    assert parse_nameservers("[::1]:9876") == ("[::1]:9876",)


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    assert parse_nameservers(None) == ("e:1",)
    assert parse_nameservers("") == ("e:1",)
    assert parse_nameservers("a:1") == ("a:1",)


@pytest.mark.parametrize("text", ["localhost", "h:port", "h:0", "h:65536", "http://h:9876/x", ":9876"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_nameservers(f"good:9876;{text}")
    assert repr(text) in str(caught.value) and "host:port" in str(caught.value) and "\n" not in str(caught.value)


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    for text in (None, "", " ; "):
        with pytest.raises(UserError, match="NAMESRV_ADDR"):
            parse_nameservers(text)
        assert parse_nameservers(text, required=False) == ()
    with pytest.raises(UserError, match="host:port"):
        parse_nameservers("nonsense", required=False)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, kept so while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def starting_at(client: RemotingClient, *addrs: str) -> NameServers:
    """NameServers whose first choice is the first."""
    seed = next(seed for seed in range(100) if Random(seed).randrange(len(addrs)) == 0)
    return NameServers(client, addrs, Random(seed))


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
        first.on(206, lambda request: request.respond(16, "disabled"))
        servers = starting_at(client, first.addr, second.addr)
        with pytest.raises(BrokerError, match="disabled"):
            await servers.ask(namesrv_api.topic_list, 1000)
        assert not second.requests


async def test_clients_do_not_all_start_at_the_same() -> None:
    async with open_client() as client:
        firsts = {NameServers(client, ("a:1", "b:2", "c:3"), Random(seed))._good for seed in range(50)}
    assert firsts == {0, 1, 2}
