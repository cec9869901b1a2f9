"""The broker's topics: topics that users and sends create, and the system topics that the broker makes.

table.py has the rows, the journal and the versions; the version continues a Java broker's. System topics depend on the
options, so they are made at each start and not journalled. System topics that were imported from a Java broker's file
are journalled and stay as they were.
A registration with a NameServer finds the topics to send in `RecentChanges`. The functions for a topic's attributes are
at the end: the effect of RocketMQ's ``+key=value,-key``.
Neighbours: table.py, registrar.py (sends the table to NameServers), writing/send_handlers.py (creates by sending).
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.static_topics import StaticTopics
from skylark.broker.meta.table import Applier, Change, JournalledTable, JournalledValue, TableFormat
from skylark.broker.meta.topic_deletions import TopicDeletions
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import (
    AUTO_CREATE_TOPIC,
    PERM_INHERIT,
    PERM_READ_WRITE,
    PERM_WRITE,
    can_have_retry_topic,
    dlq_topic,
    is_light,
    is_retry_topic,
    retry_topic,
    system_topics,
)
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicQueueMappingDetail

logger = logging.getLogger(__name__)

#: The queue type of a topic whose batches are stored as one record each.
BATCH_QUEUES = "BatchCQ"
#: The type of a topic whose messages are popped by their priorities.
PRIORITIES = "PRIORITY"
#: How many hours the bucket of tierPath keeps a topic's messages; -1: as tierReservedTimeHours says.
RESERVE_TIME = "reserve.time"
# Attributes that say how a topic's messages are stored; they are fixed when the topic is made.
UNCHANGEABLE = frozenset({"queue.type", "cleanup.policy"})

# The number of changes that are kept by name. A reader that missed more must read the whole table.
RECENT_CHANGES = 65_536

# RocketMQ's brokers end some refusals with this.
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
FORMAT = TableFormat(
    "topic", "topic-gone", "topics-version", attrgetter("topic_name"), TopicConfig.to_wire, TopicConfig.from_wire
)


def no_such_topic(name: str) -> RequestRefused:
    """The refusal of a request for a topic that is not in the table."""
    if is_light(name):  # with enableLmq every light topic is found
        text = (
            f"topic[{name}] not exist: this broker has no light queues while enableLmq=false; set enableLmq=true, "
            "and enableMultiDispatch=true so that messages get into them, and restart it"
        )
    else:
        text = f"topic[{name}] not exist, apply first please!{FAQ}"
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, text)


class Drain(NamedTuple):
    """When a drain of this broker began and when it refuses sends, ms since 1970; 0: it is not drained."""

    since_ms: int
    closes_at_ms: int


NO_DRAIN = Drain(0, 0)


class RecentChanges:
    """A count of changes, and the names of the last ones."""

    def __init__(self, limit: int = RECENT_CHANGES) -> None:
        self._names: deque[str] = deque(maxlen=limit)
        self._since = 0
        #: How many changes there were; the argument for a later `since`.
        self.count = 0

    def add(self, name: str) -> None:
        """Count a change: ``name`` was made, changed or removed."""
        self._names.append(name)
        self.count += 1

    def add_all(self) -> None:
        """Count a change of any row: readers must read the whole table."""
        self._names.clear()
        self.count += 1
        self._since = self.count

    def since(self, count: int) -> list[str] | None:
        """Names that changed since there were ``count`` changes, each once; None if the whole table must be read."""
        # The list has the changes since `_since`, or fewer if there were more changes than it holds.
        missed = self.count - count
        if count < self._since or not 0 <= missed <= len(self._names):
            return None
        return list(dict.fromkeys(islice(self._names, len(self._names) - missed, None)))


class Topics(JournalledTable[TopicConfig]):
    """The table of topics."""

    def __init__(self, journal: Journal, clock: Clock, options: BrokerOptions) -> None:
        super().__init__(journal, clock, FORMAT)
        # A dict lookup without a method call, unless light queues are enabled, whose topics have no row.
        if options.enable_lmq:
            self.get = self._get_or_light
        self._options = options
        #: The drain of this broker, see admin/draining.py.
        self.drain = JournalledValue(journal, "drain", NO_DRAIN, list, lambda times: Drain(*times))
        #: The names of the cluster's other brokers, as NameServers have reported them. They are registered with the
        #: topics, so that restarted NameServers know which brokers are missing.
        self.known_brokers: JournalledValue[tuple[str, ...]] = JournalledValue(
            journal, "known-brokers", (), list, lambda names: tuple(names)
        )
        #: Topics that are being deleted, or were deleted lately.
        self.deletions = TopicDeletions(journal, clock)
        #: Which of this broker's queues are parts of static topics.
        self.static = StaticTopics(journal, clock, options.broker_name)
        #: Called with the name of each topic that a send has created, except topics of groups.
        self.on_created_by_send: list[Callable[[str], None]] = []
        #: The changes of this run.
        self.changes = RecentChanges()
        self._last_created_ms = 0

    def _get_or_light(self, name: str) -> TopicConfig | None:
        config = self._table.get(name)
        return TopicConfig(name, 1, 1, PERM_READ_WRITE) if config is None and is_light(name) else config

    def has_batch_queues(self, name: str) -> bool:
        """Whether the topic stores each batch as one record."""
        config = self._table.get(name)
        return config is not None and config.attributes.get("queue.type") == BATCH_QUEUES

    def has_priorities(self, name: str) -> bool:
        """Whether pops of the topic read urgent messages first."""
        config = self._table.get(name)
        return config is not None and config.attributes.get("message.type") == PRIORITIES

    def put(self, row: TopicConfig) -> None:
        """Create or replace a topic. A new topic gets a creation stamp; an existing topic keeps its own, if any."""
        # An existing topic without a stamp gets no stamp: its creation time is unknown, and consumers that have seen a
        # former master's stamp of it would take a new stamp for another topic.
        known = self._table.get(row.topic_name)
        created_ms = self._new_stamp() if known is None else known.created_ms
        super().put(row if row.created_ms == created_ms else replace(row, created_ms=created_ms))

    def _new_stamp(self) -> int:
        # A topic that is made twice in one millisecond is two topics.
        self._last_created_ms = max(self._clock.now_ms(), self._last_created_ms + 1)
        return self._last_created_ms

    def created_ms(self, name: str) -> int | None:
        """The creation stamp of a topic; None when there is no such topic, or its stamp is not known."""
        config = self._table.get(name)
        return None if config is None else config.created_ms

    def mirror(
        self,
        table: Mapping[str, TopicConfig],
        static: Mapping[str, TopicQueueMappingDetail],
        version: DataVersion,
        drain: Drain | None = None,
    ) -> Iterator[None]:
        """Make this table, the table of static topics and the version equal to the master's, see `mirror_rows`.

        The drain becomes the master's, too, if the master reports it: a slave that was away when a drain began or ended
        would otherwise undo it when the slave becomes the master.
        """
        # Mirror mappings first: without its mapping a static topic would be read as a normal topic.
        yield from self.static.mirror(static)
        yield from self.mirror_rows(table)
        if drain is not None and self.drain.put(drain):
            self.changes.add_all()
        self.adopt_version(version)

    def put_static(self, config: TopicConfig, mapping: TopicQueueMappingDetail) -> None:
        """Create or change a static topic, and this broker's part in it."""
        if mapping != self.static.get(config.topic_name):
            self.static.put(mapping)
            self.changes.add(config.topic_name)
        if config != self.get(config.topic_name):
            # A static topic gets no stamp: its logical queues continue on brokers that make the topic later.
            self._put(config.topic_name, config)
        self._changed()

    def deletion_finished(self, name: str) -> None:
        """Raise the version, so that slaves copy the topics, and with them the finished deletion."""
        self.changes.add(name)
        self._changed()

    def create_on_send(self, name: str, default_topic: str, queue_nums: int, remote: str = "") -> TopicConfig | None:
        """The topic; made as a copy of ``default_topic`` if missing, as in RocketMQ. None if it may not be made.

        ``queue_nums``: the number of queues that the sender wants. ``remote``: the sender, for the log.
        """
        known = self.get(name)
        if known is not None:
            return known
        # New messages would be removed together with the queues of the topic that is being deleted.
        if self.deletions.is_unfinished(name):
            return None
        config = self._after_default(name, default_topic, queue_nums)
        if config is None and is_retry_topic(name):
            config = TopicConfig(name, 1, 1, PERM_READ_WRITE)
        if config is None:
            logger.warning("topic %s of a send from %s not created: %s does not allow it", name, remote, default_topic)
            return None
        self.put(config)
        logger.info("topic %s created with %d queues by a send from %s", name, config.write_queue_nums, remote)
        if not is_retry_topic(name):
            for callback in self.on_created_by_send:
                callback(name)
        return self._table[name]

    def create_retry_topic(self, group: str, queue_nums: int = 1, sys_flag: int = 0) -> TopicConfig | None:
        """The retry topic of a consumer group, made if missing.

        None while it is being removed, if its name would be too long, and on a slave, whose master makes it.
        """
        return self._create_of_group(retry_topic(group), group, queue_nums, sys_flag)

    def create_dlq_topic(self, group: str) -> TopicConfig | None:
        """The dead letter topic of a consumer group, made if missing; None as for its retry topic."""
        return self._create_of_group(dlq_topic(group), group, 1, 0)

    def _create_of_group(self, name: str, group: str, queue_nums: int, sys_flag: int) -> TopicConfig | None:
        config = self.get(name)
        makes = not self.deletions.is_unfinished(name) and not self.is_mirror and can_have_retry_topic(group)
        if config is None and makes:
            config = TopicConfig(name, queue_nums, queue_nums, PERM_READ_WRITE, topic_sys_flag=sys_flag)
            self.put(config)
        return self._table.get(name)

    def create_system_topics(self) -> None:
        """Make RocketMQ's own topics. A topic that a user has changed, or that was imported, stays as it is."""
        options = self._options
        topics = system_topics(
            options.broker_cluster_name,
            options.broker_name,
            auto_create_queue_nums=options.default_topic_queue_nums if options.auto_create_topic_enable else None,
            cluster_topic=options.cluster_topic_enable,
            broker_topic=options.broker_topic_enable,
            trace_topic=options.msg_trace_topic_name if options.trace_topic_enable else "",
        )
        self.make_system_rows(
            TopicConfig(topic.name, topic.queue_nums, topic.queue_nums, topic.perm) for topic in topics
        )

    def changed(self) -> None:
        """Raise the version: something in the registration of all topics has changed."""
        self.changes.add_all()
        self._changed()

    @property
    def registered_perm(self) -> int:
        """The permissions with which NameServers may know topics of this broker, as bits."""
        perm = self._options.broker_permission
        return perm & ~PERM_WRITE if self.drain.value.since_ms else perm

    def appliers(self) -> list[Applier]:
        """See Journalled."""
        return [*super().appliers(), *self.drain.appliers(), *self.known_brokers.appliers()]

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return chain(super().state(), self.drain.state(), self.known_brokers.state())

    def queue_for(self, topic: str, queue_id: int) -> int:
        """The queue for a deferred message: ``queue_id``, or another queue if the topic has fewer queues now."""
        config = self.get(topic)
        if config is None or queue_id < config.write_queue_nums or not config.write_queue_nums:
            return queue_id
        if topic in self._system:  # delay levels, for example, are not known by a number of queues
            return queue_id
        return queue_id % config.write_queue_nums

    def _row_changed(self, name: str) -> None:
        self.changes.add(name)

    def _differs(self, known: TopicConfig | None, row: TopicConfig) -> bool:
        # Comparing rows ignores their stamps.
        return known != row or known.created_ms != row.created_ms

    def _remove(self, name: str) -> None:
        super()._remove(name)
        self.static.delete(name)

    def _after_default(self, name: str, default_topic: str, queue_nums: int) -> TopicConfig | None:
        default = self.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._options.auto_create_topic_enable:
            return None
        count = max(1, min(queue_nums, default.write_queue_nums))
        return TopicConfig(name, count, count, default.perm & ~PERM_INHERIT, default.topic_filter_type)


_HOURS = re.compile(r"-1|[0-9]{1,18}")
# The attribute values that this broker supports (None: any value).
TOPIC_ATTRIBUTES: Mapping[str, frozenset[str] | None] = {
    "queue.type": frozenset({"SimpleCQ", BATCH_QUEUES}),
    "cleanup.policy": frozenset({"DELETE"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", PRIORITIES}),
    "max.message.size": None,
    RESERVE_TIME: None,
}


def parse_attribute_changes(text: str | None) -> dict[str, str | None]:
    """``"+a=1,-b"`` -> ``{"a": "1", "b": None}``; ValueError with RocketMQ's text."""
    changes: dict[str, str | None] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        key = name.strip()[1:]
        if equals and not name.startswith("+"):
            raise ValueError(f"add/alter attribute format is wrong: {part}")
        if not equals and not name.startswith("-"):
            raise ValueError(f"delete attribute format is wrong: {part}")
        if key in changes:
            raise ValueError(f"key duplication: {key}")
        changes[key] = value.strip() if equals else None
    return changes


def attribute_changes(attributes: Mapping[str, str]) -> dict[str, str | None]:
    """``{"+a": "1", "-b": ""}`` -> ``{"a": "1", "b": None}``. A plain name sets the attribute.

    Older tools send back all attributes that they have read.
    """
    gone = {name[1:]: None for name in attributes if name.startswith("-")}
    return gone | {name.removeprefix("+"): value for name, value in attributes.items() if not name.startswith("-")}


def changed_attributes(current: Mapping[str, str] | None, changes: Mapping[str, str | None]) -> dict[str, str]:
    """A topic's attributes with ``changes``; ``current`` is None for a topic that is being made.

    ValueError, with RocketMQ's text, for a key or a value that this broker does not support, and for a change of an
    unchangeable attribute. Setting an attribute to its present value is not a change.
    """
    result = dict(current or {})
    for key, value in changes.items():
        if key not in TOPIC_ATTRIBUTES:
            raise ValueError(f"unsupported key: {key}")
        if value is None and current is None:
            raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
        if value is None and key not in result:
            raise ValueError(f"attempt to delete a nonexistent key: {key}")
        if key in UNCHANGEABLE and current is not None and value != result.get(key):
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if value is None:
            del result[key]
            continue
        choices = TOPIC_ATTRIBUTES[key]
        if key == RESERVE_TIME and not _HOURS.fullmatch(value):
            raise ValueError(f"value is not supported: {key}={value}; give hours, or -1 for the broker's default")
        if choices is not None and value not in choices:
            raise ValueError(f"value is not supported: {key}={value}; give one of {', '.join(sorted(choices))}")
        result[key] = value
    return result
