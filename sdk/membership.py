"""The groups that this client is in, and the content of its heartbeats.

A broker knows a producer or consumer by its heartbeats (34). It forgets a member after 120 s without a heartbeat, or at
once when the client unregisters (35). Brokers' requests to consumers on the same connections are in broker_requests.py.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import trio

from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
)
from skylark.remoting.protocol.requests.transactions import CheckTransactionStateRequestHeader
from skylark.sdk import broker_api
from skylark.sdk.endpoint import Answers, Endpoint, ask_all

logger = logging.getLogger(__name__)

# A broker that refuses heartbeats gets one every 5 s; its refusals are logged once a minute.
REFUSALS_A_LINE = 12


class GroupMember(Protocol):
    """A consumer as its group's brokers see it. A method may raise RequestRefused, which becomes the answer."""

    def heartbeat_data(self) -> ConsumerData: ...

    def running_info(self) -> ConsumerRunningInfo:
        """The consumer's status, for request 307."""

    def heard(self, addr: str, error: BrokerError | None) -> None:
        """Called when the broker at ``addr`` has accepted a heartbeat, or has refused it with ``error``."""

    def divided(self, differences: str) -> None:
        """Called when members have different subscriptions: ``differences``, empty once all subscribe alike again."""

    def members_changed(self) -> None:
        """Called when members of the group came or left (request 40)."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from these offsets (request 220). They cover all queues of ``topic`` on one broker."""

    def queue_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets that the consumer has reached in the queues of ``topic``, for request 221."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give one message to the handler now, whatever the group's offset is (309)."""


class TransactionChecker(Protocol):
    """A producer as seen by brokers that ask about its group's transactions."""

    def check(self, channel: Channel, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Answer request 39: find out how the transaction of ``message`` ended, and send that on ``channel``."""


class ProxiedConsumers(Protocol):
    """The consumers that use this client as their proxy. A method may raise RequestRefused, as for `GroupMember`."""

    async def running_info(self, group: str, client_id: str, *, jstack: bool) -> ConsumerRunningInfo:
        """A consumer's status, for request 307, with the stacks of its threads if ``jstack``."""

    async def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give one message to a consumer's handler now, whatever the group's offset is (309)."""


class Membership:
    """The groups of one client. It may have several producers of a group, but only one consumer of a group."""

    def __init__(self) -> None:
        # Set when the client is opened.
        self.client_id = ""
        #: Set by a proxy.
        self.proxied: ProxiedConsumers | None = None
        self._producers: dict[str, int] = {}
        self._checking: dict[str, TransactionChecker] = {}
        self._consumers: dict[str, GroupMember] = {}
        # Each change of the groups raises the version. Address → version of the last heartbeat that was sent to the
        # broker, and of the last heartbeat that it answered.
        self._version = 0
        self._sent: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        # Address → how many heartbeats in a row the broker refused.
        self._refusals: dict[str, int] = {}
        # The outcome of the last heartbeat to each broker, and the number of outcomes so far.
        self._outcomes: dict[str, SkylarkError | None] = {}
        self._answer_came = trio.Event()
        # Group → the brokers that report different subscriptions of its members, and their reports.
        self._differences: dict[str, dict[str, str]] = {}

    def join_producer(self, group: str, checking: TransactionChecker | None = None) -> None:
        """Count a producer of ``group`` that has started; with ``checking`` it answers for the group's transactions."""
        if checking is not None:
            if group in self._checking:
                raise InvalidArgument(f"this client already has a producer of group {group!r} with a checker")
            self._checking[group] = checking
        self._producers[group] = self._producers.get(group, 0) + 1
        self._version += 1

    def leave_producer(self, group: str, checking: TransactionChecker | None = None) -> bool:
        """Count a producer of ``group`` out; returns whether it was this client's last producer of the group."""
        if checking is not None:
            del self._checking[group]
        left = self._producers.pop(group, 1) - 1
        if left:
            self._producers[group] = left
        return not left

    def checking(self, group: str) -> TransactionChecker | None:
        """The checker that answers for the transactions of a producer group."""
        return self._checking.get(group)

    def join_consumer(self, group: str, consumer: GroupMember) -> None:
        """Make ``consumer`` this client's member of ``group``; InvalidArgument when there is one."""
        if group in self._consumers:
            raise InvalidArgument(f"this client already has a consumer of group {group!r}")
        self._consumers[group] = consumer
        self._version += 1

    def consumer(self, group: str) -> GroupMember | None:
        """This client's member of ``group``."""
        return self._consumers.get(group)

    def leave_consumer(self, group: str) -> None:
        """Remove this client's member of ``group``, which has stopped."""
        self._consumers.pop(group, None)
        self._differences.pop(group, None)

    def subscription_changed(self) -> None:
        """Count earlier heartbeats as outdated: a consumer reads a topic that none of them has named."""
        self._version += 1

    def lost(self, addr: str) -> None:
        """Count ``addr`` as a broker without heartbeat: the connection is lost, so the broker forgets this client."""
        self._sent.pop(addr, None)
        self._answered.pop(addr, None)
        self._outcomes.pop(addr, None)
        self._note_differences(addr, {})
        for consumer in self._consumers.values():
            consumer.heard(addr, None)

    @property
    def any(self) -> bool:
        """Whether this client is in any group."""
        return bool(self._producers or self._consumers)

    @property
    def is_asked(self) -> bool:
        """Whether brokers ask this client: it has consumers, or producers that answer for transactions."""
        return bool(self._consumers or self._checking)

    def new_among(self, addrs: list[str]) -> bool:
        """Whether one of ``addrs`` has not been sent the current state of the groups."""
        return self.any and any(self._sent.get(addr) != self._version for addr in addrs)

    def heartbeat_data(self) -> HeartbeatData:
        """The heartbeat, the same for every broker."""
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group) for group in self._producers],
            consumer_data_set=[consumer.heartbeat_data() for consumer in self._consumers.values()],
        )

    def wanted_addrs(self, masters: list[str], all_addrs: list[str]) -> list[str]:
        """The brokers that need heartbeats: consumers also read from slaves, producers write to masters only."""
        return all_addrs if self._consumers else masters if self._producers else []

    def strangers(self, addrs: list[str]) -> list[str]:
        """The brokers of ``addrs`` that have not answered a heartbeat with the current groups."""
        return [addr for addr in addrs if self._answered.get(addr) != self._version]

    def unanswering(self, addrs: list[str]) -> list[str]:
        """The `strangers` that do not answer, or have not answered yet. A broker that refuses heartbeats answers."""
        no_answer = RemotingError()
        return [
            addr for addr in self.strangers(addrs) if isinstance(self._outcomes.get(addr, no_answer), RemotingError)
        ]

    async def beat(self, addrs: list[str], at: Callable[[str], Endpoint]) -> bool:
        """Send one heartbeat to each broker. Returns whether all of them answered."""
        data, version = self.heartbeat_data(), self._version
        # Recorded before the answers: a change of the groups while heartbeats are in flight raises the version, and the
        # next beat sends the change.
        self._sent.update(dict.fromkeys(addrs, version))
        for addr in addrs:
            self._outcomes.pop(addr, None)

        async def beat_one(addr: str) -> None:
            try:
                differences = await broker_api.heartbeat(at(addr), data)
            except SkylarkError as error:
                self._came(addr, error)
                raise
            self._answered[addr] = version
            self._came(addr, None)
            await self._leave_again(at(addr), data)
            self._note_differences(addr, differences)

        answers = await ask_all(addrs, beat_one)
        self._log_failed(answers)
        return not answers.errors

    async def _leave_again(self, broker: Endpoint, data: HeartbeatData) -> None:
        """Unregister groups that were left while a heartbeat that names them was in flight.

        The heartbeat may have arrived after the request that unregistered them. Then the broker would give queues to a
        member that is gone, for two minutes.
        """
        try:
            for producer in data.producer_data_set:
                if producer.group_name not in self._producers:
                    await broker_api.unregister_client(broker, self.client_id, producer_group=producer.group_name)
            for consumer in data.consumer_data_set:
                if consumer.group_name not in self._consumers:
                    await broker_api.unregister_client(broker, self.client_id, consumer_group=consumer.group_name)
        except SkylarkError as error:
            logger.info("unregistering failed: %s", error)

    async def introduce_to(self, broker: Endpoint) -> None:
        """Send one heartbeat to a broker that may be in no route. Raises the error when it is not accepted."""
        await broker_api.heartbeat(broker, self.heartbeat_data())

    async def until_taken(self, addrs: list[str]) -> str | None:
        """Wait for the first broker of ``addrs`` that accepts the present heartbeat, or for the failure of all brokers.

        Returns its address; None when no broker could be reached. BrokerError when brokers refuse it and none accepts
        it.
        """
        while True:
            for addr in addrs:
                if self._answered.get(addr) == self._version:
                    return addr
            # Each broker has been sent the present groups, and has failed with them. Earlier failures do not count.
            if all(self._sent.get(addr) == self._version and self._outcomes.get(addr) for addr in addrs):
                break
            await self._answer_came.wait()
        for addr in addrs:
            if isinstance(error := self._outcomes.get(addr), BrokerError):
                raise error
        return None

    def _came(self, addr: str, error: SkylarkError | None) -> None:
        self._outcomes[addr] = error
        # A fresh event for each answer: waiters check all outcomes again, and then wait for the next answer.
        self._answer_came.set()
        self._answer_came = trio.Event()
        if error is None or isinstance(error, BrokerError):
            for consumer in self._consumers.values():
                consumer.heard(addr, error)

    def _note_differences(self, addr: str, differences: Mapping[str, str]) -> None:
        """Note which groups have members with different subscriptions, by the broker at ``addr``."""
        for group, consumer in self._consumers.items():
            told = self._differences.get(group, {})
            before = bool(told)
            told.pop(addr, None)
            if text := differences.get(group):
                told[addr] = text
                self._differences[group] = told
                if not before:
                    logger.warning(
                        "the members of group %s have different subscriptions, so some messages reach nobody: %s; give "
                        "all members the same subscriptions, or each kind of consumer a group of its own "
                        "(docs/guides/consumers.md, One group, one subscription)",
                        group,
                        text,
                    )
            elif not told:
                self._differences.pop(group, None)
                if before:
                    logger.warning("the members of group %s have the same subscriptions again", group)
            consumer.divided(next(iter(told.values()), ""))

    def _log_failed(self, answers: Answers[None]) -> None:
        """Log refused heartbeats (one of REFUSALS_A_LINE), as such a broker gives no messages, and the end of refusals.

        A broker that cannot be reached is logged at level info.
        """
        for addr in answers.values:
            if self._refusals.pop(addr, 0):
                logger.warning("broker %s takes the heartbeats of this client again", addr)
        for addr, error in answers.errors.items():
            if not isinstance(error, BrokerError):
                logger.info("heartbeat failed: %s", error)
                continue
            count = self._refusals[addr] = self._refusals.get(addr, 0) + 1
            if count % REFUSALS_A_LINE == 1:
                logger.warning("broker %s refuses the heartbeats of this client, still trying: %s", addr, error)

    async def leave_all(self, addrs: list[str], at: Callable[[str], Endpoint]) -> None:
        """Unregister all groups from every broker of ``addrs`` that answered a heartbeat."""
        for group in self._producers:
            await self.unregister(addrs, at, producer_group=group)
        for group in self._consumers:
            await self.unregister(addrs, at, consumer_group=group)
        self._producers.clear()
        self._consumers.clear()

    async def unregister(self, addrs: list[str], at: Callable[[str], Endpoint], **group: str) -> None:
        """Unregister that producer or consumer group from every broker of ``addrs`` that answered a heartbeat."""

        async def leave(addr: str) -> None:
            await broker_api.unregister_client(at(addr), self.client_id, **group)

        answers = await ask_all([addr for addr in addrs if addr in self._answered], leave)
        for error in answers.errors.values():
            logger.info("unregistering failed: %s", error)
