"""Several proxies at one port: they share the connections, one that dies comes back, and their pages are one."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
from click.testing import CliRunner

from scripts.daemons import namesrv_daemon, proxy_daemon
from skylark.mqcommon.errors import UserError
from skylark.mqproxy import cli
from skylark.mqproxy.instances import Instances
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.daemon import Main
from skylark.remoting.net.sockets import listen
from tests.support.daemons import started
from tests.support.proxies import call
from tests.support.scrape import get
from tests.support.waiting import until

PROCESS = re.compile(rb"proxy mqproxy-\d has process (\d+)")
PAGE = re.compile(rb"metrics at http://([^/]+)/")
UP = re.compile(r'skylark_instance_up\{instance="(\S+)"\} 1')
# Each client connects anew: the system chooses a proxy for each connection.
ALONE = [("grpc.use_local_subchannel_pool", 1)]


def beats(address: str, count: int) -> int:
    """How many of ``count`` clients are answered, each by a connection of its own."""
    answered = 0
    for _ in range(count):
        with grpc.insecure_channel(address, options=ALONE) as channel:
            request = wire.HeartbeatRequest(client_type=wire.PRODUCER)
            answered += call(channel, "Heartbeat", request, wire.HeartbeatResponse).HasField("status")
    return answered


async def test_two_proxies_share_a_port_and_a_page_and_one_that_dies_comes_back(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    proxies = proxy_daemon(
        tmp_path, "mqproxy", namesrv.addr, "--proxy-instances", "2", "--proxy-name", "p",
        "--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", "0",
    )  # fmt: skip

    async def page() -> str:
        found = PAGE.search(proxies.logged)
        assert found is not None
        return (await get(found[1].decode(), "/metrics"))[1]

    async def both_serve() -> bool:
        return set(UP.findall(await page())) == {"mqproxy-0", "mqproxy-1"}

    async with started(namesrv, proxies):
        await until(lambda: b"2 proxies serve" in proxies.logged, "both serve")
        # With 30 connections, the chance that one of two gets none is 1 in 500 million.
        assert await trio.to_thread.run_sync(beats, proxies.addr, 30) == 30
        text = await page()
        counted = re.findall(r'rocketmq_rpc_latency_count\{[^}]*node_id="(p-\d)"[^}]*request_code="heartbeat"', text)
        assert sorted(counted) == ["p-0", "p-1"]
        assert text.count("# TYPE rocketmq_rpc_latency ") == 1
        os.kill(int(PROCESS.findall(proxies.logged)[0]), signal.SIGKILL)
        await until(lambda: len(PROCESS.findall(proxies.logged)) == 3, "it was started again")
        await until(both_serve)
        assert await trio.to_thread.run_sync(beats, proxies.addr, 10) == 10
        proxies.terminate()
        await trio.to_thread.run_sync(proxies.wait_stopped)
    assert proxies.exit_code == 0
    assert proxies.logged.count(b"the proxy stopped") == 2


@pytest.mark.parametrize("count", [1, 2])
def test_proxies_end_with_their_supervisor(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    ended: list[int] = []

    class Waiting:
        """Proxies that end when they are told to."""

        def __init__(self, *arguments: Any) -> None:
            pass

        async def run(self, *arguments: Any) -> None:
            stopping = next(each for each in arguments if isinstance(each, trio.Event))
            await stopping.wait()
            ended.append(count)

    async def gone(stopping: trio.Event) -> None:
        stopping.set()

    def run_daemon(main_task: Main, **named: Any) -> int:
        trio.run(main_task, trio.Event(), lambda text: None)
        return 0

    monkeypatch.setattr(cli, "Instances", Waiting)
    monkeypatch.setattr("skylark.mqproxy.daemon.run_proxy", Waiting().run)
    monkeypatch.setattr(cli, "stop_with_supervisor", gone)
    monkeypatch.setattr(cli, "run_daemon", run_daemon)
    given = ["--namesrv-addr", "127.0.0.1:9876", "--bind-address", "127.0.0.1", "--proxy-instances", str(count)]
    assert CliRunner().invoke(cli.main, given).exit_code == 0
    assert ended == [count]


async def test_a_port_that_another_server_has_is_told_before_proxies_start() -> None:
    (other,) = await listen("127.0.0.1", 0)
    port = int(other.address.rpartition(":")[2])
    with pytest.raises(UserError, match=f"port 127.0.0.1:{port} is in use; .* another grpcServerPort"):
        Instances(ProxyOptions(bind_address="127.0.0.1", grpc_server_port=port), 2, None, {})
    await other.aclose()
