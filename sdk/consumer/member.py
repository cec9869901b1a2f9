"""A pull consumer as brokers see it: its part of heartbeats, and its answer to code 307 (consumer status)."""

from collections.abc import Callable

from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData, parse_subscription
from remoting.protocol.bodies.running_info import ConsumerRunningInfo


class PullMember:
    """One `PullConsumer` as a member of ``group``; see `sdk.membership.Consumer`."""

    def __init__(self, group: str, consume_from: str, nameserver: Callable[[], str], started_ms: int) -> None:
        self._group = group
        self._consume_from = consume_from
        self._nameserver = nameserver
        self._properties = {
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        }
        self._subscriptions: dict[str, SubscriptionData] = {}

    def listen_to(self, topic: str, expression: str) -> bool:
        """Note that ``topic`` is read; returns whether it is new. Of several expressions the first one is kept."""
        if topic in self._subscriptions:
            return False
        self._subscriptions[topic] = parse_subscription(topic, expression)
        return True

    def heartbeat_data(self) -> ConsumerData:
        """This member's part of a heartbeat."""
        return ConsumerData(
            group_name=self._group,
            consume_type="CONSUME_ACTIVELY",
            message_model="CLUSTERING",
            consume_from_where=self._consume_from,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def running_info(self) -> ConsumerRunningInfo:
        """The status of this member. It lists no queues: the caller chooses them at each pull."""
        return ConsumerRunningInfo(
            properties={"PROP_NAMESERVER_ADDR": self._nameserver(), **self._properties},
            subscription_set=list(self._subscriptions.values()),
        )

    def members_changed(self) -> None:
        """Does nothing: a pull consumer does not share queues with other members."""
