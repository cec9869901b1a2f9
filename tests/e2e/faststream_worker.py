"""A FastStream service in a process of its own, for test_faststream_kills.py: notes each message that it has handled.

python -m tests.e2e.faststream_worker NAMESERVER TOPIC NOTES
"""

import asyncio
import os
import sys

from faststream import FastStream

from skylark import ConsumeFrom
from skylark.sdk.integrations.faststream import RocketBroker


async def main(nameserver: str, topic: str, notes: str) -> None:
    broker = RocketBroker(nameserver, group="killed", logger=None)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @broker.subscriber(
        topic, max_workers=4, consume_from=ConsumeFrom.FIRST_OFFSET, consumer_options={"commit_interval_ms": 20}
    )
    async def handle(text: str) -> None:
        await asyncio.sleep(0.001)  # the work, in which a kill may come
        os.write(file, f"{text}\n".encode())

    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
