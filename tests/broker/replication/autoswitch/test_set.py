"""Whole brokers with a real Controller and NameServer: masters that die, and logs that stay equal."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import slave as slave_module
from skylark.broker.replication.mark import Mark, boot_of
from skylark.broker.replication.slave_sync import SlaveSync
from skylark.broker.wiring.link_parts import link_terms
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.errors import BrokerError, ConfigError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.brokers import GET_BROKER_HA_STATUS
from skylark.remoting.protocol.requests.controller import CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader
from tests.broker.replication.sets import Running, broker, namesrv
from tests.broker.running import send_request
from tests.namesrv.controller.controllers import open_controllers
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(slave_module, "MAX_PAUSE_S", 0.05)


class Set:
    """Brokers of one name, with the options of all."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def broker(self, fs: MemoryFiles | None = None, **options: Any) -> Any:
        """A broker that runs until the end of the block."""
        return broker(fs or MemoryFiles(), **{**self.options, **options})


@asynccontextmanager
async def controlled(**options: Any) -> AsyncIterator[Set]:
    async with namesrv() as addr, open_controllers("n0", broker_heartbeat_timeout=60_000) as controllers:
        yield Set(
            {
                "namesrv_addr": addr, "enable_controller_mode": True, "broker_heartbeat_interval": 100,
                "controller_heart_beat_timeout_mills": 60_000,
                "controller_addr": ";".join(controllers.addrs.values()), "all_ack_in_sync_state_set": True, **options,
            }
        )  # fmt: skip


async def leads(one: Running) -> None:
    await until(lambda: one.broker.role.now.is_master, "it leads")


async def sent(one: Running, body: bytes) -> None:
    """Sent, and acknowledged by all of the SyncStateSet."""
    answer = await one.client.invoke(one.addr, send_request("T", body), 10_000)
    assert answer.code == ResponseCode.SUCCESS, answer


async def is_in_sync(one: Running, count: int) -> None:
    async def enough() -> bool:
        status = (await call(Remote(one.client, one.addr, 5_000), GET_BROKER_HA_STATUS)).body()
        return status.in_sync_slave_nums == count

    await until(enough, f"{count} slaves")


async def routed(namesrv_addr: str, client: RemotingClient, master: str) -> None:
    """Clients find the master."""

    async def found() -> bool:
        at = Remote(client, namesrv_addr, 5_000)
        try:
            answer = await call(at, GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader("T"))
        except BrokerError as error:
            assert error.code == ResponseCode.TOPIC_NOT_EXIST  # until the new master has registered
            return False
        return [row.broker_addrs.get(0) for row in answer.body().broker_datas] == [master]

    await until(found, f"clients are sent to {master}")


async def test_a_slave_takes_over_with_all_that_was_acknowledged_and_the_old_master_follows_it() -> None:
    async with controlled() as brokers, AsyncExitStack() as stack:
        one = await stack.enter_async_context(brokers.broker())
        await leads(one)
        two = await stack.enter_async_context(brokers.broker())
        for number in range(20):
            await sent(one, b"%d" % number)
        await is_in_sync(one, 1)
        await two.has("T", 20)
        left = one.kill()
        await leads(two)
        await routed(brokers.options["namesrv_addr"], two.client, two.addr)
        await sent(two, b"20")
        one = await stack.enter_async_context(brokers.broker(left))
        assert await one.has("T", 21) == [b"%d" % number for number in range(21)]
        await sent(two, b"21")
        await until(lambda: one.log() == two.log(), "equal logs")


async def test_what_a_dead_master_alone_had_is_cut_off_and_saved() -> None:
    async with controlled(all_ack_in_sync_state_set=False, in_sync_replicas=1) as brokers, AsyncExitStack() as stack:
        one = await stack.enter_async_context(brokers.broker())
        await leads(one)
        two = await stack.enter_async_context(brokers.broker())
        await sent(one, b"common")
        await is_in_sync(one, 1)
        await two.has("T", 1)
        of_two = two.kill()
        for number in range(5):
            await sent(one, b"lost %d" % number)
        of_one = one.kill()
        two = await stack.enter_async_context(brokers.broker(of_two))
        await leads(two)
        await sent(two, b"kept")
        one = await stack.enter_async_context(brokers.broker(of_one))
        assert await one.has("T", 2) == [b"common", b"kept"]
        await until(lambda: one.log() == two.log(), "equal logs")
        assert any(b"lost 4" in one.fs.read(f"/store/cut/{name}") for name in one.fs.listdir("/store/cut"))


async def test_a_member_of_the_set_that_starts_with_less_than_it_reported_is_not_elected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with controlled() as brokers, AsyncExitStack() as stack:
        one = await stack.enter_async_context(brokers.broker())
        await leads(one)
        two = await stack.enter_async_context(brokers.broker())
        await is_in_sync(one, 1)
        for number in range(20):
            await sent(one, b"message %d" % number)
        await two.has("T", 20)
        of_two, of_one = two.kill(), one.kill()
        identity = "/store/brokerIdentity"
        before, mark = of_two.read(identity), Mark(of_two, "/store/promisedEnd")
        # It had one byte more than is left of its log.
        found = mark.read(boot_of(of_two)).marked
        assert found is not None and found.promised > 0
        mark.begin(found._replace(promised=found.promised + 1))
        # As a member of the SyncStateSet it would be elected.
        two = await stack.enter_async_context(brokers.broker(of_two))
        assert "it takes a new id" in caplog.text
        await until(lambda: of_two.exists(identity) and of_two.read(identity) != before, "it has a new id")
        one = await stack.enter_async_context(brokers.broker(of_one))
        await leads(one)
        assert await two.has("T", 20) == [b"message %d" % number for number in range(20)]
        await is_in_sync(one, 1)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_topic_that_came_with_its_messages_only_is_there(
    restarts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A send makes the topic, and the master dies before the slave copies the table; ``restarts``: the slave, too."""
    async with controlled(min_in_sync_replicas=1) as brokers, AsyncExitStack() as stack:
        one = await stack.enter_async_context(brokers.broker())
        await leads(one)
        two = await stack.enter_async_context(brokers.broker())
        await is_in_sync(one, 1)
        await sent(one, b"before")
        await two.has("T", 1)

        async def stuck(*_: object) -> None:
            await trio.sleep_forever()

        for name in ("_copy", "_copy_topics"):
            monkeypatch.setattr(SlaveSync, name, stuck)
        # The question that the slave has asked is answered with the next change.
        await one.send("Other", b"x")
        await one.send("New", b"acknowledged")
        left = two.fs.killed() if restarts else None
        one.kill()
        if left is not None:
            two.kill()
            two = await stack.enter_async_context(brokers.broker(left))
        await leads(two)
        assert await two.bodies("New") == [b"acknowledged"]
        assert "topic New came from the former master with its messages only" in caplog.text


async def test_a_living_slave_that_was_forgotten_takes_a_new_id(caplog: pytest.LogCaptureFixture) -> None:
    async with controlled() as brokers, AsyncExitStack() as stack:
        one = await stack.enter_async_context(brokers.broker())
        await leads(one)
        two = await stack.enter_async_context(brokers.broker())
        await is_in_sync(one, 1)
        await sent(one, b"before")
        forget = CleanBrokerDataRequestHeader("broker-a", "DefaultCluster", "2", True)
        await call(Remote(one.client, brokers.options["controller_addr"], 5_000), CLEAN_BROKER_DATA, forget)
        await until(lambda: "this broker takes a new id" in caplog.text, "the reason")
        await until(lambda: two.broker.role.now.broker_id == 3, "the new id")
        await is_in_sync(one, 1)
        await sent(one, b"after")
        assert await two.has("T", 2) == [b"before", b"after"]


async def test_access_control_without_a_secret_is_refused_at_the_start() -> None:
    options = {"enable_controller_mode": True, "controller_addr": "127.0.0.1:1", "authentication_enabled": True}
    with pytest.raises(ConfigError, match="nothing tells the brokers of this set from strangers"):
        link_terms(BrokerOptions(**options), DaemonTls())
    for way in ({"ha_shared_secret": "x"}, {"ha_plain_peer_addresses": "10.0.0.2"}, {"ha_allow_plain_peers": "true"}):
        link_terms(BrokerOptions(**options, **way), DaemonTls())


async def test_a_store_of_another_broker_is_refused_at_the_start() -> None:
    async with controlled() as brokers:
        fs = MemoryFiles()
        fs.mkdirs("/store")
        write_atomic(fs, "/store/brokerIdentity", b"DefaultCluster#broker-x#3")
        with pytest.raises(ExceptionGroup) as caught:
            async with brokers.broker(fs):
                pass
        assert caught.group_contains(ConfigError, match="this store belongs to broker broker-x")
