"""The progress of all groups, with their members and the traffic of topics, from one answer of each broker.

A request for each group, to each of its brokers, takes a minute where there are thousands of groups. RocketMQ's brokers
report the progress only; in this case, or when an answer would be too large, callers ask for one group at a time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import BrokerError
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.groups import ConsumeStats, ConsumeStatsList, GroupMembers, Traffic
    from skylark.sdk.admin.client import Admin


@dataclass
class TopicTraffic:
    """The topics in one broker's answer."""

    #: Topic → the groups that read the topic.
    readers: Mapping[str, Collection[str]]
    #: (topic, group) → messages; the group "" stands for sends. Topics and groups without messages are left out.
    counted: "Mapping[tuple[str, str], Traffic]"


@dataclass
class ProgressOfGroups:
    """The groups in the answers of all brokers that have answered."""

    #: Group → its queues at all brokers.
    stats: "dict[str, ConsumeStats]" = field(default_factory=dict)
    #: Group → the brokers that list it.
    addrs: dict[str, list[str]] = field(default_factory=dict)
    #: Group → its connected members at all brokers; None when a broker does not report members.
    members: "dict[str, GroupMembers] | None" = None
    #: Broker address → traffic; only brokers that report traffic.
    traffic: dict[str, TopicTraffic] = field(default_factory=dict)
    #: Whether all brokers have answered.
    is_whole: bool = True

    def lag(self, group: str, topic: str, broker_names: Iterable[str]) -> int | None:
        """How many messages of ``topic`` wait for the group; None unless all of its brokers report the group.

        A broker reports a group's topic once the group has consumed a message of the topic there.
        """
        stats = self.stats.get(group)
        rows = {} if stats is None else {mq: row for mq, row in stats.offset_table.items() if mq.topic == topic}
        if not {mq.broker_name for mq in rows}.issuperset(broker_names):
            return None
        return sum(row.broker_offset - row.consumer_offset for row in rows.values())


async def progress_of_groups(
    admin: "Admin",
    *,
    members: bool = False,
    traffic: bool = False,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> ProgressOfGroups:
    """Ask one broker of each set: its master, or its lowest slave without a master. Failures are problems."""
    from skylark.remoting.protocol.codes import ResponseCode

    async def ask(addr: str) -> "ConsumeStatsList":
        try:
            return await admin.broker_consume_stats(addr, members=members, traffic=traffic)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
        # The whole does not fit into one answer.
        return await admin.broker_consume_stats(addr)

    first: dict[tuple[str, str], str] = {}
    for target in all_targets(await admin.cluster_info()):
        first.setdefault((target.cluster, target.broker_name), target.addr)
    answers = await ask_each(first.values(), ask, on_progress)
    report_unanswered("groups of broker", answers, on_problem)
    return _merged(answers.values, is_whole=not answers.errors)


def _merged(answers: "Mapping[str, ConsumeStatsList]", *, is_whole: bool) -> ProgressOfGroups:
    from skylark.remoting.protocol.requests.groups import ConsumeStats

    found = ProgressOfGroups(members=_merged_members(answers), is_whole=is_whole)
    for addr, every in answers.items():
        for table in every.consume_stats_list:
            for group, parts in table.items():
                merged = found.stats.setdefault(group, ConsumeStats())
                found.addrs.setdefault(group, []).append(addr)
                for part in parts:
                    merged.offset_table.update(part.offset_table)
                    merged.consume_tps += part.consume_tps
        if every.readers is not None and every.traffic is not None:
            counted = {(one.topic, one.group): one for one in every.traffic}
            found.traffic[addr] = TopicTraffic(every.readers, counted)
    return found


def _merged_members(answers: "Mapping[str, ConsumeStatsList]") -> "dict[str, GroupMembers] | None":
    """The members at all brokers, each once."""
    merged: dict[str, GroupMembers] = {}
    for every in answers.values():
        if every.members is None:
            return None
        for group, members in every.members.items():
            merged.setdefault(group, members).versions.update(members.versions)
    return merged
