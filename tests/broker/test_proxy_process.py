"""``enableProxy``: a broker that starts a proxy beside it, keeps it running, and stops it before itself."""

import importlib.util
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from scripts.daemons import Daemon, broker_daemon, namesrv_daemon
from skylark import Admin
from skylark.broker.instances import instances_of
from skylark.broker.options import BrokerOptions
from skylark.broker.proxy_process import WithProxy, proxy_command, proxy_environ
from skylark.mqcommon.errors import UserError
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.running import running
from tests.support.daemons import SMALL, started
from tests.support.proxies import call, message
from tests.support.waiting import until

SERVES = re.compile(rb"the proxy serves at (\S+)")
PROCESS = re.compile(rb"the proxy has process (\d+)")


def with_proxy(home: Path, nameserver: str, *options: str) -> Daemon:
    return broker_daemon(home, "b", nameserver, 0, *SMALL, "--enable-proxy", "true", *options)


def proxies(broker: Daemon) -> list[int]:
    """The process ids of its proxies, of those that have died, too."""
    return [int(found) for found in PROCESS.findall(broker.logged)]


def sends(broker: Daemon) -> bool:
    """Whether a message can be sent through its last proxy."""
    address = SERVES.findall(broker.logged)[-1].decode()
    with grpc.insecure_channel(address) as channel:
        request = wire.SendMessageRequest(messages=[message("orders")])
        return call(channel, "SendMessage", request, wire.SendMessageResponse).status.code == wire.OK


def served(broker: Daemon, times: int = 1) -> Callable[[], bool]:
    """Whether ``times`` proxies of the broker have served."""
    return lambda: len(SERVES.findall(broker.logged)) == times


async def test_a_broker_has_a_proxy_that_comes_back_and_that_stops_before_it(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with started(namesrv, broker):
        await until(served(broker), "the proxy serves")
        async with Admin(namesrv.addr) as admin:
            await admin.create_topic(broker.addr, TopicConfig("orders", 1, 1))
        assert await trio.to_thread.run_sync(sends, broker)
        os.kill(proxies(broker)[0], signal.SIGKILL)
        await until(served(broker, 2), "it was started again")
        assert await trio.to_thread.run_sync(sends, broker)
        broker.terminate()
        await trio.to_thread.run_sync(broker.wait_stopped)
    steps = [b"the proxy ended with signal SIGKILL", b"the proxy stopped", b"unregistered from NameServer"]
    places = [broker.logged.index(step) for step in steps]
    assert places == sorted(places)


async def test_a_broker_that_is_killed_takes_its_proxy_with_it(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with started(namesrv, broker):
        await until(served(broker), "the proxy serves")
        broker.kill()
        (pid,) = proxies(broker)
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the proxy has ended")


async def test_a_proxy_whose_port_is_in_use_ends_the_broker_with_the_reason(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", str(namesrv.port))
    async with started(namesrv):
        broker.start()
        await until(lambda: not broker.runs, "it has ended")
    assert broker.exit_code == 1
    assert f"mqproxy: port 127.0.0.1:{namesrv.port} is in use" in broker.log_end()
    assert "enableProxy: the proxy ended with exit code 1 before it served" in broker.log_end()


async def nothing(*arguments: object) -> None:
    """A broker that is not started."""


def options(**given: Any) -> BrokerOptions:
    return BrokerOptions(broker_name="b", enable_proxy=True, **{"namesrv_addr": "127.0.0.1:9876", **given})


async def test_one_process_is_enough_for_a_test(tmp_path: Path) -> None:
    broker = with_proxy(tmp_path, "", "--grpc-server-port", "0")
    async with started(broker):
        await until(served(broker), "the proxy serves")
        # The broker is the NameServer for tools, too.
        async with Admin(broker.addr) as admin:
            await admin.create_topic(broker.addr, TopicConfig("orders", 1, 1))
            assert [*(await admin.cluster_info()).broker_addr_table] == ["b"]
        assert await trio.to_thread.run_sync(sends, broker)


async def test_a_broker_answers_routes_for_its_proxy_only() -> None:
    asked = GET_ROUTEINFO_BY_TOPIC.command(GetRouteInfoRequestHeader("TBW102"))
    for given, code in (({"enable_proxy": True}, ResponseCode.SUCCESS), ({}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)):
        async with running(**given) as (client, addr):
            assert (await client.invoke(addr, asked)).code == code
    unknown = GET_ROUTEINFO_BY_TOPIC.command(GetRouteInfoRequestHeader("nowhere"))
    async with running(enable_proxy=True) as (client, addr):
        assert (await client.invoke(addr, unknown)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"fetch_namesrv_addr_by_address_server": True}, "asks no address server"),
        ({"broker_instances": "2"}, "there must be one broker"),
        ({"listen_port": 0}, "and a listenPort"),
    ],
)
def test_a_broker_whose_proxy_cannot_find_it_needs_a_nameserver(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"enableProxy: .*{why}.*; set namesrvAddr"):
        WithProxy(options(namesrv_addr="", **given), nothing)


def test_a_missing_library_is_named_before_the_broker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without_protobuf(name: str) -> Any:
        return None if name == "google" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_protobuf)
    with pytest.raises(UserError, match=r"the library protobuf is missing; pip install 'skylark-mq\[proxy\]'"):
        WithProxy(options(), nothing)


def test_a_proxy_without_a_file_of_its_own_listens_and_logs_as_its_broker_does() -> None:
    command = proxy_command(options(bind_address="10.0.0.1", log_file="/var/log/b.log", log_format="json"))
    assert command[3:] == [
        "mqproxy", "--log-format", "json", "--bind-address", "10.0.0.1", "--log-file", "/var/log/mqproxy.log",
    ]  # fmt: skip


def test_the_file_of_a_proxy_counts_and_the_brokers_port_beats_it() -> None:
    command = proxy_command(options(proxy_config_path="/etc/p.conf", log_file="/var/log/b.log", grpc_server_port=1))
    assert command[3:] == ["mqproxy", "--log-format", "text", "-c", "/etc/p.conf", "--grpc-server-port", "1"]


def test_the_brokers_credentials_are_on_no_command_line() -> None:
    secret = '{"accessKey":"inner","secretKey":"hidden"}'
    given = options(inner_client_authentication_credentials=secret, plain_signature_addresses="10.0.0.5:9876")
    assert not any("hidden" in part for part in proxy_command(given))
    environ = proxy_environ(given)
    assert environ["ROCKETMQ_INNER_CLIENT_CREDENTIALS"] == secret
    assert environ["ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES"] == "10.0.0.5:9876"
    assert environ["NAMESRV_ADDR"] == "127.0.0.1:9876"


def test_instances_start_no_proxy_as_their_supervisor_does(tmp_path: Path) -> None:
    given = options(broker_ip1="127.0.0.1", store_path_root_dir=str(tmp_path))
    assert [each.given["enable_proxy"] for each in instances_of(given, 2)] == ["false", "false"]
