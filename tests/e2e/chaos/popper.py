"""One simple consumer as a process: writes a line for each message that it gets, and one when that is acknowledged.

``python -m tests.e2e.chaos.popper NAMESERVER TOPIC GROUP FILE``. It is ended by a kill only. It forgets to acknowledge
some messages when they come for the first time, so that they must come again.
"""

import sys
import time
from itertools import compress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import trio

from skylark import BrokerError, ConsumeFrom, ReceivedMessage, RemotingError, RouteNotFound, SimpleConsumer

INVISIBLE_MS = 2_000
WAIT_MS = 300
# One message in this many is forgotten.
FORGETS = 10


class Line(NamedTuple):
    """``kind``: "got", "again" for a later delivery, or "done". Times are by the monotonic clock, in ns.

    ``asked_ns``: before the broker was asked; ``at_ns``: when its answer was there.
    """

    kind: str
    asked_ns: int
    at_ns: int
    body: str

    @property
    def text(self) -> bytes:
        return ("\t".join(map(str, self)) + "\n").encode()


def parse(data: bytes) -> list[Line]:
    """The whole lines of a consumer's file; a killed consumer may leave part of a line."""
    found = []
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        kind, asked, at, body = line.split("\t")
        found.append(Line(kind, int(asked), int(at), body))
    return found


def is_forgotten(body: str) -> bool:
    """Whether it is not acknowledged at its first delivery."""
    return crc32(body.encode()) % FORGETS == 0


async def consume(nameserver: str, topic: str, group: str, path: Path) -> None:
    # Without a buffer: lines must not die with the process.
    with path.open("ab", buffering=0) as file:
        async with SimpleConsumer(
            nameserver, group=group, subscriptions={topic: "*"}, invisible_ms=INVISIBLE_MS,
            consume_from=ConsumeFrom.FIRST_OFFSET, timeout_ms=1_000, start_timeout_ms=None,
        ) as consumer:  # fmt: skip
            while True:
                asked_ns = time.monotonic_ns()
                try:
                    messages = await consumer.receive(wait_ms=WAIT_MS)
                    got_ns = time.monotonic_ns()
                    lines = [Line(_kind(message), asked_ns, got_ns, message.body.decode()) for message in messages]
                    file.write(b"".join([line.text for line in lines]))
                    kept = [line.kind == "again" or not is_forgotten(line.body) for line in lines]
                    await consumer.ack(list(compress(messages, kept)))
                    done_ns = time.monotonic_ns()
                    done = [Line("done", asked_ns, done_ns, line.body) for line in compress(lines, kept)]
                    file.write(b"".join([line.text for line in done]))
                except (RemotingError, BrokerError, RouteNotFound) as error:
                    sys.stderr.write(f"{error}\n")


def _kind(message: ReceivedMessage) -> str:
    return "got" if message.delivery_attempt == 1 else "again"


if __name__ == "__main__":
    trio.run(consume, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
