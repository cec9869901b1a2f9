"""A consumer that loses nothing, and does nothing twice, when Ctrl-C or SIGTERM ends it.

    python graceful.py 127.0.0.1:9876 orders

Leaving the `async with` block begins no more handlers, waits for running handlers (for `stop_timeout_ms` at most), and
commits the handled messages; the next process goes on after them. The signal is received, not left to
KeyboardInterrupt, which could be raised in the middle of a handler. With `skylark.aio`, `asyncio.run` does the same for
Ctrl-C; with `skylark.blocking` KeyboardInterrupt is raised in the main thread, while handlers run in others.

What cannot work (no NameServer, a broker that refuses credentials, permissions or the subscription) ends the program at
its start, with the reason; what goes wrong later is printed, and the consumer goes on.
"""

import argparse
import signal
import sys

import trio

from skylark import MessageExt, Problem, PushConsumer, SkylarkError


async def handle(message: MessageExt) -> None:
    """Work that takes a while, and must not be cut off in the middle."""
    body = message.body.decode()
    print("begin", body, flush=True)
    await trio.sleep(0.005)
    print("done", body, flush=True)


def tell(problem: Problem) -> None:
    """Print a problem. It is also logged, with details; `consumer.problem` has it until it is over."""
    print("problem:", problem, file=sys.stderr, flush=True)


async def main(nameserver: str, topic: str) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with PushConsumer(
            nameserver, group="graceful", subscriptions={topic: "*"}, handler=handle, on_problem=tell
        ):
            async for _ in signals:
                break


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("topic")
    given = arguments.parse_args()
    try:
        trio.run(main, given.nameserver, given.topic)
    except SkylarkError as error:
        sys.exit(str(error))
