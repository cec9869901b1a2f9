"""Traces of a web service and of Celery tasks, drawn as one picture: `python traced.py traces.svg`.

The service is outbox.py (FastAPI, FastStream, an outbox), the tasks are from celery_shop. Both run in this process,
with a broker of its own, and OpenTelemetry keeps the spans in memory. A program that runs for longer exports them to a
collector instead: nothing else changes.

    pip install "skylark-mq[otel,faststream,celery] @ file:///path/to/clone" opentelemetry-sdk httpx \
        opentelemetry-instrumentation-fastapi opentelemetry-instrumentation-celery
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skylark.integrations.otel import SkylarkInstrumentor
from skylark.testing import Cluster

HERE = Path(__file__).parent
LIMIT_S = 60

# --- what is traced


def order_over_the_web(cluster: Cluster, tracers: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A request stores an order and its message together; a handler of the service makes the bill."""
    import outbox

    cluster.create_topic(outbox.TOPIC)
    with tempfile.TemporaryDirectory() as home:
        app = outbox.make_app(cluster.nameserver, f"{home}/shop.db")
        FastAPIInstrumentor.instrument_app(app, tracer_provider=tracers, exclude_spans=["receive", "send"])
        with TestClient(app) as client:
            client.post("/orders", json={"item": "tea", "amount": 3}).raise_for_status()
            deadline = time.monotonic() + LIMIT_S
            while not any(span.name == f"process {outbox.TOPIC}" for span in exporter.get_finished_spans()):
                if time.monotonic() > deadline:
                    raise TimeoutError("the order has no bill")
                time.sleep(0.01)


def order_by_tasks(cluster: Cluster, tracers: TracerProvider) -> None:
    """A chain of tasks, of which the first one is tried twice."""
    from celery import chain
    from celery.contrib.testing.worker import start_worker
    from shop import app, charge, receipt

    app.conf.update(broker_url=f"rocketmq://{cluster.nameserver}/", worker_hijack_root_logger=False)
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        with tracers.get_tracer(__name__).start_as_current_span("order 1"):
            result = chain(charge.s(1, 120), receipt.s(1)).apply_async()
        result.get(timeout=LIMIT_S)


@contextmanager
def traced() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    """A block in which OpenTelemetry is on."""
    tracers, exporter = TracerProvider(), InMemorySpanExporter()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentors = (SkylarkInstrumentor(), CeleryInstrumentor())
    for instrumentor in instrumentors:
        instrumentor.instrument(tracer_provider=tracers, skip_dep_check=True)
    try:
        yield tracers, exporter
    finally:
        for instrumentor in instrumentors:
            instrumentor.uninstrument()
        tracers.shutdown()


def spans() -> list[ReadableSpan]:
    """The spans of both orders, without the receives, which are traces of one span."""
    sys.path[:0] = [str(HERE), str(HERE / "celery_shop")]
    with traced() as (tracers, exporter), Cluster() as cluster:
        order_over_the_web(cluster, tracers, exporter)
        order_by_tasks(cluster, tracers)
    found = exporter.get_finished_spans()
    lengths = Counter(span.context.trace_id for span in found if span.context)
    return [span for span in found if span.context and lengths[span.context.trace_id] > 1]


# --- the picture

WIDTH, NAMES, LINE, MARGIN = 1_100, 420, 22, 16
COLORS = {"PRODUCER": "#1565c0", "CONSUMER": "#2e7d32", "SERVER": "#6a1b9a", "CLIENT": "#757575", "INTERNAL": "#b26a00"}
FAILED = "#c62828"


def in_order(found: Sequence[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """Depth and span: each trace after another, each span before its children, the earlier before the later."""
    ids = {span.context.span_id for span in found if span.context}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in sorted(found, key=lambda span: span.start_time or 0):
        parent = span.parent.span_id if span.parent and span.parent.span_id in ids else None
        below.setdefault(parent, []).append(span)
    lines: list[tuple[int, ReadableSpan]] = []

    def add(parent: int | None, depth: int) -> None:
        for span in below.get(parent, ()):
            lines.append((depth, span))
            add(span.context.span_id if span.context else None, depth + 1)

    add(None, 0)
    return lines


def picture(found: Sequence[ReadableSpan]) -> str:
    """The spans as an SVG document: a line each, its bar as long as it took, in its trace's time."""
    lines = in_order(found)
    parts, start, length = [], 0, 1
    for number, (depth, span) in enumerate(lines):
        if depth == 0:
            trace_id = span.context.trace_id if span.context else 0
            ends = [one.end_time or 0 for _, one in lines if one.context and one.context.trace_id == trace_id]
            start = span.start_time or 0
            length = max(max(ends) - start, 1)
        y = MARGIN + number * LINE
        began, ended = (span.start_time or 0) - start, (span.end_time or 0) - start
        left = NAMES + began / length * (WIDTH - NAMES - MARGIN)
        width = max((ended - began) / length * (WIDTH - NAMES - MARGIN), 2)
        is_failed = span.status.status_code is trace.StatusCode.ERROR
        color = FAILED if is_failed else COLORS[span.kind.name]
        took = f"{(ended - began) / 1e6:.1f} ms"
        weight = ' font-weight="bold"' if depth == 0 else ""
        parts += [
            f'<text x="{MARGIN + 14 * depth}" y="{y + 15}"{weight}>{escape(span.name)}</text>',
            f'<rect x="{left:.1f}" y="{y + 4}" width="{width:.1f}" height="{LINE - 8}" fill="{color}">'
            f"<title>{escape(span.name)}, {span.kind.name.lower()}, {took}</title></rect>",
            f'<text x="{NAMES - 8}" y="{y + 15}" text-anchor="end" fill="#757575">{took}</text>',
        ]
    height = 2 * MARGIN + len(lines) * LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    path: Path = parser.parse_args(arguments).picture
    found = spans()
    path.write_text(picture(found), encoding="utf-8")
    for depth, span in in_order(found):
        print("  " * depth + span.name)
    print(f"{path}: {len(found)} spans")


if __name__ == "__main__":
    main()
