"""Large sets of topics: in parts and deltas to our NameServers, compressed and cut to RocketMQ's."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.registration import registration as registration_module
from skylark.broker.registration.registration import encode_in_one
from skylark.mqcommon.names import AUTO_CREATE_TOPIC
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.namesrv.routes import RouteTable
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import VERSION
from skylark.remoting.protocol.dialect import decode_body, encode_body
from skylark.remoting.protocol.requests.registrations import RegisterBrokerBody, decode_compressed
from skylark.remoting.protocol.requests.routes import TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.routes import make_route
from tests.broker.registration.test_registrar import RecordingNamesrv, broker, serving, slave, until
from tests.namesrv.registrations import all_topics
from tests.support.clock import ManualClock

LIMIT = 65_536
NAME_CHARS = 120


def in_one(data: bytes, is_compressed: bool) -> RegisterBrokerBody:
    return finish(decode_compressed(data, VERSION)) if is_compressed else decode_body(RegisterBrokerBody, data)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "PART_TOPICS", 50)
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 20)


def name(number: int) -> str:
    return f"T{number}".ljust(NAME_CHARS, "x")


def configs(count: int) -> list[TopicConfig]:
    return [TopicConfig(name(number), 4, 4, attributes={"a": "b"}) for number in range(count)]


class Counting:
    """A NameServer of ours that counts the topics that it is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options = NamesrvOptions(
            listen_port=0, bind_address="127.0.0.1", kv_config_path="/nonexistent/kv.json", frame_max_length=LIMIT
        )
        self.namesrv = Namesrv(options, clock=ManualClock())
        self.routes = self.namesrv.state.routes
        self.sent: list[int] = []
        #: The topics of each part, in the order of arrival.
        self.parts: list[set[str]] = []
        register = RouteTable.register

        def noting(routes: Any, new: Any, *args: Any, **kwargs: Any) -> Any:
            self.sent.append(len(new.topics))
            self.parts.append(set(new.topics))
            return register(routes, new, *args, **kwargs)

        monkeypatch.setattr(RouteTable, "register", noting)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with trio.open_nursery() as nursery:
            yield await nursery.start(self.namesrv.run)
            nursery.cancel_scope.cancel()


async def test_many_topics_in_parts_then_only_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    namesrv = Counting(monkeypatch)
    async with namesrv.serving() as addr, broker(addr, frame_max_length=LIMIT) as (meta, registrar):
        for config in configs(1_000):
            meta.topics.put(config)
        await until(lambda: registrar.registered_addrs == [addr])
        assert all_topics(namesrv.routes) == set(meta.topics.names())
        assert max(namesrv.sent) <= 50
        # A client that finds the default topic, but not the wanted topic, creates the wanted topic. So the default
        # topic comes last, unless a registration came before the other topics were made.
        with_default = next(topics for topics in namesrv.parts if AUTO_CREATE_TOPIC in topics)
        assert with_default is namesrv.parts[-1] or with_default.isdisjoint(map(name, range(1_000)))
        namesrv.sent.clear()
        meta.topics.put(TopicConfig("One", 3, 5, 4))
        meta.topics.delete(name(7))
        await until(lambda: registrar.registered_addrs == [addr])
        assert namesrv.sent == [1]
        assert all_topics(namesrv.routes) == set(meta.topics.names())
        meta.topics.changed()  # of all, as when brokerPermission changes
        await until(lambda: registrar.registered_addrs == [addr])
        assert sum(namesrv.sent) == 1 + len(meta.topics.names())


async def test_a_nameserver_that_forgot_is_told_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    namesrv = Counting(monkeypatch)
    async with namesrv.serving() as addr, broker(addr, frame_max_length=LIMIT) as (meta, registrar):
        for config in configs(300):
            meta.topics.put(config)
        await until(lambda: registrar.registered_addrs == [addr])
        (live,) = namesrv.routes._live.values()
        namesrv.routes.close(live.connection)
        meta.topics.put(TopicConfig("One"))  # a change of a set that the NameServer does not have
        await until(lambda: registrar.registered_addrs == [addr])
        assert all_topics(namesrv.routes) == set(meta.topics.names())
        namesrv.routes.close(live.connection)
        await until(lambda: all_topics(namesrv.routes) == set(meta.topics.names()))
        namesrv.routes.delete_topic("One")  # here only: with the next change it is back, as it is with RocketMQ's
        meta.topics.put(TopicConfig("Two"))
        await until(lambda: registrar.registered_addrs == [addr])
        assert all_topics(namesrv.routes) == set(meta.topics.names())


async def test_routes_have_the_creation_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    namesrv = Counting(monkeypatch)
    async with namesrv.serving() as addr, broker(addr) as (meta, registrar):
        meta.topics.put(TopicConfig("One"))
        meta.topics.put_as_is(TopicConfig("Older"))
        await until(lambda: registrar.registered_addrs == [addr])

        def stamp_of(topic: str) -> int | None:
            route = namesrv.routes.route(topic)
            assert route is not None
            # As clients get it.
            found = decode_body(TopicRouteData, encode_body(route)).queue_datas
            return make_route(topic, TopicRouteData(found, route.broker_datas)).stamps.get(found[0].broker_name)

        first = stamp_of("One")
        assert first is not None and first == meta.topics.created_ms("One")
        assert stamp_of("Older") is None
        # With the same settings: the route has changed all the same, and watchers hear of it.
        meta.topics.delete("One")
        meta.topics.put(TopicConfig("One"))
        await until(lambda: registrar.registered_addrs == [addr])
        assert stamp_of("One") == meta.topics.created_ms("One") != first


async def test_a_connection_lost_between_parts_costs_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    namesrv = Counting(monkeypatch)
    async with namesrv.serving() as addr, broker(addr, frame_max_length=LIMIT) as (meta, registrar):
        for config in configs(500):
            meta.topics.put(config)
        for _ in range(5):
            await until(lambda: len(namesrv.sent) > 2)
            namesrv.sent.clear()
            for channel in list(namesrv.namesrv._server.channels):
                channel.close("cut")
        await until(lambda: registrar.registered_addrs == [addr])
        assert all_topics(namesrv.routes) == set(meta.topics.names())


async def test_a_slave_asks_for_its_master_without_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.registration.registrar.MASTERLESS_S", 0.02)
    namesrv = Counting(monkeypatch)
    async with namesrv.serving() as addr, slave(addr) as (master, registrar):
        await until(lambda: registrar.registered_addrs == [addr])
        namesrv.sent.clear()
        await until(lambda: len(namesrv.sent) >= 3)
        assert set(namesrv.sent) == {0}
        async with broker(addr, frame_max_length=LIMIT):
            await until(lambda: master.registered)


async def test_rocketmqs_nameserver_gets_one_compressed_frame_when_it_must(caplog: pytest.LogCaptureFixture) -> None:
    namesrv = RecordingNamesrv()
    registered: list[tuple[bool, RegisterBrokerBody]] = []

    def register(channel: Any, request: Any) -> Any:
        is_compressed = request.ext["compressed"] == "true"
        read = (
            finish(decode_compressed(request.body, VERSION))
            if is_compressed
            else decode_body(RegisterBrokerBody, request.body)
        )
        registered.append((is_compressed, read))
        return request.respond()

    namesrv.register = register  # type: ignore[method-assign]
    namesrv.server._handlers[103] = register  # type: ignore[index]
    async with serving(namesrv) as addr, broker(addr, frame_max_length=LIMIT) as (meta, registrar):
        for config in configs(1_000):
            meta.topics.put(config)
        await until(lambda: registrar.registered_addrs == [addr])
        is_compressed, body = registered[-1]
        assert is_compressed
        assert set(body.topic_config_serialize_wrapper.topic_config_table) == set(meta.topics.names())
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_topics_that_do_not_fit_are_an_error_in_the_log_and_the_others_are_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.remoting.protocol.requests.registrations.zlib.compress", lambda data: data)
    recording = "tests.broker.registration.test_registrar.RecordingNamesrv"
    monkeypatch.setattr(f"{recording}.register", lambda *args: args[2].respond())
    namesrv = RecordingNamesrv()
    async with serving(namesrv) as addr, broker(addr, frame_max_length=LIMIT) as (meta, registrar):
        for config in configs(1_000):
            meta.topics.put(config)
        await until(lambda: registrar.registered_addrs == [addr])
        meta.topics.put(TopicConfig("One"))
        await until(lambda: registrar.registered_addrs == [addr])
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "topics are not registered at NameServer" in line
    assert "raise frameMaxLength" in line


@given(st.integers(0, 300), st.integers(200, 20_000))
def test_as_many_topics_as_fit(count: int, limit: int) -> None:
    made = encode_in_one(configs(count), DataVersion(0, 1, 2), limit)
    assert len(made.data) <= limit
    body = (
        finish(decode_compressed(made.data, VERSION))
        if made.is_compressed
        else decode_body(RegisterBrokerBody, made.data)
    )
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(0, 1, 2)
    names = list(body.topic_config_serialize_wrapper.topic_config_table)
    assert names == [name(number) for number in range(count - made.left_out)]
