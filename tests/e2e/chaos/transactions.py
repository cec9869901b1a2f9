"""One producer of transactions as a process, which is killed at any moment.

``python -m tests.e2e.chaos.transactions NAMESERVER TOPIC GROUP FILE``. It writes a line for each message that is
stored. Transactions with even numbers commit, those with odd ones roll back, and the checker says the same.
"""

import sys
from itertools import count
from pathlib import Path

import trio

from skylark import Message, MessageExt, SendFailed, TransactionProducer, TransactionState

WORKERS = 20


class RolledBack(Exception):
    """The end of a transaction with an odd number."""


def commits(body: bytes) -> bool:
    return int(body.rpartition(b"-")[2]) % 2 == 0


def check(message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT if commits(message.body) else TransactionState.ROLLBACK


async def produce(nameserver: str, topic: str, group: str, path: Path) -> None:
    numbers = count()
    # Without a buffer: lines must not die with the process.
    with path.open("ab", buffering=0) as file:

        async def work(producer: TransactionProducer) -> None:
            for number in numbers:
                body = f"{path.name}-{number}".encode()
                try:
                    async with producer.transaction(Message(topic, body)):
                        file.write(body + b"\n")
                        if not commits(body):
                            raise RolledBack
                except RolledBack:
                    pass
                except SendFailed:
                    await trio.sleep(0.1)
                await trio.sleep(0.02)

        async with (
            TransactionProducer(
                nameserver, group=group, checker=check, topics=[topic], start_timeout_ms=None
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(WORKERS):
                nursery.start_soon(work, producer)


if __name__ == "__main__":
    trio.run(produce, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
