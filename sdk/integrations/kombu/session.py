"""`ClusterSession`: one client of a cluster, in trio, shared by all kombu connections of a process to that cluster.

It makes the topics and groups that are missing, sends, and has the feeds (feed.py) and streams (stream.py).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.properties import PRIORITY, RESERVED
from skylark.mqcommon.shielded_nursery import shielded_nursery
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.client import Admin
from skylark.sdk.client import FIRST_PAUSE_S, LONGEST_PAUSE_S, Client, ClientHandle
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.consumer.simple import SimpleConsumer
from skylark.sdk.integrations.kombu.feed import DUE, Deliveries, Feed, GiveBacks, Prefetch
from skylark.sdk.integrations.kombu.mailbox import Mailbox
from skylark.sdk.integrations.kombu.names import (
    ANY_TAG,
    REPLIES,
    ROUTING_KEY,
    STEP_PRIORITY,
    TransportSettings,
    deliver_at_ms,
    queue_topic,
    tag_of,
)
from skylark.sdk.integrations.kombu.stream import Stream
from skylark.sdk.producer.producer import Producer, Ticket

logger = logging.getLogger(__name__)

PRODUCER_GROUP = "celery-producers"
# Brokers register a new topic at once; this time is for busy brokers.
TOPIC_TIMEOUT_S = 10
TOPIC_POLL_S = 0.02
# How often a client checks whether a missing topic exists now. Skylark's NameServers announce a new topic at once.
TOPIC_CHECK_S = 5
# How many groups' given-back and late messages are remembered, besides groups that are consumed now.
MOST_GROUPS = 1_000
# Properties that a task's copy for its next step does not have. The copy is for one queue, whichever exchange the task
# came from.
_OF_ITS_STEP = frozenset({*RESERVED, DUE, ROUTING_KEY, STEP_PRIORITY})
# Reply queues that are read at a time.
MOST_REPLIES = 200

_NO_LEVELS = (
    "priority %d of a message has no effect, as topic %s has no priorities: declare the queue with max_priority, as"
    " Celery does with task_queue_max_priority = 9"
)


@dataclass(frozen=True)
class Source:
    """What a group reads: a topic, or a topic's messages with a tag."""

    group: str
    topic: str
    expression: str = ANY_TAG


@dataclass
class _SharedConsumer:
    """The one consumer that a client has of a group; feeds of several channels share it."""

    consumer: SimpleConsumer | None
    users: int
    #: Set when the last of the consumer's feeds has ended.
    done: trio.Event
    #: Set when the consumer has left the group.
    ended: trio.Event


@dataclass(frozen=True)
class _Group:
    """The group of a queue. ``is_late``: only a send to the queue makes its topic."""

    session: "ClusterSession"
    source: Source
    is_late: bool
    give_backs: GiveBacks
    deliveries: Deliveries

    async def wait(self) -> None:
        await self.session.wait_for_topic(self.source.topic)

    async def join(self) -> SimpleConsumer | None:
        if self.is_late and not await self.session.has_topic(self.source.topic):
            return None
        return await self.session.acquire(self.source)


class ClusterSession:
    """One client of a cluster, used in ``async with``. Its methods run in its trio loop."""

    def __init__(self, settings: TransportSettings, start_timeout_ms: int) -> None:
        self.settings = settings
        self.client = Client(
            list(settings.nameservers),
            namespace=settings.namespace,
            tls=Tls() if settings.tls else None,
            credentials=Credentials(settings.access_key, settings.secret_key) if settings.access_key else None,
        )
        self._producer = Producer(
            self.client,
            group=PRODUCER_GROUP,
            send_timeout_ms=settings.send_timeout_ms,
            start_timeout_ms=start_timeout_ms,
        )
        self._admin = Admin(self.client)
        self._handle = ClientHandle(self.client)
        self._clock = SystemClock()
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, Random())
        # Topics that are there, and how many priorities each has; 0: it has none.
        self._levels: dict[str, int] = {}
        # Topics without priorities to which messages with a priority were sent.
        self._told: set[str] = set()
        self._making = trio.Lock()
        self._consumers: dict[Source, _SharedConsumer] = {}
        # Group → the messages that this process gave back to the group, and the messages that it holds.
        self._taken: dict[str, tuple[GiveBacks, Deliveries]] = {}
        self._replies: dict[str, Stream] = {}
        self._replying = trio.Lock()
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._post: Callable[[Callable[[], object]], object] = _nowhere

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.client)
            await stack.enter_async_context(self._producer)
            await stack.enter_async_context(self._admin)
            await stack.enter_async_context(self._handle)
            self._nursery = await stack.enter_async_context(shielded_nursery())
            self._stack = stack.pop_all()
        token = trio.lowlevel.current_trio_token()
        self._post = token.run_sync_soon
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        except Exception:
            # No caller waits for this task: kombu's connections find that the session has ended, and open another.
            logger.exception("the session with %s ended by an error", ", ".join(self.settings.nameservers))
            raise

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    # --- topics and groups

    async def ensure_topic(self, topic: str, queues: int | None = None, *, levels: int = 0) -> None:
        """Make the topic on all brokers unless it is there; RouteNotFound says what to do when brokers refuse it.

        ``levels``: how many priorities it must have; a topic that has fewer gets more.
        """
        if self._levels.get(topic, -1) >= levels:
            return
        async with self._making:
            if topic not in self._levels:
                if not await self.has_topic(topic):
                    await self._make_topic(topic, levels or queues or self.settings.queues, has_priorities=bool(levels))
                    self._levels[topic] = levels
                else:
                    self._levels[topic] = await self._levels_of(topic)
            if self._levels[topic] < levels:
                await self._make_topic(topic, levels, has_priorities=True)
                self._levels[topic] = levels

    async def _levels_of(self, topic: str) -> int:
        """How many priorities the topic has; 0 when no broker says that it has some."""
        name = self._handle.names.topic(topic)
        for addr in await self._masters():
            try:
                config = await self._admin.topic_config(addr, name)
            except BrokerError as error:
                logger.debug("broker %s does not say which type topic %s has: %s", addr, topic, error)
                continue
            is_of_type = config.attributes.get("message.type") == "PRIORITY"
            return config.write_queue_nums if is_of_type else 0
        return 0

    async def has_topic(self, topic: str) -> bool:
        """Whether a NameServer knows the topic."""
        try:
            await self._admin.topic_route(topic)
        except RouteNotFound:
            return False
        return True

    async def wait_for_topic(self, topic: str) -> None:
        """Return when a NameServer knows the topic. Errors other than a missing topic are raised."""
        instance, name, changed = self._handle.instance, self._handle.names.topic(topic), Signal()

        def wake(topic: str) -> None:
            if topic == name:
                changed.set()

        instance.on_new_route.append(wake)
        try:
            while True:
                try:
                    # After a refresh that finds no topic, the client watches for the topic.
                    await instance.refresh(name)
                except RouteNotFound as error:
                    if error.is_passing:
                        raise
                else:
                    return
                with trio.move_on_after(TOPIC_CHECK_S):
                    await changed.wait()
        finally:
            instance.on_new_route.remove(wake)

    async def _make_topic(self, topic: str, queues: int, *, has_priorities: bool = False) -> None:
        """Make the topic on all brokers, or change it."""
        attributes = {"+message.type": "PRIORITY"} if has_priorities else {}
        options = f" -r {queues} -w {queues} -a +message.type=PRIORITY" if has_priorities else ""
        for addr in await self._masters():
            try:
                await self._admin.create_topic(addr, TopicConfig(topic, queues, queues, attributes=attributes))
            except BrokerError as error:
                what = "it has no priorities" if has_priorities else "it does not exist"
                raise RouteNotFound(
                    topic,
                    f"{what}, and broker {addr} refuses to make it ({error}): mqadmin updateTopic{options} does",
                ) from error
        with trio.move_on_after(TOPIC_TIMEOUT_S):
            while not await self.has_topic(topic):  # noqa: ASYNC110  a NameServer can only be asked
                await trio.sleep(TOPIC_POLL_S)
            return
        raise RouteNotFound(topic, f"it was made, but no NameServer knows it after {TOPIC_TIMEOUT_S} s")

    async def _masters(self) -> list[str]:
        info = await self._admin.cluster_info()
        found = [
            addr for name in sorted(info.cluster_addr_table) for addr in await self._admin.brokers_of_cluster(name)
        ]
        if not found:
            raise RemotingError("the NameServers know no broker with a master yet")
        return found

    async def _ensure_group(self, group: str) -> None:
        """Make the group with the number of deliveries that the settings allow, unless it is there."""
        try:
            if not await self._admin.group_exists(group):
                config = SubscriptionGroupConfig(group, retry_max_times=self.settings.max_deliveries)
                for addr in await self._masters():
                    await self._admin.create_group(addr, replace(config))
        except (BrokerError, RemotingError, UserError) as error:
            # A broker creates the group at the first read, with the broker's own number of deliveries.
            logger.warning("group %s cannot be made with max_deliveries: %s", group, error)

    # --- sends

    async def send(
        self,
        message: Message,
        *,
        due_ms: int | None = None,
        queues: int | None = None,
        levels: int = 0,
        priority: int = 0,
    ) -> None:
        """Store the message, for delivery at ``due_ms`` if given. Raises the errors of `Producer.send`.

        ``queues`` and ``levels``: as in `ensure_topic`.
        """
        await self.ensure_topic(message.topic, queues, levels=levels)
        levels = self._levels[message.topic]
        if levels:
            # Without a number the message would be in any of the queues, and so have any of the priorities.
            message.properties = {**(message.properties or {}), PRIORITY: str(min(priority, levels - 1))}
        elif priority and message.topic not in self._told:
            self._told.add(message.topic)
            logger.warning(_NO_LEVELS, priority, message.topic)
        await self._send(message, due_ms, priority)

    async def _send(self, message: Message, due_ms: int | None, priority: int) -> None:
        now_ms = self._clock.now_ms()
        step_ms = None if due_ms is None else deliver_at_ms(due_ms, now_ms, self.settings)
        if step_ms is None or due_ms is None:
            await self._producer.send(message)
            return
        # A time that is further away than brokers accept is reached in steps: a worker that gets the task before it is
        # due sends it on.
        if step_ms < due_ms - self.settings.eta_lead_ms:
            message.properties = {**(message.properties or {}), DUE: str(due_ms), STEP_PRIORITY: str(priority)}
        await self._producer.send(message, deliver_at=datetime.fromtimestamp(step_ms / 1000, UTC))

    def send_soon(self, message: Message) -> None:
        """Queue the message; a failed send is logged. For events: the worker's loop must not wait for brokers."""
        if message.topic not in self._levels:
            self.nursery.start_soon(self._send_late, message)
            return
        try:
            self._producer.send_nowait(message, on_delivery=_log_failure)
        except (SkylarkError, BufferError) as error:
            logger.warning("an event was not sent: %s", error)

    @enable_ki_protection
    async def _send_late(self, message: Message) -> None:
        try:
            await self.send(message, queues=1)
        except SkylarkError as error:
            logger.warning("an event was not sent: %s", error)

    async def _send_on(self, topic: str, message: MessageExt, due_ms: int) -> None:
        """Send a task that is not due yet again, to the topic of its queue.

        The topic that the task came from may be an exchange's topic: all queues bound to the exchange would get the
        copy, while each of them sends its own copy.
        """
        kept = {name: value for name, value in message.properties.items() if name not in _OF_ITS_STEP}
        copy = Message(topic, message.body, tags=message.tags, keys=message.keys, properties=kept)
        priority = message.properties.get(STEP_PRIORITY, "")
        await self.send(copy, due_ms=due_ms, priority=int(priority) if priority.isdigit() else 0)

    # --- queues

    async def open_feed(
        self,
        source: Source,
        *,
        owner: object,
        queue: str,
        prefetch: Prefetch,
        mailbox: Mailbox,
        matches: Callable[[MessageExt], bool],
        is_late: bool,
    ) -> Feed:
        """A feed of ``source``, which does not pop yet. ``is_late``: the first message makes the topic."""
        if not is_late:
            await self.ensure_topic(source.topic)
        own_topic = queue_topic(queue, self.settings.queue_name_prefix)
        group = _Group(self, source, is_late, *self._taken_of(source.group))
        feed = Feed(
            group,
            self.settings,
            owner=owner,
            queue=queue,
            prefetch=prefetch,
            mailbox=mailbox,
            matches=matches,
            send_later=partial(self._send_on, own_topic),
            post=self._post,
            backoff=self._backoff,
            clock=self._clock,
        )
        if not is_late:
            await feed.join()
        await self.nursery.start(feed.run)
        return feed

    async def close_feeds(self, feeds: Iterable[tuple[Source, Feed]]) -> None:
        """Give back the feeds' messages, and leave the groups of which they were the last feeds."""
        async with trio.open_nursery() as nursery:
            for source, feed in feeds:
                nursery.start_soon(self._close_feed, source, feed)

    def close_when_settled(self, feeds: list[tuple[Source, Feed]], closed: Callable[[], object]) -> None:
        """Close stopped feeds once all their messages are settled, and call ``closed``."""
        self.nursery.start_soon(self._close_when_settled, feeds, closed)

    @enable_ki_protection
    async def _close_when_settled(self, feeds: list[tuple[Source, Feed]], closed: Callable[[], object]) -> None:
        for _, feed in feeds:
            await feed.settled()
        await self.close_feeds(feeds)
        closed()

    @enable_ki_protection
    async def _close_feed(self, source: Source, feed: Feed) -> None:
        # A stopped feed is closed when all its messages are settled, or with its channel, whichever comes first.
        if feed.is_closing:
            await feed.ended.wait()
            return
        try:
            await feed.close()
        finally:
            # ``shared`` is None when the session ends, and has ended the consumer.
            if feed.has_joined and (shared := self._consumers.get(source)) is not None:
                shared.users -= 1
                if not shared.users:
                    shared.done.set()

    def _taken_of(self, group: str) -> tuple[GiveBacks, Deliveries]:
        taken = self._taken.setdefault(group, (GiveBacks(), Deliveries()))
        if len(self._taken) > MOST_GROUPS:
            # Bounded, so that a program that opens a new queue for each call does not fill the memory.
            used = {source.group for source in self._consumers} | {group}
            over = (name for name, (_, has) in self._taken.items() if name not in used and not has.held)
            self._taken.pop(next(over, ""), None)
        return taken

    async def acquire(self, source: Source) -> SimpleConsumer:
        """The consumer of the source's group, with one more user."""
        # A client can have one consumer of a group, so the channels share it.
        while True:
            async with self._making:
                shared = self._consumers.get(source)
                if shared is None:
                    await self._ensure_group(source.group)
                    shared = _SharedConsumer(None, 0, trio.Event(), trio.Event())
                    shared.consumer = await self.nursery.start(self._consume, source, shared)
                    self._consumers[source] = shared
                if not shared.done.is_set():
                    shared.users += 1
                    assert shared.consumer is not None
                    return shared.consumer
            # The old consumer is leaving the group; leaving would remove this client's next consumer from the group,
            # too.
            await shared.ended.wait()

    @enable_ki_protection
    async def _consume(
        self, source: Source, shared: _SharedConsumer, *, task_status: trio.TaskStatus[SimpleConsumer]
    ) -> None:
        try:
            async with SimpleConsumer(
                self.client,
                group=source.group,
                subscriptions={source.topic: source.expression},
                invisible_ms=self.settings.visibility_timeout_ms,
                consume_from=ConsumeFrom.FIRST_OFFSET,
                timeout_ms=self.settings.close_timeout_ms,
            ) as consumer:
                task_status.started(consumer)
                await shared.done.wait()
        finally:
            self._consumers.pop(source, None)
            shared.ended.set()

    async def begin_now(self, source: Source) -> None:
        """Let a group that has never read the topic begin with messages from now on."""
        await self.ensure_topic(source.topic)
        async with PullConsumer(self.client, group=source.group, heartbeat=False, start_timeout_ms=None) as consumer:
            # A group without an offset would begin at the start of the topic, as for tasks, which must not be missed.
            for queue in await consumer.message_queues(source.topic):
                if await consumer.committed_offset(queue) is None:
                    await consumer.commit_offset(queue, await consumer.max_offset(queue))

    async def count(self, source: Source) -> int:
        """How many messages the group has not consumed, including messages that were given back."""
        return sum([await self._lag(source.group, topic) for topic in await self._topics_of(source)])

    async def purge(self, source: Source) -> int:
        """Let the group go on at the end of its topics; returns how many messages are skipped."""
        count = 0
        for topic in await self._topics_of(source):
            if lag := await self._lag(source.group, topic):
                count += lag
                await self._ensure_group(source.group)
                await self._admin.reset_offsets(source.group, topic, -1)
        return count

    async def timed(self) -> int:
        """How many messages wait at all brokers for their times. Brokers do not count them by topic."""
        return sum([_timed(await self._admin.broker_runtime_info(addr)) for addr in await self._masters()])

    async def _topics_of(self, source: Source) -> list[str]:
        """The topics that the group reads. Brokers move given-back and unacknowledged messages to retry topics."""
        names = self._handle.names
        topic, group = names.topic(source.topic), names.group(source.group)
        found = [topic, *(pop_retry_topic(topic, group, version) for version in (RETRY_V1, RETRY_V2))]
        return [each for each in found if await self.has_topic(each)]

    async def _lag(self, group: str, topic: str) -> int:
        stats = await self._admin.consume_stats(group, topic)
        offsets = {queue: offset.consumer_offset for queue, offset in stats.offset_table.items()}
        ends = (await self._admin.topic_stats(topic)).offset_table
        if unknown := [queue for queue in ends if queue not in offsets]:
            # Members that pop do not subscribe to retry topics: while a member is connected, brokers do not count these
            # topics.
            async with PullConsumer(self.client, group=group, heartbeat=False, start_timeout_ms=None) as consumer:
                offsets |= {queue: await consumer.committed_offset(queue) or 0 for queue in unknown}
        return sum(
            max(ends[queue].max_offset - max(offsets.get(queue, 0), ends[queue].min_offset), 0) for queue in ends
        )

    # --- streams

    def new_stream(self, queue: str) -> Stream:
        """A stream without bindings."""
        return Stream(self.client, queue, self._post, self._backoff, self._clock)

    async def bind(self, stream: Stream, topic: str, expression: str, matches: Callable[[MessageExt], bool]) -> None:
        """Let the stream read the topic from now on."""
        await self.ensure_topic(topic, 1)
        await self.nursery.start(stream.read, topic, expression, matches)

    async def reply_stream(self, queue: str) -> Stream:
        """The stream of a reply queue. All connections of the process share it, until the session ends."""
        async with self._replying:
            stream = self._replies.pop(queue, None)
            if stream is None:
                stream = self.new_stream(queue)
                await self.bind(stream, REPLIES, tag_of(queue), lambda message: True)
                # Celery names a reply queue for each sending thread: a server with a thread per request makes ever more
                # of them.
                while len(self._replies) >= MOST_REPLIES:
                    self._replies.pop(next(iter(self._replies))).close()
            # The stream that was used last is dropped last.
            self._replies[queue] = stream
            return stream


def _timed(runtime_info: Mapping[str, str]) -> int:
    return int(runtime_info.get("timerCongestNum", "0"))


def _nowhere(work: Callable[[], object]) -> None:
    raise RuntimeError("the session is not open")


def _log_failure(ticket: Ticket) -> None:
    if ticket.error is not None:
        logger.warning("an event was not sent: %s", ticket.error)
