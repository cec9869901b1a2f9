"""Server and client, over a network in memory."""

import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import (
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    ProtocolError,
    RequestRefused,
    RequestTimeout,
    UserError,
)
from skylark.remoting.http2 import frames
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.limits import ConnectionBudget, ServerLimits
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import CBOR, FLAG_ONEWAY, JSON, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from tests.remoting.net.served import Served, serve
from tests.support.waiting import DEADLINE_S, until

ECHO, REFUSE, BREAK, SLOW, SILENT, ASK_BACK, BIG, GARBLED, BREAK_SLOWLY = range(1000, 1009)


def echo(channel: Channel, request: Command) -> Command:
    return request.respond(ext=request.ext, body=request.body)


def refuse(channel: Channel, request: Command) -> Command:
    raise RequestRefused(17, "no such thing")


def broken(channel: Channel, request: Command) -> Command:
    raise KeyError("oops")


def garbled(channel: Channel, request: Command) -> Command:
    raise ProtocolError("not what it should be")


async def broken_slowly(channel: Channel, request: Command) -> Command:
    await trio.lowlevel.checkpoint()
    raise KeyError("oops")


def silent(channel: Channel, request: Command) -> None:
    return None


def big(channel: Channel, request: Command) -> Command:
    return request.respond(body=bytes(1 << 20))


async def slow(channel: Channel, request: Command) -> Command:
    await trio.lowlevel.checkpoint()
    return request.respond(body=b"slow")


async def ask_back(channel: Channel, request: Command) -> Command:
    answer = await channel.invoke(Command(ECHO, {"from": "server"}), 1000)
    return request.respond(ext=answer.ext)


QUICK = {ECHO: echo, REFUSE: refuse, BREAK: broken, SILENT: silent, BIG: big, GARBLED: garbled}


def serving(
    limits: ServerLimits | None = None, connections: ConnectionBudget | None = None, *, over_tcp: bool = False
) -> AbstractAsyncContextManager[Served]:
    slow_ones = {SLOW: slow, ASK_BACK: ask_back, BREAK_SLOWLY: broken_slowly}
    server = Server(QUICK, slow_ones, limits=limits, connections=connections)
    return serve(server, over_tcp=over_tcp)


@asynccontextmanager
async def pair(
    call: Callable[[Channel, Command], Command] = echo,
) -> AsyncIterator[tuple[RemotingClient, str, Served]]:
    async with serving() as served, open_client({ECHO: call}, connect=served.connect) as client:
        yield client, served.addr, served


async def test_answers_find_their_requests_however_many_are_in_flight() -> None:
    async with pair() as (client, addr, _):
        got: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            code = SLOW if number % 3 == 0 else ECHO
            got[number] = (await client.invoke(addr, Command(code, {"n": number}, b"%d" % number))).body

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, number)
        assert got == {n: b"slow" if n % 3 == 0 else b"%d" % n for n in range(200)}


async def test_skylark_speaks_cbor_after_the_first_answer_and_json_to_others() -> None:
    async with pair() as (client, addr, _):
        first = await client.invoke(addr, Command(ECHO, {"n": 1}))
        assert first.codec == JSON and first.ext is not None and first.ext["n"] == "1"
        assert client.speaks_cbor(addr)
        second = await client.invoke(addr, Command(ECHO, {"n": 1}))
        assert second.codec == CBOR and second.ext == {"n": 1}


async def test_an_offer_of_cbor_is_accepted_also_by_an_answer_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Channel, Command]] = []
    monkeypatch.setitem(QUICK, SILENT, lambda channel, request: asked.append((channel, request)))
    async with pair() as (client, addr, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.invoke, addr, Command(SILENT))
        await until(lambda: bool(asked), "the request")
        channel, request = asked[0]
        channel.reply(request, request.respond())
        await until(lambda: client.speaks_cbor(addr), "CBOR")
        assert (await client.invoke(addr, Command(ECHO))).codec == CBOR


@pytest.mark.parametrize("first", ["cancelled", "late", "late, submitted", "too large", "oneway", "pushed"])
async def test_cbor_is_offered_until_a_request_has_an_answer(
    first: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving() as served, open_client(connect=served.connect, max_frame_bytes=10_000) as client:
        addr = served.addr
        await client.channel(addr, 1_000)
        match first:
            case "cancelled":
                with trio.move_on_after(0.1):
                    await client.invoke(addr, Command(SILENT))
            case "late":
                with pytest.raises(RequestTimeout):
                    await client.invoke(addr, Command(SILENT), 100)
            case "late, submitted":
                command = Command(SILENT)
                client.prepare(addr, command)
                client.submit(addr, command, 100, lambda result: None)
                await trio.sleep(0.2)
            case "too large":
                command = Command(SILENT, body=bytes(10_000))
                client.prepare(addr, command)
                with pytest.raises(FrameTooLarge):
                    client.submit(addr, command, 100, lambda result: None)
            case "oneway":
                await client.oneway(addr, Command(SLOW))
            case "pushed":
                client.push(addr, Command(SLOW))
        assert not client.speaks_cbor(addr)
        await client.invoke(addr, Command(SLOW))
        assert client.speaks_cbor(addr) and (await client.invoke(addr, Command(SLOW))).codec == CBOR


async def test_refusals_and_failures_are_answers(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as (client, addr, _):
        refused = await client.invoke(addr, Command(REFUSE))
        assert (refused.code, refused.remark) == (17, "no such thing")
        with caplog.at_level(logging.CRITICAL):
            failed = await client.invoke(addr, Command(BREAK))
        assert failed.code == 1 and "KeyError" in (failed.remark or "")
        unknown = await client.invoke(addr, Command(4711))
        assert (unknown.code, unknown.remark) == (3, " request type 4711 not supported")


async def test_a_oneway_request_is_not_answered() -> None:
    async with pair() as (client, addr, _):
        await client.oneway(addr, Command(ECHO, body=b"x"))
        answer = await client.invoke(addr, Command(ECHO, body=b"y"))
        assert answer.body == b"y"


async def test_a_server_asks_its_client() -> None:
    async with pair() as (client, addr, _):
        answer = await client.invoke(addr, Command(ASK_BACK))
        assert answer.ext is not None and answer.ext["from"] == "server"


async def test_no_answer_in_time_is_a_timeout_and_others_go_on(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as (client, addr, _):
        with pytest.raises(RequestTimeout, match="did not answer request 1004"):
            await client.invoke(addr, Command(SILENT))
        assert (await client.invoke(addr, Command(ECHO, body=b"on"))).body == b"on"


async def test_a_lost_connection_ends_what_is_in_flight_and_the_next_request_opens_another() -> None:
    async with pair() as (client, addr, served):
        lost: list[Exception] = []

        async def ask() -> None:
            try:
                await client.invoke(addr, Command(SILENT))
            except ConnectionLost as error:
                lost.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: bool(served.server.channels), "a connection")
            await client.invoke(addr, Command(ECHO))
            for channel in list(served.server.channels):
                channel.close("test")
        assert len(lost) == 1
        assert (await client.invoke(addr, Command(ECHO, body=b"again"))).body == b"again"


async def test_nobody_listens() -> None:
    async with serving(over_tcp=True) as served:
        pass
    async with open_client() as client:
        with pytest.raises(ConnectFailed, match=r"cannot connect to .*refused"):
            await client.invoke(served.addr, Command(ECHO))


async def test_a_port_in_use_is_a_users_mistake_with_a_remedy() -> None:
    async with serving(over_tcp=True) as served:
        with pytest.raises(UserError, match="in use; stop the process"):
            await Server({}).serve(*split_address(served.addr))


@pytest.mark.parametrize(
    "garbage",
    [b"BREW / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64, struct.pack(">II", 1 << 30, 5), b"\x16\x03\x01" * 40],
)
async def test_garbage_costs_its_sender_the_connection_and_nobody_else(garbage: bytes) -> None:
    async with pair() as (client, addr, served):
        await client.invoke(addr, Command(ECHO))
        stream = await served.stream()
        await stream.send_all(garbage)
        with trio.fail_after(DEADLINE_S):
            with suppress(trio.BrokenResourceError):
                assert await stream.receive(100) == b""
        assert (await client.invoke(addr, Command(ECHO, body=b"fine"))).body == b"fine"


async def test_a_peer_that_does_not_read_is_bounded_and_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as served:
        await trio.sleep(1)
        stream = await served.stream()
        # One read of the server holds many of these; their answers are a MiB each.
        await stream.send_all(b"".join(encode(Command(BIG, opaque=n)) for n in range(600)))
        await trio.testing.wait_all_tasks_blocked()
        (channel,) = served.server.channels
        assert 0 < channel.buffered_bytes < 2 << 20
        await trio.sleep(22)
        assert not served.server.channels and channel.exceeded == "slow_readers"
        await stream.aclose()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("codes", [(BIG,), (BIG, SLOW)])
async def test_a_peer_that_reads_slowly_gets_all_large_answers(
    at_once: bool, codes: tuple[int, ...], autojump_clock: trio.testing.MockClock
) -> None:
    """The server handles only as many requests as the peer takes answers, so that answers stay within the bound."""
    count = 40
    async with serving(ServerLimits(max_answer_bytes=4 << 20)) as served, trio.open_nursery() as nursery:
        stream = await served.stream()
        frames = [encode(Command(codes[n % len(codes)], opaque=n)) for n in range(count)]

        async def ask() -> None:
            for frame in [b"".join(frames)] if at_once else frames:
                await stream.send_all(frame)
                await trio.sleep(0.001)

        nursery.start_soon(ask)
        answered: list[int] = []
        connection = Connection()
        while len(answered) < count:
            data = await stream.receive(1 << 19)
            assert data, "it was closed"
            answered += [answer.opaque for answer in connection.receive_data(data)]
            await trio.sleep(0.01)
        assert sorted(answered) == list(range(count))
        await stream.aclose()


async def test_a_stopping_server_refuses_and_says_where_to_go() -> None:
    async with pair() as (client, addr, served):
        await client.invoke(addr, Command(ECHO))
        served.server.stop_accepting()
        assert (await client.invoke(addr, Command(ECHO))).code == 1500
        older = await client.invoke(addr, Command(ECHO, version=401))
        assert older.code == 14
        assert await served.server.drain(1000)


async def test_an_idle_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(ServerLimits(idle_timeout_ms=10_000)) as served:
        silent, lively = await served.stream(), await served.stream()
        await until(lambda: len(served.server.channels) == 2, "two connections")
        for number in range(30):
            await lively.send_all(encode(Command(ECHO, opaque=number)))
            assert Connection().receive_data(await lively.receive(1000))[0].opaque == number
            await trio.sleep(0.5)
        assert await silent.receive(1) == b""
        assert len(served.server.channels) == 1
        assert await lively.receive(1) == b""


async def test_a_connection_whose_peer_does_not_read_is_closed_after_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(ServerLimits(write_timeout_ms=10_000)) as served:
        stream = await served.stream()
        await until(lambda: bool(served.server.channels), "a connection")
        (channel,) = served.server.channels
        for _ in range(8):
            channel.queue(bytes(1 << 20))
        for _ in range(5):
            await trio.sleep(9)
            assert channel.closed_reason is None, "it reads, though slowly"
            left = 1 << 20
            while left:
                left -= len(await stream.receive(left))
        await trio.sleep(12)
        assert channel.closed_reason == "peer did not read for 10000 ms"


async def test_a_peer_that_takes_one_large_answer_slowly_is_neither_idle_nor_blocked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limits = ServerLimits(write_timeout_ms=10_000, read_timeout_ms=15_000, idle_timeout_ms=15_000)
    async with serving(limits) as served:
        await trio.sleep(1)
        stream, connection = await served.stream(), Connection()
        answers: list[Command] = []
        next_request = encode(Command(ECHO, opaque=2))
        await stream.send_all(encode(Command(ECHO, opaque=1, body=bytes(8 << 20))) + next_request[:-1])
        for _ in range(8):
            # It cannot know that the server does not read this now.
            await trio.sleep(9)
            answers += connection.receive_data(await stream.receive(1 << 19))
        await stream.send_all(next_request[-1:])
        while len(answers) < 2:
            answers += connection.receive_data(await stream.receive(1 << 20))
        assert [(answer.opaque, len(answer.body)) for answer in answers] == [(1, 8 << 20), (2, 0)]
        await stream.aclose()


async def test_too_many_connections_are_refused_with_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    budget = ConnectionBudget(1)
    async with serving(connections=budget) as served:
        first = await served.stream()
        await until(lambda: len(served.server.channels) == 1, "a connection")
        for _ in range(3):
            another = await served.stream()
            with trio.fail_after(DEADLINE_S):
                with suppress(trio.BrokenResourceError):
                    assert await another.receive(1) == b""
        assert caplog.text.count("connections refused: 1 are open") == 1
        assert served.server.refusals.counts["connections"] == 3
        await first.send_all(encode(Command(ECHO, body=b"still here", opaque=1)))
        answers = Connection().receive_data(await first.receive(1000))
        assert answers[0].body == b"still here"
        await first.aclose()
        await until(lambda: budget.used == 0, "the connection is given back")


async def test_a_client_reads_on_while_the_server_does_not() -> None:
    # Both sides fill the other's socket: were the client to wait for its own sends, neither would ever go on.
    async with pair() as (client, addr, _):
        await client.invoke(addr, Command(ECHO))
        channel = await client.channel(addr, 1000)
        body, count, answered = bytes(20_000), 2_000, 0
        done = trio.Event()

        def on_answer(answer: object) -> None:
            nonlocal answered
            answered += isinstance(answer, Command)
            if answered == count:
                done.set()

        for _ in range(count):
            channel.submit(Command(ECHO, body=body), 60_000, on_answer)
        with trio.fail_after(DEADLINE_S):
            await done.wait()


async def test_a_peer_that_does_not_read_costs_no_cpu() -> None:
    async with serving() as served:
        stream = await served.stream()
        await stream.send_all(b"".join(encode(Command(SLOW if n % 2 else BIG, opaque=n)) for n in range(60)))
        with trio.fail_after(DEADLINE_S):
            # Returns only when no task runs again and again.
            await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()


async def test_large_answers_let_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that one connection asks for at once are not made at once."""
    order: list[str] = []

    def note(channel: Channel, request: Command) -> Command:
        order.append(str((request.ext or {}).get("who")))
        return request.respond(body=bytes(int((request.ext or {}).get("size", 0))))

    monkeypatch.setitem(QUICK, ECHO, note)
    async with serving() as served:
        bulk = await served.stream()
        other = await served.stream()
        await until(lambda: len(served.server.channels) == 2, "two connections")
        frames = [encode(Command(ECHO, {"who": "bulk", "size": 300_000}, opaque=n)) for n in range(8)]
        await bulk.send_all(b"".join(frames))
        await other.send_all(encode(Command(ECHO, {"who": "other"}, opaque=1)))
        assert Connection().receive_data(await other.receive(1000))[0].code == 0
        assert order.index("other") < 7
        # All of them are answered in the end.
        answered, connection = 0, Connection()
        with trio.fail_after(DEADLINE_S):
            while answered < 8:
                answered += len(connection.receive_data(await bulk.receive(1 << 20)))
        await bulk.aclose()
        await other.aclose()


async def test_a_read_full_of_long_requests_lets_others_have_their_turn(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peer may send hundreds of them in one read, and many peers at once."""
    order: list[str] = []

    def take_long(channel: Channel, request: Command) -> Command:
        order.append(str((request.ext or {}).get("who")))
        mock_clock.jump(0.004)
        return request.respond()

    monkeypatch.setitem(QUICK, ECHO, take_long)
    async with serving() as served:
        greedy = await served.stream()
        other = await served.stream()
        await trio.testing.wait_all_tasks_blocked()
        await greedy.send_all(b"".join(encode(Command(ECHO, {"who": "greedy"}, opaque=n)) for n in range(60)))
        await other.send_all(encode(Command(ECHO, {"who": "other"}, opaque=1)))
        assert Connection().receive_data(await other.receive(1000))[0].code == 0
        assert order.index("other") < 20
        got: list[int] = []
        connection = Connection()
        while len(got) < 60:
            got += [answer.opaque for answer in connection.receive_data(await greedy.receive(1 << 16))]
        assert got == list(range(60))
        await greedy.aclose()
        await other.aclose()


async def test_large_and_small_answers_come_whole_and_in_order() -> None:
    """Large bodies are sent beside their headers, in as many calls as the socket takes."""
    async with serving() as served:
        stream = await served.stream()
        bodies = [bytes([n]) * size for n, size in enumerate((0, 70_000, 10, 400_000, 65_535, 65_536, 3_000_000, 1))]
        async with trio.open_nursery() as nursery:
            frames = b"".join(encode(Command(ECHO, body=body, opaque=n)) for n, body in enumerate(bodies))
            nursery.start_soon(stream.send_all, frames)
            found: list[Command] = []
            connection = Connection()
            with trio.fail_after(DEADLINE_S):
                while len(found) < len(bodies):
                    found += connection.receive_data(await stream.receive(50_000))
        assert [(answer.opaque, answer.body) for answer in found] == list(enumerate(bodies))
        await stream.aclose()


async def test_sent_returns_when_the_peer_has_taken_all_or_is_gone() -> None:
    async with serving() as served, trio.open_nursery() as nursery:
        stream = await served.stream()
        await until(lambda: bool(served.server.channels), "a connection")
        (channel,) = served.server.channels
        await channel.sent()
        sent: list[int] = []

        async def wait() -> None:
            await channel.sent()
            sent.append(channel.buffered_bytes)

        channel.queue(bytes(20 << 20))
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent
        left = 20 << 20
        while left:
            left -= len(await stream.receive(1 << 20))
        await until(lambda: sent == [0], "all is sent")
        channel.queue(bytes(20 << 20))
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await until(lambda: len(sent) == 2, "the end of the connection")


@pytest.mark.parametrize("code", [REFUSE, BREAK, GARBLED, BREAK_SLOWLY, 4711])
async def test_a_oneway_request_that_fails_leaves_a_line_in_the_log(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair() as (client, addr, _):
        await client.invoke(addr, Command(ECHO))
        for _ in range(3):
            await client.oneway(addr, Command(code, flag=FLAG_ONEWAY))
        await client.oneway(addr, Command(SILENT, flag=FLAG_ONEWAY))
        await client.invoke(addr, Command(ECHO))
        line = f"oneway request {code} of "
        await until(lambda: line in caplog.text, "the request is in the log")
        assert caplog.text.count(line) == 1
        assert f"oneway request {SILENT}" not in caplog.text


async def test_a_push_that_a_client_refuses_leaves_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(refuse) as (client, addr, served):  # type: ignore[arg-type]
        await client.invoke(addr, Command(ECHO))
        (channel,) = served.server.channels
        channel.push(Command(ECHO, flag=FLAG_ONEWAY))
        await until(lambda: f"oneway request {ECHO} of " in caplog.text, "the push is in the log")
        assert "[17] no such thing" in caplog.text


async def test_the_log_says_why_the_frames_of_a_client_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(Server({})) as served:
        stream = await served.stream()
        await stream.send_all(encode(Command(1, {"topic": "t"})).replace(b"topic", b'to"ic'))
        assert not await stream.receive(10_000)
    assert "connection closed: header is not JSON" in caplog.text


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", frames.PREFACE])
async def test_a_browser_and_a_grpc_client_are_told_which_ports_are_theirs(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(Server({})) as served:
        stream = await served.stream()
        await stream.send_all(first)
        answer = b""
        while received := await stream.receive(10_000):
            answer += received
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"8088" in answer and b"8081" in answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.endswith(b"Content-Length: %d" % len(body))
    spoken = "gRPC" if first == frames.PREFACE else "HTTP"
    assert f"connection closed: the peer speaks {spoken}" in caplog.text
