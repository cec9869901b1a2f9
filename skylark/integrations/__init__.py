"""Adapters to other projects: faststream, kombu (for Celery) and otel. Each needs an extra of its own."""
