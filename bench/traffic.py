"""Traffic for the benches: ways to send and to pull through real processes, each measured once."""

import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median

import orjson
import trio

from bench.harness import BROKER, Cluster
from skylark import Admin, BufferFull, Producer, PullConsumer, SendResult, Ticket
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import RemotingError, RouteNotFound
from skylark.mqcommon.message.message import Message
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.sockets import connect
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPIC = "bench"
QUEUES = 4
FRAME = struct.Struct(">II")


async def make_topic(at: Cluster, topic: str = TOPIC, queues: int = QUEUES, **attributes: str) -> None:
    """A topic, with a route that producers can use."""
    async with Admin(at.nameserver) as admin:
        await admin.create_topic(at.broker, TopicConfig(topic, queues, queues, 6, attributes=attributes))
        with trio.fail_after(10):
            while True:
                try:
                    await admin.topic_route(topic)
                    return
                except RouteNotFound:
                    await trio.sleep(0.02)


def send_frames(count: int, body: bytes, broker: str = BROKER) -> list[bytes]:
    """Requests as official clients send them: code 310, JSON header, a unique key each."""
    frames = []
    for number in range(count):
        header = orjson.dumps(
            {
                "code": 310,
                "extFields": {
                    "a": "bench",
                    "b": TOPIC,
                    "c": "TBW102",
                    "d": "4",
                    "e": str(number % QUEUES),
                    "f": "0",
                    "g": "1700000000000",
                    "h": "0",
                    "i": f"UNIQ_KEY\x017F0000012A9918B4AAC2{number:012X}\x02",
                    "j": "0",
                    "k": "false",
                    "m": "false",
                    "n": broker,
                },
                "flag": 0,
                "language": "JAVA",
                "opaque": number,
                "serializeTypeCurrentRPC": "JSON",
                "version": 479,
            }
        )
        frames.append(FRAME.pack(4 + len(header) + len(body), len(header)) + header + body)
    return frames


async def pipeline(addr: str, frames: list[bytes], window: int, expect: bytes) -> float:
    """Requests a second with ``window`` in flight; each answer must hold ``expect``."""
    host, port = split_address(addr)
    stream = await trio.open_tcp_stream(host, port)
    answered = seen = 0
    more_room = trio.Event()

    async def send() -> None:
        nonlocal more_room
        sent = 0
        while sent < len(frames):
            room = min(window - (sent - answered), len(frames) - sent)
            if room < min(max(window // 4, 1), len(frames) - sent):
                more_room = trio.Event()
                await more_room.wait()
                continue
            await stream.send_all(b"".join(frames[sent : sent + room]))
            sent += room

    async with stream, trio.open_nursery() as nursery:
        started = time.perf_counter()
        nursery.start_soon(send)
        tail = b""
        while answered < len(frames):
            data = tail + await stream.receive_some(262_144)
            at, end = 0, len(data)
            while end - at >= 4:
                size = int.from_bytes(data[at : at + 4], "big") + 4
                if at + size > end:
                    break
                at += size
                answered += 1
            seen += data.count(expect, 0, at)
            tail = data[at:]
            more_room.set()
        elapsed = time.perf_counter() - started
    if seen < len(frames):
        raise SystemExit(f"{len(frames) - seen} of {len(frames)} requests were not acknowledged")
    return len(frames) / elapsed


async def requests(addr: str, body: bytes, count: int, window: int, flag: int) -> float:
    """Sends a second. The echo's answers are its requests, so these have the flag of answers."""

    def send(number: int) -> Command:
        ext = {
            "a": "bench",
            "b": TOPIC,
            "c": "TBW102",
            "d": 4,
            "e": number % QUEUES,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 0,
            "i": f"UNIQ_KEY\x017F0000012A9918B4AAC2{number:012X}\x02",
            "j": 0,
            "k": False,
            "m": False,
            "n": "bench",
        }
        return Command(SEND_MESSAGE_V2.code, ext, body, flag)

    return await _asked(addr, count, window, send, needs_success=flag == 0)


async def pulls(addr: str, count: int, window: int) -> float:
    """Pulls a second of the first 32 messages of a queue, which are stored."""

    def pull(number: int) -> Command:
        ext = {
            "consumerGroup": "bench",
            "topic": TOPIC,
            "queueId": number % QUEUES,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        return Command(PULL_MESSAGE.code, ext)

    return await _asked(addr, count, window, pull, needs_success=True)


async def _asked(addr: str, count: int, window: int, make: Callable[[int], Command], *, needs_success: bool) -> float:
    """Requests a second by a client that works as official clients do: it encodes each request, decodes each answer and
    finds its request by the correlation id.
    """
    host, port = split_address(addr)
    channel = Channel(await connect(host, port), max_frame_bytes=MAX_FRAME_BYTES)
    sent = answered = failed = 0
    done = trio.Event()

    def send_next() -> None:
        nonlocal sent
        sent += 1
        channel.submit(make(sent), 30_000, on_answer)

    def on_answer(answer: Command | RemotingError) -> None:
        nonlocal answered, failed
        answered += 1
        failed += isinstance(answer, RemotingError) or (needs_success and answer.code != 0)
        if sent < count:
            send_next()
        elif answered == count:
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run, lambda *_: None)
        started = time.perf_counter()
        for _ in range(window):
            send_next()
        await done.wait()
        elapsed = time.perf_counter() - started
        channel.close("done")
    if failed:
        raise SystemExit(f"{failed} of {count} requests were not acknowledged")
    return count / elapsed


async def one_by_one(at: Cluster, body: bytes, count: int) -> float:
    """The median of a send with nothing else in flight, in ms."""
    async with Producer(at.nameserver) as producer:
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await producer.send(Message(TOPIC, body))
            times.append(time.perf_counter() - started)
    return median(times) * 1000


async def echo_one_by_one(addr: str, frame: bytes, count: int) -> float:
    """The median time in ms of the same bytes through the echo server."""
    host, port = split_address(addr)
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await stream.send_all(frame)
            got = 0
            while got < len(frame):
                got += len(await stream.receive_some(65_536))
            times.append(time.perf_counter() - started)
    return median(times) * 1000


async def awaited(at: Cluster, body: bytes, count: int, tasks: int, *, batching: bool) -> float:
    """Calls of ``await producer.send(...)`` a second, by ``tasks`` tasks at once."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(Message(TOPIC, body))

    async with Producer(at.nameserver, batching=batching) as producer:
        await producer.send(Message(TOPIC, body))
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


async def nowait(at: Cluster, body: bytes, count: int) -> float:
    """Messages a second by `Producer.send_nowait`, until each message is known to be stored."""
    stored = 0
    tickets: deque[Ticket] = deque()
    async with Producer(at.nameserver) as producer:
        await producer.send(Message(TOPIC, body))
        started = time.perf_counter()
        for _ in range(count):
            while True:
                try:
                    tickets.append(producer.send_nowait(Message(TOPIC, body)))
                    break
                except BufferFull:
                    await producer.room()
                    while tickets and tickets[0].done():
                        stored += tickets.popleft().error is None
        await producer.flush()
        elapsed = time.perf_counter() - started
    stored += sum(ticket.error is None for ticket in tickets)
    if stored != count:
        raise SystemExit(f"{stored} of {count} messages were acknowledged")
    return count / elapsed


async def send_many(at: Cluster, topic: str, body: bytes, count: int) -> float:
    """Messages a second by `Producer.send_many`."""
    bodies = [body] * count
    return await bulk(at, topic, count, lambda producer: producer.send_many(topic, bodies))


async def send_arrow(at: Cluster, topic: str, body: bytes, count: int) -> float:
    """Rows of a table a second by `Producer.send_arrow`."""
    import pyarrow as pa

    table = pa.table({"body": pa.array([body] * count, pa.binary())})
    return await bulk(at, topic, count, lambda producer: producer.send_arrow(topic, table))


async def bulk(
    at: Cluster, topic: str, count: int, send: Callable[[Producer], Awaitable[Sequence[SendResult]]]
) -> float:
    """Messages a second by ``send``, each with its own result."""
    async with Producer(at.nameserver) as producer:
        await producer.send(Message(topic, b"first"))
        started = time.perf_counter()
        results = await send(producer)
        elapsed = time.perf_counter() - started
    if len(results) != count:
        raise SystemExit(f"{len(results)} of {count} messages were acknowledged")
    return count / elapsed


async def pull(at: Cluster, topic: str, count: int) -> float:
    """Message objects a second in the user's hands, from the start of every queue."""
    async with PullConsumer(at.nameserver, heartbeat=False) as consumer:
        got = 0
        started = time.perf_counter()
        for mq in await consumer.message_queues(topic):
            end = await consumer.max_offset(mq)
            async with consumer.stream(mq, await consumer.min_offset(mq), end=end) as pulled:
                async for messages in pulled:
                    for _ in messages:
                        got += 1
        elapsed = time.perf_counter() - started
    if got < count:
        raise SystemExit(f"{got} of {count} messages were pulled")
    return got / elapsed


async def pull_arrow(at: Cluster, topic: str, count: int, columns: Sequence[str] | None = None) -> float:
    """Rows of record batches a second in the user's hands, from the start of every queue."""
    async with PullConsumer(at.nameserver, heartbeat=False) as consumer:
        got = 0
        started = time.perf_counter()
        for mq in await consumer.message_queues(topic):
            start, end = await consumer.min_offset(mq), await consumer.max_offset(mq)
            async with consumer.arrow(mq, start, end, columns=columns) as pulled:
                async for batch in pulled:
                    got += batch.num_rows
        elapsed = time.perf_counter() - started
    if got < count:
        raise SystemExit(f"{got} of {count} messages were pulled")
    return got / elapsed


def run(main: Callable[..., Awaitable[float]], *arguments: object, **options: object) -> float:
    """One figure, in an event loop of its own."""
    return trio.run(partial(main, *arguments, **options))
