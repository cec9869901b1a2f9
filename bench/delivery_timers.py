"""Messages with a time of delivery: 10,000 due in one second, and a restart with 1,000,000 that wait.

    python -m bench.delivery_timers [--waiting N] [--due N]

Memory is without the pages of the mapped log, which are the kernel's cache. Sends: `bench/timed_sends.py`.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

from bench.harness import BROKER, Cluster, cluster, cluster_at, row, show
from bench.traffic import make_topic
from skylark import Admin, Message, Producer, PullConsumer
from skylark.broker.delivery.timed_delivery import CHECKPOINT_QUEUE, TimerCheckpoint
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.ids import UniqueKeys, encode_host
from skylark.mqcommon.names import TIMER_TOPIC

TOPIC, QUEUES, SENDERS = "timed", 8, 500
DAYS_MS = 3 * 86_400_000
# The limits of the issue: seconds from the due time to the last delivery, seconds of a restart, MB.
DUE_S, RESTART_S, RESIDENT_MB = 2.0, 3.0, 300.0


async def send(producer: Producer, count: int, body: bytes, deliver_at: datetime | None) -> float:
    """Messages a second."""
    left = iter(range(count))

    async def sender() -> None:
        for _ in left:
            await producer.send(Message(TOPIC, body), deliver_at=deliver_at, timeout_ms=60_000)

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(sender)
    return count / (time.perf_counter() - start)


async def last_delivery_s(made: Cluster, count: int) -> float:
    """Seconds from the due time of ``count`` messages to the store time of the last of them."""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5 + count // 2_000)
    async with Producer(made.nameserver) as producer, PullConsumer(made.nameserver) as consumer:
        await send(producer, count, b"due", due)
        queues = await producer.queues(TOPIC)
        last_ms, found = 0, 0
        offsets = dict.fromkeys(queues, 0)
        while found < count:
            await trio.sleep(0.2)
            for queue in queues:
                pulled = await consumer.pull(queue, offsets[queue], max_count=1_000)
                offsets[queue] = pulled.next_offset
                for message in pulled.messages:
                    if message.body == b"due":
                        found, last_ms = found + 1, max(last_ms, message.store_timestamp)
    return last_ms / 1000 - due.timestamp()


def fill(home: str, count: int) -> None:
    """A store in which ``count`` messages wait, evenly over three days."""
    host, clock, keys = encode_host("127.0.0.1", 10911), SystemClock(), UniqueKeys("127.0.0.1", 1, 1)
    store = MessageStore(OsFiles(), StoreOptions(f"{home}/{BROKER}"), clock, host)
    store.open()
    now_ms = clock.now_ms() // 1_000 * 1_000 + 600_000
    for number in range(count):
        slot = now_ms + number * 7_919 % (DAYS_MS - 1_200_000) // 1_000 * 1_000
        text = f"TIMER_DELIVER_MS\x01{slot + 1000}\x02TIMER_OUT_MS\x01{slot}\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02"
        text += f"UNIQ_KEY\x01{keys.next(now_ms)}\x02"
        store.put(TIMER_TOPIC, 0, bytes(100), text.encode(), born_timestamp=now_ms, born_host=host)
    # Written as by the broker each time the log has grown by some MB.
    checkpoint = TimerCheckpoint(0, count, now_ms - 1, store.log.end)
    store.put(TIMER_TOPIC, CHECKPOINT_QUEUE, checkpoint.encode(), b"", born_timestamp=now_ms, born_host=host)
    store.close()


async def until_restored(made: Cluster, count: int) -> None:
    async with Admin(made.nameserver) as admin:
        while int((await admin.broker_runtime_info(made.broker))["timerCongestNum"]) < count:  # noqa: ASYNC110  polled
            await trio.sleep(0.02)


def restart(home: str, count: int) -> tuple[float, float]:
    """(seconds until all messages that wait are known, resident MB then)."""
    start = time.perf_counter()
    with cluster_at(home) as made:
        trio.run(until_restored, made, count)
        took = time.perf_counter() - start
        lines = Path(f"/proc/{made.broker_pid}/status").read_text().splitlines()
        resident = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return took, resident / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with cluster() as made:
        trio.run(make_topic, made, TOPIC, QUEUES)
        late = trio.run(last_delivery_s, made, args.due)
        rows = [row("due in one second, the last one", "s", [late], [DUE_S], args.due, smaller_is_better=True)]
        show(iter(rows), args.json)
    with tempfile.TemporaryDirectory() as home:
        fill(home, args.waiting)
        took, resident = restart(home, args.waiting)
    rows = [
        row("restart while they wait", "s", [took], [RESTART_S], args.waiting, smaller_is_better=True),
        row("memory of the broker", "MB", [resident], [RESIDENT_MB], args.waiting, smaller_is_better=True),
    ]
    show(iter(rows), args.json)


if __name__ == "__main__":
    main()
