"""The exporters of a daemon's metrics, and its health pages.

export.py  the exporter that metricsExporterType chooses
health.py  /healthz and /readyz, on a port of their own or beside the metrics
http_pages.py        HTTP
otlp.py    push to an OpenTelemetry collector, with OpenTelemetry's exporter
"""
