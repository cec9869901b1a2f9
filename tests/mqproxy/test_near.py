"""``enableProxy``: a broker that serves gRPC in its own process, and what its proxy may and may not do to it."""

import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from scripts.daemons import Daemon, broker_daemon, namesrv_daemon, proxy_daemon
from skylark import Admin
from skylark.mqcommon.errors import ConfigError
from skylark.mqproxy import near
from skylark.mqproxy.near import NearProxy
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.in_process import InProcessListener, NearServer
from skylark.remoting.net.limits import ConnectionBudget
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import SMALL, logged_in_order, started
from tests.support.in_process import until_known
from tests.support.proxies import call, message
from tests.support.waiting import until

SERVES = re.compile(rb"the proxy serves at (\S+)")


def with_proxy(home: Path, nameserver: str, *options: str) -> Daemon:
    return broker_daemon(home, "b", nameserver, 0, *SMALL, "--enable-proxy", "true", *options)


@asynccontextmanager
async def served(*daemons: Daemon) -> AsyncIterator[None]:
    """The daemons serve, and so does the proxy of the last one."""
    async with started(*daemons):
        await until(lambda: SERVES.search(daemons[-1].logged) is not None, "the proxy serves")
        yield


def children(daemon: Daemon) -> str:
    """The process ids of the children of a daemon."""
    return "".join([path.read_text() for path in Path(f"/proc/{daemon.pid}/task").glob("*/children")])


def send(broker: Daemon, topic: str) -> wire.SendMessageResponse:
    found = SERVES.findall(broker.logged)
    with grpc.insecure_channel(found[-1].decode()) as channel:
        request = wire.SendMessageRequest(messages=[message(topic)])
        return call(channel, "SendMessage", request, wire.SendMessageResponse)


async def test_a_broker_serves_grpc_in_its_own_process_and_stops_its_proxy_first(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with served(namesrv, broker):
        async with Admin(namesrv.addr) as admin:
            await admin.create_topic(broker.addr, TopicConfig("orders", 1, 1))
            await until_known(admin, "orders")
            sent = await trio.to_thread.run_sync(send, broker, "orders")
            assert sent.status.code == wire.OK
            stats = await admin.topic_stats("orders")
        assert sum(each.max_offset for each in stats.offset_table.values()) == 1
        assert not children(broker)
        broker.terminate()
        await trio.to_thread.run_sync(broker.wait_stopped)
    assert logged_in_order(broker, b"the proxy serves", b"the proxy stopped", b"unregistered from NameServer")


async def test_one_process_is_enough_for_a_test(tmp_path: Path) -> None:
    broker = with_proxy(tmp_path, "", "--grpc-server-port", "0")
    async with served(broker):
        # The broker is the NameServer for tools, too.
        async with Admin(broker.addr) as admin:
            await admin.create_topic(broker.addr, TopicConfig("orders", 1, 1))
            assert [*(await admin.cluster_info()).broker_addr_table] == ["b"]
        sent = await trio.to_thread.run_sync(send, broker, "orders")
        assert sent.status.code == wire.OK


async def test_topics_of_other_brokers_are_reached_through_it(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    other = broker_daemon(tmp_path, "other", namesrv.addr, 0, *SMALL)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    async with served(namesrv, other, broker):
        async with Admin(namesrv.addr) as admin:
            await admin.create_topic(other.addr, TopicConfig("elsewhere", 1, 1))
            await until_known(admin, "elsewhere")
        assert (await trio.to_thread.run_sync(send, broker, "elsewhere")).status.code == wire.OK


async def test_a_broker_that_stops_loses_no_call_of_its_proxy(tmp_path: Path) -> None:
    """Clients that try nothing again know this proxy and another one. Their topic is on another broker."""
    namesrv = namesrv_daemon(tmp_path)
    other = broker_daemon(tmp_path, "other", namesrv.addr, 0, *SMALL)
    second = proxy_daemon(tmp_path, "second", namesrv.addr)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", "0")
    sent = [0] * 4
    is_over = threading.Event()

    def send_on(target: str, client: int) -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(target, options) as channel:
            while not is_over.is_set():
                request = wire.SendMessageRequest(messages=[message("orders")])
                # Raises when the call fails.
                answer = call(channel, "SendMessage", request, wire.SendMessageResponse)
                assert answer.status.code == wire.OK
                sent[client] += 1

    async def all_go_on() -> None:
        before = list(sent)
        await until(lambda: all(now > then for now, then in zip(sent, before, strict=True)), "all clients go on")

    async with served(namesrv, other, second, broker):
        async with Admin(namesrv.addr) as admin:
            await admin.create_topic(other.addr, TopicConfig("orders", 1, 1))
            await until_known(admin, "orders")
        target = f"ipv4:{SERVES.findall(broker.logged)[-1].decode()},{second.addr}"
        async with trio.open_nursery() as nursery:
            try:
                for client in range(len(sent)):
                    nursery.start_soon(trio.to_thread.run_sync, send_on, target, client)
                await all_go_on()
                broker.terminate()
                await trio.to_thread.run_sync(broker.wait_stopped)
                await all_go_on()
            finally:
                is_over.set()


async def test_a_port_that_is_in_use_ends_the_broker_with_the_reason(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = with_proxy(tmp_path, namesrv.addr, "--grpc-server-port", str(namesrv.port))
    async with started(namesrv):
        broker.start()
        await until(lambda: not broker.runs, "it has ended")
    assert broker.exit_code == 1
    why = f"enableProxy: the proxy does not start: port 127.0.0.1:{namesrv.port} is in use"
    assert why in broker.log_end()


def proxy_with(conf: str = "", warnings: list[str] | None = None, **environ: str) -> NearProxy:
    """A proxy whose broker does not matter."""
    listener = InProcessListener("127.0.0.1:10911")
    broker = NearServer(listener.shortcut, ConnectionBudget(10))
    named = {"NAMESRV_ADDR": "127.0.0.1:9876", **environ}
    return NearProxy(lambda: broker, conf, {"grpc_server_port": "0"}, named, [] if warnings is None else warnings)


async def test_an_error_in_the_proxy_is_logged_and_told_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: Any, **named: Any) -> None:
        async with trio.open_nursery():
            raise LookupError("a bug")

    monkeypatch.setattr(near, "run_proxy", fail)
    why = await proxy_with().run(trio.Event(), lambda: None)
    assert why == "LookupError: a bug; the log has the traceback"
    assert "LookupError: a bug" in caplog.text


async def test_a_mistake_of_the_user_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: Any, **named: Any) -> None:
        async with trio.open_nursery():
            raise ConfigError("this port is another's")

    monkeypatch.setattr(near, "run_proxy", fail)
    assert await proxy_with().run(trio.Event(), lambda: None) == "this port is another's"


def test_options_that_are_the_brokers_are_named(tmp_path: Path) -> None:
    conf, warnings = tmp_path / "proxy.conf", list[str]()
    conf.write_text("logFile=/tmp/x.log\nmaxConnections=5\nmaxMessageSize=1000\n")
    proxy_with(str(conf), warnings)
    assert [text.partition(": ")[2].partition(" ")[0] for text in warnings] == ["logFile", "maxConnections"]


async def test_requests_are_smaller_unless_the_file_of_the_proxy_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[int] = []

    async def note(options: ProxyOptions, *arguments: Any, **named: Any) -> None:
        found.append(options.grpc_max_inbound_message_size)

    monkeypatch.setattr(near, "run_proxy", note)
    for line in ("maxMessageSize=1000\n", "grpcMaxInboundMessageSize=136314880\n"):
        conf = tmp_path / "proxy.conf"
        conf.write_text(line)
        await proxy_with(str(conf)).run(trio.Event(), lambda: None)
    await proxy_with().run(trio.Event(), lambda: None)
    assert found == [16 << 20, 130 << 20, 16 << 20]


def test_a_brokers_own_proxy_is_one(tmp_path: Path) -> None:
    conf = tmp_path / "proxy.conf"
    conf.write_text("proxyInstances=2\n")
    with pytest.raises(ConfigError, match="proxyInstances: enableProxy runs one proxy; for several set"):
        proxy_with(str(conf))
