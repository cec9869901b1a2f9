"""One member of a group as a process: writes a line for each message that its handler gets. SIGTERM stops it.

``python -m tests.e2e.chaos.consumer NAMESERVER TOPIC GROUP FILE``. The group ``orderly`` is an orderly one. The
handler fails on some messages when they come for the first time, so that they come again.
"""

import signal
import sys
import time
from pathlib import Path
from zlib import crc32

import trio

from skylark import ConsumeFrom, ConsumeResult, MessageExt, PushConsumer
from tests.e2e.chaos.delivery import Delivery

# One message in this many fails.
FAILS = 50


async def consume(nameserver: str, topic: str, group: str, path: Path) -> None:
    orderly = group == "orderly"
    suspended: set[bytes] = set()
    # Without a buffer: lines of messages that are committed must not die with the process.
    with path.open("ab", buffering=0) as file:

        def handle(message: MessageExt) -> ConsumeResult:
            delivery = Delivery(
                time.monotonic_ns(),
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                message.reconsume_times,
                message.body.rstrip().decode(),
            )
            file.write(delivery.line)
            if crc32(message.body) % FAILS == 0:
                if orderly and message.body not in suspended:
                    suspended.add(message.body)
                    return ConsumeResult.SUSPEND
                if not orderly and message.reconsume_times == 0:
                    return ConsumeResult.LATER
            return ConsumeResult.SUCCESS

        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with PushConsumer(
                nameserver,
                group=group,
                subscriptions={topic: "*"},
                handler=handle,
                orderly=orderly,
                consume_from=ConsumeFrom.FIRST_OFFSET,
                suspend_ms=10,
                # It is started while NameServers are away, too.
                start_timeout_ms=None,
            ):
                async for _ in signals:
                    return


if __name__ == "__main__":
    trio.run(consume, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
