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
from mqcommon.files import OsFiles
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.heartbeat import SUB_ALL
from sdk.consumer.commits import Commits
from sdk.consumer.contents import keep_content
from sdk.consumer.elsewhere import make_workers
from sdk.consumer.expression import Sql
from sdk.consumer.failures import Counters, Failures
from sdk.consumer.intake import Intake
from sdk.consumer.local_offsets import LocalOffsets
from sdk.consumer.offsets import GroupOffsets, OffsetStore
from sdk.consumer.orderly import Orderly
from sdk.consumer.owned import Room
from sdk.consumer.owning import Owning
from sdk.consumer.popping import Popping
from sdk.consumer.push_member import PushMember
from sdk.consumer.reader import Reader
from sdk.consumer.ready import Ready
from sdk.consumer.rebalance import Queues, Rebalance
from sdk.consumer.replicas import Replicas
from sdk.consumer.returns import Returns
from sdk.consumer.settings import Settings
from sdk.consumer.stream_message import StreamMessage
from sdk.consumer.tracing import Tracing
from sdk.producer.producer import traces_of
from sdk.runtime import survived
from sdk.shared import ClientHandle

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

    def __init__(self, client: ClientHandle, settings: Settings) -> None:
        clock = SystemClock()
        replicas = Replicas(client)
        self._client = client
        self.tracing = tracing_of(client, settings)
        self._settings = settings = self.tracing.traced(settings) if self.tracing is not None else settings
        self.subscriptions: dict[str, str | Sql] = {} if settings.broadcast else {settings.retry_topic: SUB_ALL}
        self.counters = Counters()
        self.ready = Ready()
        self.room = Room(settings, clock)
        self.reader = Reader(client, replicas, settings.group)
        self._commits = Commits(client, replicas, settings.group)
        self._local = LocalOffsets(settings, OsFiles()) if settings.broadcast else None
        offsets: OffsetStore = self._local or GroupOffsets(replicas, self._commits, settings.group)
        returns = Returns(client, replicas, settings, clock)
        self.popping = Popping(
            client, settings, self.reader, self.room, self.ready, returns, self.counters, clock
        )  # fmt: skip
        self.failures = Failures(settings, self.ready, returns, self.counters, self.popping.give_back)
        self._workers = make_workers(settings, self.ready, self.failures, self.counters)
        ordered = Orderly(settings, self.room, returns, self.counters, clock)
        put = ordered.put if settings.orderly else self.ready.put
        intake = Intake(
            settings,
            client,
            self.reader,
            self.room,
            self.counters,
            clock,
            put,
            lambda offsets: self.owning.reset(offsets),
        )
        serve = [intake.pull, ordered.serve] if settings.orderly else [intake.pull]
        self.owning = Owning(
            client, settings, replicas, offsets, self.room, self.ready, serve, lambda: self._rebalance.soon()
        )
        self._rebalance = Rebalance(
            client, settings, self.subscriptions, self.owning.owned, self.popping.owned, self._change_queues
        )
        self.member = PushMember(
            settings, ";".join(client.instance.nameserver_addrs), clock, self.subscriptions,
            self.owning.owned, self.popping.owned, self._rebalance.soon, self.owning.reset,
        )  # fmt: skip
        self._rebalancing = trio.CancelScope()
        self._handled = trio.Event()
        self._is_stopping = False

    async def start(self) -> None:
        """Join the group. InvalidArgument when the client or, with ``broadcast``, the machine has such a member."""
        self._client.join_consumer(self._settings.group, self.member)
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
        nursery.start_soon(self._commit_often)

    async def stop(self) -> None:
        """Let running handlers finish, and commit."""
        self._is_stopping = True
        self._rebalancing.cancel()
        self.ready.clear()
        self._workers.stop()
        with trio.move_on_after(self._settings.stop_timeout_ms / 1000) as finishing:
            await self._handled.wait()
            await self.owning.give_up_all()
            await self.popping.stop()
        if finishing.cancelled_caught:
            logger.warning("handlers still run after %d ms: cancelling them", self._settings.stop_timeout_ms)
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
        message = StreamMessage(batch, number, self.failures, self.counters)
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
            with survived("committing offsets"):
                await self.owning.commit()
