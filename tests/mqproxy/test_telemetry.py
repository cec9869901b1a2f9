"""Commands to a client that does not read them, and how much a proxy remembers of clients."""

import asyncio

import pytest

from skylark.mqproxy import clients, telemetry
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.telemetry import Stream
from skylark.mqproxy.wire import messaging_pb2 as wire


class Silent:
    """A client that reads when it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.got: list[int] = []

    async def write(self, command: wire.TelemetryCommand) -> None:
        await self.reads.wait()
        self.got.append(command.ByteSize())


def command(size: int) -> wire.TelemetryCommand:
    made = wire.TelemetryCommand()
    made.verify_message_command.message.body = bytes(size)
    return made


def test_what_waits_for_a_client_is_bounded_in_number_and_in_bytes() -> None:
    async def main() -> None:
        client = Silent()
        stream = Stream("a-client", "127.0.0.1:1", client)
        small = [stream.push(command(10)) for _ in range(telemetry.MAX_WAITING + 1)]
        assert small == [True] * telemetry.MAX_WAITING + [False]
        await stream.close()
        large = [stream.push(command(telemetry.MAX_WAITING_BYTES // 3)) for _ in range(4)]
        assert large == [True, True, False, False]
        client.reads.set()
        await asyncio.gather(*stream._pushing)
        assert len(client.got) == 2
        assert stream.push(command(2 * telemetry.MAX_WAITING_BYTES))
        assert not stream.push(command(10))
        await stream.close()

    asyncio.run(main())


def settings_of(size: int) -> wire.Settings:
    return wire.Settings(client_type=wire.PRODUCER, user_agent=wire.UA(version="x" * size))


def test_settings_that_are_too_large_are_refused() -> None:
    async def main() -> None:
        known = Clients(ProxyOptions())
        with pytest.raises(Refused, match="bytes at most"):
            known.put("large", settings_of(clients.MAX_SETTINGS_BYTES), Stream("large", "127.0.0.1:1", None))
        assert known.get("large") is None

    asyncio.run(main())


def test_the_settings_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_ALL_SETTINGS_BYTES", 3_500)

    async def main() -> None:
        known = Clients(ProxyOptions())

        def put(client_id: str, size: int) -> None:
            known.put(client_id, settings_of(size), Stream(client_id, "127.0.0.1:1", None))

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

    asyncio.run(main())


def test_a_client_that_has_ended_lives_no_more_whatever_was_on_its_way() -> None:
    """Or what it has got and not acknowledged would be renewed, and so hidden from the others, for minutes."""

    async def main() -> None:
        known = Clients(ProxyOptions())
        stream = Stream("client", "127.0.0.1:1", None)
        known.put("client", settings_of(10), stream)
        known.heard("another")
        assert known.end("client") is not None
        known.heard("client")  # an answer to its last receive call
        assert known.seen("client") is None  # its last heartbeat
        assert known.end("client") is None
        assert not known.is_alive("client") and known.is_alive("another")
        known.put("client", settings_of(10), stream)
        assert known.is_alive("client")

    asyncio.run(main())


def test_the_clients_that_have_ended_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)

    async def main() -> None:
        known = Clients(ProxyOptions())
        for number in range(5):
            known.end(f"client-{number}")
        for number in range(5):
            known.heard(f"client-{number}")
        assert [known.is_alive(f"client-{number}") for number in range(5)] == [True, True, False, False, False]

    asyncio.run(main())
