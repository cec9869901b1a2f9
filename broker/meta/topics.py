"""The broker's topics: one table in memory, each change in the journal.

A change is in the journal's file when a method returns (it survives the death of the broker), and on disk after the
next ``Journal.sync``, which the shell starts at once: admin requests wait for that, a send that creates its topic does
not. Configurations are replaced, never altered in place. System topics follow from the options, so they are made at
each start and not journalled; those of a Java broker's file are, and stay as they were. Every change raises
``data_version``, which goes on from a Java broker's.
Neighbours: journal.py, registrar.py (sends the table to NameServers), handlers/send.py (creates by sending).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from broker.meta.changes import RecentChanges
from broker.meta.journal import Journal
from broker.options import BrokerOptions
from mqcommon.clock import Clock
from mqcommon.names import (
    AUTO_CREATE_TOPIC,
    PERM_INHERIT,
    PERM_READ_WRITE,
    can_have_retry_topic,
    is_retry_topic,
    retry_topic,
    system_topics,
)
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.topic import TopicConfig

logger = logging.getLogger(__name__)

PUT, GONE, VERSION = "topic", "topic-gone", "topics-version"
# Topics that a slave compares, or takes over, in one turn of the loop: some milliseconds.
SLICE = 200


class Topics:
    """By name; ``get`` is one dict lookup."""

    def __init__(self, journal: Journal, clock: Clock, options: BrokerOptions) -> None:
        self._journal = journal
        self._clock = clock
        self._options = options
        self._table: dict[str, TopicConfig] = {}
        self._system: set[str] = set()
        # Those of the system topics that are as the options say, and so not in the journal.
        self._made: set[str] = set()
        self._leaving: set[str] = set()
        self.get: Callable[[str], TopicConfig | None] = self._table.get
        self.data_version = DataVersion(timestamp=clock.now_ms())
        #: What changed in this run.
        self.changes = RecentChanges()
        #: How many topics were removed in this run.
        self.removals = 0
        #: Whether this is a copy of a master's table, to which nothing is added here.
        self.is_mirror = False
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    def names(self) -> list[str]:
        return list(self._table)

    def all(self) -> dict[str, TopicConfig]:
        """The table itself, for reading."""
        return self._table

    def is_system(self, name: str) -> bool:
        """Whether the topic is one that the broker makes for itself at its start."""
        return name in self._system

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        self._journal.append(PUT, config.to_wire())
        self._table[config.topic_name] = config
        self._made.discard(config.topic_name)
        self._changed(config.topic_name)

    def delete(self, name: str) -> bool:
        """Whether there was such a topic."""
        if name not in self._table:
            return False
        if name not in self._made:
            self._journal.append(GONE, name)
        self._made.discard(name)
        del self._table[name]
        self.removals += 1
        self._changed(name)
        return True

    def mirror(self, table: Mapping[str, TopicConfig], version: DataVersion) -> Iterator[None]:
        """Make this table that of a master, and its version the master's; writes what differs.

        Our own system topics stay where the master has none. Yields after each SLICE of topics.
        """
        gone = [name for name in self._table if name not in table and name not in self._system]
        for number, name in enumerate(gone, 1):
            if number % SLICE == 0:
                yield
            if name in self._table:
                self._journal.append(GONE, name)
                del self._table[name]
                self.removals += 1
                self.changes.note(name)
        for number, (name, config) in enumerate(table.items(), 1):
            if number % SLICE == 0:
                yield
            if self._table.get(name) != config:
                self._journal.append(PUT, config.to_wire())
                self._table[name] = config
                self._made.discard(name)
                self.changes.note(name)
        if version != self.data_version:
            self._journal.append(VERSION, version.to_wire())
            self.data_version = version
            self._tell()

    @contextmanager
    def leaving(self, name: str) -> Iterator[None]:
        """While its queues are removed, a deleted topic is not created again: what came would go with them."""
        self._leaving.add(name)
        try:
            yield
        finally:
            self._leaving.discard(name)

    def create_on_send(self, name: str, default_topic: str, queue_nums: int, remote: str = "") -> TopicConfig | None:
        """The topic, made after ``default_topic`` as RocketMQ does it; None when that is not to be."""
        known = self._table.get(name)
        if known is not None:
            return known
        if name in self._leaving:
            return None
        config = self._after_default(name, default_topic, queue_nums)
        if config is None and is_retry_topic(name):
            config = TopicConfig(name, 1, 1, PERM_READ_WRITE)
        if config is None:
            logger.warning("topic %s of a send from %s not created: %s does not allow it", name, remote, default_topic)
            return None
        self.put(config)
        logger.info("topic %s created with %d queues by a send from %s", name, config.write_queue_nums, remote)
        return config

    def create_retry_topic(self, group: str, queue_nums: int = 1, sys_flag: int = 0) -> TopicConfig | None:
        """The retry topic of a consumer group; None while it is removed, and where its name is too long.

        None on a slave, too: its master makes it.
        """
        name = retry_topic(group)
        config = self._table.get(name)
        makes = name not in self._leaving and not self.is_mirror and can_have_retry_topic(group)
        if config is None and makes:
            config = TopicConfig(name, queue_nums, queue_nums, PERM_READ_WRITE, topic_sys_flag=sys_flag)
            self.put(config)
        return config

    def create_system_topics(self) -> None:
        """RocketMQ's own topics; one that a user has changed, or a Java broker had, stays as it is."""
        options = self._options
        for topic in system_topics(
            options.broker_cluster_name,
            options.broker_name,
            auto_create_queue_nums=options.default_topic_queue_nums if options.auto_create_topic_enable else None,
            cluster_topic=options.cluster_topic_enable,
            broker_topic=options.broker_topic_enable,
            trace_topic=options.trace_topic_enable,
        ):
            self._system.add(topic.name)
            if topic.name not in self._table:
                self._table[topic.name] = TopicConfig(topic.name, topic.queue_nums, topic.queue_nums, topic.perm)
                self._made.add(topic.name)
        # A new version at each start: system topics may differ from those of the last run.
        self.data_version = self.data_version.next(self._clock.now_ms())

    def changed(self) -> None:
        """Raise the version: something that NameServers are told of all topics is different."""
        self.changes.note_all()
        self._raise_version()

    def _changed(self, name: str) -> None:
        self.changes.note(name)
        self._raise_version()

    def _raise_version(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self._tell()

    def _tell(self) -> None:
        for callback in self.on_change:
            callback()

    # --- journal

    def apply(self, kind: str, payload: Any) -> None:
        """One record at recovery."""
        if kind == VERSION:
            self.data_version = DataVersion.from_wire(payload)
            return
        if kind == PUT:
            config = TopicConfig.from_wire(payload)
            self._table[config.topic_name] = config
        else:
            self._table.pop(payload, None)
        self.data_version = self.data_version.next(self.data_version.timestamp)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Records that make this table as it is now; they may be made later, in a thread."""
        configs, version = self.persistent(), self.data_version
        return chain(((PUT, config.to_wire()) for config in configs), [(VERSION, version.to_wire())])

    def persistent(self) -> list[TopicConfig]:
        """The topics that are not made anew at each start."""
        return [config for name, config in self._table.items() if name not in self._made]

    def _after_default(self, name: str, default_topic: str, queue_nums: int) -> TopicConfig | None:
        default = self._table.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._options.auto_create_topic_enable:
            return None
        count = max(1, min(queue_nums, default.write_queue_nums))
        return TopicConfig(name, count, count, default.perm & ~PERM_INHERIT, default.topic_filter_type)
