"""Draining this broker before it leaves the cluster for good: 7130, and the remaining work: 7131.

The drain is kept on disk, so a restart does not end it. NameServers get all topics without the permission to write, so
producers go elsewhere as soon as they know. Until then, for some time, their sends are still taken; after that they are
refused with a code on which producers of RocketMQ and Skylark try another broker. Messages that consumers give back are
refused at once: consumers then send them to the retry topic of another broker. The broker still stores what it delivers
itself: delayed and timed messages, committed transactions, popped messages that come back.
Each broker of a set is told, since any of them may become the master. A broker that is away then copies the drain from
its master, as it copies topics.
Neighbours: meta/topics.py (`drain`), registration/registration.py, writing/admission.py (refuses sends).
"""

import logging
from collections.abc import Callable, Iterator
from datetime import datetime

import trio

from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.meta.topics import NO_DRAIN, Drain
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.admission import Reason
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import TOOLS_GROUP, is_retry_topic, is_system_topic, retry_topic
from skylark.remoting.net.answers import answer_steps
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.net.steps import StepHandler, Steps, result_of
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from skylark.remoting.protocol.requests.shrinking import (
    DRAIN_BROKER,
    GET_DRAIN_STATUS,
    DrainStatus,
    UnclaimedTopic,
    UnreadQueue,
)

logger = logging.getLogger(__name__)

# Rows of unread queues, and of topics that nobody reads, in one answer.
MOST_ROWS = 1_000
# Topics or pairs of topic and group that one step looks at.
AT_ONCE = 200


@lazy_dataclass(frozen=True, slots=True)
class Undelivered:
    """Functions that count what the broker will deliver or decide itself."""

    delayed: Callable[[], int]
    timed: Callable[[], int]
    half: Callable[[], int]
    popped: Callable[[], int]


class Draining(Part):
    """Begins and ends the drain of this broker (7130), and reports its progress (7131)."""

    tick_interval_ms = 500

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        clients: Clients,
        writer: Writer,
        undelivered: Undelivered,
        durable: Durable,
        clock: Clock,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._topics = metadata.topics
        self._clients = clients
        self._writer = writer
        self._undelivered = undelivered
        self._durable = durable
        self._clock = clock
        # The drain that was seen last, and when it closes by the steady clock: the wall clock may be set meanwhile.
        self._seen = NO_DRAIN
        self._closes_at_ms = 0

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_DRAIN_STATUS.code: self.status}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {DRAIN_BROKER.code: self.drain}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Go on with the drain of an earlier run."""
        since_ms = self._topics.drain.value.since_ms
        if since_ms:
            since = datetime.fromtimestamp(since_ms / 1000).isoformat(" ", "seconds")
            logger.warning("this broker is drained since %s: it takes no sends; mqadmin undrain ends that", since)
        self.tick()
        task_status.started()

    def tick(self) -> None:
        """Refuse sends if a drain has begun and clients with old routes have had their time; else allow them."""
        is_closed = bool(self._topics.drain.value.since_ms) and not self._closes_in_ms()
        if is_closed:
            self._writer.admission.refuse(Reason.DRAIN)
        else:
            self._writer.admission.allow(Reason.DRAIN)

    async def drain(self, channel: Channel, request: Command) -> Command:
        """7130: begin or end the drain; answered when the change is on disk."""
        header = DRAIN_BROKER.header(request)
        drains = header.drain
        if header.settle_ms < 0:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"settleMs {header.settle_ms} is negative")
        topics = self._topics
        if drains != bool(topics.drain.value.since_ms):
            with refused_when_not_stored():
                # Queues that `drain --move` has sealed are used again, before clients hear that the drain has ended.
                if not drains:
                    for topic in dict.fromkeys(seal.topic for seal in list(self._metadata.seals.all().values())):
                        await result_of(self._metadata.seals.lift(topic, self._metadata.consumer_offsets, self._store))
                now_ms = self._clock.now_ms()
                topics.drain.put(Drain(now_ms, now_ms + header.settle_ms) if drains else NO_DRAIN)
                await self._durable()
            topics.changed()  # NameServers get the permissions of topics
            self.tick()
            logger.warning(
                "this broker %s, by %s", "is drained from now on" if drains else "takes sends again", channel.remote
            )
        return request.respond()

    def status(self, channel: Channel, request: Command) -> Steps[Command]:
        """7131: how far a drain is: what waits in this broker, and which groups have not read to the end."""
        forgotten = group_names(GET_DRAIN_STATUS.header(request).forgotten)
        found, seals = self._undelivered, self._metadata.seals
        status = DrainStatus(
            self._topics.drain.value.since_ms,
            self._closes_in_ms(),
            len(self._writer.durability),
            found.delayed(),
            found.timed(),
            found.half(),
            found.popped(),
        )
        for seal in seals.all().values():
            left = self._store.max_offset(seal.topic, seal.queue_id) - seal.moved_to
            status.unmoved += left
            if left and len(status.unread) < MOST_ROWS:
                status.unread.append(UnreadQueue(seal.topic, seal.queue_id, "", left))
        claimed: set[str] = set()
        for number, (topic, group) in enumerate((yield from self._readers()), 1):
            if number % AT_ONCE == 0:
                yield None
            # A topic of a group that the administrator gives up still has its reader: it is not listed as unclaimed.
            claimed.add(topic)
            if group not in forgotten:
                for row in unread_queues(self._store, self._metadata, self._clients, topic, group):
                    status.unread_total += row.unread
                    if len(status.unread) < MOST_ROWS:
                        status.unread.append(row)
        moved = {(seal.topic, seal.queue_id): seal.moved_to for seal in seals.all().values()}
        for number, topic in enumerate(self._topics.names(), 1):
            if number % AT_ONCE == 0:
                yield None
            if topic not in claimed and not self._is_inner(topic):
                count = sum(
                    queue.next_offset - max(queue.min_offset, moved.get((topic, queue.queue_id), 0))
                    for queue in self._store.queues.of_topic(topic)
                )
                if count and len(status.unclaimed) < MOST_ROWS:
                    status.unclaimed.append(UnclaimedTopic(topic, count))
        return (yield from answer_steps(GET_DRAIN_STATUS, request, status, channel.max_frame_bytes))

    def _closes_in_ms(self) -> int:
        drain, steady_ms = self._topics.drain.value, self._clock.monotonic_ms()
        if drain != self._seen:
            self._seen = drain
            left_ms = min(drain.closes_at_ms - self._clock.now_ms(), drain.closes_at_ms - drain.since_ms)
            self._closes_at_ms = steady_ms + left_ms
        return max(self._closes_at_ms - steady_ms, 0) if drain.since_ms else 0

    def _readers(self) -> Steps[list[tuple[str, str]]]:
        """The topics of this broker, each with every group that reads it."""
        found: dict[tuple[str, str], None] = {}
        for number, (group, topics) in enumerate(
            (yield from self._metadata.consumer_offsets.topics_by_group()).items()
        ):
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
            found.update(dict.fromkeys((topic, group) for topic in topics))
        for group, topic in self._clients.subscriptions():
            found[topic, group] = None
        # A group may not have read its retry topics to the end yet.
        for number, (topic, group) in enumerate(list(found), 1):
            if number % AT_ONCE == 0:
                yield None
            names = (retry_topic(group), *(pop_retry_topic(topic, group, version) for version in (RETRY_V1, RETRY_V2)))
            found.update(dict.fromkeys((name, group) for name in names))
        return [
            (topic, group)
            for topic, group in found
            if self._topics.get(topic) is not None
            and group != TOOLS_GROUP
            and not self._is_inner(topic)
            # Consumers that pop do not subscribe to the topics in which messages come back to them.
            and (is_retry_topic(topic) or not self._clients.has_left(group, topic))
        ]

    def _is_inner(self, topic: str) -> bool:
        return (self._topics.is_system(topic) or is_system_topic(topic)) and not is_retry_topic(topic)


def group_names(text: str | None) -> frozenset[str]:
    """The groups in a comma-separated text."""
    return frozenset(filter(None, (name.strip() for name in (text or "").split(","))))


def unread_queues(
    store: MessageStore, metadata: Metadata, clients: Clients, topic: str, group: str, first: int = 0
) -> Iterator[UnreadQueue]:
    """The queues of ``topic``, from number ``first`` on, with messages that ``group`` has not consumed."""
    offsets = metadata.consumer_offsets.queues_of(group, topic)
    is_online = clients.consumer_group(group) is not None
    for queue in store.queues.of_topic(topic):
        if queue.queue_id >= first:
            done = max(offsets.get(queue.queue_id, -1), store.shown_min_offset(topic, queue.queue_id))
            unread = store.visible_end(topic, queue.queue_id) - done
            if unread > 0:
                yield UnreadQueue(topic, queue.queue_id, group, unread, is_online)
