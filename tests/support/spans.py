"""What OpenTelemetry exports of the SDK in a test: the tree of spans, the points of metrics."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skylark.sdk.integrations.otel import SkylarkInstrumentor, telemetry


class Seen:
    """The spans that were exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self) -> list[str]:
        """Each span after the names of its parents, as ``web > send one > process one``."""
        by_id = {span.context.span_id: span for span in self.spans if span.context}

        def path(span: ReadableSpan) -> str:
            above = by_id.get(span.parent.span_id) if span.parent else None
            return span.name if above is None else f"{path(above)} > {span.name}"

        return sorted(map(path, self.spans))

    def values(self, name: str) -> dict[tuple[str, ...], int | float]:
        """The points of a metric, a histogram's counts, by operation, topic, group and error."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[str, ...], int | float] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        labels = point.attributes or {}
                        keys = (telemetry.OPERATION, telemetry.TOPIC, telemetry.GROUP, telemetry.ERROR)
                        key = tuple(str(labels[key]) for key in keys if key in labels)
                        found[key] = point.count if hasattr(point, "count") else point.value
        return found


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The SDK is instrumented meanwhile."""
    made = Seen()
    instrumentor = SkylarkInstrumentor()
    instrumentor.instrument(tracer_provider=made.provider, meter_provider=made.meters, skip_dep_check=True)
    yield made
    instrumentor.uninstrument()
