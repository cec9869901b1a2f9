"""Topics: the list, one topic, and changes of topics."""

from collections.abc import Sequence
from dataclasses import field
from functools import partial

from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.mqconsole.people.person import ChangeFailed, with_problems
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.watching.snapshot import DEAD, RETRY, SYSTEM, USER
from skylark.mqconsole.web.asking import Asked, Done, View, check_done
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.requests.routes import BrokerData, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.changes import BrokerChange, NameServerChange
from skylark.sdk.admin.reports.counters import CounterRow, TopicCounters, topic_counters
from skylark.sdk.admin.reports.report import FLAT
from skylark.sdk.admin.reports.topics import QueueStatus, topic_status
from skylark.sdk.admin.scope import Scope
from skylark.sdk.admin.topic_changes import delete_topic, put_topic

KINDS = (USER, RETRY, DEAD, SYSTEM)
#: RocketMQ's types of messages; a topic without a type takes all messages.
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
PERMS = {"RW": 6, "R": 4, "W": 2}
MOST_QUEUES = 1_024
TOPICS = (
    Column("topic", "Topic"),
    Column("type", "Type", lambda value: value or texts.NONE),
    Column("perm", "Access", hint="R: consumers may read, W: producers may send"),
    Column("writeQueues", "Queues", texts.count, is_number=True, hint="queues that producers send to, on all sets"),
    Column("sets", "Sets", texts.count, is_number=True, hint="broker sets that have the topic"),
    Column("groups", "Groups", texts.count, is_number=True, hint="groups that have consumed it"),
    Column("lag", "Lag", texts.count, is_number=True, hint="messages that groups have not consumed, in all"),
)
QUEUES = (
    Column("brokerName", "Set"),
    Column("queueId", "Queue", is_number=True),
    Column("minOffset", "First offset", texts.count, is_number=True),
    Column("maxOffset", "End", texts.count, is_number=True, hint="the offset that the next message will get"),
    Column("messages", "Messages", texts.count, is_number=True),
    Column("lastUpdateTimestamp", "Last message", texts.moment, is_number=True),
)
GROUPS = (
    Column("consumerGroup", "Group"),
    Column("outTps", "Pulled /s", texts.count, is_number=True, hint="messages a second that its members have got"),
    Column("outMsg24Hour", "Pulled in 24 h", texts.count, is_number=True),
    Column("accumulation", "Lag", texts.count, is_number=True),
)


def add_topics(site: Site) -> None:
    """Register the pages and changes."""

    site.page("/topics", Role.READER, "topics.html", topics)
    site.page("/topics/<topic>", Role.READER, "topic.html", one_topic)
    site.change("/topics", Role.OPERATOR, create_topic)
    site.change("/topics/<topic>/change", Role.OPERATOR, change_topic)
    site.change("/topics/<topic>/delete", Role.OPERATOR, remove_topic)


async def _put(ask: Asked, topic: str) -> None:
    fields = ask.fields
    kind = fields.text("type")
    write = fields.number("writeQueues", 8, 1, MOST_QUEUES)
    config = TopicConfig(
        topic,
        read_queue_nums=fields.number("readQueues", write, 1, MOST_QUEUES),
        write_queue_nums=write,
        perm=PERMS.get(fields.text("perm"), 6),
        order=fields.flag("order"),
        attributes={"message.type": kind} if kind in TYPES else {},
    )
    found = await put_topic(ask.person.admin, Scope(None, ask.cluster()), config)
    check_done(f"create topic {topic}", found.results)


@lazy_dataclass(frozen=True, slots=True)
class SetConfig:
    """The topic's settings at the master of a set."""

    broker_name: str
    broker_addr: str
    config: TopicConfig = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue, and its number of messages."""

    status: QueueStatus = field(metadata=FLAT)
    messages: int


async def _configs(ask: Asked, topic: str, sets: Sequence[BrokerData], problems: list[str]) -> list[SetConfig]:
    """The topic's settings at each set. Failures are added to ``problems``."""
    rows = []
    for one in sets:
        addr = one.broker_addrs.get(MASTER_ID)
        if addr is None:
            problems.append(f"set {one.broker_name} has no master now")
            continue
        try:
            config: TopicConfig = await ask.person.recent(
                f"topic {addr} {topic}", partial(ask.person.admin.topic_config, addr, topic)
            )
        except BrokerError as error:
            problems.append(explain(error))
            continue
        rows.append(SetConfig(one.broker_name, addr, config))
    return rows


async def topics(ask: Asked) -> View:
    kind = ask.fields.text("kind", USER)
    rows = [row for row in ask.snapshot.topics if kind in (row.kind, "all")]
    shown = table(rows, TOPICS, wanted(ask.fields.values, keep=("kind",)), searched=("topic", "type"), sort="topic")
    data = {"kind": kind, "kinds": KINDS, "types": TYPES, "clusters": ask.snapshot.clusters()}
    return View("Topics", data, {"topics": shown}, problems=list(ask.snapshot.problems))


async def one_topic(ask: Asked, topic: str) -> View:
    person, asked = ask.person, wanted(ask.fields.values)
    status, reported = await person.recent(
        f"queues {topic}", lambda: with_problems(lambda tell: topic_status(person.admin, topic, on_problem=tell))
    )
    problems = list(reported)
    queues = [QueueRow(row, row.max_offset - row.min_offset) for row in status.queues]
    route: TopicRouteData = await person.recent(f"route {topic}", lambda: person.admin.topic_route(topic))
    # From the last round; a newer topic has no row yet.
    shape = next((row for row in ask.snapshot.topics if row.topic == topic), None)
    counted: Sequence[CounterRow] = ()
    try:
        found: TopicCounters = await person.recent(f"rates {topic}", lambda: topic_counters(person.admin, topic))
        counted = found.rows
    except SkylarkError as error:
        problems.append(f"the groups are not known: {explain(error)}")
    data = {
        "topic": topic,
        "shape": shape,
        "messages": sum(row.messages for row in queues),
        "putTps": status.put_tps,
        "route": route.broker_datas,
        "configs": await _configs(ask, topic, route.broker_datas, problems),
        "clusters": sorted({one.cluster for one in route.broker_datas}),
        "types": TYPES,
        "inTps": counted[0].in_tps if counted else None,
        "inDay": counted[0].in_of_day if counted else None,
    }
    view = View(f"Topic {topic}", data, problems=problems)
    view.tables["queues"] = table(queues, QUEUES, asked, searched=("brokerName",), sort="brokerName")
    groups = [row for row in counted if row.consumer_group]
    view.tables["groups"] = table(groups, GROUPS, wanted({}), searched=("consumerGroup",), sort="-accumulation")
    return view


async def create_topic(ask: Asked) -> Done:
    topic = ask.fields.needed("topic", "a name for the topic")
    await _put(ask, topic)
    return Done(f"/topics/{topic.replace('%', '%25')}", f"topic {topic} is created")


async def change_topic(ask: Asked, topic: str) -> Done:
    await _put(ask, topic)
    return Done(f"/topics/{topic.replace('%', '%25')}", f"topic {topic} is changed")


async def remove_topic(ask: Asked, topic: str) -> Done:
    ask.fields.confirmed(topic)
    found = await delete_topic(ask.person.admin, ask.person, topic, ask.cluster())
    asked: list[BrokerChange | NameServerChange] = [*found.brokers, *found.namesrvs]
    errors = [f"delete topic {topic}: {one.error}" for one in asked if not one.ok]
    errors += map(explain, found.failures())
    if may_have := found.may_have_it():
        errors.append(f"{', '.join(may_have)} may still have topic {topic}: delete it again when they are back")
    if errors:
        raise ChangeFailed("; ".join(errors))
    return Done("/topics", f"topic {topic} and its messages are deleted")
