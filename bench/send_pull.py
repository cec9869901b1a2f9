"""Sends and pulls through real processes: one broker, one NameServer, this client. Skylark and the limit in turn.

The limit is bench/echo.py, which returns the same bytes without headers, messages or a store.
"""

import argparse
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from statistics import median

import orjson
import trio

from bench.harness import Cluster, Row, cluster, echo_server, in_turn, row, show
from mqcommon.addresses import split_address
from mqcommon.errors import RemotingError, RouteNotFound
from mqcommon.message.message import Message
from remoting.net.channel import Channel
from remoting.net.sockets import connect
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import FLAG_RESPONSE, Command
from remoting.protocol.frame import MAX_FRAME_BYTES
from sdk import Admin, BufferFull, Producer, PullConsumer, SendResult, Ticket

TOPIC = "bench"
QUEUES = 4
FRAME = struct.Struct(">II")


async def make_topic(at: Cluster) -> None:
    """The topic, with a route that producers can use."""
    async with Admin(at.nameserver) as admin:
        await admin.create_topic(at.broker, TopicConfig(TOPIC, QUEUES, QUEUES, 6))
        with trio.fail_after(10):
            while True:
                try:
                    await admin.topic_route(TOPIC)
                    return
                except RouteNotFound:
                    await trio.sleep(0.02)


def send_frames(count: int, body: bytes) -> list[bytes]:
    """Requests as official clients send them: code 310, JSON header, a unique key each."""
    frames = []
    for number in range(count):
        header = orjson.dumps(
            {
                "code": 310,
                "extFields": {
                    "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
                    "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x017F0000012A9918B4AAC2{number:012X}\x02", "j": "0",
                    "k": "false", "m": "false", "n": "bench",
                },
                "flag": 0, "language": "JAVA", "opaque": number, "serializeTypeCurrentRPC": "JSON", "version": 479,
            }
        )  # fmt: skip
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
    """Requests a second by a client that works as official clients do: it encodes each request, decodes each answer and
    finds its request by the correlation id. The echo's answers are its requests, so these have the flag of answers.
    """
    host, port = split_address(addr)
    channel = Channel(await connect(host, port), max_frame_bytes=MAX_FRAME_BYTES)
    sent = answered = failed = 0
    done = trio.Event()

    def send_next() -> None:
        nonlocal sent
        sent += 1
        ext = {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": 4, "e": sent % QUEUES, "f": 0, "g": 1_700_000_000_000, "h": 0,
            "i": f"UNIQ_KEY\x017F0000012A9918B4AAC2{sent:012X}\x02", "j": 0, "k": False, "m": False, "n": "bench",
        }  # fmt: skip
        channel.submit(Command(RequestCode.SEND_MESSAGE_V2, ext, body, flag), 30_000, on_answer)

    def on_answer(answer: Command | RemotingError) -> None:
        nonlocal answered, failed
        answered += 1
        failed += isinstance(answer, RemotingError) or (flag == 0 and answer.code != 0)
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
    """Messages a second by `Producer.send_nowait`, until it is known of each that it is stored."""
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


async def send_many(at: Cluster, body: bytes, count: int) -> float:
    """Messages a second by `Producer.send_many`."""
    bodies = [body] * count
    return await bulk(at, body, count, lambda producer: producer.send_many(TOPIC, bodies))


async def send_arrow(at: Cluster, body: bytes, count: int) -> float:
    """Rows of a table a second by `Producer.send_arrow`."""
    import pyarrow as pa

    table = pa.table({"body": pa.array([body] * count, pa.binary())})
    return await bulk(at, body, count, lambda producer: producer.send_arrow(TOPIC, table))


async def bulk(
    at: Cluster, body: bytes, count: int, send: Callable[[Producer], Awaitable[Sequence[SendResult]]]
) -> float:
    """Messages a second by ``send``, each with its own result."""
    async with Producer(at.nameserver) as producer:
        await producer.send(Message(TOPIC, body))
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


def echoed(echo: str, frames: list[bytes], per_frame: int) -> float:
    """Messages a second that come back in such frames."""
    return run(pipeline, echo, frames, 4, b"") * per_frame


def send_rows(n: int, rounds: int) -> Iterator[Row]:
    body = b"x" * 128
    frames = send_frames(n, body)
    with echo_server() as echo, cluster() as at:
        trio.run(make_topic, at)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, requests, at.broker, body, n, window, 0),
                partial(run, requests, echo, body, n, window, FLAG_RESPONSE),
            )
            yield row(f"send 128 B, one request each, {window} in flight", "msg/s", *figures, n)
        for window in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, pipeline, at.broker, frames, window, b'"code":0,'),
                partial(run, pipeline, echo, frames, window, b'"code":310'),
            )
            yield row(f"send 128 B, one request each, {window} in flight, frames made before", "msg/s", *figures, n)
        figures = in_turn(
            rounds,
            lambda: run(awaited, at, body, n, 1000, batching=False),
            lambda: run(pipeline, echo, frames, 1000, b'"code":310'),
        )
        yield row("send 128 B, one request each, 1,000 in flight, our Producer", "msg/s", *figures, n)
        for tasks in (1000, 64):
            figures = in_turn(
                rounds,
                partial(run, awaited, at, body, 2 * n, tasks, batching=True),
                partial(run, pipeline, echo, frames, tasks, b'"code":310'),
            )
            yield row(f"send 128 B, adaptive batches, {tasks} awaiting", "msg/s", *figures, 2 * n)
        figures = in_turn(
            rounds,
            partial(run, nowait, at, body, 4 * n),
            partial(run, pipeline, echo, frames, 1000, b'"code":310'),
        )
        yield row("send_nowait, 128 B", "msg/s", *figures, 4 * n)
        figures = in_turn(
            rounds,
            lambda: run(one_by_one, at, body, 2_000),
            lambda: run(echo_one_by_one, echo, frames[0], 2_000),
        )
        yield row("send 128 B, one in flight, median", "ms", *figures, 2_000, smaller_is_better=True)


def bulk_rows(n: int, rounds: int) -> Iterator[Row]:
    for size, count in ((128, 6 * n), (1024, 2 * n)):
        body = b"x" * size
        # The limit carries the same batches as opaque frames; its figure counts the messages in them.
        per_frame = min(1000, 262_144 // size)
        frame = FRAME.pack(4 + per_frame * (size + 70), 0) + bytes(per_frame * (size + 70))
        frames = [frame] * (count // per_frame)
        with echo_server() as echo, cluster() as at:
            trio.run(make_topic, at)
            limit = partial(echoed, echo, frames, per_frame)
            figures = in_turn(rounds, partial(run, send_many, at, body, count), limit)
            yield row(f"send_many {size} B", "msg/s", *figures, count)
            pulled = in_turn(rounds, partial(run, pull, at, TOPIC, count), limit)
            yield row(f"pull from the start, {size} B", "msg/s", *pulled, count * (rounds + 1))
            figures = in_turn(rounds, partial(run, send_arrow, at, body, count), limit)
            yield row(f"send_arrow, {size} B", "msg/s", *figures, count)
            stored = 2 * count * (rounds + 1)
            for what, columns in (("15 columns", None), ("bodies only", ["body"])):
                pulled = in_turn(rounds, partial(run, pull_arrow, at, TOPIC, count, columns), limit)
                yield row(f"arrow pulls, {size} B, {what}", "msg/s", *pulled, stored)


def rows(n: int, rounds: int) -> Iterator[Row]:
    yield from send_rows(n, rounds)
    yield from bulk_rows(n, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=100_000, help="messages of the plain sends; others take multiples")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each figure; the median is shown")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.n, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
