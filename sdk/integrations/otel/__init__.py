"""OpenTelemetry for the SDK: spans and metrics by its conventions for messaging. See docs/guides/opentelemetry.md.

    SkylarkInstrumentor().instrument()    # or opentelemetry-instrument, which finds it by its entry point

instrumentor.py  replaces methods of the SDK's classes, and puts them back
producing.py     spans of sends
carried.py       contexts in the properties of messages
consuming.py     spans of handlers, receives and settlements
telemetry.py     the tracer, the meter, and what spans and metrics are called
"""

from skylark.sdk.integrations.extra import extra

with extra("skylark.integrations.otel", "otel", "opentelemetry"):
    from skylark.sdk.integrations.otel.instrumentor import SkylarkInstrumentor, processing

__all__ = ["SkylarkInstrumentor", "processing"]
