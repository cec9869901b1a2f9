"""Where a broker's NameServers come from: names with many addresses, address servers, a list that changes."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.identity import identity_of
from skylark.broker.options import BrokerOptions
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.registration.registrar import Registrar
from skylark.broker.replication.known_master import KnownMaster
from skylark.mqcommon.errors import ConfigError, ConnectFailed
from skylark.remoting.net.address_server import AddressServer, address_server_url, resolved
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.topics import (
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    GetTopicConfigRequestHeader,
)
from tests.broker.meta.support import MetadataDir, options
from tests.broker.registration.test_registrar import RecordingNamesrv, serving
from tests.broker.replication.sets import broker, namesrv
from tests.broker.running import running
from tests.support.waiting import until


class Dns(trio.abc.HostnameResolver):
    """Knows ``names``: host -> addresses. Others do not exist."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.asked = 0

    async def getaddrinfo(self, host: Any, port: Any, *args: Any, **flags: Any) -> Any:
        self.asked += 1
        ips = self.names.get(host.decode() if isinstance(host, bytes) else host)
        if not ips:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, int(port))) for ip in ips
        ]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.fixture
async def dns() -> AsyncIterator[Dns]:
    made = Dns()
    trio.socket.set_custom_hostname_resolver(made)
    yield made
    trio.socket.set_custom_hostname_resolver(None)


@pytest.mark.parametrize(
    ("addr", "ips", "found"),
    [
        ("ns.example:9876", ["10.0.0.2", "10.0.0.1", "fd00::1"], ["10.0.0.1:9876", "10.0.0.2:9876"]),
        ("ns.example:9876", ["fd00::2", "fd00::1"], ["[fd00::1]:9876", "[fd00::2]:9876"]),
        ("ns.example:9876", ["10.0.0.1"], ["ns.example:9876"]),
        ("localhost:9876", ["::1", "127.0.0.1"], ["localhost:9876"]),
        ("10.0.0.9:9876", [], ["10.0.0.9:9876"]),
        ("[fe80::1%eth0]:9876", [], ["[fe80::1%eth0]:9876"]),
    ],
)
async def test_a_name_stands_for_all_its_addresses(dns: Dns, addr: str, ips: list[str], found: list[str]) -> None:
    dns.names[addr.partition(":")[0]] = ips
    assert await resolved(addr) == found


async def test_a_client_connects_to_any_address_of_a_name(dns: Dns) -> None:
    server = Server({1: lambda channel, request: request.respond()})
    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(server.serve, "127.0.0.1", 0)
        port = addr.rpartition(":")[2]
        dns.names["ns.example"] = ["127.0.0.2", "127.0.0.1"]
        assert (await client.invoke(f"ns.example:{port}", Command(1))).code == 0
        nursery.cancel_scope.cancel()


async def test_names_are_looked_up_again_and_a_failure_changes_nothing(
    dns: Dns, autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    conf = options(namesrv_addr="ns.example:9876;10.0.0.1:9876;other.example:1")
    found = NameServerList(conf)
    assert found.addrs == ("ns.example:9876", "10.0.0.1:9876", "other.example:1")
    dns.names |= {"ns.example": ["10.0.0.1", "10.0.0.2"]}
    changes: list[tuple[str, ...]] = []
    found.on_change.append(lambda: changes.append(found.addrs))
    await nursery.start(found.run)
    assert changes == [("10.0.0.1:9876", "10.0.0.2:9876", "other.example:1")]
    for ips in (["10.0.0.3", "10.0.0.2"], [], ["10.0.0.2", "10.0.0.3"], ["10.0.0.3"]):
        dns.names["ns.example"] = ips
        await trio.sleep(conf.fetch_namesrv_addr_interval / 1000)
    await trio.testing.wait_all_tasks_blocked()
    assert changes[1:] == [
        ("10.0.0.2:9876", "10.0.0.3:9876", "10.0.0.1:9876", "other.example:1"),
        # Not its name: that would seem to be another server than the one at 10.0.0.3 that the broker is registered at.
        ("10.0.0.3:9876", "10.0.0.1:9876", "other.example:1"),
    ]
    assert caplog.text.count("other.example:1 cannot be looked up") == 1
    object.__setattr__(conf, "namesrv_addr", "10.0.0.7:1")
    found.tick()
    await trio.testing.wait_all_tasks_blocked()
    assert found.addrs == ("10.0.0.7:1",)


class Web(AddressServer):
    """Answers with ``lists`` in turn, and with the last one from then on."""

    def __init__(self, *lists: tuple[str, ...] | ConnectFailed) -> None:
        super().__init__(address_server_url("ads.example", "nsaddr"))
        self.lists = list(lists)
        self.asked: list[float] = []

    async def fetch(self) -> tuple[str, ...]:
        self.asked.append(trio.current_time())
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, ConnectFailed):
            raise answer
        return answer


async def test_an_address_server_is_asked_until_it_lists_something_and_again_at_intervals(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    away = ConnectFailed("ads.example", "refused")
    web = Web(away, away, ("10.0.0.1:1",), away, ("10.0.0.2:1",))
    found = NameServerList(options(fetch_namesrv_addr_by_address_server=True), server=web)
    seen: list[tuple[str, ...]] = []
    found.on_change.append(lambda: seen.append(found.addrs))
    await nursery.start(found.run)
    await trio.sleep(25)
    assert seen == [("10.0.0.1:1",), ("10.0.0.2:1",)]
    assert [round(at - web.asked[0]) for at in web.asked] == [0, 1, 2, 12, 22]
    assert web.url == "http://ads.example:8080/rocketmq/nsaddr"


async def test_namesrv_addr_comes_before_the_address_server(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    web = Web(("10.0.0.1:1",))
    found = NameServerList(options(fetch_namesrv_addr_by_address_server=True, namesrv_addr="10.0.0.9:1"), server=web)
    await nursery.start(found.run)
    assert (found.addrs, web.asked) == (("10.0.0.9:1",), [])


@pytest.mark.parametrize("domain", ["", "a b", "x/y@z", "ä.example"])
def test_a_domain_that_is_none_is_refused(domain: str) -> None:
    with pytest.raises(ConfigError, match="rmqAddressServerDomain"):
        BrokerOptions(fetch_namesrv_addr_by_address_server=True, rmq_address_server_domain=domain)


async def test_the_broker_registers_with_new_ones_and_unregisters_from_those_that_are_gone() -> None:
    one, two, three = RecordingNamesrv(), RecordingNamesrv(), RecordingNamesrv()
    async with serving(one) as addr1, serving(two) as addr2, serving(three) as addr3, trio.open_nursery() as nursery:
        meta = MetadataDir(options(namesrv_addr=f"{addr1};{addr2}"))
        found, known = NameServerList(meta.options), KnownMaster()
        registrar = Registrar(identity_of(meta.options, 10911), meta.topics, meta.options, known, namesrvs=found)
        found.on_change.append(registrar.list_changed)
        await nursery.start(found.run)
        await nursery.start(registrar.run)
        await until(lambda: set(registrar.registered_addrs) == {addr1, addr2})
        object.__setattr__(meta.options, "namesrv_addr", f"{addr2};{addr3}")
        found.tick()
        await until(lambda: bool(one.unregistered) and set(registrar.registered_addrs) == {addr2, addr3})
        assert [ext["brokerName"] for ext in one.unregistered] == ["broker-a"]
        assert two.unregistered == three.unregistered == []
        await registrar.stop()
        assert (len(one.unregistered), len(two.unregistered), len(three.unregistered)) == (1, 1, 1)
        nursery.cancel_scope.cancel()


async def test_a_name_gets_and_loses_servers_and_the_broker_stays_registered_at_the_others(dns: Dns) -> None:
    stays, comes = RecordingNamesrv(), RecordingNamesrv()
    async with serving(stays) as addr, trio.open_nursery() as nursery:
        port = int(addr.rpartition(":")[2])
        await nursery.start(comes.server.serve, "127.0.0.2", port)
        dns.names["ns.example"] = ["127.0.0.1"]
        meta = MetadataDir(options(namesrv_addr=f"ns.example:{port}", fetch_namesrv_addr_interval=50))
        found, known = NameServerList(meta.options), KnownMaster()
        registrar = Registrar(identity_of(meta.options, 10911), meta.topics, meta.options, known, namesrvs=found)
        found.on_change.append(registrar.list_changed)
        await nursery.start(found.run)
        await nursery.start(registrar.run)
        await until(lambda: registrar.registered_addrs == [f"ns.example:{port}"])
        for ips in (["127.0.0.1", "127.0.0.2"], ["127.0.0.1"]):
            dns.names["ns.example"] = ips
            await until(lambda ips=ips: registrar.registered_addrs == [f"{ip}:{port}" for ip in ips])
        await until(lambda: bool(comes.unregistered))
        assert stays.unregistered == []
        nursery.cancel_scope.cancel()


async def test_a_list_that_an_administrator_changes() -> None:
    namesrv_ = RecordingNamesrv()
    async with serving(namesrv_) as addr, running() as (client, broker_addr):
        changed = await client.invoke(
            broker_addr, Command(UPDATE_BROKER_CONFIG.code, body=f"namesrvAddr={addr}".encode())
        )
        assert changed.code == 0
        await until(lambda: bool(namesrv_.registered), "it is registered")


async def has_topic(member: Any, topic: str) -> bool:
    answer = await member.client.invoke(member.addr, Command(GET_TOPIC_CONFIG.code, {"topic": topic}))
    return bool(answer.code == 0)


async def test_a_topic_of_a_send_is_created_on_all_masters_and_present_ones_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, "auto_create_on_all_masters": True}
        async with (
            broker(**common) as a,
            broker(**common, broker_name="b") as b,
            broker(**common, broker_name="c", broker_cluster_name="Other") as c,
        ):
            await until(lambda: caplog.text.count("registered at NameServer") == 3)
            await b.client.invoke(b.addr, Command(UPDATE_AND_CREATE_TOPIC.code, {
                "topic": "Mine", "defaultTopic": "TBW102", "readQueueNums": 9, "writeQueueNums": 9, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            }))  # fmt: skip
            await a.send("Mine", b"x")
            await a.send("T", b"x")
            await until(lambda: has_topic(b, "T"), "the other master has it")
            asked = GetTopicConfigRequestHeader("Mine", lo=True)
            assert (await call(Remote(b.client, b.addr, 5_000), GET_TOPIC_CONFIG, asked)).body().write_queue_nums == 9
            assert not await has_topic(c, "T")
    assert caplog.text.count("is created at") == 1
