"""A cluster that grows from one broker to three and back to one under load: throughput, errors and lag over time.

    python -m bench.resize [--out docs/operate/scale/resize.svg] [--json] [--tasks 100] [--span 4]

Producer tasks send messages of 128 B one after another, and a group consumes them, while: two brokers are started and
get the topic; the two are drained one after the other (mqadmin drain, with --settle 1, as all clients here watch their
routes), and stopped. Each stage lasts --span seconds and as long as its commands take. The rows count sent, failed,
lost and repeated messages, and the picture shows each quarter of a second. All processes share the machine's cores with
the load.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import trio

from bench.harness import Row, row, show
from scripts.daemons import BIN, Daemon, broker_daemon, namesrv_daemon, serving, wait_ready
from skylark import Message, MessageExt, Producer, PushConsumer, SendFailed

TOPIC = "resized"
BODY = bytes(128)
SAMPLE_S = 0.25
SETTLE_S = "1"
OPTIONS = ("--mapped-file-size-commit-log", str(1 << 28), "--max-index-num", "1000000")
WIDTH, PANEL_HEIGHT, LEFT, TOP = 860, 170, 70, 30


class Sample(NamedTuple):
    """The counts at one moment, seconds after the start."""

    at: float
    acked: int
    failed: int
    consumed: int


class Run:
    """The load, its counts, and the time of each stage."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self.acked = self.failed = self.consumed = 0
        self.samples: list[Sample] = []
        self.events: list[tuple[float, str]] = []
        self._began = trio.current_time()
        # Stored and not consumed, or consumed before the answer to their send came.
        self.left: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._number = 0
        self.producing = trio.CancelScope()

    async def produce(self, tasks: int) -> None:
        with self.producing:
            async with Producer(self._nameserver, group="bench") as producer, trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(self._send, producer)

    async def _send(self, producer: Producer) -> None:
        while True:
            self._number += 1
            body = b"%d" % self._number + BODY
            try:
                await producer.send(Message(TOPIC, body))
            except SendFailed:
                self.failed += 1
            else:
                self.acked += 1
                self.left.symmetric_difference_update((body,))

    async def consume(self) -> None:
        def handle(message: MessageExt) -> None:
            if message.body not in self._seen:
                self._seen.add(message.body)
                self.consumed += 1
                self.left.symmetric_difference_update((message.body,))

        async with PushConsumer(self._nameserver, group="bench", subscriptions={TOPIC: "*"}, handler=handle):
            await trio.sleep_forever()

    async def sample(self) -> None:
        while True:
            self.samples.append(Sample(trio.current_time() - self._began, self.acked, self.failed, self.consumed))
            await trio.sleep(SAMPLE_S)

    async def until_consumed(self) -> None:
        while self.left:  # noqa: ASYNC110  the handler has no loop to wake
            await trio.sleep(SAMPLE_S)

    def mark(self, text: str) -> None:
        sys.stderr.write(f"{trio.current_time() - self._began:.1f} s: {text}, {self.acked:,} messages stored\n")
        self.events.append((trio.current_time() - self._began, text))


async def mqadmin(nameserver: str, *words: str) -> None:
    line = [str(BIN / "mqadmin"), *words, "-n", nameserver]
    done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())


async def resized(namesrv: Daemon, brokers: Sequence[Daemon], tasks: int, span_s: float) -> Run:
    names = namesrv.addr
    await mqadmin(names, "updateTopic", "-b", brokers[0].addr, "-t", TOPIC, "-r", "4", "-w", "4")
    run = Run(names)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.consume)
        nursery.start_soon(run.produce, tasks)
        nursery.start_soon(run.sample)
        run.mark("one broker")
        await trio.sleep(span_s)
        run.mark("two more start")
        for broker in brokers[1:]:
            broker.start()
        await trio.to_thread.run_sync(wait_ready, brokers[1:])
        for broker in brokers[1:]:
            await mqadmin(names, "updateTopic", "-b", broker.addr, "-t", TOPIC, "-r", "4", "-w", "4")
        run.mark("three brokers")
        await trio.sleep(span_s)
        for broker, left in ((brokers[2], "two brokers"), (brokers[1], "one broker")):
            run.mark(f"drain {broker.name}")
            await mqadmin(names, "drain", "-b", broker.name, "--settle", SETTLE_S, "--deadline", "120")
            broker.terminate()
            await trio.to_thread.run_sync(broker.wait_stopped)
            run.mark(left)
            await trio.sleep(span_s)
        run.producing.cancel()
        with trio.move_on_after(30):
            await run.until_consumed()
        nursery.cancel_scope.cancel()
    return run


def picture(run: Run) -> str:
    """Three panels over one axis of time: messages a second, failed sends, and messages that wait for the group."""
    samples = run.samples
    pairs = list(pairwise(samples))
    times = [after.at for _, after in pairs]
    panels = (
        ("messages stored a second", [(b.acked - a.acked) / (b.at - a.at) for a, b in pairs]),
        ("sends that failed", [float(b.failed - a.failed) for a, b in pairs]),
        ("messages not consumed yet", [float(max(b.acked - b.consumed, 0)) for _, b in pairs]),
    )
    end, high = times[-1], PANEL_HEIGHT - TOP - 20

    def across(at: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * at / end

    parts = []
    for number, (title, values) in enumerate(panels):
        base, top = number * PANEL_HEIGHT + TOP + high, max([*values, 1.0])
        points = " ".join(
            f"{across(at):.1f},{base - high * value / top:.1f}" for at, value in zip(times, values, strict=True)
        )
        parts.append(
            f'<text x="{LEFT}" y="{base - high - 10}" font-weight="bold">{escape(title)}</text>'
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{base}" y2="{base}" stroke="#bbb"/>'
            f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>'
            f'<text x="{LEFT - 6}" y="{base - high + 8}" text-anchor="end">{top:,.0f}</text>'
            f'<polyline points="{points}" fill="none" stroke="#1f6f8b" stroke-width="1.5"/>'
        )
    bottom = len(panels) * PANEL_HEIGHT
    for number, (at, text) in enumerate(run.events):
        x = across(at)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#c8553d" stroke-dasharray="3 3"/>'
            f'<text x="{x + 3:.1f}" y="{bottom + 12 + 14 * (number % 2)}">{escape(text)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 40}" font-family="sans-serif"'
        f' font-size="11" fill="#333">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main(out: str, tasks: int, span_s: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as home:
        namesrv = namesrv_daemon(Path(home))
        brokers = [broker_daemon(Path(home), f"broker-{name}", namesrv.addr, 0, *OPTIONS) for name in "abc"]
        with serving(namesrv, brokers[0]):
            run = trio.run(resized, namesrv, brokers, tasks, span_s)
    Path(out).write_text(picture(run), encoding="utf-8")
    lag = max(sample.acked - sample.consumed for sample in run.samples)
    rate = run.samples[-1].acked / run.samples[-1].at
    yield row("messages stored a second, over all", "msgs/s", [rate], [rate], run.acked)
    yield row("sends that failed", "messages", [run.failed + 1e-9], [1e-9], run.acked, smaller_is_better=True)
    yield row("messages that were not consumed", "messages", [len(run.left) + 1e-9], [1e-9], run.acked)
    yield row("messages not consumed yet, at most", "messages", [float(lag)], [float(lag)], run.acked)
    sys.stderr.write(f"picture: {out}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/operate/scale/resize.svg")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--span", type=float, default=4.0)
    arguments = parser.parse_args()
    show(main(arguments.out, arguments.tasks, arguments.span), arguments.json)
