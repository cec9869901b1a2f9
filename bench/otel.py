"""Sends and handlers with OpenTelemetry on, and the same with it off, in turn. One broker, a NameServer, this client.

On: spans of all sends (or of one in a hundred), which a batch processor drops after it has collected them, and metrics.

    python -m bench.otel [--messages 20000] [--rounds 5] [--json]
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from bench.harness import Cluster, Row, cluster, in_turn, row, show
from bench.traffic import TOPIC, make_topic
from skylark import ConsumeFrom, Producer, PushConsumer
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.integrations.otel import SkylarkInstrumentor

BODY = b"x" * 128


class Nowhere(SpanExporter):
    """An exporter that drops all spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def instrumented(share: float | None) -> Iterator[None]:
    """OpenTelemetry is on, with spans of this share of all traces; None: it is off."""
    if share is None:
        yield
        return
    tracers = TracerProvider(ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=100_000))
    instrumentor = SkylarkInstrumentor()
    instrumentor.instrument(
        tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]), skip_dep_check=True
    )
    try:
        yield
    finally:
        instrumentor.uninstrument()
        tracers.shutdown()


async def awaited(at: Cluster, count: int, tasks: int, share: float | None) -> float:
    """Calls of ``await producer.send(...)`` a second, by ``tasks`` tasks at once."""
    left = count

    async def work(producer: Producer) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(Message(TOPIC, BODY))

    with instrumented(share):
        async with Producer(at.nameserver) as producer:
            await producer.send(Message(TOPIC, BODY))
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(work, producer)
            return count / (time.perf_counter() - started)


async def handled(at: Cluster, count: int, share: float | None) -> float:
    """Messages a second that a new group's handler gets, from the first one on."""
    got, began = 0, 0.0
    done = trio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal got, began
        began = began or time.perf_counter()
        got += 1
        if got == count:
            done.set()

    group, first = f"g{time.monotonic_ns()}", ConsumeFrom.FIRST_OFFSET
    with instrumented(share):
        async with PushConsumer(
            at.nameserver,
            group=group,
            subscriptions={TOPIC: "*"},
            handler=handle,
            consume_from=first,
        ):
            await done.wait()
            return count / (time.perf_counter() - began)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """All figures; the limit is the same with OpenTelemetry off."""
    with cluster() as at:
        trio.run(make_topic, at)
        for name, tasks, count in (("one after another", 1, messages // 4), ("64 at once", 64, messages)):
            off = partial(trio.run, awaited, at, count, tasks, None)
            for text, share in (("a span of each", 1.0), ("spans of 1 %", 0.01)):
                ours, limit = in_turn(rounds, partial(trio.run, awaited, at, count, tasks, share), off)
                yield row(f"awaited sends, {name}, {text}", "msg/s", ours, limit, count)
        off = partial(trio.run, handled, at, messages, None)
        for text, share in (("a span of each", 1.0), ("spans of 1 %", 0.01)):
            ours, limit = in_turn(rounds, partial(trio.run, handled, at, messages, share), off)
            yield row(f"handlers, {text}", "msg/s", ours, limit, messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show(rows(arguments.messages, arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
