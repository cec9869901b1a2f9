"""The four servers of `skylark dev` in the process of the test."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from skylark import Message, Producer, PullConsumer
from skylark.cli.dev import HOST, first_answers
from skylark.cli.dev.demo import ORDERS, SHIPPING, run_demo
from skylark.cli.dev.first_answers import wait_for_answers
from skylark.cli.dev.servers import Addresses, Ports, _Broker, serving
from skylark.mqcommon.errors import RouteNotFound, SkylarkError, UserError, leaves
from skylark.remoting.net.sockets import HeldPort, listen
from tests.support.waiting import until

FREE = Ports(0, 0, 0, 0)
MOST_DISK_BYTES = 20 * 1024 * 1024


@asynccontextmanager
async def dev(home: Path, warnings: list[str] | None = None) -> AsyncIterator[Addresses]:
    async with serving(home, FREE, (warnings if warnings is not None else []).append) as addresses:
        await wait_for_answers(addresses)
        yield addresses


def disk_bytes(home: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in home.rglob("*"))


async def test_a_message_goes_through_and_files_stay_small(tmp_path: Path) -> None:
    async with dev(tmp_path) as addresses:
        async with Producer(addresses.namesrv) as producer:
            sent = await producer.send(Message("orders", b"hello"))
        assert disk_bytes(tmp_path) <= MOST_DISK_BYTES
    async with dev(tmp_path) as addresses, PullConsumer(addresses.namesrv, heartbeat=False) as consumer:
        (message,) = (await consumer.pull(sent.queue, 0)).messages
        assert message.body == b"hello"


async def test_doors_without_their_libraries_stay_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("skylark.mqproxy.near", "skylark.mqconsole.console"):
        monkeypatch.setitem(sys.modules, module, None)
    warnings: list[str] = []
    async with dev(tmp_path, warnings) as addresses:
        assert (addresses.grpc, addresses.console) == ("", "")
    assert [warning.partition(" needs")[0] for warning in warnings] == ["the gRPC port", "the console"]
    assert all("[" in warning.rpartition("pip")[2] for warning in warnings)


async def refused(home: Path, ports: Ports) -> str:
    with pytest.raises((UserError, ExceptionGroup)) as caught:
        async with serving(home, ports, lambda line: None):
            pass
    return "; ".join(map(str, leaves(caught.value)))


async def test_a_port_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    (listener,) = await listen(HOST, 0)
    async with listener:
        port = int(listener.address.rpartition(":")[2])
        for ports, option in (
            (Ports(port, 0, 0, 0), "--port"),
            (Ports(0, port, 0, 0), "--broker-port"),
            (Ports(0, 0, port, 0), "--grpc-port"),
            (Ports(0, 0, 0, port), "--console-port"),
        ):
            text = await refused(tmp_path, ports)
            assert f"port {HOST}:{port} is in use" in text and f"{option} 0 takes a free port" in text


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_port_that_is_taken_while_it_is_held_is_named_with_its_option(tmp_path: Path, at: int) -> None:
    held = HeldPort(HOST)
    held.release()
    ports = [0, 0, 0, 0]
    # The NameServer listens first.
    ports[0] = ports[at] = held.port
    option = ("--port", "--broker-port", "--grpc-port", "--console-port")[at]
    text = await refused(tmp_path, Ports(*ports))
    assert f":{held.port} is in use" in text and f"{option} 0 takes a free port" in text
    assert "listenPort" not in text


async def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    async with dev(tmp_path):
        assert f"{tmp_path} is in use by another process (skylark dev or a broker)" in await refused(tmp_path, FREE)


async def test_a_server_that_closes_the_connection_is_not_ready() -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, close, 0, host=HOST))
        address = f"{HOST}:{listener.socket.getsockname()[1]}"
        with pytest.raises(SkylarkError, match=f"{address} (closes the connection|does not answer)"):
            await first_answers._answer(address, b"hello", bool)
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_not_there_is_not_ready() -> None:
    port = HeldPort(HOST)
    with pytest.raises(SkylarkError, match=f"{HOST}:{port.port} does not answer: "):
        await first_answers._answer(f"{HOST}:{port.port}", b"hello", bool)
    port.release()


async def test_the_store_of_another_broker_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(2 * MOST_DISK_BYTES)
    assert "was made by a broker with other options; give another directory" in await refused(tmp_path, FREE)


def test_a_kept_directory_forgets_messages_after_three_days(tmp_path: Path) -> None:
    broker = _Broker(tmp_path, "127.0.0.1:9876", 10911, 10912, -1)
    assert broker._options.file_reserved_time == 72


async def test_the_demo_gives_the_console_something_to_show(tmp_path: Path) -> None:
    async with dev(tmp_path) as addresses, trio.open_nursery() as nursery:
        nursery.start_soon(run_demo, addresses.namesrv)
        async with PullConsumer(addresses.namesrv, group=SHIPPING, heartbeat=False) as consumer:

            async def has_shipped() -> bool:
                try:
                    queues = await consumer.message_queues(ORDERS)
                except RouteNotFound:
                    return False
                return any([await consumer.committed_offset(queue) for queue in queues])

            await until(has_shipped, "an order is sent and shipped")
        nursery.cancel_scope.cancel()
