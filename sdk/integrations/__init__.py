"""Adapters to other projects. Each adapter needs an extra of its own, and no other module imports it.

faststream/  a broker for FastStream (extra ``faststream``)
kombu/       Celery's broker: a transport of kombu (extra ``celery``)
otel/        OpenTelemetry: traces and metrics of producers and consumers (extra ``otel``)
"""
