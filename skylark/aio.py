"""Producer, PushConsumer, SimpleConsumer, PullConsumer, Admin and Client for asyncio. See docs/guides/asyncio.md."""

from skylark.sdk.aio import *
from skylark.sdk.aio import __all__ as __all__
