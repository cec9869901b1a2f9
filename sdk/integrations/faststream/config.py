"""What a broker's subscribers and publishers share."""

from dataclasses import dataclass, field

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState

from skylark.sdk.aio.facade import Client
from skylark.sdk.integrations.faststream.producing import RocketProducer

# How many characters of a message's id a line of the log has: its last ones.
LOGGED_ID = 10


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """What a broker's subscribers and publishers share; routers have the broker's once they are included."""

    producer: RocketProducer = field(default_factory=RocketProducer)
    group: str | None = None
    opened: Client | None = None
    #: Consumer group → the topic of its subscriber, while that runs.
    joined: dict[str, str] = field(default_factory=dict)
    #: Whether `TestRocketBroker` gives messages to the subscribers, which have no consumers then.
    is_in_memory: bool = False

    @property
    def client(self) -> Client:
        """The client of all consumers. IncorrectState unless the broker is connected."""
        if self.opened is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or start it first")
        return self.opened
