"""Subscription groups: how each consumer group is served.

table.py has the rows, the journal and the versions. The groups that RocketMQ makes at its start are not journalled.
``forbidden`` is a Java broker's table of groups that may not read a topic; it is kept but has no effect.
Neighbours: table.py, delivery/pull_handlers.py (asks for the group at each pull), client_handlers.py (heartbeats).
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from operator import attrgetter

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Applier, Change, JournalledTable, JournalledValue, TableFormat
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.names import SYSTEM_GROUP_PREFIX, TOOLS_GROUP, can_have_retry_topic, check_group, is_light
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig

logger = logging.getLogger(__name__)

FORMAT = TableFormat(
    "group",
    "group-gone",
    "groups-version",
    attrgetter("group_name"),
    SubscriptionGroupConfig.to_wire,
    SubscriptionGroupConfig.from_wire,
)
FORBIDDEN = "groups-forbidden"
#: The attribute that says how many percent of a group's pops go by priority; the others read all queues alike.
PRIORITY_FACTOR = "priority.factor"
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

# With this many groups, no more are made on first use: any client may name a group, and each group stays, with a retry
# topic.
MAX_MADE_ON_USE = 100_000

# A Java broker's table, by group and topic.
Forbidden = Mapping[str, Mapping[str, int]]


class Groups(JournalledTable[SubscriptionGroupConfig]):
    """The table of groups."""

    def __init__(self, journal: Journal, clock: Clock, options: BrokerOptions) -> None:
        super().__init__(journal, clock, FORMAT)
        if options.enable_lmq:
            self.get = self._get_or_light
        self._options = options
        self._told_full = False
        self._forbidden = JournalledValue[dict[str, dict[str, int]]](journal, FORBIDDEN, {}, _copied, _copied)

    @property
    def forbidden(self) -> dict[str, dict[str, int]]:
        """A Java broker's table of groups that may not read a topic; kept, but without effect."""
        return self._forbidden.value

    def _get_or_light(self, name: str) -> SubscriptionGroupConfig | None:
        config = self._table.get(name)
        return SubscriptionGroupConfig(name) if config is None and is_light(name) else config

    def mirror(
        self, table: Mapping[str, SubscriptionGroupConfig], forbidden: Forbidden, version: DataVersion
    ) -> Iterator[None]:
        """Make this table and its version equal to the master's, see `mirror_rows`."""
        yield from self.mirror_rows(table)
        self._forbidden.put(_copied(forbidden))
        self.adopt_version(version)

    def get_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """The group; made with RocketMQ's settings where ``autoCreateSubscriptionGroup`` allows it.

        A slave serves an unknown group without making it: its master makes it. On a full disk, too, the group is
        served; it is made when there is room.
        """
        config = self.get(name)
        if config is None and self._may_create(name):
            config = SubscriptionGroupConfig(name)
            # A slave makes no row: the row would differ from the master's table, and the next copy would remove it.
            if not self.is_mirror:
                with suppress(DiskFull):
                    self.put(config)
                    logger.info("group %s created on first use", name)
                    if not can_have_retry_topic(name):
                        logger.warning("group %s gets no retry topic: the topic's name would be too long", name)
        return config

    def may_be_used(self, name: str) -> bool:
        """Whether `get_or_create` finds or makes the group."""
        return self.get(name) is not None or self._may_create(name)

    def create_system_groups(self) -> None:
        """Make RocketMQ's own groups; groups that exist already stay as they are."""
        self.make_system_rows(map(SubscriptionGroupConfig, SYSTEM_GROUPS))

    def appliers(self) -> list[Applier]:
        """See Journalled."""
        return [*super().appliers(), *self._forbidden.appliers()]

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return chain(super().state(), self._forbidden.state())

    def _may_create(self, name: str) -> bool:
        if not (self._options.auto_create_subscription_group or name.startswith(SYSTEM_GROUP_PREFIX)):
            return False
        try:
            check_group(name)
        except RequestRefused:
            return False
        if len(self._table) >= MAX_MADE_ON_USE and not self.is_mirror:
            if not self._told_full:
                self._told_full = True
                logger.warning(
                    "this broker has %d groups, so it makes no more on first use: make them with mqadmin"
                    " updateSubGroup, or delete some",
                    len(self._table),
                )
            return False
        return True


def _copied(forbidden: Forbidden) -> dict[str, dict[str, int]]:
    return {group: dict(topics) for group, topics in forbidden.items()}
