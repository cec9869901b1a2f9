"""Adapters to other projects. Each needs an extra of its own, and nothing else imports it.

otel/  OpenTelemetry: traces and metrics of producers and consumers (extra ``otel``)
"""
