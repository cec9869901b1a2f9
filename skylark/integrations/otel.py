"""Traces and metrics of producers and consumers (extra ``otel``). See docs/guides/opentelemetry.md."""

from skylark.sdk.integrations.otel import *
from skylark.sdk.integrations.otel import __all__ as __all__
