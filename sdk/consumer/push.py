"""`PushConsumer`: a member of a consumer group, whose handler is called with the messages of its share of the queues.

`PushParts` puts its parts together, and starts and stops them. rebalance.py decides which queues are this member's,
ownership.py takes and gives up queues, pull_loop.py pulls them, popping.py does both for topics that the group pops,
process_queue.py (`Ready`) holds messages that wait for a handler, workers.py or orderly.py call handlers, failures.py
retries messages that were not consumed, offsets.py keeps the offsets. The tasks of the parts run in the client's
nursery, which outlives the cancellation of the ``async with`` block: so a cancelled consumer, too, stops gracefully.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Self

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import shown
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import GROUP_MAX_LENGTH, RETRY_PREFIX, can_have_retry_topic
from skylark.remoting.protocol.requests.clients import SUB_ALL
from skylark.sdk import broker_api
from skylark.sdk.checked import (
    Count,
    GroupName,
    Milliseconds,
    NotNegative,
    TopicName,
    check_topic_name,
    checked_methods,
)
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer.allocate import Strategy
from skylark.sdk.consumer.arrow import ArrowHandler, batch_handler_of
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.decompression import keep_content
from skylark.sdk.consumer.expression import Expression, Sql, Subscriptions, subscription_to
from skylark.sdk.consumer.failures import Counters, Failures, HandlerErrors, Returns
from skylark.sdk.consumer.member import PushMember
from skylark.sdk.consumer.offsets import Commits, GroupOffsets, LocalOffsets, OffsetStore
from skylark.sdk.consumer.orderly import Orderly
from skylark.sdk.consumer.outcome import BatchHandler, ConsumeFrom, GivenHandler
from skylark.sdk.consumer.ownership import QueueOwnership
from skylark.sdk.consumer.popping import Popping
from skylark.sdk.consumer.problems import OnProblem, Problem, Problems
from skylark.sdk.consumer.process_queue import FlowControl, Ready
from skylark.sdk.consumer.pull_loop import PullLoop
from skylark.sdk.consumer.rates import SAMPLE_S, Rates
from skylark.sdk.consumer.reader import Reader
from skylark.sdk.consumer.rebalance import Queues, Rebalance
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.consumer.settings import PushSettings, in_namespace
from skylark.sdk.consumer.stream_message import HandedOut, StreamMessage
from skylark.sdk.consumer.tracing import Tracing
from skylark.sdk.consumer.workers import ForeignHandlers, make_workers
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.loop_thread import Inbox, OpenClient
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.producer.producer import traces_of
from skylark.sdk.retry import Outcome, outcome_of
from skylark.sdk.runtime import FORKS, AsyncOnly, survived
from skylark.sdk.starting import START_TIMEOUT_MS, Start, raise_if_final
from skylark.sdk.traces.sink import Trace
from skylark.sdk.values.handlers import reading_values

MAX_QUEUE_MESSAGES = 16_384
MAX_QUEUE_BYTES = 8 * 1024 * 1024
MAX_CACHED_MESSAGES = 262_144
MAX_CACHED_BYTES = 64 * 1024 * 1024
PULL_COUNT = 8_192
PULL_BYTES = 1024 * 1024
WAIT_MS = 15_000
# RocketMQ's: the first delivery and 16 more.
MAX_RECONSUME_TIMES = 16
# A stream lets other tasks run after this many messages.
YIELD_EVERY = 64


@checked_methods
class PushConsumer(AsyncOnly):
    """``async with PushConsumer("127.0.0.1:9876", group="g", subscriptions={"orders": "*"}, handler=handle): ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. ``subscriptions``
    maps topics to the tags to read, ``"*"`` or ``"A || B"``, or to an `Sql`. Names are in ``namespace``, by default the
    `Client`'s namespace. See docs/guides/consumers.md for the other arguments.

    A handler gets a `MessageExt`. If its argument is annotated with another type, the handler gets the body as a value
    of that type, and the message as its second argument if it has two: see docs/guides/values.md. A handler returns
    None or ``ConsumeResult.SUCCESS`` when its messages are consumed. ``ConsumeResult.LATER``, ``Later(delay_level)``
    and an exception have the messages delivered again, unless ``retry`` says otherwise; ``ConsumeResult.SUSPEND`` is
    for ``orderly``. Any other value is a TypeError, which is logged and counts as an exception.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, NotRocketMQ or NotNameServer
    at once when another server listens there, and BrokerError when brokers refuse its credentials, permissions, group
    or subscriptions; with None the consumer starts and goes on trying. A later failure is in `problem`, and
    ``on_problem`` is called with it: a plain function, which must not block.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Subscriptions,
        handler: GivenHandler | None = None,
        batch_handler: BatchHandler | None = None,
        arrow_handler: ArrowHandler | None = None,
        arrow_columns: Sequence[str] | None = None,
        batch_size: Count = 32,
        concurrency: Count = 20,
        orderly: bool = False,
        broadcast: bool = False,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        strategy: str | Sequence[MessageQueue] | Strategy = "averagely",
        max_reconsume_times: NotNegative = MAX_RECONSUME_TIMES,
        retry: RetryPolicy | None = None,
        consume_timeout_ms: Milliseconds = 900_000,
        suspend_ms: Milliseconds = 1_000,
        max_queue_messages: Count = MAX_QUEUE_MESSAGES,
        max_queue_bytes: Count = MAX_QUEUE_BYTES,
        max_cached_messages: Count = MAX_CACHED_MESSAGES,
        max_cached_bytes: Count = MAX_CACHED_BYTES,
        pull_count: Count = PULL_COUNT,
        pull_bytes: Count = PULL_BYTES,
        wait_ms: NotNegative = WAIT_MS,
        commit_interval_ms: Milliseconds = 1_000,
        stop_timeout_ms: Milliseconds = 30_000,
        instance_name: str = "DEFAULT",
        local_offsets_dir: str | None = None,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: TopicName | None = None,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
        on_problem: OnProblem | None = None,
    ) -> None:
        self.group = group
        self._client = ClientHandle(nameserver, timeout_ms, namespace=namespace, credentials=credentials, tls=tls)
        self._names = names = self._client.names
        if not broadcast and not can_have_retry_topic(names.group(group)):
            raise InvalidArgument(
                f"group is {shown(group)}, too long to give a message back: with its namespace it may have "
                f"{GROUP_MAX_LENGTH - len(RETRY_PREFIX)} characters, as its retry topic has {RETRY_PREFIX} before that"
            )
        self._settings = PushSettings(
            group=names.group(group),
            handler=reading_values(handler),
            batch_handler=batch_handler_of(batch_handler, arrow_handler, arrow_columns),
            batch_size=batch_size,
            concurrency=concurrency,
            orderly=orderly,
            broadcast=broadcast,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            strategy=in_namespace(strategy, names),
            retry=_policy(retry, max_reconsume_times),
            consume_timeout_ms=consume_timeout_ms,
            suspend_ms=suspend_ms,
            max_queue_messages=max_queue_messages,
            max_queue_bytes=max_queue_bytes,
            max_cached_messages=max_cached_messages,
            max_cached_bytes=max_cached_bytes,
            pull_count=pull_count,
            pull_bytes=pull_bytes,
            wait_ms=wait_ms,
            commit_interval_ms=commit_interval_ms,
            stop_timeout_ms=stop_timeout_ms,
            instance_name=instance_name,
            local_offsets_dir=local_offsets_dir,
            trace=trace,
            trace_topic=trace_topic,
        )
        self._parts = PushParts(self._client, self._settings, on_problem)
        self._start_timeout_ms = start_timeout_ms
        for topic, expression in subscriptions.items():
            self._add_subscription(topic, expression)
        # The first message notes that somebody iterates, and later ones cost nothing for that.
        self._yield_in = 0

    # --- life

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._parts.start(self._start_timeout_ms)
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        """Let running handlers finish, commit, and leave the group."""
        # The child of a fork has a copy of the parent's consumer: the child must not commit for the parent, nor leave
        # the group.
        try:
            if self._client.forks == FORKS.count:
                # How the block of a facade's user ended is not known here: facades call `early_end`.
                if error[0] is None and not self._parts.is_hosted:
                    self._parts.warn_of_early_end()
                with survived("stopping the consumer"), trio.CancelScope(shield=True):
                    await self._parts.stop()
        finally:
            await self._client.__aexit__(*error)

    # --- messages of a consumer without a handler

    def __aiter__(self) -> Self:
        if not self._settings.is_stream:
            raise InvalidArgument("this consumer has a handler, which gets the messages; leave it out to iterate")
        return self

    async def __anext__(self) -> StreamMessage:
        self._client.check_open()
        # Messages that are ready need no wait. Other tasks must run all the same, but a checkpoint for each message
        # would cost more than all other work.
        if not self._yield_in:
            self._yield_in = YIELD_EVERY
            self._parts.is_iterated = True
            await trio.lowlevel.checkpoint()
        self._yield_in -= 1
        message = await self._parts.next_message()
        message.give()
        return message

    # --- used by streams in other threads and loops

    async def take(self, most: Count) -> list[StreamMessage]:
        """Wait for the next message; returns it and those that are ready without waiting. An empty list at the end.

        The caller calls `StreamMessage.give` when it hands a message to its own caller.
        """
        # Only the wait for the first message can be cancelled, before any message is taken: so no message is lost.
        self._client.check_open()
        self._parts.is_iterated = True
        taken: list[StreamMessage] = []
        try:
            message: StreamMessage | None = await self._parts.next_message()
        except StopAsyncIteration:
            return taken
        while message is not None:
            taken.append(message)
            # Do not wait again: another task may take the last message meanwhile, and the messages taken here would
            # wait for the next one.
            message = self._parts.ready_message() if len(taken) < most else None
        return taken

    # --- subscriptions

    async def subscribe(self, topic: TopicName, expression: Expression = SUB_ALL) -> None:
        """Read ``topic``, too, or read it with another expression. BrokerError when a broker refuses an `Sql`."""
        self._client.check_open()
        check_topic_name("a topic of subscriptions", topic)
        await self._parts.check_subscription(self._names.topic(topic), expression)
        self._add_subscription(topic, expression)
        self._parts.subscriptions_changed()

    async def unsubscribe(self, topic: TopicName) -> None:
        """Stop reading ``topic``; messages that no handler has taken yet are left to other members."""
        self._client.check_open()
        topic = self._names.topic(topic)
        if topic != self._settings.retry_topic and self._parts.subscriptions.pop(topic, None) is not None:
            self._parts.subscriptions_changed()

    async def pause(self, what: str | Sequence[MessageQueue]) -> None:
        """Do not pull a topic, or some queues, until `resume`. Messages in memory still go to the handler."""
        self._parts.set_paused(self._listed(what), paused=True)

    async def resume(self, what: str | Sequence[MessageQueue]) -> None:
        """Pull a topic, or some queues, again."""
        self._parts.set_paused(self._listed(what), paused=False)

    def _add_subscription(self, topic: str, expression: str | Sql) -> None:
        check_topic_name("a topic of subscriptions", topic)
        self._parts.reader.tags_of(expression)  # raises if the expression is invalid
        self._parts.subscriptions[self._names.topic(topic)] = expression

    def _listed(self, what: str | Sequence[MessageQueue]) -> list[str | MessageQueue]:
        return [self._names.topic(what)] if isinstance(what, str) else [self._names.queue(mq) for mq in what]

    # --- status

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member owns now, sorted. Queue -1 of a broker means pops from any of its queues."""
        parts = self._parts
        return sorted(map(self._names.plain_queue, [*parts.ownership.owned, *parts.popping.owned]))

    @property
    def problem(self) -> Problem | None:
        """What keeps the consumer from working now (the oldest problem), and the error; None when all is well."""
        return self._parts.problems.first

    @property
    def pulled(self) -> int:
        """How many messages were pulled."""
        return self._parts.counters.pulled

    @property
    def consumed(self) -> int:
        """How many messages were consumed."""
        return self._parts.counters.consumed

    @property
    def failed(self) -> int:
        """How many messages were not consumed and must be delivered again; a message that failed twice counts twice."""
        return self._parts.counters.failed

    @property
    def dropped(self) -> int:
        """How many messages were given up: by the retry policy, or after too many failures of a broadcast message."""
        return self._parts.counters.dropped

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return 0 if self._parts.tracing is None else self._parts.tracing.dropped

    @property
    def cached(self) -> int:
        """How many messages are in memory: pulled, and not consumed yet."""
        return self._parts.flow.messages


logger = logging.getLogger(__name__)


def _policy(retry: RetryPolicy | None, max_reconsume_times: int) -> RetryPolicy:
    if retry is None:
        return RetryPolicy(attempts=max_reconsume_times + 1)
    if max_reconsume_times != MAX_RECONSUME_TIMES:
        raise InvalidArgument("give a retry policy, whose attempts say how often, or max_reconsume_times, not both")
    return retry


# A consumer that ends within this time, without an error or a message, may be a mistake.
EARLY_S = 1.0
# How long the last commits may take.
LAST_COMMITS_S = 5.0


def tracing_of(client: ClientHandle, settings: PushSettings) -> Tracing | None:
    """The trace that ``settings`` ask for, if any."""
    traces = traces_of(client, client.names.plain(settings.group), settings.trace, settings.trace_topic)
    if traces is None:
        return None
    return Tracing(traces, lambda: client.instance.client_id, settings.consume_timeout_ms)


class PushParts:
    """The parts of one consumer. ``subscriptions`` are topic → expression."""

    def __init__(self, client: ClientHandle, settings: PushSettings, on_problem: OnProblem | None) -> None:
        clock = SystemClock()
        replicas = Replicas(client)
        self._client = client
        self.tracing = tracing_of(client, settings)
        self._settings = settings = self.tracing.traced(settings) if self.tracing is not None else settings
        self.subscriptions: dict[str, str | Sql] = {} if settings.broadcast else {settings.retry_topic: SUB_ALL}
        self.counters = Counters()
        self.problems = problems = Problems(on_problem)
        errors = HandlerErrors(problems)
        self.ready = Ready()
        self._rates = Rates()
        self.flow = FlowControl(settings, clock, self._rates)
        self.reader = Reader(client, replicas, settings.group)
        self._commits = Commits(client, replicas, settings.group, problems.reporter("committing offsets"))
        self._local = LocalOffsets(settings, OsFiles()) if settings.broadcast else None
        offsets: OffsetStore = self._local or GroupOffsets(
            replicas, self._commits, settings.group, problems.reporter("committing offsets, which brokers refuse")
        )
        returns = Returns(client, replicas, settings, problems, clock)
        context = PushContext(client, settings, problems, self.counters, clock)
        self.popping = Popping(context, self.reader, self.flow, self.ready, returns)
        self.failures = Failures(settings, self.ready, returns, self.counters, self.popping.give_back)
        self._handed_out = HandedOut(settings, self.failures, self.counters)
        self._workers = make_workers(settings, self.ready, self.failures, self.counters, errors)
        self._ordered = ordered = Orderly(settings, self.flow, returns, self.counters, errors, clock)
        put = ordered.put if settings.orderly else self.ready.put
        intake = PullLoop(context, self.reader, self.flow, put, lambda offsets: self.ownership.reset(offsets))
        # Each owned queue has a task that pulls and, with ``orderly``, a task that handles messages.
        serve = [intake.pull, ordered.serve] if settings.orderly else [intake.pull]
        self.ownership = QueueOwnership(
            context, replicas, offsets, self.flow, self.ready, serve, lambda: self._rebalance.soon()
        )
        self._rebalance = Rebalance(
            context, self.subscriptions, self.ownership.owned, self.popping.owned, self._change_queues
        )
        self.member = PushMember(
            context,
            self.subscriptions,
            self.ownership.owned,
            self.popping.owned,
            self._rebalance.soon,
            self.ownership.reset,
            self._rates,
        )
        #: Whether the handlers run in the threads or in the loop of a facade's user.
        self.is_hosted = isinstance(settings.handler or settings.batch_handler, ForeignHandlers)
        # Whether somebody takes the messages of a stream.
        self.is_iterated = not settings.is_stream
        # Whether the log says that nobody does.
        self._is_unread = False
        self._opened_at = 0.0
        self._rebalancing = trio.CancelScope()
        self._handled = trio.Event()
        self._is_stopping = False

    async def start(self, start_timeout_ms: float | None) -> None:
        """Join the group. InvalidArgument if the client or, with ``broadcast``, the machine has a member of the group.

        Raises what `Start` raises, and BrokerError when the group or a subscription is refused.
        """
        try:
            await self._start(start_timeout_ms)
        except BaseException:
            # Also after a cancelled start: the next start in this process needs the lock of the offsets' folder.
            if self._local is not None:
                await self._local.close()
            raise

    async def _start(self, start_timeout_ms: float | None) -> None:
        # Join first, so that the heartbeats that check the start contain the group: brokers may refuse the group.
        self._client.join_consumer(self._settings.group, self.member)
        if start_timeout_ms is not None:
            await self._check_start(Start(self._client, start_timeout_ms))
        if self.tracing is not None:
            await self.tracing.open(self._client)
        if self._local is not None:
            await self._local.open()
        self._client.instance.tell_brokers()
        self._opened_at = trio.current_time()
        nursery = self._client.nursery
        # The nurseries of queues must be open before the first round of the rebalancer gives them queues.
        await nursery.start(self.ownership.run)
        await nursery.start(self.popping.run)
        nursery.start_soon(self.ready.run)
        nursery.start_soon(self._run_handlers)
        nursery.start_soon(self._run_rebalance)
        if self._settings.is_stream:
            await nursery.start(self._handed_out.watch)
        if self._settings.orderly:
            nursery.start_soon(self._ordered.watch)
        if not (self.is_hosted or self._settings.is_stream):
            self._client.instance.watch_loop()
        nursery.start_soon(self._commit_often)
        nursery.start_soon(self._sample_often)

    async def _check_start(self, start: Start) -> None:
        group = self._settings.group
        topics = [topic for topic in self.subscriptions if topic != self._settings.retry_topic]
        # Refusals of heartbeats, of a subscription or of the group raise here, where the program sees the error.
        # Unreachable brokers do not prevent the start.
        addr = await start.with_topics(topics)
        if addr is None:
            return
        for topic, expression in self.subscriptions.items():
            await self.check_subscription(topic, expression)
        if not self._settings.broadcast:
            try:
                await broker_api.consumer_ids(self._client.at(addr), group)
            except BrokerError as error:
                if "no consumer for this group" in error.remark:
                    error.add_note(
                        f"the broker does not let group {group} in: mqadmin updateSubGroup creates it, or set "
                        "autoCreateSubscriptionGroup=true there"
                    )
                    raise
                raise_if_final(error)
            except RemotingError as error:
                logger.info("members of group %s: %s", group, error)

    async def check_subscription(self, topic: str, expression: str | Sql) -> None:
        """BrokerError when a broker of the topic cannot use the expression. Passes if no broker can be asked now."""
        # Tags need no check: every broker compares tags. An SQL condition is compiled by the broker, which may have SQL
        # switched off.
        if not isinstance(expression, Sql):
            return
        instance, group = self._client.instance, self._settings.group
        try:
            route = await instance.route(topic)
            addr = next(filter(None, map(route.master, route.brokers)), None)
            if addr is not None:
                subscription = subscription_to(topic, expression)
                await broker_api.check_subscription(self._client.at(addr), instance.client_id, group, subscription)
        except BrokerError as error:
            if outcome_of(error) is not Outcome.NOTHING and not error.is_unknown_request:
                error.add_note(f"the subscription to {topic} is refused: {expression}")
                raise
        except (RemotingError, RouteNotFound) as error:
            logger.info("the subscription to %s cannot be checked now: %s", topic, error)

    async def stop(self) -> None:
        """Let running handlers finish, and commit."""
        # Order: no new queues; no new calls of handlers; running calls end; offsets are committed and locks released;
        # kept commits have a last try; the traces are sent last.
        self._is_stopping = True
        self._rebalancing.cancel()
        self.ready.clear()
        self._workers.stop()
        with trio.move_on_after(self._settings.stop_timeout_ms / 1000) as finishing:
            await self._handled.wait()
            # From here on a commit waits for a short time only: a broker that is away must not hold up the end.
            self._commits.begin_close()
            await self.ownership.give_up_all()
            await self.popping.stop()
        if finishing.cancelled_caught:
            logger.warning("handlers still run after %d ms: cancelling them", self._settings.stop_timeout_ms)
        self._commits.begin_close()
        with trio.move_on_after(LAST_COMMITS_S):
            await self.ownership.commit_unfinished()
            await self._commits.close()
        if self._local is not None:
            await self._local.close()
        if self.tracing is not None:
            await self.tracing.close()

    def warn_of_early_end(self) -> None:
        """Log that the consumer ends before it can have worked, as in a script that has nothing to wait for."""
        open_s = trio.current_time() - self._opened_at
        if not self._settings.is_stream and not self.counters.pulled and open_s < EARLY_S:
            logger.warning(
                "the consumer of group %s ends %.1f s after its start, and no message has come: messages are handled "
                "inside of its 'async with' block (or 'with' block) only. Keep the block open, for example by `await "
                "trio.sleep_forever()`, `await asyncio.Event().wait()` or `threading.Event().wait()`",
                self._settings.group,
                open_s,
            )

    def _warn_if_unread(self) -> None:
        """Log, once, that nobody takes the messages of a stream."""
        if not self.is_iterated and not self._is_unread:
            self._is_unread = True
            logger.warning(
                "nobody takes the messages of group %s: its consumer has no handler, and no `async for message in "
                "consumer` runs",
                self._settings.group,
            )

    def subscriptions_changed(self) -> None:
        """Send the new subscriptions to the brokers, and divide the queues again."""
        self._client.instance.membership.subscription_changed()
        self._client.instance.tell_brokers()
        self._rebalance.soon()

    def set_paused(self, what: Iterable[str | MessageQueue], *, paused: bool) -> None:
        """Pause topics and queues, or let them be read again."""
        self.ownership.set_paused(what, paused=paused)
        self.popping.set_paused(self.ownership.is_paused)

    async def _change_queues(self, pulled: Queues, is_shared: bool, popped: Queues) -> bool:
        """Change the queues to pull and to pop. Queues not pulled any more are given up before they may be popped."""
        # Pulled and popped messages of one queue would be handled twice.
        is_settled = await self.ownership.change(pulled, is_shared)
        self.popping.change(popped, self.ownership.is_paused)
        return is_settled

    async def next_message(self) -> StreamMessage:
        """The next message of a stream; StopAsyncIteration when the consumer stops."""
        is_woken = False
        try:
            while (message := self.ready_message()) is None:
                if self.ready.batches:
                    # Decompress before the message is taken: a task that is cancelled here must not hold the message.
                    batch = self.ready.batches[0]
                    await keep_content(batch.messages[batch.taken])
                    continue
                if self._is_stopping:
                    raise StopAsyncIteration
                await self.ready.wait()
                is_woken = True
            return message
        finally:
            # A pull wakes one task, however many messages it finds. That task wakes the next task, also if it is
            # cancelled here.
            if is_woken and self.ready.batches:
                self.ready.wake()

    def ready_message(self) -> StreamMessage | None:
        """The next message of a stream, if it is ready and its body needs no decompression first."""
        ready = self.ready
        if not ready.batches:
            return None
        # A large body is decompressed in a thread, for which `next_message` waits; this method must not wait.
        batch = ready.batches[0]
        if batch.has_packed and (first := batch.messages[batch.taken]).is_compressed and not first.has_content:
            return None
        number = batch.taken
        batch.taken = number + 1
        if batch.taken == len(batch.done):
            ready.batches.popleft()
        message = StreamMessage(batch, number, self._handed_out)
        if self.tracing is not None:
            message.settled = self.tracing.handed_out(message)
        return message

    @enable_ki_protection
    async def _run_handlers(self) -> None:
        try:
            if not self._settings.is_stream and not self._settings.orderly:
                await self._workers.run()
        finally:
            self._handled.set()

    @enable_ki_protection
    async def _run_rebalance(self) -> None:
        with self._rebalancing:
            await self._rebalance.run()

    @enable_ki_protection
    async def _commit_often(self) -> None:
        while True:
            await trio.sleep(self._settings.commit_interval_ms / 1000)
            with survived("committing offsets", self.problems.reporter("committing offsets, which failed")):
                await self.ownership.commit()

    @enable_ki_protection
    async def _sample_often(self) -> None:
        while True:
            await trio.sleep(SAMPLE_S)
            self._rates.sample(trio.current_time())
            self.flow.sample_progress()
            self._warn_if_unread()


def early_end(consumer: PushConsumer) -> None:
    """For a facade, when the block of its user has ended without an error and before ``consumer`` closes."""
    consumer._parts.warn_of_early_end()


# How many messages cross at a time. More are in memory anyway; messages that were not iterated over are never
# acknowledged.
TAKEN_AT_ONCE = 256


class CrossingMessages:
    """Messages that were taken from one open consumer, and acknowledgements on their way back to it.

    Messages are added in the trio thread, so that no message is lost when the caller is cancelled while messages cross.
    """

    def __init__(self, client: OpenClient[PushConsumer]) -> None:
        self.client = client
        self._messages: deque[StreamMessage] = deque()
        self._is_filling = False
        self._has_ended = False
        # Calls of `fill` that wait while another call takes messages.
        self._others = trio.lowlevel.ParkingLot()
        self._acks: Inbox[StreamMessage] = Inbox(client.soon, _ack_soon)

    def pop(self) -> StreamMessage | None:
        """The next message here that no other member of the group gets, if any."""
        while self._messages:
            message = self._messages.popleft()
            if message.is_ours:
                message.give()
                return message
        return None

    async def fill(self, consumer: PushConsumer) -> bool:
        """In trio: wait for messages. False at the end."""
        # One of several calls takes messages for all calls, since it may get all messages that are ready. It returns
        # when it has more messages than the other calls need: as long as calls wait, one of them takes.
        while not self._messages and not self._has_ended:
            if self._is_filling:
                await self._others.park()
                continue
            self._is_filling = True
            try:
                while not self._has_ended:
                    taken = await consumer.take(TAKEN_AT_ONCE)
                    self._messages.extend(taken)
                    self._has_ended = not taken
                    if len(self._others.unpark(count=len(taken))) < len(taken):
                        return True
            finally:
                self._is_filling = False
                # At the end all calls return. If this call was cancelled, another call takes.
                if self._has_ended:
                    self._others.unpark_all()
                else:
                    self._others.unpark()
        # Another thread may have popped the messages since. Then the caller asks again.
        return not self._has_ended or bool(self._messages)

    def ack(self, message: StreamMessage) -> None:
        """Let the trio thread acknowledge the message, without waiting for it; an acknowledgement cannot fail."""
        self._acks.put(message)


def _ack_soon(messages: deque[StreamMessage]) -> None:
    # Not in a task: a caller that reads `consumer.consumed` after its `ack` must find the message counted.
    while messages:
        with survived("acknowledging a message"):
            messages.popleft().note_consumed()
