"""The progress of all groups, which each broker tells in one answer.

A request for each group, to each of its brokers, takes a minute where there are thousands of groups.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdk.admin.session import Session
from sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from remoting.protocol.requests.groups import ConsumeStats


@dataclass
class GroupProgress:
    """What the brokers that have answered say of their groups."""

    #: Group → its queues at all brokers.
    stats: "dict[str, ConsumeStats]" = field(default_factory=dict)
    #: Group → the brokers that list it.
    addrs: dict[str, list[str]] = field(default_factory=dict)
    #: Whether all brokers have answered.
    is_whole: bool = True

    def lag(self, group: str, topic: str, broker_names: Iterable[str]) -> int | None:
        """How many messages of ``topic`` wait for the group; None unless all of its brokers tell of the group.

        A broker tells of the topics of which the group has consumed something there.
        """
        stats = self.stats.get(group)
        rows = {} if stats is None else {mq: row for mq, row in stats.offset_table.items() if mq.topic == topic}
        if not {mq.broker_name for mq in rows}.issuperset(broker_names):
            return None
        return sum(row.broker_offset - row.consumer_offset for row in rows.values())


async def progress_of_groups(session: Session) -> GroupProgress:
    """Ask one broker of each set: its master, or its lowest slave while there is none. Failures are shown."""
    from remoting.protocol.requests.groups import ConsumeStats

    first: dict[tuple[str, str], str] = {}
    for target in all_targets(await session.admin.cluster_info()):
        first.setdefault((target.cluster, target.broker_name), target.addr)
    answers = await session.each(first.values(), session.admin.broker_consume_stats)
    found = GroupProgress(is_whole=not answers.errors)
    for addr, error in answers.errors.items():
        session.fail(error, f"groups of broker {addr}")
    for addr, every in answers.values.items():
        for table in every.consume_stats_list:
            for group, parts in table.items():
                merged = found.stats.setdefault(group, ConsumeStats())
                found.addrs.setdefault(group, []).append(addr)
                for part in parts:
                    merged.offset_table.update(part.offset_table)
                    merged.consume_tps += part.consume_tps
    return found
