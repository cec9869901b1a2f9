"""The HA port of a broker: strangers, slaves that are slow or silent, and stops."""

import logging
import re
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.frames import HEADER_BYTES, FrameReader, encode_report
from skylark.broker.replication.master import (
    MAX_FOLLOWERS,
    MAX_FOLLOWERS_OF_A_NETWORK,
    MAX_KNOWN_NETWORKS,
    MAX_STRANGERS,
    MAX_STRANGERS_OF_A_NETWORK,
    HaConnections,
)
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.replication.test_following import bodies
from tests.broker.running import send_request
from tests.support.scrape import get
from tests.support.waiting import DEADLINE_S, until

NO_SLAVE = "did not become a slave"


@pytest.fixture
async def its_master() -> AsyncIterator[Running]:
    async with broker(ha_housekeeping_interval=300, ha_send_heartbeat_interval=50) as running:
        await running.send("T", b"one")
        yield running


async def connect(running: Running, first: bytes = b"") -> trio.SocketStream:
    """A connection to the HA port that begins with ``first``."""
    ip, _, port = running.broker.ha_addr.rpartition(":")
    stream = await trio.open_tcp_stream(ip, int(port))
    await stream.send_all(first)
    return stream


async def answer(stream: trio.SocketStream) -> bytes:
    with trio.fail_after(DEADLINE_S):
        return await stream.receive_some()


async def assert_turned_away(running: Running, first: bytes) -> None:
    stream = await connect(running, first)
    # It is reset when the master had not read all that was sent.
    with suppress(trio.BrokenResourceError):
        assert await answer(stream) == b""


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(100), b"\xff" * 64, b"\xffSKYLARK" + b"\xff" * 60],
)
async def test_strangers_are_turned_away_with_one_line(
    its_master: Running, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await assert_turned_away(its_master, first)
    await until(lambda: NO_SLAVE in caplog.text, "the line")
    assert caplog.text.count(NO_SLAVE) == 1 and "Traceback" not in caplog.text
    await its_master.send("T", b"two")
    assert await its_master.bodies("T") == [b"one", b"two"]


async def test_a_look_whether_the_port_is_open_is_no_warning(
    its_master: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await (await connect(its_master)).aclose()
    await until(lambda: "looked whether the HA port is open" in caplog.text, "the line")
    assert NO_SLAVE not in caplog.text


async def test_strangers_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with broker(metrics_exporter_type="PROM", metrics_prom_exporter_port=0) as its_master:
        found = re.search(r"metrics at http://(\S+)/metrics", caplog.text)
        assert found
        for _ in range(3):
            await assert_turned_away(its_master, b"\xff" * 64)

        async def counted() -> bool:
            text = (await get(found[1], "/metrics"))[1]
            return 'limit="ha_strangers"} 3\n' in text

        await until(counted, "three are counted")


async def test_many_strangers_do_not_fill_the_log(
    its_master: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.replication.master.STRANGERS_LOG_S", 3_600)
    for _ in range(20):
        await assert_turned_away(its_master, b"\xff" * 64)
    assert caplog.text.count(NO_SLAVE) == 1 and "others" not in caplog.text
    monkeypatch.setattr("skylark.broker.replication.master.STRANGERS_LOG_S", 0)
    await assert_turned_away(its_master, b"\xff" * 64)
    await until(lambda: "others since" in caplog.text, "how many there were")


async def test_many_silent_strangers_keep_no_slave_out() -> None:
    async with namesrv() as addr, broker(namesrv_addr=addr, ha_housekeeping_interval=600_000) as its_master:
        await its_master.send("T", b"one")
        strangers = [await connect(its_master) for _ in range(150)]
        async with broker(namesrv_addr=addr, **SLAVE) as slave:
            assert await slave.has("T", 1) == [b"one"]
        for stranger in strangers:
            await stranger.aclose()


async def test_with_a_secret_a_plain_peer_is_refused_on_loopback_too(caplog: pytest.LogCaptureFixture) -> None:
    async with broker(ha_shared_secret="x") as guarded:
        stream = await connect(guarded, encode_report(0))
        assert await answer(stream) == b""
        await until(lambda: "this master does not serve plain peers" in caplog.text, "the line")
    async with broker(ha_shared_secret="x", ha_allow_plain_peers="true", ha_send_heartbeat_interval=50) as open_to_all:
        stream = await connect(open_to_all, encode_report(0))
        assert await answer(stream) == struct.pack(">qi", 0, 0)


async def test_a_plain_slave_gets_what_is_appended_and_heartbeats(its_master: Running) -> None:
    stream = await connect(its_master, encode_report(1))
    data = b""
    with trio.fail_after(DEADLINE_S):
        while len(data) < HEADER_BYTES or len(data) < HEADER_BYTES + struct.unpack_from(">qi", data)[1]:
            data += await stream.receive_some()
    offset, size = struct.unpack_from(">qi", data)
    assert offset == 1 and its_master.log()[1 : 1 + size] == data[HEADER_BYTES : HEADER_BYTES + size]
    end = offset + size
    rest = data[HEADER_BYTES + size :]
    await stream.send_all(encode_report(end))
    with trio.fail_after(DEADLINE_S):
        while len(rest) < HEADER_BYTES:
            rest += await stream.receive_some()
    assert rest[:HEADER_BYTES] == struct.pack(">qi", end, 0)


async def test_a_slave_counts_until_its_connection_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with broker(broker_role="SYNC_MASTER", ha_send_heartbeat_interval=50, slave_timeout=20_000) as sync_master:
        stream = await connect(sync_master, encode_report(0))
        assert await answer(stream) == struct.pack(">qi", 0, 0)
        reader = FrameReader()

        async def send() -> int:
            return (await sync_master.client.invoke(sync_master.addr, send_request("T", b"x"), 30_000)).code

        async def acknowledge() -> None:
            while True:
                for piece in reader.receive(await stream.receive_some()):
                    await stream.send_all(encode_report(piece.offset + len(piece.data)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            assert await send() == ResponseCode.SUCCESS
            nursery.cancel_scope.cancel()
        await stream.aclose()
        await until(lambda: "connection of slave" in caplog.text, "the end of the connection")
        assert await send() == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_log_without_a_byte_has_heartbeats_too() -> None:
    async with broker(ha_send_heartbeat_interval=50) as empty:
        stream = await connect(empty, encode_report(0))
        assert await answer(stream) == struct.pack(">qi", 0, 0)
        await empty.send("T", b"one")
        assert await empty.bodies("T") == [b"one"]


async def test_a_master_that_stops_gently_leaves_its_slave_complete() -> None:
    async with namesrv() as addr, broker(namesrv_addr=addr, **SLAVE) as slave:
        async with broker(namesrv_addr=addr) as its_master:
            await its_master.send("T", b"first")
            await slave.has("T", 1)
            async with trio.open_nursery() as nursery:
                for body in bodies(200):
                    nursery.start_soon(its_master.send, "T", body)
        assert sorted(await slave.has("T", 201)) == sorted([b"first", *bodies(200)])


async def test_old_files_are_sent_as_they_lie_on_disk() -> None:
    options: dict[str, Any] = {"mapped_file_size_commit_log": 1024 * 1024}
    large = [bytes([number]) * 60_000 for number in range(60)]
    async with namesrv() as addr:
        async with broker(namesrv_addr=addr, **options) as its_master:
            await its_master.send("T", *large)
        # What a broker has not written itself is not known to be in memory.
        async with (
            broker(its_master.fs, namesrv_addr=addr, **options) as again,
            broker(namesrv_addr=addr, **SLAVE, **options) as slave,
        ):
            assert await slave.has("T", 60) == large
            await again.send("T", b"new")
            assert await slave.has("T", 61) == [*large, b"new"]
            assert slave.log() == again.log()


def test_silent_strangers_of_one_address_keep_no_slave_of_the_same_address_out() -> None:
    door: HaConnections[int] = HaConnections()
    victims = [door.arrived(number, "a") for number in range(100)]
    assert victims == [None] * MAX_STRANGERS_OF_A_NETWORK + list(range(100 - MAX_STRANGERS_OF_A_NETWORK))
    assert door.arrived(1000, "a") is not None
    assert door.follows(1000, said_hello=True) == (True, None)


def test_of_many_strangers_those_go_first_that_come_from_where_no_slave_came_from() -> None:
    door: HaConnections[int] = HaConnections()
    door.arrived(0, "slave")
    assert door.follows(0, said_hello=True) == (True, None)
    door.disconnected(0)
    door.arrived(1, "slave")
    for number in range(2, MAX_STRANGERS + 1):
        assert door.arrived(number, f"other{number}") is None
    assert [door.arrived(number, f"other{number}") for number in range(200, 210)] == list(range(2, 12))
    assert door.follows(1, said_hello=True) == (True, None)


def test_a_slave_with_a_hello_takes_the_place_of_a_plain_peer() -> None:
    door: HaConnections[int] = HaConnections()
    for number in range(MAX_FOLLOWERS):
        door.arrived(number, f"other{number}")
        assert door.follows(number, said_hello=number % 2 == 0) == (True, None)
    door.arrived(500, "plain")
    assert door.follows(500, said_hello=False) == (False, None)
    door.arrived(501, "slave")
    assert door.follows(501, said_hello=True) == (True, 1)


def test_an_address_has_so_many_followers() -> None:
    door: HaConnections[int] = HaConnections()
    for number in range(MAX_FOLLOWERS_OF_A_NETWORK):
        door.arrived(number, "a")
        assert door.follows(number, said_hello=True) == (True, None)
    door.arrived(500, "a")
    assert door.follows(500, said_hello=True) == (False, None)
    door.arrived(501, "b")
    assert door.follows(501, said_hello=True) == (True, None)


def test_a_stranger_that_had_to_go_does_not_follow() -> None:
    door: HaConnections[int] = HaConnections()
    for number in range(MAX_STRANGERS_OF_A_NETWORK + 1):
        door.arrived(number, "a")
    assert door.follows(0, said_hello=True) == (False, None)


addresses = st.sampled_from([f"10.0.0.{number}" for number in range(8)])
steps = st.one_of(
    st.tuples(st.just("arrives"), addresses),
    st.tuples(st.just("follows"), st.booleans()),
    st.tuples(st.just("goes"), st.integers(0, 200)),
)


@given(st.lists(steps, max_size=400))
def test_there_are_never_too_many_and_a_slave_that_is_quick_gets_in(
    history: list[tuple[str, str | bool | int]],
) -> None:
    door: HaConnections[int] = HaConnections()
    strangers: dict[int, str] = {}
    followers: dict[int, tuple[str, bool]] = {}
    last = -1
    for number, (what, value) in enumerate(history):
        if what == "arrives":
            last = number
            if (victim := door.arrived(number, str(value))) is not None:
                del strangers[victim]
            strangers[number] = str(value)
        elif what == "follows" and last in strangers:
            ip = strangers.pop(last)
            admitted, victim = door.follows(last, said_hello=bool(value))
            if victim is not None:
                assert value and not followers.pop(victim)[1]
            if admitted:
                followers[last] = ip, bool(value)
            else:
                here = [said for its_ip, said in followers.values() if its_ip == ip]
                assert len(here) == MAX_FOLLOWERS_OF_A_NETWORK or len(followers) == MAX_FOLLOWERS
        elif what == "goes":
            door.disconnected(int(value))
            strangers.pop(int(value), None)
            followers.pop(int(value), None)
        assert len(strangers) <= MAX_STRANGERS and len(followers) <= MAX_FOLLOWERS
        for ip in {*strangers.values()}:
            assert list(strangers.values()).count(ip) <= MAX_STRANGERS_OF_A_NETWORK
        for ip in {its_ip for its_ip, _ in followers.values()}:
            assert sum(its_ip == ip for its_ip, _ in followers.values()) <= MAX_FOLLOWERS_OF_A_NETWORK


def test_no_more_than_so_many_addresses_are_remembered() -> None:
    door: HaConnections[int] = HaConnections()
    for number in range(MAX_KNOWN_NETWORKS + 5):
        door.arrived(number, f"slave{number}")
        assert door.follows(number, said_hello=True) == (True, None)
        door.disconnected(number)
    assert len(door._known) == MAX_KNOWN_NETWORKS
