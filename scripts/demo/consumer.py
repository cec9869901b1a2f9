"""One consumer of the quickstart's group: writes a line for each flight that it is given to a file of its own.

A program of its own: ``python -m scripts.demo.consumer --nameserver ADDR --topic flights --group g --result FILE``.
It stops gracefully at SIGTERM. A line is ``message id,carrier,departure delay``; a cancelled flight has no delay.
"""

import argparse
import signal
from pathlib import Path

import orjson
import trio

from skylark import ConsumeFrom, MessageExt, PushConsumer

BATCH_SIZE = 256


def line_of(message: MessageExt) -> str:
    """The line that is written for one message."""
    flight = orjson.loads(message.body)
    delay = flight["dep_delay"]
    return f"{message.msg_id},{flight['carrier']},{'' if delay is None else delay}\n"


async def consume(nameserver: str, topic: str, group: str, result: Path) -> None:
    """Consume until SIGTERM."""
    # Without a buffer: lines of messages that are committed must not die with the process.
    with result.open("ab", buffering=0) as file:

        def write(messages: list[MessageExt]) -> None:
            file.write("".join(map(line_of, messages)).encode())

        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with PushConsumer(
                nameserver,
                group=group,
                subscriptions={topic: "*"},
                batch_handler=write,
                batch_size=BATCH_SIZE,
                consume_from=ConsumeFrom.FIRST_OFFSET,
            ):
                async for _ in signals:
                    return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    trio.run(consume, given.nameserver, given.topic, given.group, given.result)


if __name__ == "__main__":
    main()
