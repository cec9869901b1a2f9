"""A consumer that loses nothing, and does nothing twice, when Ctrl-C or SIGTERM ends it.

    python graceful.py 127.0.0.1:9876 orders

Leaving the `async with` block begins no more handlers, waits for those that run (for `stop_timeout_ms` at most), and
commits what they did; the next process goes on after it. The signal is received, not left to KeyboardInterrupt, which
could be raised in the middle of a handler. With `sdk.aio`, `asyncio.run` does the same for Ctrl-C; with `sdk.blocking`
KeyboardInterrupt is raised in the main thread, while handlers run in others.
"""

import argparse
import signal

import trio

from sdk import MessageExt, PushConsumer


async def handle(message: MessageExt) -> None:
    """Work that takes a while, and must not be cut off in the middle."""
    body = message.body.decode()
    print("begin", body, flush=True)
    await trio.sleep(0.005)
    print("done", body, flush=True)


async def main(nameserver: str, topic: str) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with PushConsumer(nameserver, group="graceful", subscriptions={topic: "*"}, handler=handle):
            async for _ in signals:
                break


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("topic")
    given = arguments.parse_args()
    trio.run(main, given.nameserver, given.topic)
