"""cloneTopics: gives a broker the topics of another broker. RocketMQ has no such command."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.order_records import NAMESPACE, parse_order_conf
from skylark.sdk.admin.reports.report import named
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.topics import TopicConfig

# Attributes that are fixed when a topic is made.
_FIXED = ("queue.type", "cleanup.policy")
_TABLE = Table(
    (("#Action", "action"), ("#Kind", "kind"), ("#Name", "name"), ("#What", "what")), "%-8s  %-5s  %-48s  %s"
)


@lazy_dataclass(frozen=True, slots=True)
class CloneStep:
    """The action for a topic, a group or an order."""

    #: create, change, keep, set or conflict.
    action: str
    #: topic, group or order.
    kind: str
    name: str
    what: str


@lazy_dataclass(frozen=True, slots=True)
class ClonePlan:
    """The topics, groups and orders that a broker gets from another broker."""

    source_addr: str = field(metadata=named("from"))
    target_addr: str = field(metadata=named("to"))
    is_dry_run: bool = field(metadata=named("dryRun"))
    plan: tuple[CloneStep, ...]


def _lines(cloned: ClonePlan) -> Iterator[str]:
    yield from _TABLE.lines(cloned.plan)
    did = "would be done" if cloned.is_dry_run else "done"
    counts = Counter(step.action for step in cloned.plan)
    target = cloned.target_addr
    yield f"{counts['create']} created, {counts['change']} changed, {counts['set']} orders set on {target}: {did}"


@command(
    "cloneTopics",
    click.Option(
        ["--from", "source_name"],
        metavar="BROKER",
        required=True,
        help="name or address of the broker that has the topics",
    ),
    click.Option(
        ["--to", "target_name"], metavar="BROKER", required=True, help="name or address of the broker that gets them"
    ),
    click.Option(["--groups"], is_flag=True, help="also make the subscription groups that --to does not have"),
    click.Option(["--dry-run", "--dryRun", "dry_run"], is_flag=True, help="show what would be done, and do nothing"),
    show=_lines,
)
async def clone_topics(session: Session, source_name: str, target_name: str, groups: bool, dry_run: bool) -> ClonePlan:
    """Create the topics of a broker on another broker, as a new broker needs them.

    Topics get the numbers of queues, the permission, the attributes and the order that they have on --from. A topic
    that --to has already keeps its queues if they are more. If the NameServers have a record of an ordered topic's
    queues on --from, they get a record for --to, too. System topics are left out, and so are %RETRY% and %DLQ% topics,
    which a broker makes when its groups need them. The command may be run again: finished steps are kept.
    """
    from skylark.sdk.admin.reports.metadata import user_groups, user_topics

    targets = all_targets(await session.admin.cluster_info())
    source, target = _master(targets, source_name, "--from"), _master(targets, target_name, "--to")
    if source == target:
        raise UserError(f"--from and --to are the same broker, {source.broker_name} at {source.addr}")
    wanted = (await user_topics(session.admin, source.addr, special=False)).topic_config_table
    present = (await session.admin.all_topic_config(target.addr)).topic_config_table
    plan: list[CloneStep] = []
    changes: dict[str, TopicConfig] = {}
    for name, config in sorted(wanted.items()):
        try:
            change = _change(config, present.get(name))
        except ValueError as error:
            plan.append(CloneStep("conflict", "topic", name, str(error)))
            session.fail(UserError(f"topic {name} stays as it is on {target.broker_name}: {error}"))
            continue
        if change is not None:
            changes[name] = change
        action = "keep" if change is None else "change" if name in present else "create"
        plan.append(CloneStep(action, "topic", name, _text(change or present[name])))
    ordered = [step.name for step in plan if step.action != "conflict" and wanted[step.name].order]
    orders = await _orders(session, ordered, source, target, changes)
    plan += [CloneStep("set", "order", topic, conf) for topic, conf in sorted(orders.items())]
    missing = {}
    if groups:
        own = (await session.admin.all_groups(target.addr)).subscription_group_table
        every = (await user_groups(session.admin, source.addr)).subscription_group_table
        missing = {name: config for name, config in sorted(every.items()) if name not in own}
        plan += [CloneStep("keep" if name in own else "create", "group", name, "") for name in sorted(every)]
    if not dry_run:
        made = await session.each(changes, lambda name: session.admin.create_topic(target.addr, changes[name]))
        grouped = await session.each(missing, lambda name: session.admin.create_group(target.addr, missing[name]))
        for name, failure in [*made.errors.items(), *grouped.errors.items()]:
            session.fail(failure, f"create {name} on {target.broker_name}")
        # Last: producers of an ordered topic go to all brokers that its record names.
        for topic, conf in orders.items():
            if topic not in made.errors:
                await session.admin.put_kv(NAMESPACE, topic, conf)
    return ClonePlan(source.addr, target.addr, dry_run, tuple(plan))


def _master(targets: list[Target], which: str, option_name: str) -> Target:
    """The master of the broker whose name is ``which``, or whose address is ``which``."""
    masters = [one for one in targets if one.broker_id == MASTER_ID]
    found = next((one for one in masters if which in (one.broker_name, one.addr)), None)
    if found is None:
        known = ", ".join(f"{one.broker_name} at {one.addr}" for one in masters) or "none"
        raise UserError(f"{option_name} {which}: no master of that name or address; the NameServer knows: {known}")
    return found


def _change(wanted: "TopicConfig", present: "TopicConfig | None") -> "TopicConfig | None":
    """The change that gives a broker the topic; None if it has the topic. ValueError if an attribute cannot change."""
    added = {f"+{name}": value for name, value in sorted(wanted.attributes.items())}
    if present is None:
        return replace(wanted, attributes=added)
    for name in _FIXED:
        ours, theirs = wanted.attributes.get(name), present.attributes.get(name)
        if ours != theirs:
            raise ValueError(f"its {name} is {theirs or 'not set'}, and {ours or 'not set'} on the other broker")
    goal = replace(
        wanted,
        read_queue_nums=max(wanted.read_queue_nums, present.read_queue_nums),
        write_queue_nums=max(wanted.write_queue_nums, present.write_queue_nums),
        attributes={**present.attributes, **wanted.attributes},
    )
    if goal == present:
        return None
    changed = {name: value for name, value in added.items() if present.attributes.get(name[1:]) != value}
    return replace(goal, attributes=changed)


def _text(config: "TopicConfig") -> str:
    more = "".join(f" {name.lstrip('+')}={value}" for name, value in config.attributes.items())
    queues = f"read={config.read_queue_nums} write={config.write_queue_nums} perm={config.perm}"
    return f"{queues}{' order' if config.order else ''}{more}"


async def _orders(
    session: Session, topics: list[str], source: Target, target: Target, changes: "Mapping[str, TopicConfig]"
) -> dict[str, str]:
    """The records of ordered topics that lack the queues of ``target``, with these queues added."""
    records = await session.each(topics, lambda topic: session.admin.get_kv(NAMESPACE, topic))
    records.all()
    found = {}
    for topic, record in records.values.items():
        entries = parse_order_conf(record or "")
        if source.broker_name not in entries:
            continue
        count = str(changes[topic].write_queue_nums) if topic in changes else entries[source.broker_name]
        known = entries.get(target.broker_name, "0")
        if not known.isdigit() or int(known) < int(count):
            entries[target.broker_name] = count
            found[topic] = ";".join(f"{name}:{number}" for name, number in entries.items())
    return found


FAMILIES = {"Topics": (clone_topics,)}
