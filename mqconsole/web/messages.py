"""Messages: found by id, key, unique key, offset or time; one message with its body; sending; the trace."""

from collections.abc import Sequence
from typing import Final

import trio

from skylark import Admin, Message
from skylark.mqcommon.addresses import format_address, is_address, split_address
from skylark.mqcommon.arguments import LONG_MAX
from skylark.mqcommon.errors import InvalidArgument, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.mqconsole.people.person import with_problems
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.charts import steps_chart
from skylark.mqconsole.showing.previews import preview, printable
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.web.asking import Asked, Done, Download, NoSuchThing, View
from skylark.mqconsole.web.site import Site
from skylark.remoting.net.sockets import lookup
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.message_report import body_error, message_report
from skylark.sdk.admin.reports.message_report import body_of as stored_body
from skylark.sdk.admin.reports.messages import (
    MessageTrack,
    TrackedMessage,
    consume_directly,
    message_trace,
    message_tracks,
    messages_by_id,
    messages_by_key,
    messages_by_unique_key,
)
from skylark.sdk.admin.reports.problems import OnProblem, ReportProblem, report_absent_queues
from skylark.sdk.admin.reports.reading import message_at, oldest_messages

BY: Final = {
    "time": "topic and time",
    "key": "key",
    "unique": "unique key",
    "offset": "queue and offset",
    "id": "message id",
}
#: The most messages that a search by time or key lists.
MOST_FOUND: Final = 200
#: How long the lookup of a broker's host name may take.
LOOKUP_S: Final = 2.0
#: Properties that a form cannot set, as they make a message another kind of message.
MOST_PROPERTIES: Final = 50
MESSAGES = (
    Column("storeTimestamp", "Stored", texts.moment, is_number=True),
    Column("msgId", "Message"),
    Column("tags", "Tag", lambda value: printable(value or texts.NONE)),
    Column("keys", "Keys", lambda value: printable(value or texts.NONE)),
    Column("brokerName", "Set"),
    Column("queueId", "Queue", is_number=True),
    Column("queueOffset", "Offset", texts.count, is_number=True),
    Column("storeSize", "Size", texts.size, is_number=True),
)
STEPS = (
    Column("timestamp", "When", texts.moment, is_number=True),
    Column("type", "What"),
    Column("group", "Group", printable),
    Column("clientHost", "Client", printable),
    Column("costTime", "Took", texts.duration, is_number=True),
    Column("status", "How it ended", printable),
)


def add_messages(site: Site) -> None:
    """Register the pages and changes."""

    site.page("/messages", Role.READER, "messages.html", messages)
    site.page("/messages/<msg_id>", Role.READER, "message.html", one_message)
    site.download("/messages/<msg_id>/body", Role.READER, body_of)
    site.page("/trace", Role.READER, "trace.html", trace)
    site.change("/messages", Role.OPERATOR, send_message)
    site.change("/messages/<msg_id>/resend", Role.OPERATOR, resend_message)


async def _search(ask: Asked, by: str, on_problem: OnProblem) -> Sequence[MessageExt]:
    fields, admin = ask.fields, ask.person.admin
    begin, end = fields.moment("begin"), fields.moment("end")
    if by == "id":
        msg_id = fields.needed("id", "a message id")
        try:
            return await _by_id(admin, msg_id, fields.text("topic") or None)
        except SkylarkError as error:
            on_problem(ReportProblem(f"message {msg_id}", error))
            return ()
    topic = fields.needed("topic", "a topic")
    if by == "key":
        return await messages_by_key(
            admin,
            topic,
            fields.needed("key", "a key"),
            most=MOST_FOUND,
            begin_ms=begin or 0,
            end_ms=LONG_MAX if end is None else end,
            on_problem=on_problem,
        )
    if by == "unique":
        key = fields.needed("key", "a unique key")
        return await messages_by_unique_key(admin, topic, key, on_problem=on_problem)
    if by == "offset":
        broker_name = fields.needed("broker", "a broker's name")
        queue_id, offset = fields.number("queue", 0, 0, 65_535), fields.number("offset", 0, 0, LONG_MAX)
        async with ask.person.consumer() as consumer:
            return [await message_at(consumer, topic, broker_name, queue_id, offset)]
    await report_absent_queues(admin, [topic], on_problem)
    async with ask.person.consumer() as consumer:
        return (await oldest_messages(consumer, topic, begin_ms=begin, end_ms=end, most=MOST_FOUND)).messages


async def _by_id(admin: Admin, msg_id: str, topic: str | None) -> list[MessageExt]:
    return await messages_by_id(
        admin, msg_id.strip(), topic, lambda offset_msg_id: messages_at_known_brokers(admin, offset_msg_id)
    )


async def messages_at_known_brokers(admin: Admin, offset_msg_id: str) -> list[MessageExt]:
    """The messages with this id; UserError unless the id has the address of a broker that is registered."""
    # A link may have any id. The author of a link must not choose the address that the console connects to: the
    # console's request would be signed by the person who follows the link.
    try:
        host, port, _ = parse_offset_msg_id(offset_msg_id)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if not await _is_registered(admin, host, port):
        addr = format_address(host, port)
        raise UserError(
            f"the id names a broker at {addr}, which the NameServers do not know; search by topic and key instead"
        )
    return await admin.view_messages(offset_msg_id)


async def _is_registered(admin: Admin, host: str, port: int) -> bool:
    brokers = (await admin.cluster_info()).broker_addr_table.values()
    known = {addr for broker in brokers for addr in broker.broker_addrs.values() if is_address(addr)}
    if format_address(host, port) in known:
        return True
    # RocketMQ's brokers may register a host name, while ids have its IP address.
    for name, its_port in sorted(map(split_address, known)):
        if its_port == port and host in await _addresses_of(name, port):
            return True
    return False


async def _addresses_of(name: str, port: int) -> list[str]:
    with trio.move_on_after(LOOKUP_S):
        try:
            return await lookup(name, port)
        except OSError:
            return []
    return []


@lazy_dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message, the groups that read its topic, and what could not be found out."""

    message: MessageExt
    tracks: tuple[MessageTrack, ...]
    problems: list[str]


async def _one(ask: Asked, msg_id: str) -> FoundMessage:
    """A message by its offset message id; with a topic in the address also by its unique key."""
    topic = ask.fields.text("topic") or None
    return await ask.person.recent(f"message {topic} {msg_id}", lambda: _find_one(ask.person.admin, msg_id, topic))


async def _find_one(admin: Admin, msg_id: str, topic: str | None) -> FoundMessage:
    try:
        found = await _by_id(admin, msg_id, topic)
    except SkylarkError as error:
        # For a message that cleaning has removed, the broker has its own text.
        raise NoSuchThing(str(ReportProblem(f"message {printable(msg_id)}", error))) from None
    if not found:
        raise NoSuchThing(f"there is no message {printable(msg_id)}")
    problems = []
    if len(found) > 1:
        problems.append(
            f"{msg_id} is the id of {len(found)} messages, which are stored as one batch; search by unique key to see"
            " the others"
        )
    message = found[0]
    if (reason := body_error(message)) is not None:
        problems.append(f"the body is shown as it is stored: {reason}")
    try:
        tracks = await message_tracks(admin, message)
    except SkylarkError as error:
        # If nobody can say who consumed the message, still show the message.
        return FoundMessage(message, (), [*problems, str(ReportProblem("who consumed it", error))])
    return FoundMessage(message, tracks, problems)


async def _any_member(ask: Asked, group: str) -> str:
    members = (await ask.person.admin.consumer_connection(group)).connection_set
    return min(one.client_id for one in members)


def _properties(text: str) -> dict[str, str]:
    """The properties in the ``name=value`` lines of a form."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidArgument(f"a property is name=value, not {printable(line)[:80]!r}")
        found[name.strip()] = value.strip()
    if len(found) > MOST_PROPERTIES:
        raise InvalidArgument(f"at most {MOST_PROPERTIES} properties")
    return found


async def messages(ask: Asked) -> View:
    by = ask.fields.text("by", "time")
    by = by if by in BY else "time"
    view = View("Messages", {"by": by, "choices": BY, "searched": ask.fields.text("topic") != "" or by == "id"})
    if not (ask.fields.text("topic") or ask.fields.text("id")):
        view.data["searched"] = False
        return view
    found, view.problems = await with_problems(lambda tell: _search(ask, by, tell))
    view.data["found"] = len(found)
    keep = ("by", "topic", "key", "id", "begin", "end", "broker", "queue", "offset")
    # The list has no bodies: two hundred bodies may be large, and each message has its own page.
    rows = [message_report(message, with_body=False) for message in found]
    view.tables["messages"] = table(
        rows,
        MESSAGES,
        wanted(ask.fields.values, keep=keep),
        searched=("msgId", "keys", "tags"),
        sort="-storeTimestamp",
    )
    return view


async def one_message(ask: Asked, msg_id: str) -> View:
    found = await _one(ask, msg_id)
    body = stored_body(found.message)
    # In a thread: a body may take long to decode, and other people's pages must go on.
    shown = await trio.to_thread.run_sync(preview, body, ask.fields.text("form"))
    data = {
        "message": TrackedMessage(message_report(found.message, with_body=False), found.tracks),
        "bodySize": len(body),
        "body": shown.text,
        "shownAs": shown.form,
        "forms": shown.possible,
        "isCut": shown.is_cut,
        "groups": sorted({track.group for track in found.tracks}),
    }
    return View(f"Message {printable(found.message.msg_id)}", data, problems=list(found.problems))


async def body_of(ask: Asked, msg_id: str) -> Download:
    message = (await _one(ask, msg_id)).message
    return Download(stored_body(message), "application/octet-stream", f"{message.offset_msg_id}.bin")


async def trace(ask: Asked) -> View:
    msg_id = ask.fields.text("id")
    view = View("Trace", {"msgId": msg_id, "traceTopic": ask.fields.text("topic")})
    if not msg_id:
        return view
    try:
        steps, view.problems = await with_problems(
            lambda tell: message_trace(
                ask.person.admin,
                msg_id,
                trace_topic=ask.fields.text("topic") or TRACE_TOPIC,
                most=MOST_FOUND,
                on_problem=tell,
            )
        )
    except RouteNotFound as error:
        # There is no trace topic yet.
        steps, view.problems = [], [explain(error)]
    view.tables["steps"] = table(steps, STEPS, wanted({"size": "500"}), searched=(), sort="timestamp")
    if steps:
        view.pictures["steps"] = steps_chart(
            [(f"{step.kind} {step.group}", step.timestamp_ms, step.cost_ms or 0) for step in steps],
            f"Trace of {msg_id}",
        )
    return view


async def send_message(ask: Asked) -> Done:
    fields = ask.fields
    message = Message(
        fields.needed("topic", "a topic"),
        fields.values.get("body", "").encode(),
        tags=fields.text("tag") or None,
        keys=fields.text("keys") or None,
        properties=_properties(fields.values.get("properties", "")),
    )
    async with ask.person.producer() as producer:
        sent = await producer.send(message)
    return Done(f"/messages/{sent.offset_msg_id}", f"the message is stored as {sent.offset_msg_id}")


async def resend_message(ask: Asked, msg_id: str) -> Done:
    group = ask.fields.needed("group", "a group")
    client_id = ask.fields.text("client") or await _any_member(ask, group)
    admin = ask.person.admin
    (message, *_) = await _by_id(admin, msg_id, None)
    result = await consume_directly(admin, message, group, client_id)
    text = f"consumer {client_id} of group {group} got the message again: {result.consume_result}"
    return Done(f"/messages/{msg_id}", printable(text))
