"""How metrics get out of a daemon.

export.py  what metricsExporterType says
health.py  /healthz and /readyz, on a port of their own or beside the metrics
pages.py   HTTP
otlp.py    push to an OpenTelemetry collector, with OpenTelemetry's exporter
"""
