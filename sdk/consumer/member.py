"""A pull or simple consumer as brokers see it: its part of heartbeats, and what it answers to their requests."""

from collections.abc import Callable, Mapping

from mqcommon.errors import BrokerError, RequestRefused
from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from sdk.consumer.expression import Sql, subscription_to


class PullMember:
    """One `PullConsumer` or `SimpleConsumer` as a member of ``group``; see `sdk.membership.Consumer`."""

    def __init__(
        self,
        group: str,
        consume_from: str,
        nameserver: Callable[[], str],
        started_ms: int,
        consume_type: str = "CONSUME_ACTIVELY",
    ) -> None:
        self._group = group
        self._consume_from = consume_from
        self._nameserver = nameserver
        self._consume_type = consume_type
        self._properties = {
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        }
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._committed: dict[MessageQueue, int] = {}

    def listen_to(self, topic: str, expression: str | Sql) -> bool:
        """Note that ``topic`` is read; returns whether it is new. Of several expressions the first one is kept."""
        if topic in self._subscriptions:
            return False
        self._subscriptions[topic] = subscription_to(topic, expression)
        return True

    def committed(self, mq: MessageQueue, offset: int) -> None:
        """Note that the caller has committed ``offset``."""
        self._committed[mq] = offset

    def heartbeat_data(self) -> ConsumerData:
        """This member's part of a heartbeat."""
        return ConsumerData(
            group_name=self._group,
            consume_type=self._consume_type,
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

    def heard(self, addr: str, error: BrokerError | None) -> None:
        """Does nothing: a broker that refuses heartbeats refuses the caller's requests, too."""

    def divided(self, differences: str) -> None:
        """Does nothing: the log has it."""

    def members_changed(self) -> None:
        """Does nothing: a pull consumer does not share queues with other members."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Refused: only the caller of a pull consumer, and only the broker of a simple one, knows where it reads."""
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "a pull consumer chooses its own offsets; a simple has none")

    def queue_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets that the caller has committed."""
        return {mq: offset for mq, offset in self._committed.items() if mq.topic == topic}

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Refused: there is no handler."""
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this kind of consumer has no handler to give a message to")
