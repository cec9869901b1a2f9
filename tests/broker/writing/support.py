"""A Writer and the handlers of sends, on a store in memory."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from skylark.broker.meta.topics import Topics
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.deferred import Deferral
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.light import LightQueues
from skylark.broker.writing.send_handlers import DeadLetterTopic, SendHandlers
from skylark.broker.writing.stored_properties import StoredProperties
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.ids import UniqueKeys
from skylark.remoting.net.steps import Stepper
from skylark.remoting.protocol.command import Command
from tests.broker.store.support import HOST

# A broker that starts again makes other keys than before, even in the same millisecond.
_generator_numbers = count(1)


class Answers:
    """The client of all requests: the codes of its answers, in the order in which they came."""

    def __init__(self, answered: Callable[[int], None] | None = None) -> None:
        self.codes: list[int] = []
        self._answered = answered or self.codes.append

    def reply(self, request: Command, response: Command) -> None:
        self._answered(response.code)

    def wait(self, durability: Durability, end: int, now: float = 0.0) -> None:
        """A request whose message ends at ``end``."""
        request = Command(1)
        response = durability.answer_when_safe(self, request, request.respond(), end, now)
        if response is not None:
            self.reply(request, response)


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
    commits: LogWaits | None = None,
    acks: AckLedger | None = None,
    max_waiting: int = 100,
    turned: Callable[[], None] = lambda: None,
    dead_letter_topic: DeadLetterTopic = lambda topic, times, most: None,
) -> Sends:
    stats = stats or BrokerStats(clock)
    durability = Durability(
        LogWaits() if commits is None else commits, AckLedger(1 << 20) if acks is None else acks, options,
        double_write=options.is_sync_master, max_waiting=max_waiting,
    )  # fmt: skip
    admission = Admission(durability if durability.double_write else None)
    keys = UniqueKeys("127.0.0.1", 1, next(_generator_numbers))
    writer = Writer(
        store, admission, durability, stats, StoredProperties(options, keys, clock), Deferral(options, keys, clock),
        store_host_is_v6=False, max_message_bytes=options.max_message_size,
        light=LightQueues(store, options.max_lmq_consume_queue_num) if options.enable_multi_dispatch else None,
    )  # fmt: skip
    handlers = SendHandlers(writer, topics, options, HOST, Stepper(), turned, dead_letter_topic)
    return Sends(writer, durability, handlers)
