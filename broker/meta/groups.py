"""Subscription groups: how each consumer group is served. One table in memory, each change in the journal.

What is durable when: as in topics.py. The groups that RocketMQ makes at its start are not journalled. ``forbidden`` is
what a Java broker kept of groups that may not read a topic; it is kept, and not acted on.
Neighbours: journal.py, handlers/pull.py (asks for the group at each pull), handlers/client.py (heartbeats create).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from broker.meta.journal import Journal
from broker.options import BrokerOptions
from mqcommon.clock import Clock
from mqcommon.errors import DiskFull, RequestRefused
from mqcommon.names import can_have_retry_topic, check_group
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.group import SubscriptionGroupConfig

logger = logging.getLogger(__name__)

PUT, GONE, VERSION, FORBIDDEN = "group", "group-gone", "groups-version", "groups-forbidden"
# Changes that a slave takes over in one turn of the loop: some milliseconds.
SLICE = 200
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class Groups:
    """By name; ``get`` is one dict lookup."""

    def __init__(self, journal: Journal, clock: Clock, options: BrokerOptions) -> None:
        self._journal = journal
        self._clock = clock
        self._options = options
        self._table: dict[str, SubscriptionGroupConfig] = {}
        # Those that RocketMQ makes at its start, unless something else is known of them.
        self._made: set[str] = set()
        self.forbidden: dict[str, dict[str, int]] = {}
        self.get: Callable[[str], SubscriptionGroupConfig | None] = self._table.get
        self.data_version = DataVersion(timestamp=clock.now_ms())
        #: How many groups were removed in this run.
        self.removals = 0
        #: Whether this is a copy of a master's table, to which nothing is added here.
        self.is_mirror = False
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    def names(self) -> list[str]:
        return list(self._table)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        """The table itself, for reading."""
        return self._table

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group."""
        self._journal.append(PUT, config.to_wire())
        self._table[config.group_name] = config
        self._made.discard(config.group_name)
        self._changed()

    def delete(self, name: str) -> bool:
        """Whether there was such a group."""
        if name not in self._table:
            return False
        if name not in self._made:
            self._journal.append(GONE, name)
        self._made.discard(name)
        del self._table[name]
        self.removals += 1
        self._changed()
        return True

    def mirror(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        version: DataVersion,
    ) -> Iterator[None]:
        """Make this table that of a master, and its version the master's; writes what differs.

        Groups that every broker makes at its start stay. Yields after each SLICE of groups.
        """
        gone = [name for name in self._table if name not in table and name not in SYSTEM_GROUPS]
        for number, name in enumerate(gone, 1):
            if number % SLICE == 0:
                yield
            if name in self._table:
                self._journal.append(GONE, name)
                del self._table[name]
                self.removals += 1
        for number, (name, config) in enumerate(table.items(), 1):
            if number % SLICE == 0:
                yield
            if self._table.get(name) != config:
                self._journal.append(PUT, config.to_wire())
                self._table[name] = config
                self._made.discard(name)
        taken = {group: dict(topics) for group, topics in forbidden.items()}
        if taken != self.forbidden:
            self._journal.append(FORBIDDEN, taken)
            self.forbidden = taken
        if version != self.data_version:
            self._journal.append(VERSION, version.to_wire())
            self.data_version = version
            self._tell()

    def get_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """The group; made with RocketMQ's settings where ``autoCreateSubscriptionGroup`` allows it.

        A slave serves such a group, too, and leaves it to its master to keep it. A full disk keeps nobody from reading:
        the group is served as if it were there, and made when there is room.
        """
        config = self._table.get(name)
        if config is None and self._may_create(name):
            config = SubscriptionGroupConfig(name)
            if not self.is_mirror:
                with suppress(DiskFull):
                    self.put(config)
                    logger.info("group %s created on first use", name)
                    if not can_have_retry_topic(name):
                        logger.warning("group %s gets no retry topic: the name of it would be too long", name)
        return config

    def create_system_groups(self) -> None:
        for name in SYSTEM_GROUPS:
            if name not in self._table:
                self._table[name] = SubscriptionGroupConfig(name)
                self._made.add(name)
        self.data_version = self.data_version.next(self._clock.now_ms())

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self._tell()

    def _tell(self) -> None:
        for callback in self.on_change:
            callback()

    def _may_create(self, name: str) -> bool:
        if not (self._options.auto_create_subscription_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return False
        try:
            check_group(name)
        except RequestRefused:
            return False
        return True

    # --- journal

    def apply(self, kind: str, payload: Any) -> None:
        """One record at recovery."""
        if kind == VERSION:
            self.data_version = DataVersion.from_wire(payload)
            return
        if kind == FORBIDDEN:
            self.forbidden = {group: dict(topics) for group, topics in payload.items()}
            return
        if kind == PUT:
            config = SubscriptionGroupConfig.from_wire(payload)
            self._table[config.group_name] = config
        else:
            self._table.pop(payload, None)
        self.data_version = self.data_version.next(self.data_version.timestamp)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Records that make this table as it is now; they may be made later, in a thread."""
        configs, rest = self.persistent(), [(VERSION, self.data_version.to_wire())]
        if self.forbidden:
            rest.append((FORBIDDEN, self.forbidden))
        return chain(((PUT, config.to_wire()) for config in configs), rest)

    def persistent(self) -> list[SubscriptionGroupConfig]:
        """The groups that are not made anew at each start."""
        return [config for name, config in self._table.items() if name not in self._made]
