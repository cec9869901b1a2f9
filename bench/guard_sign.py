"""What signing costs a client: sends with credentials, and the same sends without, in turn, and one signature.

    python -m bench.guard_sign [--messages 100000] [--rounds 5] [--json]

The broker has no access control, so the difference is the client's work, and the bytes of two more fields.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial

import trio

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import Producer
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.signature import Credentials, WholeSignatures, sign
from skylark.sdk.producer.wire import send_request

BODY = b"x" * 128
TASKS = 1_000
WHO = Credentials("an-application", "a secret of some length")


async def awaited(at: Cluster, count: int, *, credentials: Credentials | None, batching: bool) -> float:
    """Calls of ``await producer.send(...)`` a second, by many tasks at once."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    async with Producer(at.nameserver, credentials=credentials, batching=batching) as producer:
        await producer.send(Message(TOPIC, BODY))
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, producer)
        return count / (time.perf_counter() - started)


def requests_a_second(count: int, *, signed: str) -> float:
    """Requests to store one message that a client makes, and signs, a second."""
    whole = WholeSignatures("a challenge")
    queue = MessageQueue(TOPIC, "bench", 0)
    row_of = (0, BODY, b"UNIQ_KEY\x017F0000010001000000000000000000001\x02")
    started = time.perf_counter()
    for _ in range(count):
        command = send_request("bench", queue, [row_of], 1_795_225_972_532)
        if signed == "whole":
            whole.sign(command, WHO)
        elif signed:
            sign(command, WHO)
    return count / (time.perf_counter() - started)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures; the limit is the same without credentials."""
    for how in ("whole", "as RocketMQ does"):
        made = (partial(requests_a_second, messages, signed=signed) for signed in (how, ""))
        yield row(f"requests made and signed, {how}, no I/O", "requests/s", *in_turn(rounds, *made), messages)
    with cluster() as at:
        trio.run(make_topic, at)
        for name, batching in (("batched", True), ("one a request", False)):
            signed, plain = (
                partial(trio.run, partial(awaited, at, messages, credentials=who, batching=batching))
                for who in (WHO, None)
            )
            yield row(f"awaited sends, signed, 128 B, {name}", "messages/s", *in_turn(rounds, signed, plain), messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.messages, args.rounds), args.json)


if __name__ == "__main__":
    main()
