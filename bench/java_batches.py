"""Batches as Java's client sends them: two threads, each with one batch of 100 messages of 1 KB in flight.

Frames are made before and replayed, so that the client costs next to nothing: JSON headers, and messages with keys and
the properties that Java's producer gives them. The limit is the echo server, which gets the same frames.

    python -m bench.java_batches [--batches 300] [--rounds 5] [--json]
"""

import argparse
import struct
from collections.abc import Iterator
from functools import partial

import orjson
import trio

from bench.harness import Row, cluster, echo_server, in_turn, row, show
from bench.traffic import FRAME, QUEUES, TOPIC, make_topic, pipeline

THREADS = 2
BATCH = 100
BODY = b"x" * 1024
# total size, magic, CRC, flag, length of the body
HEAD = struct.Struct(">iiiii")
UNIQUE_KEY = "7F0000012A9918B4AAC2{:012X}"


def inner(number: int) -> bytes:
    """One message of a batch, as `MessageDecoder.encodeMessage` writes it."""
    properties = (
        f"KEYS\x01order-{number}\x02UNIQ_KEY\x01{UNIQUE_KEY.format(number)}\x02WAIT\x01true\x02TAGS\x01paid\x02"
    )
    encoded = properties.encode()
    total = HEAD.size + len(BODY) + 2 + len(encoded)
    return HEAD.pack(total, 0, 0, 0, len(BODY)) + BODY + struct.pack(">h", len(encoded)) + encoded


def batch_frames(count: int, first: int) -> list[bytes]:
    """``count`` requests with code 320; the numbers of their messages begin with ``first``."""
    frames = []
    for number in range(count):
        at = first + number * BATCH
        body = b"".join(inner(at + each) for each in range(BATCH))
        header = orjson.dumps(
            {
                "code": 320,
                "extFields": {
                    "a": "bench",
                    "b": TOPIC,
                    "c": "TBW102",
                    "d": "4",
                    "e": str(number % QUEUES),
                    "f": "0",
                    "g": "1700000000000",
                    "h": "0",
                    "i": f"UNIQ_KEY\x01{UNIQUE_KEY.format(at)}\x02WAIT\x01true\x02",
                    "j": "0",
                    "k": "false",
                    "m": "true",
                    "n": "bench",
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


async def replay(addr: str, frames: list[list[bytes]], expect: bytes) -> float:
    """Messages a second: each list of frames goes through a connection of its own, and the rates of these are added."""
    rates: list[float] = []

    async def one(mine: list[bytes]) -> None:
        rates.append(await pipeline(addr, mine, 1, expect))

    async with trio.open_nursery() as nursery:
        for mine in frames:
            nursery.start_soon(one, mine)
    return sum(rates) * BATCH


def rows(batches: int, rounds: int) -> Iterator[Row]:
    """The figure."""
    frames = [batch_frames(batches, thread * batches * BATCH) for thread in range(THREADS)]
    with cluster() as at, echo_server() as echo:
        trio.run(make_topic, at)
        ours = partial(trio.run, replay, at.broker, frames, b'"code":0')
        limit = partial(trio.run, replay, echo, frames, b'"code":320')
        name = f"Java's batches of {BATCH}, 1 KB, {THREADS} threads"
        yield row(name, "msg/s", *in_turn(rounds, ours, limit), THREADS * batches * BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args.batches, args.rounds), args.json)


if __name__ == "__main__":
    main()
