"""A broker that stops: what is in flight is answered, what comes now is refused, and nothing is stored any more.

The fast port, where RocketMQ's slaves ask for topics and timers and VIP channels send, serves the same requests.
"""

import json
import logging
import threading

import pytest
import trio

from scripts.daemons import free_port
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.addresses import split_address
from skylark.remoting.net.client import open_client
from skylark.remoting.net.sockets import listen
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.replication import (
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
)
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG
from tests.broker.running import SMALL, pull_request, running, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until


async def test_a_broker_that_stops_refuses_sends_and_answers_those_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.writing.send_handlers.STOP_TIMEOUT_S", 60)
    fs = MemoryFiles()
    broker = Broker(BrokerOptions(**SMALL, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000), fs=fs)
    fsync_begins, fsync_may_end = threading.Event(), threading.Event()
    in_flight: list[Command] = []

    def hold_up(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path:
            fsync_begins.set()
            assert fsync_may_end.wait(DEADLINE_S)

    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(broker.run)
        await client.invoke(addr, send_request("t", b"before"))
        released = trio.Event()

        async def wait_for_a_message() -> None:
            await client.invoke(addr, pull_request("t", 0, queue_id=1, wait_ms=60_000), 120_000)
            released.set()

        async def send() -> None:
            in_flight.append(await client.invoke(addr, send_request("t", b"in flight"), 120_000))

        fs.before_call = hold_up
        async with trio.open_nursery() as requests:
            requests.start_soon(wait_for_a_message)
            requests.start_soon(send)
            await until(fsync_begins.is_set, "the send in flight")
            broker.stop()
            # Held pulls are released after the server began to refuse.
            await released.wait()
            for _ in range(2):
                answer = await client.invoke(addr, send_request("t", b"too late"), 60_000)
                assert answer.code in (ResponseCode.GO_AWAY, ResponseCode.SERVICE_NOT_AVAILABLE)
            assert in_flight == []
            fsync_may_end.set()
    assert [answer.code for answer in in_flight] == [ResponseCode.SUCCESS]
    async with running(fs) as (client, addr):
        sent = await client.invoke(addr, send_request("t", b"after"))
        assert sent.ext is not None and sent.ext["queueOffset"] == "2"


TABLES = (GET_TIMER_CHECK_POINT.code, GET_TIMER_METRICS.code, GET_ALL_MESSAGE_REQUEST_MODE.code)


async def test_the_fast_port_serves_the_same() -> None:
    port = free_port()
    async with running(fast_listen_port=port) as (client, addr):
        assert split_address(addr)[1] != port
        fast = f"127.0.0.1:{port}"
        for code in (*TABLES, GET_ALL_TOPIC_CONFIG.code):
            answer = await client.invoke(fast, Command(code))
            assert answer.code == ResponseCode.SUCCESS
            assert answer.body
        assert (await client.invoke(fast, send_request("t", b"x"))).code == ResponseCode.SUCCESS
        assert b"x" in (await client.invoke(addr, pull_request("t", 0))).body


async def test_access_control_holds_at_the_fast_port() -> None:
    port = free_port()
    user = json.dumps({"username": "root", "password": "it is long enough"})
    options = {"authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": user}
    async with running(fast_listen_port=port, **options) as (client, _):
        answer = await client.invoke(f"127.0.0.1:{port}", send_request("t", b"x"))
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_the_fast_port_is_two_below_the_other_one() -> None:
    port = free_port()
    async with running(listen_port=port, fast_listen_port=-1, ha_listen_port=free_port()) as (client, addr):
        assert addr == f"127.0.0.1:{port}"
        assert (await client.invoke(f"127.0.0.1:{port - 2}", send_request("t", b"x"))).code == ResponseCode.SUCCESS


async def test_a_fast_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    taken = await listen("127.0.0.1", 0)
    port = split_address(taken[0].address)[1]
    with caplog.at_level(logging.WARNING):
        async with running(fast_listen_port=port) as (client, addr):
            assert (await client.invoke(addr, send_request("t", b"x"))).code == ResponseCode.SUCCESS
    assert any(f"port 127.0.0.1:{port} is in use" in line and "fastListenPort" in line for line in caplog.messages)
    for listener in taken:
        await listener.aclose()


@pytest.mark.parametrize(("is_open", "guarded", "lines"), [(True, False, 1), (True, True, 0), (False, False, 0)])
async def test_a_broker_without_access_control_on_all_interfaces_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_open: bool, guarded: bool, lines: int
) -> None:
    # Servers under test listen on loopback only.
    monkeypatch.setattr("skylark.broker.broker.is_any_address", lambda host: is_open and host == "127.0.0.1")
    monkeypatch.setattr(BrokerOptions, "has_access_control", guarded)
    async with running():
        pass
    assert caplog.text.count("set aclEnable=true, or bindAddress") == lines


async def test_a_start_removes_what_writes_that_were_broken_off_have_left() -> None:
    fs = MemoryFiles()
    left = ["/conf/b.conf.tmp", "/conf/b.conf.0123456789abcdef.tmp", "/store/queueEnds.00ff00ff00ff00ff.tmp",
            "/store/config/topics.json.0123456789abcdef.tmp", "/store/cut/1-2-3.log.0123456789abcdef.tmp"]  # fmt: skip
    for path in left:
        fs.overwrite(path, b"torn")
    fs.overwrite("/conf/b.conf", b"")
    async with running(fs, broker_config_path="/conf/b.conf"):
        assert [path for path in fs.paths() if path in left or path.startswith("/conf/")] == ["/conf/b.conf"]
