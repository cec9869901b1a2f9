"""A client and a server in one event loop: requests are handed over as they are, with the meaning that bytes have."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import ConnectionLost, RemotingError, RequestTimeout
from skylark.remoting.net import sockets
from skylark.remoting.net.channel import MOST_HANDED_BYTES, Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.in_process import InProcessListener
from skylark.remoting.net.limits import ConnectionBudget, ServerLimits
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command

ADDR = "127.0.0.1:10911"
ECHO, LATER, SLOW = 1000, 1001, 1002


class Served:
    """A server in this event loop that notes its requests, and a client of it."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.turns = 0
        self.later: list[tuple[Channel, Command]] = []
        self.may_answer = trio.Event()
        self.server = Server({ECHO: self.echo, LATER: self.keep}, {SLOW: self.slow}, after_turn=self.turn)
        self.client: RemotingClient

    def turn(self) -> None:
        self.turns += 1

    def echo(self, channel: Channel, request: Command) -> Command:
        self.asked.append(request)
        return request.respond(ext={"left out": None, "kept": True}, body=request.body)

    def keep(self, channel: Channel, request: Command) -> None:
        self.asked.append(request)
        self.later.append((channel, request))

    async def slow(self, channel: Channel, request: Command) -> Command:
        self.asked.append(request)
        await self.may_answer.wait()
        return request.respond(body=b"slow")

    def submit(self, code: int, body: bytes = b"", then: Callable[[], None] = lambda: None) -> list[Command]:
        """Ask; the list gets the answer."""
        found: list[Command] = []

        def answered(result: Command | RemotingError) -> None:
            assert isinstance(result, Command), result
            found.append(result)
            then()

        command = Command(code, {"n": 1, "none": None}, body)
        self.client.prepare(ADDR, command)
        self.client.submit(ADDR, command, 60_000, answered)
        return found


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """The client has agreed with the server on CBOR."""
    made, listener = Served(), InProcessListener(ADDR)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.server.serve_on, [listener])
        async with open_client(connect=listener.shortcut(sockets.connect)) as made.client:
            await made.client.invoke(ADDR, Command(ECHO))
            assert made.client.speaks_cbor(ADDR)
            made.asked.clear()
            yield made
        nursery.cancel_scope.cancel()


async def test_a_request_is_answered_before_submit_returns() -> None:
    async with served() as at:
        turns = at.turns
        (answer,) = at.submit(ECHO, b"body")
        assert (answer.body, answer.ext, answer.codec) == (b"body", {"kept": True}, CBOR)
        (asked,) = at.asked
        # As in a frame: fields without a value are left out.
        assert (asked.ext, asked.body, asked.codec) == ({"n": 1}, b"body", CBOR)
        assert at.turns == turns + 1, "what ends a turn has run before the answer"


async def test_a_request_that_was_answered_at_once_is_never_due() -> None:
    async with served() as at:
        channel = await at.client.channel(ADDR, 60_000)

        def due(code: int) -> float:
            command = Command(code)
            at.client.prepare(ADDR, command)
            return channel.submit(command, 60_000, lambda _: None)

        assert due(ECHO) == inf
        assert trio.current_time() < due(LATER) < inf


async def test_the_answer_to_a_request_that_was_withdrawn_is_dropped() -> None:
    async with served() as at:
        command = Command(LATER)
        at.client.prepare(ADDR, command)
        found: list[Command | RemotingError] = []
        channel = at.client.submit(ADDR, command, 60_000, found.append)
        assert not channel.idle
        at.client.withdraw(ADDR, command, channel)
        assert channel.idle
        peer, request = at.later[0]
        peer.reply(request, request.respond())
        await trio.testing.wait_all_tasks_blocked()
        assert not found and not channel.withdraw(command)
        at.client.withdraw(ADDR, command, channel)  # once more, which does nothing
        assert channel.idle


async def test_an_awaited_request_lets_other_tasks_run() -> None:
    async with served() as at:
        with trio.testing.assert_checkpoints():
            answer = await at.client.invoke(ADDR, Command(ECHO, body=b"body"))
        assert answer.body == b"body"


async def test_an_answer_that_comes_later_is_there_when_the_server_has_given_it() -> None:
    async with served() as at:
        later = at.submit(LATER)
        assert at.asked and not later
        channel, request = at.later[0]
        channel.reply(request, request.respond(ext={"left out": None, "kept": True}, body=b"later"))
        (answer,) = later
        assert (answer.body, answer.ext, answer.codec) == (b"later", {"kept": True}, CBOR)
        channel.reply(request, request.respond(body=b"again"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(later) == 1
        assert not channel._handed_over


async def test_a_large_answer_that_comes_later_comes_as_bytes() -> None:
    async with served() as at:
        later = at.submit(LATER)
        channel, request = at.later[0]
        channel.reply(request, request.respond(body=bytes(1 << 20)))
        assert not later
        await trio.testing.wait_all_tasks_blocked()
        assert [len(answer.body) for answer in later] == [1 << 20]
        assert not channel._handed_over


async def test_a_request_in_the_callback_of_a_later_answer_waits_for_the_end_of_the_servers_work() -> None:
    async with served() as at:
        found: list[list[Command]] = []
        at.submit(LATER, then=lambda: found.append(at.submit(ECHO)))
        channel, request = at.later[0]
        at.asked.clear()
        channel.reply(request, request.respond())
        assert found == [[]] and not at.asked, "the server is in the midst of its reply"
        at.client.flush(ADDR)
        await trio.testing.wait_all_tasks_blocked()
        assert len(found[0]) == 1


async def test_a_later_answer_wakes_the_task_that_waits_for_it() -> None:
    async with served() as at, trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def ask() -> None:
            found.append((await at.client.invoke(ADDR, Command(SLOW))).body)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        at.may_answer.set()
        await trio.testing.wait_all_tasks_blocked()
        assert found == [b"slow"]


async def test_a_request_does_not_overtake_one_that_was_sent_as_bytes() -> None:
    async with served() as at:
        large = at.submit(ECHO, bytes(MOST_HANDED_BYTES + 1))
        small = at.submit(ECHO, b"small")
        assert not large and not small, "both wait: the first is too large to be handed over, the second comes after it"
        at.client.flush(ADDR)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(request.body) for request in at.asked] == [MOST_HANDED_BYTES + 1, 5]
        assert len(large) == len(small) == 1
        assert at.submit(ECHO), "requests are handed over again"


async def test_limits_of_one_address_do_not_hold_for_clients_in_the_loop() -> None:
    made, listener = Served(), InProcessListener(ADDR)
    budget = ConnectionBudget(10_000, 1, 1)
    made.server = Server({ECHO: made.echo}, limits=ServerLimits(max_requests_a_second=1), connections=budget)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.server.serve_on, [listener])
        reach = listener.shortcut(sockets.connect)
        async with open_client(connect=reach) as first, open_client(connect=reach) as second:
            for _ in range(5):
                for client in (first, second):
                    assert (await client.invoke(ADDR, Command(ECHO))).code == ResponseCode.SUCCESS
            assert (len(made.server.channels), budget.used) == (2, 0)
        nursery.cancel_scope.cancel()


async def test_a_large_answer_comes_as_bytes() -> None:
    async with served() as at:
        at.server.replace_handlers({ECHO: lambda channel, request: request.respond(body=bytes(1 << 20))}, {})
        found = at.submit(ECHO)
        assert not found
        await trio.testing.wait_all_tasks_blocked()
        assert len(found[0].body) == 1 << 20


async def test_requests_in_callbacks_do_not_nest() -> None:
    async with served() as at:
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            if count < 5_000:
                at.submit(ECHO, then=again)
                at.client.flush(ADDR)

        again()
        await trio.testing.wait_all_tasks_blocked()
        assert count == 5_000 == len(at.asked) + 1


async def test_an_error_in_a_callback_is_logged_and_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as at:

        def fail() -> None:
            raise LookupError("a bug of the client")

        assert at.submit(ECHO, then=fail)
        assert "a bug of the client" in caplog.text
        assert at.submit(ECHO)


async def test_an_error_of_the_server_itself_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as at:
        monkeypatch.setattr(Channel, "reply", lambda *arguments, **named: 1 / 0)
        with pytest.raises(ConnectionLost):
            await at.client.invoke(ADDR, Command(ECHO))
        assert "ZeroDivisionError" in caplog.text


async def test_a_stopping_server_refuses_what_is_handed_over() -> None:
    async with served() as at:
        at.server.stop_accepting()
        (answer,) = at.submit(ECHO)
        assert answer.code == ResponseCode.GO_AWAY and not at.asked


async def test_a_request_without_an_answer_times_out(mock_clock: trio.testing.MockClock) -> None:
    async with served() as at, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(RequestTimeout):
                await at.client.invoke(ADDR, Command(LATER), 1_000)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(2)
