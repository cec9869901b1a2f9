"""Producer, PullConsumer and Admin for plain threads: scripts, notebooks, Spark tasks.

    with PullConsumer("127.0.0.1:9876") as consumer:
        for queue in consumer.message_queues("flights"): ...

The methods are those of the async classes, blocking; they may be called from any thread. Each object has one
background thread with an event loop.
loop.py      the thread;  consumer.py, producer.py, admin.py: the three classes, written out so that they are typed
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdk.blocking.admin import Admin
    from sdk.blocking.consumer import PullConsumer
    from sdk.blocking.producer import Producer

__all__ = ["Admin", "Producer", "PullConsumer"]

_HOMES = {"Admin": "admin", "Producer": "producer", "PullConsumer": "consumer"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"sdk.blocking.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sdk.blocking' has no attribute {name!r}")
