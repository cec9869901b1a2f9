"""What every transport does, over sockets, in memory and in process; and what is the socket's own."""

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain, repeat
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import CLOSED_BY_PEER, TLS_GUESS, ConnectionLost, FileClosed, UserError
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.in_process import CAPACITY_BYTES, InProcessListener, in_process_pair
from skylark.remoting.net.sockets import SocketTransport, connect, connect_reason, listen
from skylark.remoting.net.transport import MAX_PIECES, Listener, Transport
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES, encode
from tests.remoting.net.pairs import Pair, pair_in_memory, pair_in_process, socket_pair, tls_in_memory, tls_over_sockets
from tests.remoting.net.served import reset
from tests.support.memory_transport import MemoryNetwork, memory_pair

# More than the buffers of a socket take.
LARGE = 16 << 20


@pytest.fixture(
    params=[socket_pair, pair_in_memory, pair_in_process, tls_over_sockets, tls_in_memory],
    ids=["socket", "memory", "in process", "TLS over sockets", "TLS in memory"],
)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    made: Pair = await request.param(tmp_path)
    yield made
    for transport in made:
        await transport.aclose()


async def receive_exactly(transport: Transport, size: int) -> bytes:
    parts = []
    while size:
        parts.append(await transport.receive(min(size, 1 << 20)))
        assert parts[-1], "the peer closed"
        size -= len(parts[-1])
    return b"".join(parts)


def fill(transport: Transport) -> int:
    """Send until nothing more is taken; returns the number of bytes."""
    sent = 0
    while taken := transport.try_send([bytes(1 << 16)]):
        sent += taken
    return sent


async def test_each_end_knows_both_addresses(pair: Pair) -> None:
    ours, theirs = pair
    assert (ours.local, ours.remote) == (theirs.remote, theirs.local)
    assert ours.local != ours.remote
    assert all(transport.local.startswith("127.0.0.1:") for transport in pair)


async def test_bytes_come_in_order_both_ways(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.try_send([b"one", memoryview(b"two"), b"three"]) == 11
    await ours.send_all(memoryview(b"four"))
    theirs.try_send([b"answer"])
    assert await receive_exactly(theirs, 15) == b"onetwothreefour"
    assert await ours.receive(100) == b"answer"


async def test_no_more_is_received_than_was_asked_for(pair: Pair) -> None:
    ours, theirs = pair
    await ours.send_all(b"abcdefgh")
    buffer = bytearray(b"........")
    assert await theirs.receive(2) == b"ab"
    assert await theirs.receive_into(memoryview(buffer)[1:4]) == 3
    assert buffer == b".cde...."
    assert await theirs.receive_into(memoryview(buffer)) == 3
    assert buffer == b"fghe...."


async def test_a_receiver_waits_until_something_comes(pair: Pair) -> None:
    ours, theirs = pair
    got: list[bytes | int] = []
    buffer = bytearray(10)

    async def receive() -> None:
        got.append(await theirs.receive(100))
        got.append(await theirs.receive_into(memoryview(buffer)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        assert not got
        ours.try_send([b"x"])
        while not got:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert got == [b"x"]
        ours.try_send([b"yz"])
    assert got == [b"x", 2] and buffer[:2] == b"yz"


async def test_what_is_not_taken_can_be_sent_when_the_peer_has_read(pair: Pair) -> None:
    ours, theirs = pair
    sent = fill(ours)
    assert 0 < sent < LARGE
    # The next bytes must be those that were not taken, as they may be encrypted already.
    assert ours.try_send([bytes(1 << 16)]) == 0
    assert len(await receive_exactly(theirs, sent)) == sent
    await ours.send_all(bytes(1 << 16))
    await receive_exactly(theirs, 1 << 16)
    assert ours.try_send([b"x", b"y"]) == 2
    assert await receive_exactly(theirs, 2) == b"xy"


async def test_a_part_of_the_pieces_is_taken(pair: Pair) -> None:
    ours, theirs = pair
    pieces: list[bytes | memoryview] = [bytes([number]) * (LARGE // 8) for number in range(8)]
    taken = ours.try_send(pieces)
    assert 0 < taken < LARGE
    whole = b"".join(pieces)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, memoryview(whole)[taken:])
        assert await receive_exactly(theirs, LARGE) == whole


async def test_as_many_pieces_as_it_says(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.try_send([b"x"] * MAX_PIECES) == MAX_PIECES
    assert await receive_exactly(theirs, MAX_PIECES) == b"x" * MAX_PIECES


async def test_send_all_waits_for_a_peer_that_does_not_read(pair: Pair) -> None:
    ours, theirs = pair
    sent = trio.Event()

    async def send() -> None:
        await ours.send_all(bytes(LARGE))
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent.is_set()
        await receive_exactly(theirs, LARGE)
        await sent.wait()


async def test_a_peer_that_closes_is_read_to_the_end(pair: Pair) -> None:
    ours, theirs = pair
    await ours.send_all(b"last words")
    await ours.aclose()
    assert await theirs.receive(4) == b"last"
    assert await theirs.receive(100) == b" words"
    assert await theirs.receive(100) == b""
    assert await theirs.receive_into(memoryview(bytearray(10))) == 0


async def test_sending_to_a_peer_that_closed_is_broken(pair: Pair) -> None:
    ours, theirs = pair
    await ours.aclose()
    with pytest.raises(trio.BrokenResourceError, match=r"^(Broken pipe|Connection reset by peer)$"):
        for _ in range(10):  # TCP learns of it by its first bytes
            theirs.try_send([b"x"])
            await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
        await theirs.send_all(b"x")


Use = Callable[[Transport], Awaitable[object]]


async def receive(transport: Transport) -> object:
    return await transport.receive(10)


async def receive_into(transport: Transport) -> object:
    return await transport.receive_into(memoryview(bytearray(10)))


async def try_send(transport: Transport) -> object:
    return transport.try_send([b"x"])


async def send_all(transport: Transport) -> object:
    return await transport.send_all(bytes(LARGE))


USES = [receive, receive_into, try_send, send_all]


@pytest.mark.parametrize("use", USES)
async def test_a_broken_connection_is_one_error_that_says_why(pair: Pair, use: Use) -> None:
    ours, theirs = pair
    reset(ours)
    with pytest.raises(trio.BrokenResourceError, match=r"^(Connection reset by peer|Broken pipe)$"):
        await use(theirs)


@pytest.mark.parametrize("use", [receive, receive_into, send_all])
async def test_a_connection_breaks_while_somebody_waits(pair: Pair, use: Use) -> None:
    ours, theirs = pair

    async def broken() -> None:
        with pytest.raises(trio.BrokenResourceError, match=r"^(Connection reset by peer|Broken pipe)$"):
            await use(theirs)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broken)
        await trio.testing.wait_all_tasks_blocked()
        reset(ours)


@pytest.mark.parametrize("use", USES)
async def test_a_transport_that_was_closed_is_not_used_again(pair: Pair, use: Use) -> None:
    ours, _ = pair
    await ours.aclose()
    await ours.aclose()
    # One of them gets the number that the socket had.
    others = [os.open("/dev/zero", os.O_RDWR) for _ in range(10)]
    with pytest.raises(trio.ClosedResourceError):
        await use(ours)
    for other in others:
        os.close(other)


@pytest.mark.parametrize("use", [receive, receive_into, send_all])
async def test_a_transport_is_closed_while_somebody_waits(pair: Pair, use: Use) -> None:
    ours, _ = pair

    async def closed() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await use(ours)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(closed)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()


async def test_a_cancelled_receive_loses_nothing(pair: Pair) -> None:
    ours, theirs = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.receive, 10)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await ours.send_all(b"abc")
    with trio.CancelScope() as scope:
        scope.cancel()
        await theirs.receive(10)
    assert scope.cancelled_caught
    assert await theirs.receive(10) == b"abc"


async def test_receiving_what_is_there_lets_others_run(pair: Pair) -> None:
    ours, theirs = pair
    await ours.send_all(b"abc")
    await trio.testing.wait_all_tasks_blocked()
    with trio.testing.assert_checkpoints():
        await theirs.receive(1)
    with trio.testing.assert_checkpoints():
        await theirs.receive_into(memoryview(bytearray(1)))


async def test_two_tasks_do_not_send_at_once(pair: Pair) -> None:
    ours, _ = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, bytes(LARGE))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await ours.send_all(b"x")
        nursery.cancel_scope.cancel()


async def test_two_tasks_do_not_receive_at_once(pair: Pair) -> None:
    ours, _ = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.receive, 1)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await ours.receive(1)
        nursery.cancel_scope.cancel()


async def test_half_of_a_frame_waits_for_the_other_half(pair: Pair) -> None:
    ours, theirs = pair
    channel = Channel(theirs, max_frame_bytes=MAX_FRAME_BYTES)
    frame = encode(Command(1, {"a": "b"}, b"body", opaque=7))
    asked: list[Command] = []

    def answer(channel: Channel, request: Command) -> None:
        asked.append(request)
        channel.reply(request, request.respond(body=request.body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run, answer)
        await ours.send_all(frame[:9])
        await trio.testing.wait_all_tasks_blocked()
        assert not asked
        await ours.send_all(frame[9:])
        (found,) = Connection().receive_data(await ours.receive(1000))
        assert (found.opaque, found.body) == (7, b"body")
        await ours.send_all(frame[:9])
        await ours.aclose()
    assert len(asked) == 1 and channel.closed_reason == "closed by the peer"


@pytest.mark.parametrize("has_answered", [False, True])
async def test_a_peer_that_never_answered_may_expect_tls(pair: Pair, has_answered: bool) -> None:
    ours, theirs = pair
    channel = Channel(theirs, max_frame_bytes=MAX_FRAME_BYTES)
    lost: list[str] = []

    async def ask() -> None:
        with pytest.raises(ConnectionLost) as failed:
            await channel.invoke(Command(1), 60_000)
        lost.append(str(failed.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run, lambda channel, request: None)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        if has_answered:
            await ours.send_all(encode(Command(2)))
        # What it has not read would make its end a reset.
        assert await ours.receive(1000)
        await ours.aclose()
    more = "" if has_answered or channel.is_encrypted else f" {TLS_GUESS}"
    assert lost == [f"connection to {theirs.remote} lost: {CLOSED_BY_PEER}{more}"]


async def test_a_file_is_sent_whole_though_the_peer_is_slow(pair: Pair, tmp_path: Path) -> None:
    ours, theirs = pair
    file = OsFiles().open_map(str(tmp_path / "map"), LARGE, create=True)
    content = os.urandom(1 << 16) * (LARGE >> 16)
    file.pwrite(0, memoryview(content))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_file, file, 5, LARGE - 10)
        assert await receive_exactly(theirs, LARGE - 10) == content[5:-5]
    reset(theirs)
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_file(file, 0, LARGE)
    file.close()
    with pytest.raises(FileClosed):
        await ours.send_file(file, 0, 1)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.integers(1, 50), st.lists(st.integers(1, 60)))
async def test_bytes_in_memory_come_whole_and_in_order(pieces: list[bytes], capacity: int, reads: list[int]) -> None:
    ours, theirs = memory_pair(capacity=capacity)
    left: list[bytes | memoryview] = list(pieces)
    whole, got = b"".join(pieces), b""
    for size in chain(reads, repeat(7)):
        taken = ours.try_send(left)
        while left and taken >= len(left[0]):
            taken -= len(left.pop(0))
        if left:
            left[0] = left[0][taken:]
        if got == whole:
            break
        got += await theirs.receive(size)
    assert got == whole


# --- listening and connecting


async def listening_sockets() -> tuple[Listener, Callable[[str, int], Awaitable[Transport]]]:
    return (await listen("127.0.0.1", 0))[0], connect


async def listening_in_memory() -> tuple[Listener, Callable[[str, int], Awaitable[Transport]]]:
    network = MemoryNetwork()
    return network.listen(), network.connect


async def listening_in_process() -> tuple[Listener, Callable[[str, int], Awaitable[Transport]]]:
    listener = InProcessListener("127.0.0.1:10911")
    return listener, listener.shortcut(connect)


@pytest.mark.parametrize("listening", [listening_sockets, listening_in_memory, listening_in_process])
async def test_a_listener_takes_connections_until_it_closes(
    listening: Callable[[], Awaitable[tuple[Listener, Callable[[str, int], Awaitable[Transport]]]]],
) -> None:
    listener, its_connect = await listening()
    host, _, port = listener.address.rpartition(":")
    async with listener:
        clients = [await its_connect(host, int(port)) for _ in range(3)]
        servers = [await listener.accept() for _ in range(3)]
        assert [client.local for client in clients] == [server.remote for server in servers]
        assert {client.remote for client in clients} == {listener.address}
        await clients[1].send_all(b"x")
        assert await servers[1].receive(10) == b"x"
    with pytest.raises(OSError) as refused:
        await its_connect(host, int(port))
    assert connect_reason(refused.value) == os.strerror(errno.ECONNREFUSED)
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()


async def test_a_listener_in_process_is_found_by_all_its_addresses_and_no_other() -> None:
    others = await listen("127.0.0.1", 0)
    listener = InProcessListener("[::1]:10911", ["10.0.0.5:10909"])
    reach = listener.shortcut(connect)
    async with others[0], listener:
        host, _, port = others[0].address.rpartition(":")
        assert isinstance(await reach(host, int(port)), SocketTransport)
        for near in (("0:0::1", 10911), ("10.0.0.5", 10909)):
            client = await reach(*near)
            server = await listener.accept()
            # A signature names the address of the server, so both ends must know the same one.
            assert (client.remote, server.local) == ("[::1]:10911", "[::1]:10911")
            assert client.is_encrypted and server.is_encrypted


async def test_a_connection_in_process_holds_no_more_than_it_says() -> None:
    ours, theirs = in_process_pair("127.0.0.1:40000", "127.0.0.1:10911")
    assert fill(ours) == CAPACITY_BYTES == theirs.buffered_bytes
    shown = bytearray(b"before")
    assert len(await theirs.receive(CAPACITY_BYTES)) == CAPACITY_BYTES
    ours.try_send([memoryview(shown)])
    shown[:] = b"after."
    assert await theirs.receive(100) == b"before"


async def test_a_client_in_process_that_was_not_accepted_is_cut_off() -> None:
    listener = InProcessListener("127.0.0.1:10911")
    client = await listener.connect()
    await listener.aclose()
    with pytest.raises(trio.BrokenResourceError, match="Connection reset by peer"):
        await client.receive(1)


async def test_a_client_that_left_before_it_was_accepted_is_passed_over() -> None:
    (listener,) = await listen("127.0.0.1", 0)
    host, _, port = listener.address.rpartition(":")
    reset(await connect(host, int(port)))
    client = await connect(host, int(port))
    assert (await listener.accept()).remote == client.local


async def test_addresses_of_v6_stand_in_brackets() -> None:
    try:
        (listener,) = await listen("::1", 0)
    except UserError:
        pytest.skip("this machine has no IPv6")
    client = await connect("::1", int(listener.address.rpartition(":")[2]))
    assert listener.address == client.remote and client.remote.startswith("[::1]:")
