"""A transport of kombu, so that Celery works with brokers (extra ``celery``). See docs/guides/celery.md."""

from skylark.sdk.integrations.kombu import *
from skylark.sdk.integrations.kombu import __all__ as __all__
