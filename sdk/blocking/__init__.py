"""Blocking Producer, PushConsumer, SimpleConsumer, PullConsumer, Admin, Client: for scripts, notebooks, Spark tasks.

    with PullConsumer("127.0.0.1:9876") as consumer:
        for queue in consumer.message_queues("flights"): ...

The methods are the same as in the async classes, and may be called from any thread. Each object has one background
thread with an event loop, or shares the thread of a `Client`.

loop.py      event loop threads and the clients in them
facade.py    the base class of the blocking classes, and `Client`; handlers.py: handlers of consumers
admin.py, consumer.py, producer.py, push.py, simple.py, transactional.py: the classes, with an entry for each method of
the async class, and the classes of their tickets, messages and streams
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.sdk.blocking.admin import Admin
    from skylark.sdk.blocking.consumer import PullConsumer
    from skylark.sdk.blocking.facade import Client
    from skylark.sdk.blocking.producer import Producer, Ticket
    from skylark.sdk.blocking.push import PushConsumer
    from skylark.sdk.blocking.simple import SimpleConsumer
    from skylark.sdk.blocking.transactional import TransactionProducer

__all__ = [
    "Admin",
    "Client",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "Ticket",
    "TransactionProducer",
]

_HOMES = {
    "Admin": "admin",
    "Client": "facade",
    "Producer": "producer",
    "PullConsumer": "consumer",
    "PushConsumer": "push",
    "SimpleConsumer": "simple",
    "Ticket": "producer",
    "TransactionProducer": "transactional",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"skylark.sdk.blocking.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'skylark.blocking' has no attribute {name!r}")
