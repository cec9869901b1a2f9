"""Contexts in the properties of messages, as the propagators of the process write and read them.

For most messages the context has neither state nor baggage. The default propagators (W3C's trace context and baggage)
take several times as long for it as all other work, so such a context is written and read here.
"""

import re
from collections.abc import Mapping

from opentelemetry import baggage, propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, set_span_in_context

TRACEPARENT = "traceparent"
_OTHERS = ("tracestate", "baggage")
_DEFAULT_FIELDS = {TRACEPARENT, *_OTHERS}
# Version 00; the propagators handle other versions.
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Carried:
    """The propagators of the process, which may be set after this was made."""

    def __init__(self) -> None:
        self._checked: TextMapPropagator | None = None
        self._has_default_fields = False

    def write(self, span: Span) -> dict[str, str]:
        """The properties with the context of ``span`` and the caller's baggage; none when there is no context."""
        context = span.get_span_context()
        if self._is_default() and not context.trace_state and not baggage.get_all():
            if not context.is_valid:
                return {}
            return {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
        carrier: dict[str, str] = {}
        propagate.inject(carrier, set_span_in_context(span))
        return carrier

    def read(self, properties: Mapping[str, str], around: Context | None = None) -> Context:
        """The context in the properties, within ``around`` (default: the caller's); ``around`` itself without one."""
        if self._is_default() and not any(name in properties for name in _OTHERS):
            found = _PARENT.fullmatch(properties.get(TRACEPARENT, ""))
            if found is not None:
                trace_id, span_id, flags = (int(text, 16) for text in found.groups())
                span_context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
                if span_context.is_valid:
                    return set_span_in_context(NonRecordingSpan(span_context), around)
        return propagate.extract(properties, around)

    def _is_default(self) -> bool:
        propagator = propagate.get_global_textmap()
        if propagator is not self._checked:
            self._has_default_fields = propagator.fields == _DEFAULT_FIELDS
            self._checked = propagator
        return self._has_default_fields
