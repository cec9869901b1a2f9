"""The loop that forgets silent brokers, in trio's mock time."""

from pathlib import Path

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER, RegisterBrokerBody, body_crc32
from skylark.remoting.protocol.requests.topics import TopicConfigTable
from tests.namesrv.peer import Peer, serve
from tests.namesrv.registrations import configs_of
from tests.support.waiting import until


class TrioClock:
    """Time as trio tells it."""

    def now_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(trio.current_time() * 1000)


async def start(nursery: trio.Nursery, tmp_path: Path) -> tuple[Peer, Peer]:
    """A NameServer whose connections may be idle, a broker's connection and another one."""
    options = NamesrvOptions(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kvConfig.json"),
        server_channel_max_idle_time_seconds=100_000,
    )
    address = await nursery.start(Namesrv(options, clock=TrioClock()).run)
    port = int(address.rpartition(":")[2])
    broker = Peer(await trio.open_tcp_stream("127.0.0.1", port))
    await broker.register()
    return broker, Peer(await trio.open_tcp_stream("127.0.0.1", port))


async def test_a_broker_is_forgotten_after_120_seconds(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    broker, peer = await start(nursery, tmp_path)
    for _ in range(24):
        mock_clock.jump(5)
        await wait_all_tasks_blocked()
        assert await peer.topics() == ["t1", "t2"]
    mock_clock.jump(5)
    await wait_all_tasks_blocked()
    assert await peer.topics() == []
    assert await broker.stream.receive_some() == b""
    await peer.stream.aclose()


async def test_a_name_server_that_was_frozen_hears_its_brokers_first(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    broker, peer = await start(nursery, tmp_path)
    mock_clock.jump(3_600)
    await wait_all_tasks_blocked()
    assert await peer.topics() == ["t1", "t2"]
    await broker.register()
    mock_clock.jump(5)
    await wait_all_tasks_blocked()
    assert await peer.topics() == ["t1", "t2"]
    mock_clock.jump(3_600)
    await wait_all_tasks_blocked()
    mock_clock.jump(5)
    await wait_all_tasks_blocked()
    assert await peer.topics() == []
    await broker.stream.aclose()
    await peer.stream.aclose()


async def test_an_absurd_version_holds_a_brokers_place_no_longer_than_its_connection(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """A NameServer without access control: docs/operate/security.md says what a stranger can do there."""
    served = await serve(nursery, tmp_path)
    forger, honest = await served.peer(), await served.peer()
    far = (1 << 63) - 1
    topics = TopicConfigTable(data_version=DataVersion(far, far, far), topic_config_table=configs_of("f1", "f2"))
    body = encode_body(RegisterBrokerBody(topics))
    fields = {
        "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "brokerId": 0,
        "haServerAddr": "127.0.0.1:2", "compressed": False, "bodyCrc32": body_crc32(body),
        "heartbeatTimeoutMillis": far,
    }  # fmt: skip
    assert (await forger.ask(REGISTER_BROKER.code, fields, body)).code == ResponseCode.SUCCESS
    await honest.register("127.0.0.1:3", "t1", "t2")
    assert await honest.topics() == ["f1", "f2"]
    await forger.stream.aclose()

    async def is_gone() -> bool:
        return await honest.topics() == []

    await until(is_gone, "the forger's entry is gone")
    await honest.register("127.0.0.1:3", "t1", "t2")
    assert await honest.topics() == ["t1", "t2"]
