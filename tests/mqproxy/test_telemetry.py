"""Commands to a client that does not read them, and how much a proxy remembers of clients."""

from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark.mqproxy import clients, telemetry
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.service import Calls
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.telemetry import Stream
from skylark.mqproxy.wire import messaging_pb2 as wire


class Silent:
    """A client that reads when it is told to."""

    def __init__(self) -> None:
        self.reads = trio.Event()
        self.got: list[int] = []

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        self.got.append(len(message))


def command(size: int) -> wire.TelemetryCommand:
    made = wire.TelemetryCommand()
    made.verify_message_command.message.body = bytes(size)
    return made


async def test_what_waits_for_a_client_is_bounded_in_number() -> None:
    async with trio.open_nursery() as nursery:
        stream = Stream("a-client", "127.0.0.1:1", Silent(), nursery)
        small = [stream.push(command(10)) for _ in range(telemetry.MAX_WAITING + 1)]
        assert small == [True] * telemetry.MAX_WAITING + [False]
        nursery.cancel_scope.cancel()


async def test_what_waits_for_a_client_is_bounded_in_bytes(nursery: trio.Nursery) -> None:
    client = Silent()
    stream = Stream("a-client", "127.0.0.1:1", client, nursery)
    large = [stream.push(command(telemetry.MAX_WAITING_BYTES // 3)) for _ in range(4)]
    assert large == [True, True, False, False]
    client.reads.set()
    await wait_all_tasks_blocked()
    assert len(client.got) == 2
    client.reads = trio.Event()
    assert stream.push(command(2 * telemetry.MAX_WAITING_BYTES))
    assert not stream.push(command(10))


def ended_stream(client_id: str) -> Stream:
    """A stream to which nothing is written any more."""
    return Stream(client_id, "127.0.0.1:1", Silent(), cast(Any, None))


def settings_of(size: int) -> wire.Settings:
    return wire.Settings(client_type=wire.PRODUCER, user_agent=wire.UA(version="x" * size))


async def test_settings_that_are_too_large_are_refused_before_their_topics_are_read() -> None:
    calls = Calls(ProxyOptions(), cast(Any, None), cast(Any, None), 0)
    settings = settings_of(clients.MAX_SETTINGS_BYTES)
    settings.publishing.topics.add(name="no topic has this name")
    with pytest.raises(Refused, match="bytes at most"):
        await calls._exchange_settings(cast(Any, None), settings, ended_stream("large"))


async def test_the_settings_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_ALL_SETTINGS_BYTES", 3_500)

    known = Clients(ProxyOptions())

    def put(client_id: str, size: int) -> None:
        known.put(client_id, settings_of(size), ended_stream(client_id))

    def ids() -> list[str]:
        return [client_id for client_id, _ in known]

    for number in range(3):
        put(f"client-{number}", 1_000)
    known.seen("client-0")
    put("client-2", 1_000)
    assert ids() == ["client-1", "client-0", "client-2"]
    put("another", 1_000)
    assert ids() == ["client-0", "client-2", "another"]
    known.remove("client-2")
    put("small", 1_000)
    assert ids() == ["client-0", "another", "small"]


async def test_a_client_that_has_ended_lives_no_more_whatever_was_on_its_way() -> None:
    """Or what it has got and not acknowledged would be renewed, and so hidden from the others, for minutes."""

    known = Clients(ProxyOptions())
    stream = ended_stream("client")
    known.put("client", settings_of(10), stream)
    known.heard("another")
    assert known.end("client") is not None
    known.heard("client")  # an answer to its last receive call
    assert known.seen("client") is None  # its last heartbeat
    assert known.end("client") is None
    assert not known.is_alive("client") and known.is_alive("another")
    known.put("client", settings_of(10), stream)
    assert known.is_alive("client")


async def test_the_clients_that_have_ended_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)

    known = Clients(ProxyOptions())
    for number in range(5):
        known.end(f"client-{number}")
    for number in range(5):
        known.heard(f"client-{number}")
    assert [known.is_alive(f"client-{number}") for number in range(5)] == [True, True, False, False, False]
