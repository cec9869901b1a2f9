"""A broker that is reached from its own event loop: it treats requests as those that come over the network."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from skylark import Admin, Message, Producer
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import BrokerError, RouteNotFound
from skylark.remoting.net.transport import Connect, Transport
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.scope import Scope
from skylark.sdk.admin.topic_changes import put_topic
from skylark.sdk.client import ClientInstance, sharing
from tests.broker.running import SMALL
from tests.support.memory_files import MemoryFiles

ROOT = Credentials("root", "a secret of the super user")


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Broker, str]]:
    """A broker with ``enableProxy``, whose proxy is the test; its address."""
    given = {**SMALL, "enable_proxy": True, "broker_ip1": "127.0.0.1", **options}
    broker = Broker(BrokerOptions(**given), fs=MemoryFiles())
    async with trio.open_nursery() as nursery:
        yield broker, await nursery.start(broker.run)
        broker.stop()


def far(connect: Connect) -> Connect:
    async def refuse(host: str, port: int) -> Transport:
        raise AssertionError(f"{host}:{port} is reached over the network")

    return refuse


async def test_a_message_is_sent_without_a_socket() -> None:
    async with served() as (broker, addr):
        used = broker.near.connections.used
        instance = ClientInstance(addr, shortcut=lambda connect: broker.near.shortcut(far(connect)))
        async with sharing(instance) as client, Admin(client) as admin, Producer(client) as producer:
            await admin.create_topic(addr, TopicConfig("orders", 1, 1))
            sent = await producer.send(Message("orders", b"a cup of tea"))
            assert (sent.queue.broker_name, sent.queue_offset) == ("broker-a", 0)
            # Only connections of clients count.
            assert broker.near.connections.used == used


async def test_a_topic_is_made_through_the_broker_as_its_own_nameserver() -> None:
    async with served() as (_, addr), Admin(addr) as admin:
        put = await put_topic(admin, Scope(addr, None), TopicConfig("orders", 1, 1))
        assert [one.ok for one in put.results] == [True]
        assert await admin.get_kv("ORDER_TOPIC_CONFIG", "orders") is None
        assert (await admin.topic_route("orders")).queue_datas[0].broker_name == "broker-a"


async def test_a_broker_that_is_its_own_nameserver_knows_its_own_topics_only() -> None:
    async with served() as (_, addr), Admin(addr) as admin:
        with pytest.raises(RouteNotFound, match="nowhere"):
            await admin.topic_route("nowhere")


async def test_other_servers_are_reached_over_the_network() -> None:
    async with (
        served() as (broker, _),
        served(broker_name="broker-b") as (_, other),
        ClientInstance(other, shortcut=broker.near.shortcut) as client,
    ):
        assert client.remoting.broker_name_at(other) == ""
        await client.fetch_route("TBW102")
        assert client.remoting.broker_name_at(other) == "broker-b"
        assert broker.near.connections.used == 0


async def test_users_and_policies_hold() -> None:
    first = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})
    async with served(authentication_enabled=True, authorization_enabled=True, init_authentication_user=first) as (
        broker,
        addr,
    ):
        for credentials in (None, Credentials("root", "another secret")):
            instance = ClientInstance(addr, shortcut=broker.near.shortcut, credentials=credentials)
            async with sharing(instance) as client, Admin(client) as admin:
                with pytest.raises(BrokerError):
                    await admin.create_topic(addr, TopicConfig("orders", 1, 1))
        instance = ClientInstance(addr, shortcut=broker.near.shortcut, credentials=ROOT)
        async with sharing(instance) as client, Admin(client) as admin, Producer(client) as producer:
            await admin.create_topic(addr, TopicConfig("orders", 1, 1))
            await producer.send(Message("orders", b"a cup of tea"))
