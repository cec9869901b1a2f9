"""Registration with NameServers: Skylark's, and a recording fake in place of RocketMQ's."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from skylark.broker.identity import identity_of, resolved
from skylark.broker.meta.topics import Drain
from skylark.broker.options import BrokerOptions
from skylark.broker.registration import registrar as registrar_module
from skylark.broker.registration.registrar import Registrar
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import JSON, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.registrations import (
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    RegisterBrokerBody,
)
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import MetadataDir, options
from tests.namesrv.registrations import all_topics
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S


class RecordingNamesrv:
    """Answers as RocketMQ's NameServer does, in JSON, and remembers what came."""

    def __init__(self) -> None:
        self.registered: list[tuple[dict[str, Any], RegisterBrokerBody]] = []
        self.queries = 0
        self.unregistered: list[dict[str, Any]] = []
        self.known: DataVersion | None = None
        self.refuse = False
        self.refusal = (1, "name server not ready")
        #: What slaves are told of their master.
        self.answer: dict[str, str] = {}
        self.codecs: set[int] = set()
        #: Called while the peer waits for its answer.
        self.on_register: Callable[[], None] = lambda: None
        self.channels: list[Channel] = []
        handlers = {
            REGISTER_BROKER.code: self.register,
            QUERY_DATA_VERSION.code: self.query,
            UNREGISTER_BROKER.code: self.unregister,
        }
        self.server = Server(handlers)

    def register(self, channel: Channel, request: Command) -> Command:
        self.codecs.add(request.codec)
        self.channels.append(channel)
        if self.refuse:
            return request.respond(*self.refusal)
        body = decode_body(RegisterBrokerBody, request.body, request.codec)
        self.registered.append((dict(request.ext or {}), body))
        self.known = body.topic_config_serialize_wrapper.data_version
        self.on_register()
        return request.respond(ext=dict(self.answer))

    def query(self, channel: Channel, request: Command) -> Command:
        self.queries += 1
        asked = decode_body(DataVersion, request.body, request.codec)
        return request.respond(ext={"changed": "true" if asked != self.known else "false"})

    def unregister(self, channel: Channel, request: Command) -> Command:
        self.unregistered.append(dict(request.ext or {}))
        return request.respond()

    @property
    def topics(self) -> dict[str, TopicConfig]:
        return self.registered[-1][1].topic_config_serialize_wrapper.topic_config_table


@asynccontextmanager
async def serving(namesrv: RecordingNamesrv, port: int = 0) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(namesrv.server.serve, "127.0.0.1", port)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def broker(*addrs: str, **changes: Any) -> AsyncIterator[tuple[MetadataDir, Registrar]]:
    meta = MetadataDir(resolved(options(namesrv_addr=";".join(addrs), **changes)))
    registrar = Registrar(identity_of(meta.options, 10911), meta.topics, meta.options, KnownMaster())
    meta.topics.on_change.append(registrar.register_soon)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(registrar.run)
            yield meta, registrar
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for happens behind sockets
        await trio.sleep(0.002)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "RETRY_S", 0.02)
    monkeypatch.setattr(registrar_module, "PAUSE_S", 0.02)


async def test_the_broker_registers_at_once_with_all_nameservers() -> None:
    one, two = RecordingNamesrv(), RecordingNamesrv()
    async with serving(one) as addr1, serving(two) as addr2, broker(addr1, addr2) as (meta, registrar):
        await until(lambda: set(registrar.registered_addrs) == {addr1, addr2})
        for namesrv in (one, two):
            ((ext, body),) = namesrv.registered
            assert {name: ext[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")} == {
                "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911",
                "clusterName": "DefaultCluster", "brokerId": "0",
            }  # fmt: skip
            assert ext["haServerAddr"] == "127.0.0.1:10912"
            assert namesrv.topics == meta.topics.all()
            assert body.topic_config_serialize_wrapper.data_version == meta.topics.data_version
            assert namesrv.codecs == {JSON}


async def test_advertised_addresses_are_told() -> None:
    namesrv = RecordingNamesrv()
    networks = {"advertised_addresses": "10.0.0.0/8=10.0.0.5"}
    async with serving(namesrv) as addr, broker(addr, **networks) as (_, registrar):
        await until(lambda: bool(registrar.registered_addrs))
        assert namesrv.registered[0][0]["advertisedAddresses"] == "10.0.0.0/8=10.0.0.5:10911"
        assert namesrv.registered[0][0]["brokerAddr"] == "127.0.0.1:10911"


async def test_a_change_is_told_at_once_and_a_thousand_changes_in_few_registrations() -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr) as (meta, registrar):
        await until(lambda: bool(registrar.registered_addrs))
        for number in range(1000):
            meta.topics.put(TopicConfig(f"T{number}", 1, 1))
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        assert registrar.registered_addrs == []
        await until(lambda: bool(registrar.registered_addrs))
        assert "T999" in namesrv.topics
        assert len(namesrv.registered) < 20


async def test_each_period_the_version_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 20)
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr):
        await until(lambda: namesrv.queries >= 3)
        assert len(namesrv.registered) == 1
        namesrv.known = None  # it lost what it knew, and kept the connection
        await until(lambda: len(namesrv.registered) == 2)


async def test_a_registration_that_took_long_makes_no_silence_longer_than_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 20)
    monkeypatch.setattr(registrar_module, "pause_s", lambda took_s: 1e6)  # as if it had taken so long
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr):
        await until(lambda: namesrv.queries >= 2)


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.02), (0.05, 0.25), (0.5, 1), (4, 4)])
def test_a_machine_that_stood_still_does_not_hide_new_topics_for_much_longer(took_s: float, pause_s: float) -> None:
    assert registrar_module.pause_s(took_s) == pytest.approx(pause_s)


async def test_force_register_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 20)
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr, force_register=True):
        await until(lambda: len(namesrv.registered) >= 3)
        assert namesrv.queries == 0


async def test_a_nameserver_that_restarts_empty_is_told_all_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = RecordingNamesrv(), RecordingNamesrv()
    async with serving(first) as addr:
        meta = MetadataDir(resolved(options(namesrv_addr=addr)))
        registrar = Registrar(identity_of(meta.options, 10911), meta.topics, meta.options, KnownMaster())
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(registrar.run)
                await until(lambda: bool(registrar.registered_addrs))
                first.server.stop_accepting()
                for channel in list(first.server.channels):
                    channel.close("restart")
                await until(lambda: not registrar.registered_addrs)
                await until(lambda: registrar._states[addr].failures >= 3)  # quietly
                async with serving(second, int(addr.rpartition(":")[2])):
                    await until(lambda: bool(registrar.registered_addrs))
                    assert second.topics == meta.topics.all()
                    nursery.cancel_scope.cancel()
    about = [record.getMessage() for record in caplog.records if record.name == "skylark.broker.registration.registrar"]
    assert [line.split(" ")[0] for line in about] == ["registered", "connection", "registered"]


async def test_a_broker_without_nameservers_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with broker() as (meta, registrar):
        meta.topics.put(TopicConfig("T"))
        await registrar.stop()
    assert "no NameServer is set" in caplog.text


async def test_a_nameserver_that_is_away_costs_one_line_and_no_registration_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker("127.0.0.1:1", addr) as (_, registrar):
        await until(lambda: registrar.registered_addrs == [addr])
        await until(lambda: registrar._states["127.0.0.1:1"].failures >= 3)
    assert caplog.text.count("not registered at NameServer 127.0.0.1:1") == 1


async def test_a_nameserver_that_hangs_delays_no_other_and_is_reached_by_a_new_connection() -> None:
    hung: list[Command] = []
    namesrv = RecordingNamesrv()
    answer = namesrv.register

    def hang(channel: Channel, request: Command) -> Command | None:
        hung.append(request)
        return answer(channel, request) if len(hung) > 1 else None

    namesrv.server = Server({REGISTER_BROKER.code: hang})
    other = RecordingNamesrv()
    async with (
        serving(namesrv) as addr1,
        serving(other) as addr2,
        broker(addr1, addr2, register_broker_timeout_mills=100) as (_, registrar),
    ):
        await until(lambda: registrar.registered_addrs == [addr2])
        assert len(hung) == 1
        await until(lambda: len(registrar.registered_addrs) == 2)


async def test_a_narrowed_broker_permission_narrows_every_topic() -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr, broker_permission=4) as (meta, registrar):
        await until(lambda: bool(registrar.registered_addrs))
        assert namesrv.topics["TBW102"].perm == 4
        kept = meta.topics.get("TBW102")
        assert kept is not None
        assert kept.perm == 7


async def test_stop_unregisters_from_those_that_answer() -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr, "127.0.0.1:1") as (meta, registrar):
        await until(lambda: registrar.registered_addrs == [addr])
        await registrar.stop()
        assert [ext["brokerName"] for ext in namesrv.unregistered] == ["broker-a"]
        meta.topics.put(TopicConfig("T"))
        assert len(namesrv.registered) == 1
        await registrar.stop()


async def test_stop_has_a_deadline() -> None:
    namesrv = RecordingNamesrv()
    namesrv.server = Server(
        {REGISTER_BROKER.code: namesrv.register, UNREGISTER_BROKER.code: lambda channel, request: None}
    )
    async with serving(namesrv) as addr, broker(addr) as (_, registrar):
        await until(lambda: bool(registrar.registered_addrs))
        await registrar.stop(timeout_ms=50)


async def test_with_our_own_nameserver() -> None:
    namesrv = Namesrv(NamesrvOptions(listen_port=0, bind_address="127.0.0.1", kv_config_path="/nonexistent/kv.json"))
    routes = namesrv.state.routes
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            addr = await nursery.start(namesrv.run)
            async with broker(addr) as (meta, registrar):
                await until(lambda: registrar.registered_addrs == [addr])
                assert all_topics(routes) == set(meta.topics.names())
                meta.topics.put(TopicConfig("T", 3, 5, 4))
                await until(lambda: registrar.registered_addrs == [addr])
                route = routes.route("T")
                assert route is not None
                assert [(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas] == [
                    ("broker-a", 3, 5, 4)
                ]
                await registrar.stop()
                assert routes.route("T") is None
            nursery.cancel_scope.cancel()


async def test_a_second_broker_of_its_name_and_id_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    namesrv = RecordingNamesrv()
    namesrv.answer = {"contestedBy": "10.0.0.2:10911"}
    async with serving(namesrv) as addr, broker(addr) as (meta, registrar):
        for count in range(1, 4):
            meta.topics.put(TopicConfig(f"T{count}"))
            await until(lambda: registrar.registered_addrs == [addr])
        assert len(namesrv.registered) > 1
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.getMessage() == (
            f"NameServer {addr} has another broker as broker-a with id 0, at 10.0.0.2:10911: while both run, that one"
            " and this one, at 127.0.0.1:10911, displace each other; stop one of them, or give it another brokerName or"
            " brokerId"
        )
        # Another address is news.
        namesrv.answer = {"contestedBy": "10.0.0.3:10911"}
        meta.topics.put(TopicConfig("T9"))
        await until(lambda: "at 10.0.0.3:10911" in caplog.text)


@asynccontextmanager
async def slave(*addrs: str) -> AsyncIterator[tuple[KnownMaster, Registrar]]:
    meta = MetadataDir(resolved(options(namesrv_addr=";".join(addrs))))
    master = KnownMaster()
    identity = replace(identity_of(meta.options, 10921), broker_id=1)
    registrar = Registrar(identity, meta.topics, meta.options, master)
    master.ask_again = registrar.register_soon
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(registrar.run)
            yield master, registrar
            nursery.cancel_scope.cancel()


async def test_a_slave_registers_as_one_and_is_told_where_its_master_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, slave(addr) as (master, registrar):
        await until(lambda: len(namesrv.registered) >= 3)  # often, while no master is known
        ext, _ = namesrv.registered[0]
        assert (ext["brokerId"], ext["brokerAddr"], ext["haServerAddr"]) == ("1", "127.0.0.1:10921", "127.0.0.1:10922")
        # Or a NameServer would not take its topics while the master is away.
        assert ext["enableActingMaster"] == "false"
        assert (master.address, master.registered) == (None, False)
        namesrv.answer = {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}
        await until(lambda: master.registered)
        assert master.address == MasterAddress("127.0.0.1:10911", "127.0.0.1:10912")
        namesrv.answer = {"masterAddr": "127.0.0.1:10931", "haServerAddr": "127.0.0.1:10932"}
        master.ask_again()
        await until(lambda: master.address == MasterAddress("127.0.0.1:10931", "127.0.0.1:10932"))
        assert registrar.registered_addrs == [addr]
        assert namesrv.queries == 0  # 322 does not tell of the master


async def test_a_nameserver_that_is_gone_does_not_say_that_the_master_lives() -> None:
    namesrv = RecordingNamesrv()
    namesrv.answer = {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}
    async with serving(namesrv) as addr, slave(addr) as (master, _):
        await until(lambda: master.registered)
        namesrv.refuse = True
        master.ask_again()
        await until(lambda: not master.registered)
        assert master.address == MasterAddress("127.0.0.1:10911", "127.0.0.1:10912")


async def test_master_and_slave_with_our_own_nameserver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    namesrv = Namesrv(NamesrvOptions(listen_port=0, bind_address="127.0.0.1", kv_config_path="/nonexistent/kv.json"))
    routes = namesrv.state.routes
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            addr = await nursery.start(namesrv.run)
            async with slave(addr) as (known, backup):
                await until(lambda: backup.registered_addrs == [addr])
                # Nobody else tells the topics to a NameServer that starts while the master is away.
                assert "TBW102" in all_topics(routes)
                assert known.address is None
                async with broker(addr) as (meta, registrar):
                    meta.topics.put(TopicConfig("T", 3, 5, 6))
                    await until(lambda: known.registered and registrar.registered_addrs == [addr])
                    assert known.address == MasterAddress("127.0.0.1:10911", "127.0.0.1:10912")
                    route = routes.route("T")
                    assert route is not None
                    (data,) = route.broker_datas
                    assert data.broker_addrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
                    assert [(queue.write_queue_nums, queue.perm) for queue in route.queue_datas] == [(5, 6)]
                    await registrar.stop()
                    route = routes.route("T")  # it stays, with the slave to read from
                    assert route is not None
                    assert route.broker_datas[0].broker_addrs == {1: "127.0.0.1:10921"}
            nursery.cancel_scope.cancel()


async def test_a_role_that_changes_while_it_registers_is_told() -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, slave(addr) as (_, registrar):

        def promoted() -> None:
            namesrv.on_register = lambda: None
            registrar._identity.broker_id = 0
            registrar.role_changed()

        namesrv.on_register = promoted
        await until(lambda: len(namesrv.registered) >= 2)
        # The wire is JSON first, and CBOR once both sides know each other.
        assert [int(ext["brokerId"]) for ext, _ in namesrv.registered] == [1, 0]


async def test_a_broker_that_may_not_register_says_what_to_set_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 10)
    monkeypatch.setattr(registrar_module, "REFUSALS_A_LINE", 5)
    namesrv = RecordingNamesrv()
    namesrv.refuse = True
    namesrv.refusal = (ResponseCode.NO_PERMISSION, "request 103 needs the signature of an administrator")
    who = '{"accessKey":"broker-1","secretKey":"hidden"}'
    async with serving(namesrv) as addr, broker(addr, inner_client_authentication_credentials=who) as (_, registrar):
        await until(lambda: len(namesrv.channels) > 6)
        lines = [record.getMessage() for record in caplog.records if "not registered" in record.getMessage()]
        assert 2 <= len(lines) <= len(namesrv.channels) // 5 + 1
        assert lines[0].endswith(
            "answered code 16: request 103 needs the signature of an administrator; set"
            " innerClientAuthenticationCredentials (now of broker-1) to a user of registrationUsers of"
            " that NameServer, or to an administrator of its aclFile"
        )
        assert "hidden" not in caplog.text
        namesrv.refuse = False
        await until(lambda: registrar.registered_addrs == [addr])


async def test_brokers_keep_the_names_of_the_others_over_a_restart_of_all_nameservers() -> None:
    async def route(namesrv: Namesrv) -> tuple[list[str], list[tuple[str, str]]]:
        found = namesrv.state.routes.route("TBW102")
        assert found is not None
        return (
            [queue.broker_name for queue in found.queue_datas],
            [(one.broker_name, one.reason) for one in found.absent_brokers or ()],
        )

    async with trio.open_nursery() as nursery:
        first, second = (Namesrv(NamesrvOptions(listen_port=0), fs=MemoryFiles()) for _ in range(2))
        addr = await nursery.start(first.run)
        async with broker(addr) as (meta, registrar):
            await until(lambda: bool(registrar.registered_addrs))
            async with broker(addr, broker_name="broker-b", broker_ip1="127.0.0.2") as (other, _):
                await until(lambda: first.state.routes.known.names("DefaultCluster") == ["broker-a", "broker-b"])
                registrar.register_soon()  # as each period
                await until(lambda: meta.topics.known_brokers.value == ("broker-b",))
                await until(lambda: other.topics.known_brokers.value == ("broker-a",))
        assert "broker-b" not in first.state.routes.cluster_info().broker_addr_table
        # All is killed; only one of the brokers and an empty NameServer come back.
        again = await nursery.start(second.run)
        meta.kill()
        assert meta.topics.known_brokers.value == ("broker-b",)
        new = Registrar(identity_of(replace(meta.options, namesrv_addr=again), 10911), meta.topics,
                        replace(meta.options, namesrv_addr=again), KnownMaster())  # fmt: skip
        with trio.fail_after(DEADLINE_S):
            await nursery.start(new.run)
            await until(lambda: bool(new.registered_addrs))
            assert await route(second) == (["broker-a"], [("broker-b", "unheard")])
            second.state.routes.forget_broker("broker-b")
            new.register_soon()
            await until(lambda: meta.topics.known_brokers.value == ())
            # Another NameServer has told of a broker: this one hears of it, too.
            meta.topics.known_brokers.put(("broker-c",))
            new.register_soon()
            await until(lambda: second.state.routes.known.is_away("broker-c"))
        nursery.cancel_scope.cancel()


async def test_a_drained_broker_says_that_it_leaves_for_good() -> None:
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr) as (meta, registrar):
        await until(lambda: bool(registrar.registered_addrs))
        assert namesrv.registered[-1][1].is_drained is None
        meta.topics.drain.put(Drain(1, 2))
        meta.topics.changed()
        await until(lambda: bool(namesrv.registered[-1][1].is_drained))
