"""The groups that this client is in: what its heartbeats say, and what it answers when a broker asks.

A broker knows a producer or consumer only by its heartbeats (34); it forgets one after 120 s without, or at once when
the client unregisters (35). Brokers send requests back on the same connections: 40 (the group's members changed),
307 (what are you doing?), 220 (start elsewhere).
"""

import logging
from collections.abc import Callable
from typing import Protocol

from mqcommon.errors import InvalidArgument
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from remoting.protocol.bodies.running_info import ConsumerRunningInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.clients import GET_CONSUMER_RUNNING_INFO, NOTIFY_CONSUMER_IDS_CHANGED
from sdk import broker_api
from sdk.endpoint import Endpoint
from sdk.fanout import ask_all

logger = logging.getLogger(__name__)


class Consumer(Protocol):
    """What a consumer tells about itself."""

    def heartbeat_data(self) -> ConsumerData: ...

    def running_info(self) -> ConsumerRunningInfo: ...

    def members_changed(self) -> None: ...


class Membership:
    """Groups by name; several producers of one group may share a client, a consumer group has one member in it."""

    def __init__(self) -> None:
        # Set when the client is opened.
        self.client_id = ""
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, Consumer] = {}
        # What brokers were told is as old as the version it was told at; a broker in `_tried` only did not answer.
        self._version = 0
        self._tried: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def join_producer(self, group: str) -> None:
        """A producer of ``group`` has started."""
        self._producers[group] = self._producers.get(group, 0) + 1
        self._version += 1

    def leave_producer(self, group: str) -> bool:
        """A producer of ``group`` has stopped; whether it was the last of this client."""
        left = self._producers.pop(group, 1) - 1
        if left:
            self._producers[group] = left
        return not left

    def join_consumer(self, group: str, consumer: Consumer) -> None:
        """``consumer`` is this client's member of ``group`` now."""
        if group in self._consumers:
            raise InvalidArgument(f"this client already has a consumer of group {group!r}")
        self._consumers[group] = consumer
        self._version += 1

    def leave_consumer(self, group: str) -> None:
        """The member of ``group`` has stopped."""
        self._consumers.pop(group, None)

    def subscription_changed(self) -> None:
        """A consumer listens to more than brokers were told."""
        self._version += 1

    def lost(self, addr: str) -> None:
        """The connection to ``addr`` is gone, and with it what the broker knew."""
        self._tried.pop(addr, None)
        self._told.pop(addr, None)

    @property
    def any(self) -> bool:
        """Whether there is a group to tell brokers about."""
        return bool(self._producers or self._consumers)

    def new_among(self, addrs: list[str]) -> bool:
        """Whether one of ``addrs`` was not sent a heartbeat yet that says what is true now."""
        return self.any and any(self._tried.get(addr) != self._version for addr in addrs)

    def heartbeat_data(self) -> HeartbeatData:
        """What every broker is told."""
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group) for group in self._producers],
            consumer_data_set=[consumer.heartbeat_data() for consumer in self._consumers.values()],
        )

    def wanted_addrs(self, masters: list[str], all_addrs: list[str]) -> list[str]:
        """Who must hear of us: consumers read from slaves too, producers write to masters only."""
        return all_addrs if self._consumers else masters if self._producers else []

    async def beat(self, addrs: list[str], at: Callable[[str], Endpoint]) -> bool:
        """One heartbeat to each broker; whether all of them answered."""
        data, version = self.heartbeat_data(), self._version
        self._tried.update(dict.fromkeys(addrs, version))
        answers = await ask_all(addrs, lambda addr: broker_api.heartbeat(at(addr), data))
        self._told.update(dict.fromkeys(answers.values, version))
        for error in answers.errors.values():
            logger.info("heartbeat failed: %s", error)
        return not answers.errors

    async def goodbye(self, addrs: list[str], at: Callable[[str], Endpoint]) -> None:
        """Leave all groups at every broker that knows us."""
        for group in self._producers:
            await self.unregister(addrs, at, producer_group=group)
        for group in self._consumers:
            await self.unregister(addrs, at, consumer_group=group)
        self._producers.clear()
        self._consumers.clear()

    async def unregister(
        self,
        addrs: list[str],
        at: Callable[[str], Endpoint],
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Leave one group at every broker of ``addrs`` that knows us."""

        async def leave(addr: str) -> None:
            await broker_api.unregister_client(
                at(addr), self.client_id, producer_group=producer_group, consumer_group=consumer_group
            )

        answers = await ask_all([addr for addr in addrs if addr in self._told], leave)
        for error in answers.errors.values():
            logger.info("unregistering failed: %s", error)

    # --- what brokers ask

    def handlers(self) -> dict[int, Handler]:
        """Request code → handler, for the remoting client."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
        }

    def _members_changed(self, channel: Channel, request: Command) -> Command:
        consumer = self._consumers.get(NOTIFY_CONSUMER_IDS_CHANGED.header(request).consumer_group or "")
        if consumer is not None:
            consumer.members_changed()
        return request.respond()

    def _running_info(self, channel: Channel, request: Command) -> Command:
        group = GET_CONSUMER_RUNNING_INFO.header(request).consumer_group
        consumer = self._consumers.get(group)
        if consumer is None:
            return request.respond(
                ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
            )
        return answer_with(GET_CONSUMER_RUNNING_INFO, request, consumer.running_info())

    def _reset_offset(self, channel: Channel, request: Command) -> Command:
        logger.info("%s asks to reset offsets; a pull consumer chooses its own, so nothing changes", channel.remote)
        return request.respond(ResponseCode.SYSTEM_ERROR, "a pull consumer chooses its offsets itself")
