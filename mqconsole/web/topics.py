"""Topics: the list, one topic, and changes of topics."""

from functools import partial
from typing import Any

from skylark.mqadmin.commands.stats import stats_all
from skylark.mqadmin.commands.topics import delete_topic, topic_route, topic_status, update_topic
from skylark.mqadmin.scope import Scope
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.watching.snapshot import DEAD, RETRY, SYSTEM, USER
from skylark.mqconsole.web.asking import Asked, Done, View
from skylark.mqconsole.web.site import Site
from skylark.sdk.admin.failures import explain

KINDS = (USER, RETRY, DEAD, SYSTEM)
#: RocketMQ's types of messages; a topic without one takes all.
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
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
    await ask.person.run(
        update_topic,
        scope=Scope(None, ask.cluster()),
        topic=topic,
        read_queue_nums=fields.number("readQueues", write, 1, MOST_QUEUES),
        write_queue_nums=write,
        perm=PERMS.get(fields.text("perm"), 6),
        order=fields.flag("order"),
        unit=False,
        has_unit_sub=False,
        attributes={"message.type": kind} if kind in TYPES else None,
    )


async def _configs(ask: Asked, topic: str, sets: list[dict[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    """The topic's settings at the master of each set."""
    rows = []
    for one in sets:
        # In a route that was read from JSON the ids are texts.
        addr = one["brokerAddrs"].get(0) or one["brokerAddrs"].get("0")
        if addr is None:
            problems.append(f"set {one['brokerName']} has no master now")
            continue
        try:
            config = await ask.person.recent(
                f"topic {addr} {topic}", partial(ask.person.admin.topic_config, addr, topic)
            )
        except BrokerError as error:
            problems.append(explain(error))
            continue
        rows.append({"brokerName": one["brokerName"], "brokerAddr": addr, **config.to_wire()})
    return rows


async def topics(ask: Asked) -> View:
    kind = ask.fields.text("kind", USER)
    rows = [row for row in ask.snapshot.topics if kind in (row["kind"], "all")]
    shown = table(rows, TOPICS, wanted(ask.fields.values, keep=("kind",)), searched=("topic", "type"), sort="topic")
    data = {"kind": kind, "kinds": KINDS, "types": TYPES, "clusters": ask.snapshot.clusters()}
    return View("Topics", data, {"topics": shown}, problems=list(ask.snapshot.problems))


async def one_topic(ask: Asked, topic: str) -> View:
    person, asked = ask.person, wanted(ask.fields.values)
    found = await person.recent(f"queues {topic}", lambda: person.look(topic_status, topic=topic, cluster=None))
    status, problems = found
    queues = [row | {"messages": row["maxOffset"] - row["minOffset"]} for row in status["queues"]]
    route, _ = await person.recent(f"route {topic}", lambda: person.look(topic_route, topic=topic, list=False))
    # Of the last round of all brokers; a topic that is younger has none yet.
    shape = next((row for row in ask.snapshot.topics if row["topic"] == topic), None)
    data: dict[str, Any] = {
        "topic": topic,
        "shape": shape,
        "messages": sum(row["messages"] for row in queues),
        "putTps": status["topicPutTps"],
        "route": route["brokerDatas"],
        "configs": await _configs(ask, topic, route["brokerDatas"], problems := list(problems)),
        "clusters": sorted({one["cluster"] for one in route["brokerDatas"]}),
        "types": TYPES,
    }
    view = View(f"Topic {topic}", data, problems=problems)
    view.tables["queues"] = table(queues, QUEUES, asked, searched=("brokerName",), sort="brokerName")
    counted: list[dict[str, Any]] = []
    try:
        counted, _ = await person.recent(
            f"rates {topic}", lambda: person.look(stats_all, active_topic=False, topic=topic)
        )
    except SkylarkError as error:
        view.problems.append(f"the groups are not known: {explain(error)}")
    data["inTps"] = counted[0]["inTps"] if counted else None
    data["inDay"] = counted[0]["inMsg24Hour"] if counted else None
    groups = [row for row in counted if row["consumerGroup"]]
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
    await ask.person.run(delete_topic, topic=topic, cluster_name=ask.cluster())
    return Done("/topics", f"topic {topic} and its messages are deleted")
