"""The fast port: two below the other one, where RocketMQ's slaves ask for topics and timers, and VIP channels send."""

import json
import logging

import pytest

from mqcommon.addresses import split_address
from remoting.net.sockets import listen
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.replication import (
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
)
from remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG
from scripts.daemons import free_port
from tests.broker.running import pull_request, running, send_request

TABLES = (GET_TIMER_CHECK_POINT.code, GET_TIMER_METRICS.code, GET_ALL_MESSAGE_REQUEST_MODE.code)


async def test_the_same_is_served_there() -> None:
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


async def test_access_control_holds_there_too() -> None:
    port = free_port()
    user = json.dumps({"username": "root", "password": "it is long enough"})
    options = {"authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": user}
    async with running(fast_listen_port=port, **options) as (client, _):
        answer = await client.invoke(f"127.0.0.1:{port}", send_request("t", b"x"))
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_it_follows_the_other_port() -> None:
    port = free_port()
    async with running(listen_port=port, fast_listen_port=-1, ha_listen_port=free_port()) as (client, addr):
        assert addr == f"127.0.0.1:{port}"
        assert (await client.invoke(f"127.0.0.1:{port - 2}", send_request("t", b"x"))).code == ResponseCode.SUCCESS


async def test_in_use_it_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    taken = await listen("127.0.0.1", 0)
    port = split_address(taken[0].address)[1]
    with caplog.at_level(logging.WARNING):
        async with running(fast_listen_port=port) as (client, addr):
            assert (await client.invoke(addr, send_request("t", b"x"))).code == ResponseCode.SUCCESS
    assert any(f"port 127.0.0.1:{port} is in use" in line and "fastListenPort" in line for line in caplog.messages)
    for listener in taken:
        await listener.aclose()
