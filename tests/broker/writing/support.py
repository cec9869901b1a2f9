"""A Writer and the handlers of sends, on a store in memory."""

from collections.abc import Callable
from typing import NamedTuple

from broker.meta.topics import Topics
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.store.store import MessageStore
from broker.writing.durability import Durability
from broker.writing.send_handlers import DeadLetterTopic, SendHandlers
from broker.writing.stored_properties import StoredProperties
from broker.writing.waits import AckLedger, GroupCommit
from broker.writing.writer import Interceptor, Writer
from mqcommon.clock import Clock
from mqcommon.message.ids import UniqueKeys
from remoting.net.steps import Stepper
from tests.broker.store.support import HOST


class Sends(NamedTuple):
    writer: Writer
    durability: Durability
    handlers: SendHandlers


def make_sends(
    store: MessageStore,
    topics: Topics,
    options: BrokerOptions,
    clock: Clock,
    *,
    stats: BrokerStats | None = None,
    commits: GroupCommit | None = None,
    acks: AckLedger | None = None,
    max_waiting: int = 100,
    turned: Callable[[], None] = lambda: None,
    interceptors: tuple[Interceptor, ...] = (),
    dead_letter_topic: DeadLetterTopic = lambda topic, times, most: None,
) -> Sends:
    stats = stats or BrokerStats(clock)
    durability = Durability(
        GroupCommit() if commits is None else commits, AckLedger(1 << 20) if acks is None else acks, options,
        double_write=options.is_sync_master, max_waiting=max_waiting,
    )  # fmt: skip
    properties = StoredProperties(
        options.region_id, options.broker_cluster_name, "true" if options.trace_on else "false",
        UniqueKeys("127.0.0.1", 1, 1), clock,
    )  # fmt: skip
    writer = Writer(
        store, durability, stats, properties,
        store_host_is_v6=False, max_message_bytes=options.max_message_size, interceptors=interceptors,
    )  # fmt: skip
    handlers = SendHandlers(
        writer, durability, topics, stats.put_times, options, HOST, Stepper(), turned,
        dead_letter_topic,
    )  # fmt: skip
    return Sends(writer, durability, handlers)
