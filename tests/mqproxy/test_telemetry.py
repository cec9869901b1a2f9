"""Commands to a client that does not read them."""

import asyncio

from mqproxy import telemetry
from mqproxy.telemetry import Stream
from mqproxy.wire import messaging_pb2 as wire


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
