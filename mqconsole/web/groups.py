"""Consumer groups: the list, one group and its lag over time, resets with a preview, dead letters."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import orjson

from skylark.mqcommon.errors import BrokerError, InvalidArgument, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import dlq_topic, is_retry_topic
from skylark.mqconsole.people.person import whole, with_problems
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.charts import Line, as_csv, chart, largest, sparkline
from skylark.mqconsole.showing.reasons import GroupState, reasons
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.showing.work import Work, together
from skylark.mqconsole.watching.snapshot import SYSTEM, USER, queues_of
from skylark.mqconsole.web.asking import Asked, Done, Download, NoSuchThing, View
from skylark.mqconsole.web.members import ConnectedMember, figures, members_table, work_of
from skylark.mqconsole.web.overview import span_of
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.sdk.admin.client import END_OF_QUEUE
from skylark.sdk.admin.dead_letters import DeadLetter, DeadLetterChoice
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.dead_letters import DeadLetterReport, letter_report
from skylark.sdk.admin.reports.dead_letters import resend_dead_letters as resend
from skylark.sdk.admin.reports.groups import GroupConfig, group_configs, group_progress
from skylark.sdk.admin.reports.letter_lines import line_of
from skylark.sdk.admin.reports.members import ConsumerConnections, consumer_connections, members_status
from skylark.sdk.admin.reports.offsets import reset_offsets, reset_preview
from skylark.sdk.admin.reports.report import FLAT, plain
from skylark.sdk.admin.scope import is_known

GROUPS = (
    Column("group", "Group"),
    Column("lag", "Lag", texts.count, is_number=True, hint="messages that it has not consumed"),
    Column(
        "consumeTps", "Consumed /s", texts.count, is_number=True, hint="messages a second, by how far its offsets moved"
    ),
    Column("topics", "Topics", texts.count, is_number=True),
    Column("worstTopic", "Most lag in", lambda value: value or texts.NONE),
)
QUEUES = (
    Column("topic", "Topic"),
    Column("brokerName", "Set"),
    Column("queueId", "Queue", is_number=True),
    Column("consumerOffset", "Consumed to", texts.count, is_number=True),
    Column("brokerOffset", "End", texts.count, is_number=True),
    Column("diff", "Lag", texts.count, is_number=True),
    Column("lagMs", "Waits for", texts.duration, is_number=True, hint="how long the next message has been waiting"),
    Column("inflight", "In flight", texts.count, is_number=True, hint="given to a consumer, not consumed yet"),
    Column("clientIP", "Consumer", lambda value: value or texts.NONE),
)
RESET = (
    Column("topic", "Topic"),
    Column("brokerName", "Set"),
    Column("queueId", "Queue", is_number=True),
    Column("from", "Now at", texts.count, is_number=True),
    Column("to", "Then at", texts.count, is_number=True),
    Column("again", "Read again", texts.count, is_number=True),
    Column("skipped", "Skipped", texts.count, is_number=True),
)
LETTERS = (
    Column("topic", "Topic"),
    Column("msgId", "Message"),
    Column("deliveries", "Deliveries", texts.count, is_number=True),
    Column(
        "resentTimes",
        "Resent",
        texts.count,
        is_number=True,
        hint="how many times it was sent to the group again, before it died last and since",
    ),
    Column("failTime", "Died", texts.moment, is_number=True),
    Column("failReason", "Reason", lambda value: value or texts.NONE),
)
#: The most dead letters in a page, and in a file.
MOST_LETTERS, MOST_EXPORTED = 500, 10_000
MOST_LETTER_BYTES = 32 * 1024 * 1024
#: The rate of a resend, in messages a second, and the most messages that one request of a browser resends.
RESEND_RATE, MOST_RESENT = 500.0, 1_000


def add_groups(site: Site) -> None:
    """Register the pages and changes."""

    site.page("/groups", Role.READER, "groups.html", groups)
    site.page("/groups/<group>", Role.READER, "group.html", one_group)
    site.download("/groups/<group>/lag.svg", Role.READER, lag_svg)
    site.download("/groups/<group>/lag.csv", Role.READER, lag_csv)
    site.page("/groups/<group>/reset", Role.READER, "reset.html", preview_reset)
    site.change("/groups/<group>/reset", Role.OPERATOR, reset_group)
    site.change("/groups", Role.OPERATOR, create_group)
    site.change("/groups/<group>/change", Role.OPERATOR, change_group)
    site.change("/groups/<group>/delete", Role.OPERATOR, remove_group)
    site.page("/groups/<group>/dead", Role.READER, "dead.html", dead_letters)
    site.download("/groups/<group>/dead.jsonl", Role.READER, export_dead_letters)
    site.change("/groups/<group>/dead/resend", Role.OPERATOR, resend_dead_letters)


def _of(group: str) -> str:
    return f"/groups/{group.replace('%', '%25')}"


def _reset_time(ask: Asked) -> int:
    """The time at which a group is to go on: -1 is the end of each queue."""
    # No default: the end skips messages, and the beginning repeats messages.
    where = ask.fields.needed("where", "where the group goes on: at a time, the beginning or the end")
    if where == "end":
        return END_OF_QUEUE
    if where == "begin":
        return 0
    if where != "time":
        raise InvalidArgument(f"where must be time, begin or end, not {where!r}")
    if (at_ms := ask.fields.moment("at")) is None:
        raise InvalidArgument("give a time, or choose the beginning or the end")
    if at_ms > time.time_ns() // 1_000_000:
        raise InvalidArgument("the time must not be in the future")
    return at_ms


def _lag_chart(ask: Asked, group: str) -> tuple[str, list[Line], str]:
    """The group's lag, in all and in the queues with the largest lag."""
    history = ask.collector.history
    span, from_s, to_s = span_of(ask)
    prefix = queues_of(group)
    queues = {name.removeprefix(prefix): history.get(name, from_s) for name in history.names(prefix)}
    lines = [Line("all queues", history.get(f"lag {group}", from_s)), *largest(queues, 6)]
    return span, lines, chart(lines, f"Lag of group {group} in the last {span}, in messages", from_s, to_s)


async def _members(
    ask: Asked, group: str, problems: list[str]
) -> tuple[ConsumerConnections | None, Sequence[str], Mapping[str, Work | None]]:
    """The connected consumers, their disagreements, and client id → work.

    None for unknown consumers, with a line in ``problems``. A member that does not report its work is left out.
    """
    person = ask.person
    try:
        connected = await person.recent(f"members {group}", lambda: consumer_connections(person.admin, group))
    except RouteNotFound:
        return ConsumerConnections(group), (), {}
    except BrokerError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ConsumerConnections(group), (), {}
        problems.append(f"the members are not known: {explain(error)}")
        return None, (), {}
    try:
        doing, reported = await person.recent(
            f"doing {group}",
            lambda: with_problems(lambda tell: members_status(person.admin, group, on_problem=tell)),
        )
    except SkylarkError as error:
        problems.append(f"what the members do is not known: {explain(error)}")
        return connected, (), {}
    problems += reported
    return connected, doing.disagreements, {one.client_id: work_of(one) for one in doing.members}


async def _configs(ask: Asked, group: str) -> Sequence[GroupConfig]:
    """The group's settings at each broker; empty for a group that has only offsets."""
    admin = ask.person.admin
    try:
        found, _ = await ask.person.recent(
            f"group config {group}", lambda: with_problems(lambda tell: group_configs(admin, group, on_problem=tell))
        )
    except UserError:
        return ()
    return found.configs


async def _dead_letters(ask: Asked, group: str) -> int | None:
    """The number of the group's dead letters; None when the number is unknown."""
    try:
        stats = await ask.person.recent(f"dead {group}", lambda: ask.person.admin.topic_stats(dlq_topic(group)))
    except RouteNotFound:
        return 0
    except SkylarkError:
        return None
    count: int = sum(one.max_offset - one.min_offset for one in stats.offset_table.values())
    return count


async def _letters(ask: Asked, group: str, most: int) -> list[DeadLetter]:
    """The group's oldest dead letters, at most ``most``, with bodies of bounded size."""
    # A message may have megabytes: the number alone does not bound the memory.
    left = MOST_LETTER_BYTES

    def fits(letter: DeadLetter) -> bool:
        nonlocal left
        left -= letter.message.store_size
        return left >= 0

    return await ask.person.admin.dead_letters(group, matches=fits, most=most)


@lazy_dataclass(frozen=True, slots=True)
class ListedLetter:
    """A dead letter, and the id by which its message is found."""

    letter: DeadLetterReport = field(metadata=FLAT)
    offset_msg_id: str


async def _put(ask: Asked, group: str) -> None:
    """Create a group, or change it: settings that no form has stay as they are."""
    # Brokers replace a group's settings as a whole, so settings that the form lacks are sent unchanged. Attributes are
    # sent as changes, and there are none.
    fields, admin = ask.fields, ask.person.admin
    configs = await _configs(ask, group)
    config = replace(
        configs[0].config if configs else SubscriptionGroupConfig(consume_from_min_enable=False),
        group_name=group,
        consume_enable=not fields.flag("paused"),
        consume_broadcast_enable=fields.flag("broadcast"),
        consume_message_orderly=fields.flag("orderly"),
        retry_queue_nums=fields.number("retryQueueNums", 1, 0, 1_024),
        retry_max_times=fields.number("retryMaxTimes", 16, -1, 1_000),
        attributes={},
    )
    await ask.person.at_each(
        await ask.person.masters(ask.cluster()),
        f"create subscription group {group}",
        lambda addr: admin.create_group(addr, config),
    )


async def groups(ask: Asked) -> View:
    kind = ask.fields.text("kind", USER)
    rows = [row for row in ask.snapshot.groups if kind in (row.kind, "all")]
    shown = table(rows, GROUPS, wanted(ask.fields.values, keep=("kind",)), searched=("group",), sort="-lag")
    (_, from_s, to_s), history = span_of(ask), ask.collector.history
    view = View("Groups", {"kind": kind, "kinds": (USER, SYSTEM), "clusters": ask.snapshot.clusters()})
    view.problems = list(ask.snapshot.problems)
    view.tables["groups"] = shown
    view.pictures = {row.group: sparkline(history.get(f"lag {row.group}", from_s), from_s, to_s) for row in shown.rows}
    return view


async def one_group(ask: Asked, group: str) -> View:
    person, view = ask.person, View(f"Group {group}", {"group": group})
    # A group need not have members, dead letters or settings of its own; only a group without progress does not exist.
    connected, disagreements, works = await _members(ask, group, view.problems)
    has_members = connected is not None and bool(connected.connections)
    try:
        progress, problems = await person.recent(
            f"progress {group} {has_members}",
            lambda: with_problems(
                lambda tell: group_progress(person.admin, group, client_ips=has_members, lags_ms=True, on_problem=tell)
            ),
        )
    except UserError as error:
        raise NoSuchThing(str(error)) from None
    view.problems += problems
    configs = await _configs(ask, group)
    work = together(one for one in works.values() if one is not None)
    known = connected or ConsumerConnections(group)
    # The members' own rates are best; without them, use the rates by offsets.
    seen = next((row for row in ask.snapshot.groups if row.group == group), None)
    consumed_per_s = seen.consume_tps if seen is not None else None
    if work is not None and len(works) == len(known.connections) and None not in works.values():
        consumed_per_s = work.consumed_per_s
    members = [ConnectedMember(one, figures(works.get(one.client_id))) for one in known.connections]
    topics = sorted({one.topic for one in progress.queues if not is_retry_topic(one.topic)})
    view.data |= {
        "lag": progress.lag,
        "consumeTps": consumed_per_s,
        "pullTps": progress.consume_tps,
        "handlerMs": None if work is None else work.handler_ms,
        "oldestMs": max((one.lag_ms or 0 for one in progress.queues), default=0),
        "members": None if connected is None else members,
        "subscriptions": known.subscriptions,
        "messageModel": known.message_model,
        "disagreements": disagreements,
        "configs": configs,
        "topics": topics,
        "clusters": ask.snapshot.clusters(),
        "deadLetters": await _dead_letters(ask, group),
    }
    view.tables["consumers"] = members_table(members)
    asked = wanted(ask.fields.values, keep=("span",))
    view.tables["queues"] = table(progress.queues, QUEUES, asked, searched=("topic", "brokerName"), sort="-diff")
    span, lines, drawn = _lag_chart(ask, group)
    view.data["span"] = span
    view.data["lines"] = [line.name for line in lines]
    state = GroupState(
        members=None if connected is None else len(connected.connections),
        consumed_per_s=consumed_per_s,
        is_paused=any(not one.config.consume_enable for one in configs),
        queues=progress.queues,
        runs=ask.collector.history.get(f"lag {group}"),
        now_s=ask.snapshot.at_ms // 1000,
        work=work,
    )
    view.data["reasons"] = list(reasons(state))
    view.pictures["lag"] = drawn
    return view


async def lag_svg(ask: Asked, group: str) -> Download:
    return Download(_lag_chart(ask, group)[2], "image/svg+xml")


async def lag_csv(ask: Asked, group: str) -> Download:
    history = ask.collector.history
    names = [f"lag {group}", f"rate {group}", *history.names(queues_of(group))]
    return Download(as_csv([Line(name, history.get(name)) for name in names]), "text/csv", f"lag of {group}.csv")


async def preview_reset(ask: Asked, group: str) -> View:
    topic, at_ms = ask.fields.needed("topic", "a topic"), _reset_time(ask)
    rows = await reset_preview(ask.person.admin, group, topic, at_ms)
    data = {
        "group": group,
        "topic": topic,
        "atMs": at_ms,
        "again": sum(one.again for one in rows),
        "skipped": sum(one.skipped for one in rows),
    }
    shown = table(rows, RESET, wanted({"size": "500"}), searched=(), sort="")
    return View(f"Reset group {group}", data, {"queues": shown})


async def reset_group(ask: Asked, group: str) -> Done:
    topic, at_ms = ask.fields.needed("topic", "a topic"), _reset_time(ask)
    moved = await reset_offsets(ask.person.admin, group, topic, at_ms)
    return Done(_of(group), f"group {group} goes on elsewhere in {len(moved)} queues of {topic}")


async def create_group(ask: Asked) -> Done:
    group = ask.fields.needed("group", "a name for the group")
    await _put(ask, group)
    return Done("/groups", f"group {group} is created")


async def change_group(ask: Asked, group: str) -> Done:
    await _put(ask, group)
    return Done(_of(group), f"group {group} is changed")


async def remove_group(ask: Asked, group: str) -> Done:
    ask.fields.confirmed(group)
    admin, masters = ask.person.admin, await ask.person.masters(ask.cluster())
    # A broker deletes a group that it does not know without an error, and what is left of the group with it.
    was_known = await is_known(masters, lambda addr: admin.group_config(addr, group))
    await ask.person.at_each(
        masters, f"delete subscription group {group}", lambda addr: admin.delete_group(addr, group, clean_offset=True)
    )
    if not was_known:
        raise UserError(f"there is no group {group}: see the page Groups for the names")
    return Done("/groups", f"group {group}, its offsets and what would come back to it are deleted")


async def dead_letters(ask: Asked, group: str) -> View:
    letters = await _letters(ask, group, MOST_LETTERS)
    rows = [ListedLetter(letter_report(letter), letter.message.offset_msg_id) for letter in letters]
    shown = table(rows, LETTERS, wanted(ask.fields.values), searched=("topic", "msgId", "failReason"), sort="-failTime")
    data = {"group": group, "most": MOST_LETTERS, "isCut": len(rows) == MOST_LETTERS}
    return View(f"Dead letters of {group}", data, {"letters": shown})


async def export_dead_letters(ask: Asked, group: str) -> Download:
    letters = await _letters(ask, group, MOST_EXPORTED)
    lines = b"".join(orjson.dumps(plain(line_of(letter))) + b"\n" for letter in letters)
    return Download(lines, "application/x-ndjson", f"dead letters of {group}.jsonl")


async def resend_dead_letters(ask: Asked, group: str) -> Done:
    ids = (*ask.fields.ticked("pick-"), *(one for one in ask.fields.text("ids").split(",") if one.strip()))
    again = ask.fields.flag("again")
    if not ids and (again or not ask.fields.flag("all")):
        raise InvalidArgument("choose a dead letter, or all that were not sent before")
    if len(ids) > MOST_RESENT:
        raise InvalidArgument(f"at most {MOST_RESENT} at once")
    admin, to_topic = ask.person.admin, ask.fields.flag("to_topic")
    choice = DeadLetterChoice([one.strip() for one in ids] or None)
    found = await whole(
        lambda tell: resend(admin, group, choice, rate=RESEND_RATE, to_topic=to_topic, again=again, on_problem=tell)
    )
    text = f"{_letters_text(found.sent)} sent again"
    if found.skipped:
        text += f"; {_letters_text(found.skipped)} sent before, and left out"
    if found.forgetful:
        text += f"; cannot remember what was sent again: {', '.join(found.forgetful)}"
    return Done(f"{_of(group)}/dead", text)


def _letters_text(count: int) -> str:
    return "1 dead letter was" if count == 1 else f"{count} dead letters were"
