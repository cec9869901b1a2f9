"""RocketMQ for FastStream (extra ``faststream``). See docs/guides/faststream.md."""

from skylark.sdk.integrations.faststream import *
from skylark.sdk.integrations.faststream import __all__ as __all__
