"""An error of one request, answer or peer stays local: it ends no server and no client, and no other request."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from skylark.mqcommon.errors import ConnectionLost, FrameTooLarge, RemotingError, RequestTimeout
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.limits import ServerLimits
from skylark.remoting.net.server import Server
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.command import Command
from tests.remoting.net.served import Served, reset, serve

ECHO, QUICK, SLOW, LATER, ASK_BACK = range(1000, 1005)
LIMIT = 100_000

Answer = Callable[[Command], Command]


def echo(channel: Channel, request: Command) -> Command:
    return request.respond(body=request.body)


class Faults:
    """A server whose answers to QUICK, SLOW and LATER are made by ``answer``."""

    def __init__(self, answer: Answer, **server_options: Any) -> None:
        self.answer = answer
        self.waiting: list[tuple[Channel, Command]] = []
        self.server = Server(
            {ECHO: echo, QUICK: lambda channel, request: self.answer(request), LATER: self.later},
            {SLOW: self.slow, ASK_BACK: self.ask_back},
            limits=ServerLimits(max_frame_bytes=LIMIT),
            **server_options,
        )

    async def slow(self, channel: Channel, request: Command) -> Command:
        await trio.lowlevel.checkpoint()
        return self.answer(request)

    def later(self, channel: Channel, request: Command) -> None:
        self.waiting.append((channel, request))

    async def ask_back(self, channel: Channel, request: Command) -> Command:
        return request.respond(remark=(await channel.invoke(Command(ECHO), 1_000)).remark)


@asynccontextmanager
async def serving(faults: Faults) -> AsyncIterator[tuple[RemotingClient, Served]]:
    async with serve(faults.server) as served, open_client(connect=served.connect) as client:
        yield client, served
        assert (await client.invoke(served.addr, Command(ECHO, body=b"still here"))).body == b"still here"


def too_large(request: Command) -> Command:
    return request.respond(body=bytes(LIMIT))


def too_large_header(request: Command) -> Command:
    return request.respond(ext={"value": "x" * LIMIT})


def no_text(request: Command) -> Command:
    return request.respond(remark="\ud800")


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (too_large, f"the answer is too large: frame of 100[0-9]+ bytes is longer than {LIMIT}"),
        (too_large_header, "the answer is too large: frame of"),
        (no_text, "the answer cannot be encoded: "),
    ],
)
@pytest.mark.parametrize("code", [QUICK, SLOW])
@pytest.mark.parametrize("codec", [0, 1, 0x43])
async def test_an_answer_that_cannot_be_sent_is_an_error_answer(
    answer: Answer, remark: str, code: int, codec: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Faults(answer)) as (client, served):
        channel = await client.channel(served.addr, 1_000)
        found = await channel.invoke(Command(code, codec=codec), 5_000)
        assert found.code == 1
        assert re.search(remark, found.remark or "")
        assert len(caplog.records) == 1
        assert (caplog.records[0].exc_info is None) == (answer is not no_text)  # a bug is logged with its traceback


async def test_an_answer_made_later_that_cannot_be_sent_is_an_error_answer() -> None:
    faults = Faults(too_large)
    async with serving(faults) as (client, served), trio.open_nursery() as nursery:
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await client.invoke(served.addr, Command(LATER)))

        nursery.start_soon(ask)
        while not faults.waiting:
            await trio.lowlevel.checkpoint()
        channel, request = faults.waiting[0]
        channel.reply(request, too_large(request))
        while not answers:
            await trio.lowlevel.checkpoint()
        assert answers[0].code == 1


async def test_a_request_too_large_is_an_error_of_its_caller_alone() -> None:
    async with (
        serving(Faults(too_large)) as (_, served),
        open_client(max_frame_bytes=LIMIT, connect=served.connect) as client,
    ):
        with pytest.raises(FrameTooLarge, match=f"longer than {LIMIT}"):
            await client.invoke(served.addr, Command(ECHO, body=bytes(LIMIT)))
        with pytest.raises(FrameTooLarge):
            await client.oneway(served.addr, Command(ECHO, {"name": "x" * LIMIT}))
        with pytest.raises(FrameTooLarge):
            client.submit(served.addr, Command(ECHO, body=bytes(LIMIT)), 1_000, lambda _: None)
        assert (await client.invoke(served.addr, Command(ECHO, body=b"y"))).body == b"y"


async def test_an_error_in_what_follows_a_turn_or_a_connection_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def bad() -> None:
        raise KeyError("turn")

    def bad_close(channel: Channel) -> None:
        raise KeyError("close")

    async with serving(Faults(too_large, after_turn=bad, on_close=bad_close)) as (client, served):
        assert (await client.invoke(served.addr, Command(ECHO, body=b"x"))).body == b"x"
        client.close_connection(served.addr, "on purpose")
        while "close" not in caplog.text:
            await trio.lowlevel.checkpoint()
    assert "turn" in caplog.text


class Results(list[Command | RemotingError]):
    """The results of requests."""


async def test_an_error_of_the_dispatch_costs_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(too_large)
    async with serving(faults) as (client, served), open_client(connect=served.connect) as other:
        await client.invoke(served.addr, Command(ECHO))
        with monkeypatch.context() as patch:
            patch.setattr(faults.server, "_start_slow", lambda channel, request: 1 / 0)
            with pytest.raises(ConnectionLost):
                await other.invoke(served.addr, Command(4711))
        assert "ZeroDivisionError" in caplog.text


async def test_a_clients_errors_are_those_of_one_exchange(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    def bad(result: Command | RemotingError) -> None:
        raise KeyError("answered")

    def lost(addr: str) -> None:
        raise KeyError("lost")

    def bad_handler(channel: Channel, request: Command) -> Command:
        return request.respond(remark="\ud800")

    async with (
        serving(Faults(too_large)) as (_, served),
        open_client({ECHO: bad_handler}, on_lost=lost, connect=served.connect) as client,
    ):
        await client.invoke(served.addr, Command(ECHO))
        client.submit(served.addr, Command(ECHO), 5_000, bad)
        client.submit(served.addr, Command(LATER), 10, bad)
        with pytest.raises(RequestTimeout):
            await client.invoke(served.addr, Command(LATER), 50)
        assert "cannot be encoded" in ((await client.invoke(served.addr, Command(ASK_BACK))).remark or "")
        client.submit(served.addr, Command(LATER), 5_000, bad)
        client.close_connection(served.addr, "on purpose")
        assert (await client.invoke(served.addr, Command(ECHO, body=b"again"))).body == b"again"
    assert caplog.text.count("KeyError: 'answered'") == 3
    assert "KeyError: 'lost'" in caplog.text


async def test_a_stop_over_a_broken_connection() -> None:
    made: list[Transport] = []

    async def connect(host: str, port: int) -> Transport:
        made.append(await served.connect(host, port))
        return made[-1]

    async with serving(Faults(too_large)) as (_, served), open_client(connect=connect) as client:
        await client.invoke(served.addr, Command(ECHO))
        (await client.channel(served.addr, 1000)).queue(b"x")
        reset(made[0])


async def test_a_connection_on_which_nothing_arrives_any_more_is_replaced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(Faults(too_large)) as (client, served):
        channel, others = await client.channel(served.addr, 1_000), Results()
        client.submit(served.addr, Command(LATER), 60_000, others.append)
        for _ in range(2):
            assert channel.closed_reason is None
            with pytest.raises(RequestTimeout):
                await client.invoke(served.addr, Command(LATER), 1_000)
        assert channel.closed_reason == "no answer for 2 s"
        assert [type(result) for result in others] == [ConnectionLost]
        assert (await client.invoke(served.addr, Command(ECHO, body=b"x"), 1_000)).body == b"x"


async def test_a_request_without_an_answer_does_not_end_a_connection_on_which_others_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(Faults(too_large)) as (client, served):
        channel, late = await client.channel(served.addr, 1_000), Results()
        for _ in range(8):
            client.submit(served.addr, Command(LATER), 3_000, late.append)
            await trio.sleep(1)
            await client.invoke(served.addr, Command(ECHO), 1_000)
        assert {type(result) for result in late} == {RequestTimeout}
        assert channel.closed_reason is None


async def test_a_connection_is_kept_while_a_large_request_may_be_on_its_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(Faults(too_large)) as (client, served):
        channel, large = await client.channel(served.addr, 1_000), Results()
        client.submit(served.addr, Command(LATER, body=bytes(LIMIT - 1_000)), 10_000, large.append)
        for _ in range(3):
            await trio.sleep(0.1)
            with pytest.raises(RequestTimeout):
                await client.invoke(served.addr, Command(LATER), 3_000)
            assert channel.closed_reason is None and not large
        await trio.sleep(1)
        assert channel.closed_reason and [type(result) for result in large] == [RequestTimeout]


async def test_a_client_that_was_stopped_itself_keeps_its_connections(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Faults(too_large)) as (client, served):
        channel, late = await client.channel(served.addr, 1_000), Results()
        await client.invoke(served.addr, Command(ECHO), 1_000)
        client.submit(served.addr, Command(ECHO), 3_000, late.append)
        autojump_clock.jump(10)
        await trio.sleep(0.1)
        assert [type(result) for result in late] == [RequestTimeout]
        assert channel.closed_reason is None


@pytest.mark.parametrize("is_lost", [True, False])
async def test_what_the_end_of_a_request_does_to_others_ends_nothing_else(
    is_lost: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(Faults(too_large)) as (client, served), trio.open_nursery() as nursery:
        channel, rest = await client.channel(served.addr, 1_000), Results()

        def cancel(result: Command | RemotingError) -> None:
            nursery.cancel_scope.cancel()

        def close(result: Command | RemotingError) -> None:
            client.close_connection(served.addr, "by a callback")

        client.submit(served.addr, Command(LATER), 100, cancel)
        nursery.start_soon(channel.invoke, Command(LATER), 100)
        await trio.testing.wait_all_tasks_blocked()
        if not is_lost:
            client.submit(served.addr, Command(LATER), 100, close)
        client.submit(served.addr, Command(LATER), 100, rest.append)
        if is_lost:
            client.close_connection(served.addr, "on purpose")
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        assert [type(result) for result in rest] == [ConnectionLost]
