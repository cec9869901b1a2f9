"""RocketMQ for FastStream: ``broker = RocketBroker("127.0.0.1:9876", group="shop")``. See docs/guides/faststream.md.

broker.py       `RocketBroker`: connections, subscribers' life, publish and request
registrator.py  `subscriber` and `publisher` of brokers and routers; `RocketRouter`
subscriber.py   handlers on a `PushConsumer`; messages one by one from a `SimpleConsumer`
producing.py    commands, the producer, publishers, replies
message.py      messages as handlers see them, and what becomes of each
config.py       what subscribers and publishers share; annotations.py: what handlers may ask for
fastapi.py      `RocketRouter` for FastAPI
testing.py      `TestRocketBroker`: publishes to the handlers of a test, in memory
It uses base classes of FastStream that may change between its minor versions, so the extra has an upper bound.
"""

from skylark.sdk.integrations.extra import extra

with extra("skylark.integrations.faststream", "faststream", "faststream", "fast_depends"):
    from skylark.sdk.integrations.faststream.broker import RocketBroker
    from skylark.sdk.integrations.faststream.message import RocketMessage
    from skylark.sdk.integrations.faststream.producing import RocketPublishCommand, RocketResponse, ValueCodec
    from skylark.sdk.integrations.faststream.registrator import RocketRoute, RocketRouter, RoutePublisher

__all__ = [
    "RocketBroker",
    "RocketMessage",
    "RocketPublishCommand",
    "RocketResponse",
    "RocketRoute",
    "RocketRouter",
    "RoutePublisher",
    "ValueCodec",
]
