"""Producer, PushConsumer, SimpleConsumer, PullConsumer, Admin and Client for asyncio applications.

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"a cup of tea"))

The methods are the same as in the trio classes. Each object has one background thread with a trio loop, or shares the
thread of a `Client`. Calls and results cross between the two loops in batches. See docs/guides/asyncio.md.

portal.py    a client in its thread, called from asyncio, and the crossing between the two loops
facade.py    the base class of the asyncio classes, and `Client`; handlers.py: handlers of consumers, and loop_watch.py:
whether they block their loop
admin.py, consumer.py, producer.py, push.py, simple.py, transactional.py: the classes, with an entry for each method of
the trio class, and the classes of their tickets, messages and streams
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.sdk.aio.admin import Admin
    from skylark.sdk.aio.consumer import PullConsumer
    from skylark.sdk.aio.facade import Client
    from skylark.sdk.aio.producer import Producer, Ticket
    from skylark.sdk.aio.push import PushConsumer
    from skylark.sdk.aio.simple import SimpleConsumer
    from skylark.sdk.aio.transactional import TransactionProducer

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
        return getattr(import_module(f"skylark.sdk.aio.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'skylark.aio' has no attribute {name!r}")
