"""How metrics get out of a daemon.

export.py  what metricsExporterType says
pages.py   HTTP: /metrics, /healthz, /readyz
otlp.py    push to an OpenTelemetry collector, with OpenTelemetry's exporter
"""
