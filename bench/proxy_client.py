"""The clients of bench.proxy, each a process of its own: they send by gRPC or by the SDK, and print one figure.

python -m bench.proxy_client official ADDRESS SENDS          milliseconds of a send by RocketMQ's Python client, median
python -m bench.proxy_client remoting NAMESERVER SENDS       the same by the SDK for asyncio, without a proxy
python -m bench.proxy_client idle ADDRESS CLIENTS            says when all wait for messages, until its stdin closes
"""

import asyncio
import statistics
import sys
import time
from typing import Any

import grpc

from bench.traffic import TOPIC
from skylark import Message, aio
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire

# A topic to which nothing is sent.
QUIET = "quiet"
GROUP = "idle"
BODY = b"x" * 128
WARM_UP = 200
# A receiver of this bench must not get an answer before its memory is measured.
WAIT_S = 600


async def official(address: str, sends: int) -> float:
    """Milliseconds of a send through the proxy by RocketMQ's own Python client, median; one in flight."""
    from rocketmq import ClientConfiguration, Credentials, Producer
    from rocketmq import Message as OfficialMessage

    producer = Producer(ClientConfiguration(address, Credentials()), (TOPIC,))
    producer.startup()

    async def once() -> None:
        message = OfficialMessage()
        message.topic = TOPIC
        message.body = BODY
        producer.send(message)

    try:
        return await _median_ms(once, sends)
    finally:
        producer.shutdown()


async def remoting(nameserver: str, sends: int) -> float:
    """Milliseconds of a send by the SDK's asyncio producer, median; one in flight."""
    async with aio.Producer(nameserver) as producer:

        async def once() -> None:
            await producer.send(Message(TOPIC, BODY))

        return await _median_ms(once, sends)


async def _median_ms(once: Any, sends: int) -> float:
    times = []
    for number in range(WARM_UP + sends):
        began = time.perf_counter()
        await once()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1_000


async def idle(address: str, clients: int) -> None:
    """``clients`` clients, each with a connection of its own, its settings, and a receive that waits."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    settings = wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=wire.Subscription())
    settings.subscription.group.name = GROUP
    asked = wire.ReceiveMessageRequest(group=wire.Resource(name=GROUP), batch_size=32)
    asked.message_queue.topic.name = QUIET
    asked.invisible_duration.FromSeconds(60)
    asked.long_polling_timeout.FromSeconds(WAIT_S)
    kept = []
    for number in range(clients):
        channel = grpc.aio.insecure_channel(address, options=alone)
        metadata = (("x-mq-client-id", f"bench-{number}"),)
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(metadata=metadata)
        await stream.write(wire.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == wire.OK, answer.status
        receive = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            wire.ReceiveMessageRequest.SerializeToString,
            wire.ReceiveMessageResponse.FromString,
        )(asked, metadata=metadata, timeout=WAIT_S)
        # The stream keeps the order of calls: once the settings are answered again, the receive has arrived.
        first = asyncio.ensure_future(receive.read())
        await stream.write(wire.TelemetryCommand(settings=settings))
        await stream.read()
        kept.append((channel, stream, receive, first))
    early = [first for *_, first in kept if first.done()]
    assert not early, f"{len(early)} receives were answered: {early[0].result()}"
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for channel, *_, first in kept:
        first.cancel()
        await channel.close()


def main() -> None:
    what, address, *numbers = sys.argv[1:]
    figure = asyncio.run(globals()[what](address, *map(int, numbers)))
    if figure is not None:
        print(figure)


if __name__ == "__main__":
    main()
