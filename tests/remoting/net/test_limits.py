"""Peers that exceed a limit: they are refused, counted, and others are served."""

import logging
import resource
import weakref
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.daemons import memory
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.limits import (
    COMPLAINT_INTERVAL_S,
    MAX_BUCKETS,
    MAX_CONNECTIONS,
    REFUSALS,
    ConnectionBudget,
    LimitOptions,
    RateLimit,
    Refusals,
    ServerLimits,
    connection_budget,
    most_connections,
    within_memory,
)
from skylark.remoting.net.server import Server
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from tests.remoting.net.served import Served, serve
from tests.support.memory_transport import MemoryNetwork
from tests.support.waiting import until

ECHO, WAITS = 1, 2


def echo(channel: Channel, request: Command) -> Command:
    return request.respond(body=request.body)


async def waits(channel: Channel, request: Command) -> Command:
    await trio.sleep(100)
    return request.respond()


def serving(limits: ServerLimits) -> AbstractAsyncContextManager[Served]:
    return serve(Server({ECHO: echo}, {WAITS: waits}, limits=limits))


async def ask(stream: Transport, *commands: Command) -> list[int]:
    """The codes of the answers to all of them."""
    await stream.send_all(b"".join(encode(command) for command in commands))
    connection, codes = Connection(), list[int]()
    while len(codes) < len(commands):
        codes += [answer.code for answer in connection.receive_data(await stream.receive(65_536))]
    return codes


async def test_a_frame_that_does_not_become_whole_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(ServerLimits(read_timeout_ms=10_000)) as served:
        slow, lively = await served.stream(), await served.stream()
        frame = encode(Command(ECHO, body=bytes(1_000)))
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            for at in range(len(frame)):
                await slow.send_all(frame[at : at + 1])
                await trio.sleep(0.7)
                # This one is in the middle of a frame at each scan, and each frame becomes whole.
                await lively.send_all(frame[500:] if at else b"")
                await lively.send_all(frame[:500])
        assert trio.current_time() - started < 15
        assert await lively.receive(10)
        assert served.server.refusals.counts["slow_frames"] == 1


async def test_requests_above_the_rate_are_answered_busy(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(ServerLimits(max_requests_a_second=5)) as served:
        stream = await served.stream()
        assert await ask(stream, *[Command(ECHO)] * 7) == [0] * 5 + [ResponseCode.SYSTEM_BUSY] * 2
        await stream.send_all(encode(Command(ECHO, flag=FLAG_ONEWAY)))
        assert await ask(stream, Command(ECHO)) == [ResponseCode.SYSTEM_BUSY]
        assert served.server.refusals.counts["request_rate"] == 4
        await trio.sleep(1)
        assert await ask(stream, Command(ECHO)) == [0]


async def test_addresses_of_one_ipv6_network_share_their_limits(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    server = Server(
        {ECHO: echo}, limits=ServerLimits(max_requests_a_second=2), connections=ConnectionBudget(10, most_of_network=2)
    )

    async def stream(host: str) -> Transport:
        network.client_host = host
        return await network.connect("127.0.0.1", 10911)

    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve_on, [network.listen()])
        first, second = await stream("2001:db8:0:1::1"), await stream("2001:db8:0:1:2:3:4:5")
        assert await ask(first, Command(ECHO)) + await ask(second, Command(ECHO)) == [0, 0]
        assert await ask(second, Command(ECHO)) == [ResponseCode.SYSTEM_BUSY]
        third, other = await stream("2001:db8:0:1::3"), await stream("2001:db8:0:2::1")
        assert await third.receive(1) == b""
        assert await ask(other, Command(ECHO)) == [0]
        assert server.refusals.counts["connections_of_address"] == 1
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(other, Command(ECHO)) == [0]
        nursery.cancel_scope.cancel()


async def test_requests_of_one_connection_leave_room_for_others(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(ServerLimits(max_slow_requests=5, max_slow_requests_of_connection=3)) as served:
        greedy, other = await served.stream(), await served.stream()
        assert sorted(await ask(greedy, *[Command(WAITS)] * 4)) == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
        await greedy.send_all(encode(Command(WAITS)) * 4)
        assert await ask(other, Command(WAITS)) == [0]
        assert served.server.refusals.counts["requests_in_flight"] == 2


async def test_bad_frames_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ServerLimits()) as served:
        for _ in range(20):
            bad = await served.stream()
            await bad.send_all(b"BREW / HTTP/1.1\r\n\r\n")
            assert await bad.receive(1) == b""
        await until(lambda: served.server.refusals.counts["bad_frames"] == 20, "all are counted")
        assert await ask(await served.stream(), Command(ECHO)) == [0]
    assert len(caplog.records) == 1
    assert "another protocol" in caplog.text


async def test_answers_that_nobody_takes_are_bounded() -> None:
    async with serving(ServerLimits(max_answer_bytes=1 << 20)) as served:
        stream = await served.stream()
        await until(lambda: bool(served.server.channels), "a connection")
        (channel,) = served.server.channels
        for _ in range(40):
            channel.queue(bytes(1 << 16))
        assert channel.closed_reason is not None
        await until(lambda: not served.server.channels, "it is closed")
        assert served.server.refusals.counts["answer_bytes"] == 1
        await stream.aclose()


async def test_half_frames_of_many_connections_are_bounded_without_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.remoting.net.scanning.SCAN_INTERVAL_S", 10_000)
    async with serving(ServerLimits(max_buffered_bytes=1 << 20)) as served:
        streams = [await served.stream() for _ in range(8)]
        for stream in streams:
            await stream.send_all(encode(Command(ECHO, body=bytes(1 << 19)))[: 1 << 18])
        refused = served.server.refusals.counts
        await until(lambda: 0 < refused["buffered_bytes"] == 8 - len(served.server.channels), "the largest are closed")
        assert await ask(await served.stream(), Command(ECHO)) == [0]
        assert sum(channel.buffered_bytes for channel in served.server.channels) <= 1 << 20
        for stream in streams:
            await stream.aclose()
        await until(lambda: not served.server._buffers.used, "nothing is held")


async def test_unsent_answers_of_many_connections_are_bounded_without_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.remoting.net.scanning.SCAN_INTERVAL_S", 10_000)
    async with serving(ServerLimits(max_buffered_bytes=8 << 20)) as served:
        streams = [await served.stream() for _ in range(8)]
        await until(lambda: len(served.server.channels) == 8, "all are served")
        for channel in served.server.channels:
            # More than a transport in memory takes.
            channel.queue(bytes(3 << 20))
        # Whatever is read next finds it, as nobody must be closed while a request is handled.
        await streams[0].send_all(encode(Command(ECHO)))
        refused = served.server.refusals.counts
        await until(lambda: 0 < refused["buffered_bytes"] == 8 - len(served.server.channels), "the largest are closed")
        assert served.server._buffers.used <= 8 << 20
        for stream in streams:
            await stream.aclose()


async def test_requests_that_run_as_tasks_are_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(ServerLimits(max_buffered_bytes=1 << 20)) as served:
        stream = await served.stream()
        large = Command(WAITS, body=bytes(600_000))
        assert await ask(stream, large, large, Command(WAITS)) == [ResponseCode.SYSTEM_BUSY, 0, 0]
        assert served.server.refusals.counts["buffered_bytes"] == 1
        assert await ask(stream, large) == [0]
        assert not served.server._buffers.used


async def test_a_request_is_not_kept_until_the_next_one_comes() -> None:
    class Ext(dict[str, Any]):
        """A dict of which one can tell whether it is gone."""

    seen: list[weakref.ref[Ext]] = []

    def noted(channel: Channel, request: Command) -> Command:
        request.ext = Ext(request.ext or {})
        seen.append(weakref.ref(request.ext))
        return Command(0, flag=FLAG_RESPONSE, opaque=request.opaque)

    async with serve(Server({ECHO: noted})) as served:
        assert await ask(await served.stream(), Command(ECHO)) == [0]
        (ext,) = seen
        await until(lambda: ext() is None, "the request is gone")


def test_a_refusal_is_logged_once_a_minute_with_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for number in range(10):
        refusals.count("bad_frames", number, "1.2.3.4:5", "closed")
    refusals.count("slow_frames", 9, "1.2.3.4:5", "closed")
    assert len(caplog.records) == 2
    refusals.count("bad_frames", COMPLAINT_INTERVAL_S, "1.2.3.4:5", "closed")
    assert "9 more since the last such line" in caplog.text
    assert refusals.counts == {**dict.fromkeys(REFUSALS, 0), "bad_frames": 11, "slow_frames": 1}
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@given(st.integers(2, 2_000_000), st.integers(0, 10_000))
def test_files_and_connections_fit_and_neither_takes_all(descriptors: int, files: int) -> None:
    most = most_connections(descriptors, files)
    assert 1 <= most <= MAX_CONNECTIONS
    assert most + min(files, descriptors // 2) <= descriptors
    assert most >= min(descriptors // 2, MAX_CONNECTIONS)


def test_without_a_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_budget(0, 100).most == MAX_CONNECTIONS


def test_the_option_counts_as_far_as_descriptors_reach(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    assert connection_budget(0, 100).most == 924
    assert connection_budget(50, 100).most == 50
    assert caplog.text == ""
    assert connection_budget(5_000, 100).most == 924
    assert "maxConnections=5000" in caplog.text


def test_few_descriptors_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert connection_budget(0, 100).most == 156
    assert "open files: limit=256: few; 156 connections are accepted. Raise ulimit -n" in caplog.text


def test_connections_may_hold_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(memory, "memory_limit", lambda: memory.MemoryLimit(256 << 20, "/sys/fs/cgroup", 2))
    assert within_memory(100 << 20) == 100 << 20
    assert caplog.text == ""
    assert LimitOptions().server_limits(1 << 20, 120).max_buffered_bytes == 128 << 20
    assert "lowered to 134217728, half of the memory limit: 256 MiB (/sys/fs/cgroup)" in caplog.text


def test_a_budget_is_taken_and_given_back() -> None:
    budget = connection_budget(1, 0)
    assert budget.take("a", 0) == ""
    assert budget.take("b", 0) == "connections"
    budget.give("a")
    assert budget.take("b", 0) == ""


def test_one_address_leaves_connections_to_others() -> None:
    budget = connection_budget(10, 0, of_network=2)
    assert [budget.take("a", 0) for _ in range(3)] == ["", "", "connections_of_address"]
    assert budget.take("b", 0) == ""
    budget.give("a")
    assert budget.take("a", 0) == ""
    assert budget.used == 3


def test_new_connections_of_an_address_come_at_a_rate() -> None:
    budget = connection_budget(100, 0, new_a_second=2)
    assert [budget.take("a", 5.0) for _ in range(3)] == ["", "", "connection_rate"]
    assert budget.take("b", 5.0) == ""
    assert budget.take("a", 5.5) == ""
    assert budget.used == 4


@given(st.integers(1, 50), st.lists(st.floats(0, 0.5), max_size=200))
def test_never_more_than_the_rate_and_one_burst(rate: int, gaps: list[float]) -> None:
    limit, now, allowed = RateLimit(rate), 100.0, 0
    for gap in gaps:
        now += gap
        allowed += limit.take("a", now)
    assert allowed <= rate + rate * (now - 100.0) + 1e-6
    assert allowed >= min(len(gaps), rate)


def test_who_stays_below_the_rate_is_never_refused() -> None:
    limit = RateLimit(10)
    assert all(limit.take("a", 100 + n / 10 + n / 1e6) for n in range(1_000))


def test_addresses_do_not_share_a_bucket_and_their_number_is_bounded() -> None:
    limit = RateLimit(1)
    for number in range(3 * MAX_BUCKETS):
        assert limit.take(str(number), 1.0)
        assert len(limit._buckets) <= MAX_BUCKETS
    assert not limit.take(str(3 * MAX_BUCKETS - 1), 1.0)
