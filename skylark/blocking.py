"""Producer, PushConsumer, SimpleConsumer, PullConsumer, Admin and Client for threads. See docs/reference/sdk.md."""

from skylark.sdk.blocking import *
from skylark.sdk.blocking import __all__ as __all__
