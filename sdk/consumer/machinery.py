"""What a `PushConsumer` consists of, how it is put together, and how it starts and stops.

rebalance.py decides which queues are this member's, owning.py takes and gives them up, intake.py pulls them, popping.py
does both for topics that the group pops, ready.py holds what waits for a handler, workers.py or orderly.py call
handlers, failures.py and returns.py care for messages that were not consumed, offsets.py and local_offsets.py keep how
far it came. Their tasks are the client's, which outlive the cancellation of the ``async with`` block: so a stop is
graceful also then.
"""

import logging
from collections.abc import Iterable

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.clock import SystemClock
from mqcommon.disk.files import OsFiles
from mqcommon.errors import BrokerError, RemotingError, RouteNotFound
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.clients import SUB_ALL
from sdk import broker_api
from sdk.consumer.commits import Commits
from sdk.consumer.contents import keep_content
from sdk.consumer.elsewhere import make_workers
from sdk.consumer.expression import Sql, subscription_to
from sdk.consumer.failures import Counters, Failures, HandlerErrors
from sdk.consumer.intake import Intake
from sdk.consumer.local_offsets import LocalOffsets
from sdk.consumer.offsets import GroupOffsets, OffsetStore
from sdk.consumer.orderly import Orderly
from sdk.consumer.owned import Room
from sdk.consumer.owning import Owning
from sdk.consumer.popping import Popping
from sdk.consumer.problems import OnProblem, Problems
from sdk.consumer.push_member import PushMember
from sdk.consumer.rates import SAMPLE_S, Rates
from sdk.consumer.reader import Reader
from sdk.consumer.ready import Ready
from sdk.consumer.rebalance import Queues, Rebalance
from sdk.consumer.replicas import Replicas
from sdk.consumer.returns import Returns
from sdk.consumer.settings import Settings
from sdk.consumer.stream_message import HandedOut, StreamMessage
from sdk.consumer.tracing import Tracing
from sdk.producer.producer import traces_of
from sdk.retry import Outcome, outcome_of
from sdk.runtime import survived
from sdk.shared import ClientHandle
from sdk.starting import Start, raise_if_final

logger = logging.getLogger(__name__)

# How long the last commits may take.
LAST_COMMITS_S = 5.0


def tracing_of(client: ClientHandle, settings: Settings) -> Tracing | None:
    """The trace that ``settings`` want."""
    traces = traces_of(client, client.names.plain(settings.group), settings.trace, settings.trace_topic)
    if traces is None:
        return None
    return Tracing(traces, lambda: client.instance.client_id, settings.consume_timeout_ms)


class Machinery:
    """The parts of one consumer. ``subscriptions`` are topic → expression."""

    def __init__(self, client: ClientHandle, settings: Settings, on_problem: OnProblem | None) -> None:
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
        self.room = Room(settings, clock, self._rates)
        self.reader = Reader(client, replicas, settings.group)
        self._commits = Commits(client, replicas, settings.group, problems.noting("committing offsets"))
        self._local = LocalOffsets(settings, OsFiles()) if settings.broadcast else None
        offsets: OffsetStore = self._local or GroupOffsets(
            replicas, self._commits, settings.group, problems.noting("committing offsets, which brokers refuse")
        )
        returns = Returns(client, replicas, settings, problems, clock)
        self.popping = Popping(client, settings, self.reader, self.room, self.ready, returns, self.counters, clock)
        self.failures = Failures(settings, self.ready, returns, self.counters, self.popping.give_back)
        self._handed_out = HandedOut(settings, self.failures, self.counters)
        self._workers = make_workers(settings, self.ready, self.failures, self.counters, errors)
        ordered = Orderly(settings, self.room, returns, self.counters, errors, clock)
        put = ordered.put if settings.orderly else self.ready.put
        intake = Intake(
            settings,
            client,
            self.reader,
            self.room,
            self.counters,
            problems,
            clock,
            put,
            lambda offsets: self.owning.reset(offsets),
        )
        serve = [intake.pull, ordered.serve] if settings.orderly else [intake.pull]
        self.owning = Owning(
            client, settings, replicas, offsets, self.room, self.ready, serve, lambda: self._rebalance.soon(), problems
        )
        self._rebalance = Rebalance(
            client, settings, self.subscriptions, self.owning.owned, self.popping.owned, self._change_queues, problems
        )
        self.member = PushMember(
            settings, ";".join(client.instance.nameserver_addrs), clock, self.subscriptions, self.owning.owned,
            self.popping.owned, self._rebalance.soon, self.owning.reset, self._rates, problems,
        )  # fmt: skip
        self._rebalancing = trio.CancelScope()
        self._handled = trio.Event()
        self._is_stopping = False

    async def start(self, start_timeout_ms: float | None) -> None:
        """Join the group. InvalidArgument when the client or, with ``broadcast``, the machine has such a member.

        Raises what `Start` raises, and BrokerError when the group or a subscription is refused.
        """
        self._client.join_consumer(self._settings.group, self.member)
        if start_timeout_ms is not None:
            await self._check_start(Start(self._client, start_timeout_ms))
        if self.tracing is not None:
            await self.tracing.open(self._client)
        if self._local is not None:
            await self._local.open()
        self._client.instance.tell_brokers()
        nursery = self._client.nursery
        await nursery.start(self.owning.run)
        await nursery.start(self.popping.run)
        nursery.start_soon(self.ready.run)
        nursery.start_soon(self._run_handlers)
        nursery.start_soon(self._run_rebalance)
        if self._settings.is_stream:
            await nursery.start(self._handed_out.watch)
        nursery.start_soon(self._commit_often)
        nursery.start_soon(self._sample_often)

    async def _check_start(self, start: Start) -> None:
        group = self._settings.group
        topics = [topic for topic in self.subscriptions if topic != self._settings.retry_topic]
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
        """BrokerError when a broker of the topic cannot use the expression. Nothing if none can be asked now."""
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
            if outcome_of(error) is not Outcome.NOTHING and error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                error.add_note(f"the subscription to {topic} is refused: {expression}")
                raise
        except (RemotingError, RouteNotFound) as error:
            logger.info("the subscription to %s cannot be checked now: %s", topic, error)

    async def stop(self) -> None:
        """Let running handlers finish, and commit."""
        self._is_stopping = True
        self._rebalancing.cancel()
        self.ready.clear()
        self._workers.stop()
        with trio.move_on_after(self._settings.stop_timeout_ms / 1000) as finishing:
            await self._handled.wait()
            self._commits.begin_close()
            await self.owning.give_up_all()
            await self.popping.stop()
        if finishing.cancelled_caught:
            logger.warning("handlers still run after %d ms: cancelling them", self._settings.stop_timeout_ms)
        self._commits.begin_close()
        with trio.move_on_after(LAST_COMMITS_S):
            await self.owning.commit_left()
            await self._commits.close()
        if self._local is not None:
            await self._local.close()
        if self.tracing is not None:
            await self.tracing.close()

    def subscriptions_changed(self) -> None:
        """Tell the brokers, and share the queues again."""
        self._client.instance.membership.subscription_changed()
        self._client.instance.tell_brokers()
        self._rebalance.soon()

    def set_paused(self, what: Iterable[str | MessageQueue], *, paused: bool) -> None:
        """Pause topics and queues, or let them be read again."""
        self.owning.set_paused(what, paused=paused)
        self.popping.set_paused(self.owning.is_paused)

    async def _change_queues(self, pulled: Queues, is_shared: bool, popped: Queues) -> bool:
        """Queues that are not to be pulled any more are given up first: they may be popped from now on."""
        is_settled = await self.owning.change(pulled, is_shared)
        self.popping.change(popped, self.owning.is_paused)
        return is_settled

    async def next_message(self) -> StreamMessage:
        """The next message of a stream; StopAsyncIteration when the consumer stops."""
        while (message := self.ready_message()) is None:
            if self.ready.batches:
                # Before it is taken: who is cancelled here must not have it.
                batch = self.ready.batches[0]
                await keep_content(batch.messages[batch.taken])
                continue
            if self._is_stopping:
                raise StopAsyncIteration
            await self.ready.wait()
        return message

    def ready_message(self) -> StreamMessage | None:
        """The next message of a stream, if there is one whose body needs not be decompressed first."""
        ready = self.ready
        if not ready.batches:
            return None
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
            with survived("committing offsets", self.problems.noting("committing offsets, which failed")):
                await self.owning.commit()

    @enable_ki_protection
    async def _sample_often(self) -> None:
        while True:
            await trio.sleep(SAMPLE_S)
            self._rates.sample(trio.current_time())
            self.room.note_progress()
