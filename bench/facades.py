"""Messages a second by the clients of skylark.aio and skylark.blocking; the limit is the clients of skylark, in trio.

One process consumes what is stored already: 128 bytes, four queues, no-op handlers. In other figures it sends. The
broker has its own process.

    python -m bench.facades [--messages 400000] [--rounds 5] [--json]
"""

import argparse
import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import trio

from bench import traffic
from bench.harness import Cluster, Row, cluster, in_turn, row, show, turns
from bench.traffic import make_topic
from skylark import BufferFull, ConsumeFrom, Message, Producer, PushConsumer, aio, blocking
from skylark.mqcommon.message.message import MessageExt

TOPIC = traffic.TOPIC
ANSWERS = "answers"
BODY = b"x" * 128
QUEUES = 4
SENDS = 40_000
SENDERS = (64, 1_000)
TICKETS = 100_000


class Counter:
    """Counts what its handlers get, from the first message to the last."""

    def __init__(self, messages: int, done: Callable[[], object]) -> None:
        self._left = messages
        self._messages = messages
        self._done = done
        self._lock = threading.Lock()
        self._began = 0.0
        self.rate = 0.0

    def count(self, messages: int) -> None:
        """Count ``messages`` handled messages."""
        if not self._began:
            self._began = time.perf_counter()
        self._left -= messages
        if not self._left:
            self.rate = self._messages / (time.perf_counter() - self._began)
            self._done()

    async def handle(self, message: MessageExt) -> None:
        """One message, in a loop."""
        self.count(1)

    async def handle_batch(self, messages: list[MessageExt]) -> None:
        """Many messages, in a loop."""
        self.count(len(messages))

    def handle_in_thread(self, message: MessageExt) -> None:
        """One message, in one of several threads."""
        with self._lock:
            self.count(1)

    def handle_batch_in_thread(self, messages: list[MessageExt]) -> None:
        """Many messages, in one of several threads."""
        with self._lock:
            self.count(len(messages))


class Bench:
    """Runs against one cluster; each consumer is a new group."""

    def __init__(self, at: Cluster, messages: int) -> None:
        self._at = at
        self._nameserver = at.nameserver
        self._messages = messages
        self._groups = (f"group{number}" for number in count())
        for topic in (TOPIC, ANSWERS):
            trio.run(make_topic, at, topic, QUEUES)
        with blocking.Producer(at.nameserver) as producer:
            producer.send_many(TOPIC, [BODY] * messages)

    def _options(self, **handlers: Any) -> dict[str, Any]:
        return {
            "group": next(self._groups),
            "subscriptions": {TOPIC: "*"},
            "consume_from": ConsumeFrom.FIRST_OFFSET,
            "batch_size": 1024,
            **handlers,
        }

    def in_trio(self, of_batches: bool) -> float:
        """The limit."""

        async def run() -> float:
            done = trio.Event()
            counter = Counter(self._messages, done.set)
            handlers = {"batch_handler": counter.handle_batch} if of_batches else {"handler": counter.handle}
            async with PushConsumer(self._nameserver, **self._options(**handlers)):
                await done.wait()
            return counter.rate

        return trio.run(run)

    def in_asyncio(self, of_batches: bool) -> float:
        """Messages a second with handlers in asyncio."""

        async def run() -> float:
            done = asyncio.Event()
            counter = Counter(self._messages, done.set)
            handlers = {"batch_handler": counter.handle_batch} if of_batches else {"handler": counter.handle}
            async with aio.PushConsumer(self._nameserver, **self._options(**handlers)):
                await done.wait()
            return counter.rate

        return asyncio.run(run())

    def in_threads(self, of_batches: bool) -> float:
        """Messages a second with handlers in threads."""
        done = threading.Event()
        counter = Counter(self._messages, done.set)
        one, many = counter.handle_in_thread, counter.handle_batch_in_thread
        handlers: dict[str, Any] = {"batch_handler": many} if of_batches else {"handler": one}
        with blocking.PushConsumer(self._nameserver, **self._options(**handlers)):
            done.wait()
        return counter.rate

    def sends_in_asyncio(self, senders: int) -> float:
        """Awaited sends a second, ``senders`` at a time."""

        async def run() -> float:
            async with aio.Producer(self._nameserver) as producer:

                async def send() -> None:
                    for _ in range(SENDS // senders):
                        await producer.send(Message(ANSWERS, BODY))

                began = time.perf_counter()
                await asyncio.gather(*[send() for _ in range(senders)])
                return SENDS / (time.perf_counter() - began)

        return asyncio.run(run())

    def sends_in_trio(self, senders: int) -> float:
        """The limit of `sends_in_asyncio`."""

        async def run() -> float:
            async with Producer(self._nameserver) as producer:

                async def send() -> None:
                    for _ in range(SENDS // senders):
                        await producer.send(Message(ANSWERS, BODY))

                began = time.perf_counter()
                async with trio.open_nursery() as nursery:
                    for _ in range(senders):
                        nursery.start_soon(send)
                return SENDS / (time.perf_counter() - began)

        return trio.run(run)

    def nowait_in_asyncio(self) -> float:
        """Messages a second by `send_nowait`."""

        async def run() -> float:
            async with aio.Producer(self._nameserver) as producer:
                began = time.perf_counter()
                for _ in range(TICKETS):
                    try:
                        producer.send_nowait(Message(TOPIC, BODY))
                    except BufferFull:
                        await producer.room()
                        producer.send_nowait(Message(TOPIC, BODY))
                await producer.flush()
                return TICKETS / (time.perf_counter() - began)

        return asyncio.run(run())

    def nowait_in_threads(self) -> float:
        """Messages a second by `send_nowait` of one thread."""
        with blocking.Producer(self._nameserver) as producer:
            began = time.perf_counter()
            for _ in range(TICKETS):
                try:
                    producer.send_nowait(Message(TOPIC, BODY))
                except BufferFull:
                    producer.room()
                    producer.send_nowait(Message(TOPIC, BODY))
            producer.flush()
            return TICKETS / (time.perf_counter() - began)

    def nowait_in_trio(self) -> float:
        """The limit of both."""
        return trio.run(traffic.nowait, self._at, BODY, TICKETS)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures."""
    with cluster() as at:
        bench = Bench(at, messages)
        for of_batches, name in ((True, "batch handler of 1,024"), (False, "handler of one message")):
            for where, run in (("skylark.aio", bench.in_asyncio), ("skylark.blocking", bench.in_threads)):
                ours, limit = in_turn(rounds, partial(run, of_batches), partial(bench.in_trio, of_batches))
                yield row(f"{where}: {name}, 128 B", "messages/s", ours, limit, messages)
        for senders in SENDERS:
            sides = partial(bench.sends_in_asyncio, senders), partial(bench.sends_in_trio, senders)
            yield row(f"skylark.aio: awaited sends, {senders} at a time", "messages/s", *in_turn(rounds, *sides), SENDS)
        in_asyncio, in_threads, limit = turns(
            rounds, bench.nowait_in_asyncio, bench.nowait_in_threads, bench.nowait_in_trio
        )
        yield row("skylark.aio: send_nowait", "messages/s", in_asyncio, limit, TICKETS)
        yield row("skylark.blocking: send_nowait", "messages/s", in_threads, limit, TICKETS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
