import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    InvalidArgument,
    NoNameServer,
    NotNameServer,
    ProtocolError,
    RequestTimeout,
    UserError,
)
from skylark.remoting.net.address_server import MAX_ANSWER_BYTES, AddressServer, address_of, addresses_in_answer
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.command import Command
from skylark.sdk import namesrv_api
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.nameservers import (
    REFRESH_S,
    Known,
    NameServers,
    find_nameservers,
    follow_address_server,
)
from tests.sdk.admin_at import admin_at
from tests.sdk.fakes import Fake, FakeBroker, FakeNamesrv, serving
from tests.support.memory_transport import MemoryTransport, memory_pair


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


async def test_servers_that_are_no_nameservers_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeBroker("a")) as one, serving(FakeBroker("b")) as other, open_client() as client:
        servers = starting_at(client, one.addr, other.addr)
        for _ in range(2):
            with pytest.raises(NotNameServer):
                await route_brokers(servers)
    for addr in (one.addr, other.addr):
        assert sum(f"{addr} is no NameServer" in line for line in caplog.messages) == 1


def test_lists_of_addresses() -> None:
    assert find_nameservers("a:1;b:2") == Known(("a:1", "b:2"))
    assert find_nameservers(" a:1 , b:2;;a:1") == Known(("a:1", "b:2"))
    assert find_nameservers("[::1]:9876") == Known(("[::1]:9876",))
    assert find_nameservers(["a:1", "b:2;c:3"]) == Known(("a:1", "b:2", "c:3"))
    assert find_nameservers(("a:1",)) == Known(("a:1",))


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    for nothing in (None, "", []):
        assert find_nameservers(nothing) == Known(("e:1",))
    assert find_nameservers("a:1") == Known(("a:1",))
    monkeypatch.setenv("NAMESRV_ADDR", "http://e:8080/rocketmq/nsaddr")
    assert find_nameservers(None) == Known(url="http://e:8080/rocketmq/nsaddr")


@pytest.mark.parametrize("text", ["localhost", "h:port", "h:0", "h:65536", "http://h:9876/x", ":9876", "kafka://h:9"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        find_nameservers(f"good:9876;{text}")
    assert repr(text) in str(caught.value) and "host:port" in str(caught.value) and "\n" not in str(caught.value)


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    for text in (None, "", " ; ", []):
        with pytest.raises(UserError, match="NAMESRV_ADDR"):
            find_nameservers(text)
        assert not find_nameservers(text, required=False)
    with pytest.raises(UserError, match="host:port"):
        find_nameservers("nonsense", required=False)


@pytest.mark.parametrize(
    ("url", "addr"),
    [
        ("http://jmenv.example/rocketmq/nsaddr", ("jmenv.example", 80)),
        ("http://h:8080/rocketmq/nsaddr?nofix=1", ("h", 8080)),
        ("http://[::1]:8080", ("::1", 8080)),
    ],
)
def test_address_servers(url: str, addr: tuple[str, int]) -> None:
    assert find_nameservers(f" {url}\n") == Known(url=url)
    assert address_of(url) == addr


@pytest.mark.parametrize(
    "url",
    [
        "https://h/x",
        "http://",
        "http:///x",
        "http://h:port/x",
        "http://h:0/x",
        "http://u@h/x",
        "http://h/a b",
        "http://h/\r\nx",
    ],
)
def test_urls_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(InvalidArgument, match="address server"):
        find_nameservers(url)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("brokerName=b\nnamesrvAddr=a:1;b:2\n", Known(("a:1", "b:2"))),
        ("rocketmq.namesrv.addr = a:1", Known(("a:1",))),
        ("namesrvAddr=http://h:8080/x", Known(url="http://h:8080/x")),
        ("rocketmq.namesrv.domain=jmenv.example", Known(url="http://jmenv.example:8080/rocketmq/nsaddr")),
        ("rocketmq.namesrv.domain=h:81\nrocketmq.namesrv.domain.subgroup=unit", Known(url="http://h:81/rocketmq/unit")),
    ],
)
def test_conf_files(tmp_path: Path, text: str, known: Known) -> None:
    path = tmp_path / "client.conf"
    path.write_text(text)
    assert find_nameservers(path) == known


def test_conf_files_that_do_not_say(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    with pytest.raises(UserError, match=r"client\.conf"):
        find_nameservers(path)
    path.write_text("brokerName=b")
    with pytest.raises(UserError, match="namesrvAddr"):
        find_nameservers(path)
    path.write_text("namesrvAddr=nonsense")
    with pytest.raises(InvalidArgument, match="nonsense"):
        find_nameservers(path)
    path.write_text("namesrvAddr=\\uXYZ")
    with pytest.raises(UserError, match="properties"):
        find_nameservers(path)
    path.write_text("# " + "x" * 1024 * 1024)
    with pytest.raises(UserError, match="larger"):
        find_nameservers(path)


@pytest.mark.parametrize("given", [1, b"h:1", [b"h:1"], {"h:1"}])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match="nameserver"):
        find_nameservers(given)  # type: ignore[arg-type]


URL = "http://jmenv.example:8080/rocketmq/nsaddr?nofix=1"
BACKOFF = Backoff(0.05, 0.5, Random(0))


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


class Web:
    """An HTTP server: ``replies`` in turn, the last one for ever; None is silence, an OSError a refusal."""

    def __init__(self, nursery: trio.Nursery, *replies: bytes | OSError | None) -> None:
        self.nursery = nursery
        self.replies = list(replies)
        self.asked: list[tuple[float, bytes]] = []
        self.addrs: list[tuple[str, int]] = []

    async def connect(self, host: str, port: int) -> Transport:
        await trio.lowlevel.checkpoint()
        self.addrs.append((host, port))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, OSError):
            raise reply
        mine, theirs = memory_pair()
        self.nursery.start_soon(self._serve, theirs, reply)
        return mine

    async def _serve(self, transport: MemoryTransport, reply: bytes | None) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += await transport.receive(1000)
        self.asked.append((trio.current_time(), request))
        if reply is None:
            await trio.sleep_forever()
        else:
            await transport.send_all(reply)
            await transport.aclose()

    @property
    def server(self) -> AddressServer:
        return AddressServer(URL, self.connect)


async def test_what_is_asked(nursery: trio.Nursery) -> None:
    web = Web(nursery, answer(b"a:1;b:2\n"))
    assert await web.server.fetch() == ("a:1", "b:2")
    assert web.addrs == [("jmenv.example", 8080)]
    (request,) = [request for _, request in web.asked]
    assert request.splitlines()[:2] == [b"GET /rocketmq/nsaddr?nofix=1 HTTP/1.1", b"Host: jmenv.example:8080"]
    assert b"Connection: close" in request


@pytest.mark.parametrize(
    ("data", "addrs"),
    [
        (answer(b"a:1"), ("a:1",)),
        (answer(b"a:1;b:2", Content_Length="7"), ("a:1", "b:2")),
        (answer(b"\r\n a:1,b:2 \r\nmore:3"), ("a:1", "b:2")),
        (answer(b"3\r\na:1\r\n4\r\n;b:2\r\n0\r\n\r\n", Transfer_Encoding="chunked"), ("a:1", "b:2")),
        (b"HTTP/1.0 200\r\n\r\na:1", ("a:1",)),
    ],
)
def test_answers_that_list_addresses(data: bytes, addrs: tuple[str, ...]) -> None:
    assert addresses_in_answer(data) == addrs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        answer(b""),
        answer(b" ; "),
        answer(b"<html>not here</html>"),
        answer(b"a:1", "404 Not Found"),
        answer(b"", "302 Found", Location="http://other/"),
        answer(b"a:1;b", Content_Length="50"),
        answer(b"\xff:1"),
        answer(b"zz\r\na:1", Transfer_Encoding="chunked"),
    ],
)
def test_answers_that_cannot_be_used(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        addresses_in_answer(data)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda body: answer(body)))
def test_any_answer_is_a_list_or_an_error(data: bytes) -> None:
    try:
        assert addresses_in_answer(data)
    except ProtocolError as error:
        assert str(error)


async def test_a_long_answer_is_refused(nursery: trio.Nursery) -> None:
    web = Web(nursery, answer(b"a:1;" * MAX_ANSWER_BYTES))
    with pytest.raises(ProtocolError, match=str(MAX_ANSWER_BYTES)):
        await web.server.fetch()


async def test_silence_has_an_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectFailed, match="no answer"):
        await Web(nursery, None).server.fetch()


async def test_a_refused_connection_is_named(nursery: trio.Nursery) -> None:
    with pytest.raises(ConnectFailed, match="jmenv"):
        await Web(nursery, ConnectionRefusedError(111, "Connection refused")).server.fetch()


@asynccontextmanager
async def following(web: Web) -> AsyncIterator[list[tuple[str, ...]]]:
    """The NameServers that the follower finds."""
    found: list[tuple[str, ...]] = []

    def note(addrs: tuple[str, ...]) -> bool:
        found.append(addrs)
        return found[-2:-1] != [addrs]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_address_server, web.server, note, BACKOFF)
        yield found
        nursery.cancel_scope.cancel()


async def test_the_list_is_refreshed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    web = Web(nursery, answer(b"a:1"), answer(b"b:2"))
    async with following(web) as found:
        await trio.sleep(1)
        assert found == [("a:1",)]
        await trio.sleep(REFRESH_S)
        assert found == [("a:1",), ("b:2",)]
    first, second = (when for when, _ in web.asked)
    assert second - first == pytest.approx(REFRESH_S)


async def test_a_server_that_is_down_first_is_asked_soon_again(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    web = Web(nursery, refused, answer(b"", "503 Service Unavailable"), refused, answer(b"a:1"))
    async with following(web) as found:
        await trio.sleep(5)
        assert found == [("a:1",)]
    assert [record.levelname for record in caplog.records if "address server" in record.message].count("WARNING") == 1


async def test_the_last_list_stays_while_the_server_is_down(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    web = Web(nursery, answer(b"a:1"), answer(b"junk"))
    async with following(web) as found:
        await trio.sleep(3 * REFRESH_S + 1)
    assert found == [("a:1",)]
    assert len(web.asked) == 4


@pytest.mark.parametrize("page", ["<!DOCTYPE html>\n<title>Overview \u00b7 Skylark</title>" + "x" * 5_000, "x" * 5_000])
def test_the_fault_of_an_answer_does_not_tell_the_whole_answer(page: str) -> None:
    body = page.encode()
    with pytest.raises(ProtocolError, match=r"its answer (is no list of addresses|cannot be used): ") as raised:
        addresses_in_answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert len(str(raised.value)) < 300
