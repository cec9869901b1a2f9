"""An error in any handler, callback or peer's answer ends neither daemon, and others are served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.broker import broker as broker_module
from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.delivery.pull_handlers import PullHandlers
from skylark.broker.store.reader import read_queue
from skylark.broker.wiring.wiring import Wiring, wire
from skylark.mqcommon.errors import RemotingError
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.registrations import QUERY_DATA_VERSION, REGISTER_BROKER
from tests.broker.running import pull_request, running, send_request
from tests.broker.wiring.parts import part_of, server_of
from tests.namesrv.peer import serve

TIMEOUT_MS = 10_000


def bad(*args: Any) -> Any:
    raise KeyError("on purpose")


async def bad_slowly(*args: Any) -> Any:
    await trio.lowlevel.checkpoint()
    raise KeyError("on purpose")


def unsendable(channel: Any, request: Command) -> Command:
    return request.respond(remark="\ud800")


async def unsendable_slowly(channel: Any, request: Command) -> Command:
    await trio.lowlevel.checkpoint()
    return request.respond(ext={"x": "\ud800"})


def with_faults(server: Server, quick: Callable[..., Any], slow: Callable[..., Any]) -> list[int]:
    """All handlers fail; the codes that there are."""
    codes = server.codes
    server._handlers = dict.fromkeys(server._handlers, quick)
    server._slow_handlers = dict.fromkeys(server._slow_handlers, slow)
    return codes


async def all_fail(client: RemotingClient, addr: str, codes: list[int]) -> None:
    for _ in range(2):
        for code in codes:
            answer = await client.invoke(addr, Command(code), TIMEOUT_MS)
            assert answer.code == 1
    assert len(codes) > 15


def held_by(wiring: Wiring) -> HeldPulls:
    return part_of(wiring, PullHandlers)._held


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[Wiring]:
    built: list[Wiring] = []

    def building(*args: Any) -> Wiring:
        built.append(wire(*args))
        return built[0]

    monkeypatch.setattr(broker_module, "wire", building)
    return built


@pytest.mark.parametrize(("quick", "slow"), [(bad, bad_slowly), (unsendable, unsendable_slowly)])
async def test_every_handler_of_a_broker(wired: list[Wiring], quick: Any, slow: Any) -> None:
    async with running() as (client, addr):
        await all_fail(client, addr, with_faults(server_of(wired[0]), quick, slow))


@pytest.mark.parametrize(("quick", "slow"), [(bad, bad_slowly), (unsendable, unsendable_slowly)])
async def test_every_handler_of_a_nameserver(nursery: trio.Nursery, tmp_path: Path, quick: Any, slow: Any) -> None:
    served = await serve(nursery, tmp_path)
    async with open_client() as client:
        await all_fail(client, served.address, with_faults(served.namesrv._server, quick, slow))


async def test_a_held_pull_that_fails_costs_neither_the_sender_nor_the_other_pulls(
    wired: list[Wiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as (client, addr), open_client() as other:
        await client.invoke(addr, send_request("T", b"1"))
        answers: dict[str, Command] = {}

        async def pull(name: str, by: RemotingClient) -> None:
            answers[name] = await by.invoke(addr, pull_request("T", 1, wait_ms=20_000), 30_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull, "one", client)
            nursery.start_soon(pull, "two", other)
            while len(held_by(wired[0])) < 2:
                await trio.lowlevel.checkpoint()
            calls: list[int] = []

            def failing_once(*args: Any, **more: Any) -> Any:
                calls.append(1)
                if len(calls) == 1:
                    raise KeyError("on purpose")
                return read_queue(*args, **more)

            monkeypatch.setattr("skylark.broker.delivery.pull_handlers.read_queue", failing_once)
            assert (await client.invoke(addr, send_request("T", b"2"))).code == 0
        assert sorted(each.code for each in answers.values()) == [0, 1]


async def test_an_error_when_a_connection_ends_does_not_keep_the_others_from_it(
    wired: list[Wiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.meta.client_handlers.ClientHandlers.channel_closed", bad)
    async with running() as (client, addr), open_client() as other:
        await client.invoke(addr, send_request("T", b"1"))
        async with trio.open_nursery() as nursery:

            async def pull() -> None:
                with pytest.raises(RemotingError):
                    await other.invoke(addr, pull_request("T", 1, wait_ms=20_000), 30_000)

            nursery.start_soon(pull)
            while not len(held_by(wired[0])):
                await trio.lowlevel.checkpoint()
            other.close_connection(addr, "on purpose")
        while len(held_by(wired[0])):
            await trio.lowlevel.checkpoint()
        assert (await client.invoke(addr, send_request("T", b"2"))).code == 0


async def test_an_error_at_the_end_of_a_turn(wired: list[Wiring], monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(flush_disk_type="SYNC_FLUSH") as (client, addr):
        await client.invoke(addr, send_request("T", b"1"))
        monkeypatch.setattr("skylark.broker.tasks.flush.PopulatePages.after_turn", bad)
        for _ in range(3):
            assert (await client.invoke(addr, send_request("T", b"2"))).code == 0


@pytest.mark.parametrize("code", [REGISTER_BROKER.code, QUERY_DATA_VERSION.code])
@pytest.mark.parametrize(
    "junk",
    [
        {"ext": {"changed": []}},
        {"ext": {"takesParts": "true", "wholeNeeded": "true"}},
        {"body": b"\xff"},
        {"code": 77},
        {"ext": {"changed": "true", "masterAddr": [1]}},
    ],
)
async def test_a_nameserver_that_answers_junk(code: int, junk: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.options.BrokerOptions.register_period_ms", 10)
    monkeypatch.setattr("skylark.broker.registration.registrar.PAUSE_S", 0.01)
    asked: list[int] = []

    def answer(channel: Any, request: Command) -> Command:
        asked.append(request.code)
        return request.respond(**(junk if request.code == code else {"ext": {"changed": "true"}}))

    namesrv = Server({REGISTER_BROKER.code: answer, QUERY_DATA_VERSION.code: answer})
    async with trio.open_nursery() as nursery:
        ns_addr = await nursery.start(namesrv.serve, "127.0.0.1", 0)
        async with running(namesrv_addr=ns_addr) as (client, addr):
            while len(asked) < 4:
                await trio.lowlevel.checkpoint()
            assert (await client.invoke(addr, send_request("T", b"1"))).code == 0
        nursery.cancel_scope.cancel()
