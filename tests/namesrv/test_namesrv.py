"""The loop that forgets silent brokers, in trio's mock time."""

from pathlib import Path

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from namesrv.namesrv import Namesrv
from namesrv.options import NamesrvOptions
from tests.namesrv.peer import Peer


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
