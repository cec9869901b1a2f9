"""Handlers on a broker's parts in memory."""

from typing import Any

from skylark.broker.admin.config import ConfigHandlers
from skylark.broker.admin.forwarded import ForwardedHandlers
from skylark.broker.admin.groups import GroupHandlers
from skylark.broker.admin.reset_offsets import ResetOffsetHandlers
from skylark.broker.admin.topics import TopicHandlers
from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.delivery.query_handlers import QueryHandlers
from skylark.broker.identity import Identity
from skylark.broker.meta.client_handlers import ClientHandlers
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.offset_handlers import OffsetHandlers
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.meta.proxied_clients import ProxiedClients, ProxyHandlers
from skylark.broker.metrics.runtime import RuntimeInfo, RuntimeSources, Waiting
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.observe.stats_handlers import StatsHandlers
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.role import RoleMachine
from skylark.broker.replication.set_requests import SlaveTableHandlers, TimerState
from skylark.broker.replication.stats import HaHandlers, ReplicationStats, SlaveProgress
from skylark.broker.tasks.delete_topics import TopicRemoval
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.mqcommon.errors import RequestRefused, StoreError
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.dialect import Dialect, encode_body
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import open_store
from tests.support.caller import Caller

V5_3_3 = 479

NO_TIMERS = {
    "timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "0", "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}  # fmt: skip


class Desk:
    """All admin and client handlers, and what they work on."""

    def __init__(self, broker_options: BrokerOptions | None = None) -> None:
        self.meta = meta = MetadataDir(broker_options or options())
        meta.topics.is_mirror = meta.groups.is_mirror = meta.options.broker_id > 0
        self.clock = meta.clock
        self.store = open_store(meta.fs, meta.clock)
        self.stats = BrokerStats(meta.clock)
        self.clients = Clients()
        self.held = HeldPulls()
        self.resets = OffsetResets(meta.offsets, self.clients, self.held.release_group)
        self.deleted: list[str] = []
        self.syncs = 0
        self.acks = AckLedger(meta.options.ha_max_gap_not_in_sync)
        durability = Durability(LogWaits(), self.acks, meta.options, double_write=True)
        self.replication = ReplicationStats(self.acks, durability, lambda: self.store.log.end, meta.clock)
        self.progress = SlaveProgress()
        self.role = RoleMachine(meta.options.broker_id)
        self.ha = HaHandlers(self.role, self.store, self.replication, self.progress, meta.clock)
        self.timers = TimerState(0, 0)
        sources = RuntimeSources(
            self.store,
            self.stats,
            self.replication,
            meta.fs,
            meta.clock,
            is_active=lambda: self.role.now.is_master,
            waiting=lambda: {"send": Waiting(3, 5, 7)},
            timers=lambda: NO_TIMERS,
            slowest_flush_ms=lambda: 0,
            damage=dict,
            tier=dict,
        )
        self.runtime = RuntimeInfo("/store", sources)
        identity = Identity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")
        self.proxied = ProxiedClients()
        self.stats_handlers = StatsHandlers(
            identity, self.store, meta.metadata, self.clients, self.proxied, self.stats, meta.clock
        )
        self.removal = TopicRemoval(
            meta.metadata, self.stats, lambda: self.durable(), lambda *topic: self.delete_messages(*topic),
            lambda: (self.store.log.start, self.store.log.end), self.store.has_queues_before,
        )  # fmt: skip
        families: list[Any] = [
            topics := TopicHandlers(self.store, meta.metadata, lambda: self.durable(), self.removal),
            GroupHandlers(meta.metadata, self.stats, self.durable, topics.delete_retry_topics),
            ConfigHandlers(meta.options, meta.topics, meta.fs, meta.clock, self.runtime),
            self.ha,
            SlaveTableHandlers(meta.clock, meta.metadata.request_modes, lambda: self.timers),
            QueryHandlers(self.store, self.clients, meta.options),
            OffsetHandlers(self.store, meta.metadata, self.resets, lambda: self.role.now.is_master, 4_000),
            ResetOffsetHandlers(self.store, meta.metadata, self.clients, self.resets, meta.options),
            self.stats_handlers,
        ]
        self.client_handlers = ClientHandlers(
            self.clients, self.proxied, meta.topics, meta.groups, meta.options, meta.clock
        )
        self.proxy_handlers = ProxyHandlers(
            self.proxied, self.client_handlers.prepared_group, lambda name: meta.groups.get(name) is not None,
            meta.options, meta.clock,
        )  # fmt: skip
        families += [self.client_handlers, self.proxy_handlers]
        families.append(ForwardedHandlers(self.clients, self.proxied, meta.options, self.store.record_at))
        self.handlers: dict[int, Any] = {}
        self.step_handlers: dict[int, Any] = {}
        self.slow_handlers: dict[int, Any] = {}
        for family in families:
            self.handlers |= family.handlers()
            self.step_handlers |= family.step_handlers() if hasattr(family, "step_handlers") else {}
            self.slow_handlers |= family.slow_handlers() if hasattr(family, "slow_handlers") else {}

    @property
    def all_handlers(self) -> dict[int, Any]:
        """Handlers for a server: handlers that work in steps do all steps at once."""

        def at_once(handler: Any) -> Any:
            return lambda channel, request: finish(handler(channel, request))

        return {code: at_once(handler) for code, handler in self.step_handlers.items()} | self.handlers

    async def durable(self) -> None:
        try:
            self.meta.journal.sync()
        except OSError as error:
            raise StoreError(str(error)) from error
        self.syncs += 1

    async def delete_messages(self, topic: str, before: int | None) -> int:
        self.deleted.append(topic)
        return self.store.log.end

    async def ask(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: bytes | Body = b"",
        *,
        channel: Channel | None = None,
        codec: int = JSON,
        version: int = V5_3_3,
        language: str = "JAVA",
    ) -> Command:
        """The answer; a refusal is turned into one as the server does."""
        if isinstance(body, Body):
            body = encode_body(body, Dialect.CBOR if codec == CBOR else Dialect.STANDARD)
        channel = channel or Caller().channel
        request = Command(code, ext, body, opaque=7, codec=codec, version=version, language=language)
        try:
            if code in self.slow_handlers:
                answer = await self.slow_handlers[code](channel, request)
            elif code in self.step_handlers:
                answer = finish(self.step_handlers[code](channel, request))
            else:
                answer = self.handlers[code](channel, request)
        except RequestRefused as refusal:
            answer = request.respond(refusal.code, refusal.remark)
        assert isinstance(answer, Command)
        assert answer.opaque == 7
        assert answer.codec == codec
        return answer
