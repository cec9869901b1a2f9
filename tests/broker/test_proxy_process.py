"""The proxy of several brokers of one conf file: a process beside theirs, which is kept running and stops first."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import grpc
import trio

from scripts.daemons import Daemon, broker_daemon, namesrv_daemon
from skylark.broker.instances import instances_of
from skylark.broker.options import BrokerOptions
from skylark.broker.proxy_process import proxy_command
from skylark.mqproxy.wire import messaging_pb2 as wire
from tests.support.daemons import SMALL, logged_in_order, started
from tests.support.proxies import call
from tests.support.waiting import until

SERVES = re.compile(rb"the proxy serves at (\S+)")
PROCESS = re.compile(rb"the proxy has process (\d+)")


def with_proxy(home: Path, nameserver: str, *options: str) -> Daemon:
    """Two brokers with a proxy."""
    return broker_daemon(
        home, "b", nameserver, 0, *SMALL, "--enable-proxy", "true", "--broker-instances", "2", *options
    )


def proxies(broker: Daemon) -> list[int]:
    """The process ids of its proxies, of those that have died, too."""
    return [int(found) for found in PROCESS.findall(broker.logged)]


def answers(broker: Daemon) -> bool:
    """Whether its last proxy answers."""
    address = SERVES.findall(broker.logged)[-1].decode()
    with grpc.insecure_channel(address) as channel:
        request = wire.HeartbeatRequest(client_type=wire.PRODUCER)
        return call(channel, "Heartbeat", request, wire.HeartbeatResponse).HasField("status")


async def served(broker: Daemon, times: int = 1) -> None:
    """``times`` proxies of the broker have served."""
    await until(lambda: len(SERVES.findall(broker.logged)) == times, f"{times} proxies have served")


async def test_brokers_have_a_proxy_that_comes_back_and_that_stops_before_them(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with started(namesrv, broker):
        await served(broker)
        assert await trio.to_thread.run_sync(answers, broker)
        os.kill(proxies(broker)[0], signal.SIGKILL)
        await served(broker, 2)
        assert await trio.to_thread.run_sync(answers, broker)
        broker.terminate()
        await trio.to_thread.run_sync(broker.wait_stopped)
    assert logged_in_order(
        broker, b"the proxy ended: signal SIGKILL", b"the proxy stopped", b"unregistered from NameServer"
    )


async def test_a_supervisor_that_is_killed_takes_its_proxy_with_it(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with started(namesrv, broker):
        await served(broker)
        broker.kill()
        (pid,) = proxies(broker)
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the proxy has ended")


async def test_a_proxy_whose_port_is_in_use_ends_the_brokers_with_the_reason(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", str(namesrv.port))
    async with started(namesrv):
        broker.start()
        await until(lambda: not broker.runs, "it has ended")
    assert broker.exit_code == 1
    assert re.search(rf"mqproxy: port 127.0.0.1:{namesrv.port} is in use; .* grpcServerPort", broker.log_end())
    assert "enableProxy: the proxy does not start: exit code 1; its lines (mqproxy) in this log or" in broker.log_end()


def options(**given: Any) -> BrokerOptions:
    return BrokerOptions(broker_name="b", enable_proxy=True, namesrv_addr="127.0.0.1:9876", **given)


def test_a_proxy_without_a_file_of_its_own_listens_and_logs_as_its_brokers_do() -> None:
    command = proxy_command(options(bind_address="10.0.0.1", log_file="/var/log/b.log", log_format="json"))
    assert command[3:] == [
        "skylark.mqproxy", "--log-format", "json", "--log-file", "/var/log/mqproxy.log", "--bind-address", "10.0.0.1",
    ]  # fmt: skip


def test_the_file_of_a_proxy_counts_and_the_brokers_port_beats_it() -> None:
    command = proxy_command(options(proxy_config_path="/etc/p.conf", log_file="/var/log/b.log", grpc_server_port=1))
    assert command[3:] == [
        "skylark.mqproxy", "--log-format", "text", "-c", "/etc/p.conf", "--grpc-server-port", "1",
    ]  # fmt: skip


def test_the_brokers_credentials_are_on_no_command_line() -> None:
    secret = '{"accessKey":"inner","secretKey":"hidden"}'
    assert not any("hidden" in part for part in proxy_command(options(inner_client_authentication_credentials=secret)))


def test_instances_start_no_proxy_as_their_supervisor_does(tmp_path: Path) -> None:
    given = options(broker_ip1="127.0.0.1", store_path_root_dir=str(tmp_path))
    assert [each.given["enable_proxy"] for each in instances_of(given, 2)] == ["false", "false"]
