"""One simple consumer as a process: writes a line for each message that it gets, and one when that is acknowledged.

``python -m tests.e2e.chaos.popper NAMESERVER TOPIC GROUP FILE``. It is ended by a kill only.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import trio

from sdk import BrokerError, ConsumeFrom, RemotingError, RouteNotFound, SimpleConsumer

INVISIBLE_MS = 2_000
WAIT_MS = 300


class Line(NamedTuple):
    """``kind``: "got" or "done". Times are those of the machine's monotonic clock, in ns.

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
    """The whole lines of a consumer's file; one that was killed may leave part of a line."""
    found = []
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        kind, asked, at, body = line.split("\t")
        found.append(Line(kind, int(asked), int(at), body))
    return found


async def consume(nameserver: str, topic: str, group: str, path: Path) -> None:
    # Without a buffer: lines must not die with the process.
    with path.open("ab", buffering=0) as file:
        async with SimpleConsumer(
            nameserver, group=group, subscriptions={topic: "*"}, invisible_ms=INVISIBLE_MS,
            consume_from=ConsumeFrom.FIRST_OFFSET, timeout_ms=1_000,
        ) as consumer:  # fmt: skip
            while True:
                asked_ns = time.monotonic_ns()
                try:
                    messages = await consumer.receive(wait_ms=WAIT_MS)
                    got_ns = time.monotonic_ns()
                    bodies = [message.body.decode() for message in messages]
                    file.write(b"".join([Line("got", asked_ns, got_ns, body).text for body in bodies]))
                    await consumer.ack(messages)
                    done_ns = time.monotonic_ns()
                    file.write(b"".join([Line("done", asked_ns, done_ns, body).text for body in bodies]))
                except (RemotingError, BrokerError, RouteNotFound) as error:
                    sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    trio.run(consume, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
