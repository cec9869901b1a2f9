"""A producer of an earlier Skylark, which runs with that version's modules: it prints where each message was stored.

    python upgrade_client.py NAMESRV TOPIC

Each line has the broker, the queue, the offset and the body, or begins with "failed". It ends at the end of its input.
"""

import sys

import trio

try:
    from skylark import Message, Producer, SendFailed
except ImportError:  # before there was one public package
    from sdk import Message, Producer, SendFailed  # type: ignore[no-redef]

TIMEOUT_MS = 60_000
PAUSE_S = 0.05


async def send(nameserver: str, topic: str) -> None:
    async with Producer(nameserver, send_timeout_ms=TIMEOUT_MS) as producer:
        number = 0
        while True:
            body = f"from an earlier client {number}"
            number += 1
            try:
                result = await producer.send(Message(topic, body.encode()))
            except SendFailed as error:
                sys.stdout.write(f"failed\t{error}\n")
            else:
                queue = result.queue
                sys.stdout.write(f"{queue.broker_name}\t{queue.queue_id}\t{result.queue_offset}\t{body}\n")
            sys.stdout.flush()
            await trio.sleep(PAUSE_S)


async def main(nameserver: str, topic: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, nameserver, topic)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
