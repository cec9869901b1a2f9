"""Commands for static topics of RocketMQ 5: a fixed number of queues, whichever brokers they are on."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import option, topic_option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, MAX_QUEUE_NUMS
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.sdk.admin.remapping import State
    from skylark.sdk.admin.static_topics import StaticTopic

_TABLE = Table(
    (
        ("#QID", "queue_id"),
        ("#Broker", "broker_name"),
        ("#BrokerQID", "broker_queue_id"),
        ("#From", "logic_offset"),
        ("#Was", "before"),
    ),
    "%-6d %-32s %-10d %-16d %s",
)


@lazy_dataclass(frozen=True, slots=True)
class StaticQueue:
    """A queue of a static topic, the broker that leads it from ``logic_offset`` on, and the former leader, if any."""

    queue_id: int
    broker_name: str
    broker_queue_id: int
    logic_offset: int
    before: str | None


@lazy_dataclass(frozen=True, slots=True)
class StaticQueues:
    """A static topic after a change, or with ``dry_run`` after a planned change."""

    topic: str
    dry_run: bool
    epoch: int
    queues: Sequence[StaticQueue]


def _lines(result: StaticQueues) -> Iterator[str]:
    yield from _TABLE.lines(result.queues)
    changed = sum(row.before != row.broker_name for row in result.queues)
    if not changed:
        yield f"topic {result.topic} has these queues already."
    elif result.dry_run:
        yield f"{changed} queues would be new on their brokers."
    else:
        yield f"done: topic {result.topic}, {changed} queues are new on their brokers."


def _brokers() -> tuple[click.Option, click.Option]:
    return (
        option("b", "brokers", "names of the brokers, separated by commas", default=None),
        option("c", "clusters", "clusters, separated by commas: all of their brokers", default=None),
    )


def _dry_run() -> click.Option:
    return option("", "dryRun", "show the plan and change nothing", type=bool, is_flag=True)


async def _targets(session: Session, brokers: str | None, clusters: str | None) -> list[str]:
    """The names of the brokers that -b or -c choose."""
    if (brokers is None) == (clusters is None):
        raise UserError("give -b BROKERS or -c CLUSTERS, and not both")
    info = await session.admin.cluster_info()
    masters = [one for one in all_targets(info) if one.broker_id == MASTER_ID]
    wanted = [name for name in map(str.strip, (brokers or clusters or "").split(",")) if name]
    known = {one.broker_name if brokers is not None else one.cluster for one in masters}
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = "broker" if brokers is not None else "cluster"
        raise UserError(
            f"no {what} {', '.join(map(repr, unknown)) or 'is named'}; the NameServer knows: {', '.join(sorted(known))}"
        )
    chosen = [one.broker_name for one in masters if (one.broker_name if brokers is not None else one.cluster) in wanted]
    return list(dict.fromkeys(chosen))


def _result(topic: str, before: "State", after: "State", *, dry_run: bool) -> StaticQueues:
    known = before.queues
    rows = []
    for number, queue in after.queues.items():
        leader = queue.leader
        led_by = known[number].leader.bname if number in known else None
        rows.append(StaticQueue(number, leader.bname, leader.queue_id, leader.logic_offset, led_by))
    return StaticQueues(topic, dry_run, after.epoch, rows)


async def _static_topic(session: Session, topic: str, brokers: str | None, clusters: str | None) -> "StaticTopic":
    from skylark.sdk.admin.static_topics import StaticTopic

    targets = await _targets(session, brokers, clusters)
    return StaticTopic(session.admin, topic, targets, say=session.say, progress=session.progress)


@command(
    "updateStaticTopic",
    topic_option(),
    option("qn", "totalQueueNum", "queues in all", type=click.IntRange(1, MAX_QUEUE_NUMS), required=True),
    *_brokers(),
    _dry_run(),
    show=_lines,
)
async def update_static_topic(
    session: Session, topic: str, total_queue_num: int, brokers: str | None, clusters: str | None, dry_run: bool
) -> StaticQueues:
    """Make a static topic, or give a static topic more queues.

    A static topic has a fixed total of queues, whichever brokers they are on: a message key stays in its queue when
    queues move (remappingStaticTopic). Clients of RocketMQ 5 and Skylark understand static topics, older clients do
    not.
    """
    work = await _static_topic(session, topic, brokers, clusters)
    before, after = await work.grow(total_queue_num, dry_run=dry_run)
    return _result(topic, before, after, dry_run=dry_run)


@command("remappingStaticTopic", topic_option(), *_brokers(), _dry_run(), show=_lines)
async def remapping_static_topic(
    session: Session, topic: str, brokers: str | None, clusters: str | None, dry_run: bool
) -> StaticQueues:
    """Spread the queues of a static topic evenly over these brokers, while the topic is used.

    Messages stay where they are: the new broker of a queue asks the former one for them until all groups have read
    them, so the former broker must live until its messages of the topic have expired. After a kill,
    run the command again.
    """
    work = await _static_topic(session, topic, brokers, clusters)
    before, after = await work.move(dry_run=dry_run)
    return _result(topic, before, after, dry_run=dry_run)


FAMILIES = {"Static topics": (update_static_topic, remapping_static_topic)}
