"""Messages: found by id, key, unique key, offset or time; one message with its body; sending; the trace."""

import base64
from typing import Any, Final

import trio

from skylark import Message
from skylark.mqadmin.commands.message_queries import (
    query_msg_by_id,
    query_msg_by_key,
    query_msg_by_offset,
    query_msg_by_unique_key,
    query_msg_trace_by_id,
)
from skylark.mqadmin.commands.messages import consume_message
from skylark.mqcommon.errors import InvalidArgument, RouteNotFound
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.charts import steps_chart
from skylark.mqconsole.showing.previews import preview, printable
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.web.asking import Asked, Done, Download, NoSuchThing, View
from skylark.mqconsole.web.site import Site
from skylark.sdk.admin.failures import explain

BY: Final = {
    "time": "topic and time",
    "key": "key",
    "unique": "unique key",
    "offset": "queue and offset",
    "id": "message id",
}
#: Messages that a search by time or key lists.
MOST_FOUND: Final = 200
LONG_MAX: Final = 2**63 - 1
#: A message's properties that make it another kind of message are not set by a form.
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


async def _search(ask: Asked, by: str) -> tuple[list[dict[str, Any]], list[str]]:
    fields, person = ask.fields, ask.person
    begin, end = fields.moment("begin"), fields.moment("end")
    if by == "id":
        msg_id = fields.needed("id", "a message id")
        return await person.look(
            query_msg_by_id,
            msg_id=msg_id.replace(",", ""),
            topic=fields.text("topic") or None,
            consumer_group=None,
            client_id=None,
            body_format=None,
        )
    topic = fields.needed("topic", "a topic")
    if by == "key":
        return await person.look(
            query_msg_by_key,
            topic=topic,
            msg_key=fields.needed("key", "a key"),
            begin_timestamp=begin or 0,
            end_timestamp=LONG_MAX if end is None else end,
            max_num=MOST_FOUND,
            cluster=None,
        )
    if by == "unique":
        return await person.look(
            query_msg_by_unique_key,
            msg_id=fields.needed("key", "a unique key"),
            topic=topic,
            consumer_group=None,
            client_id=None,
            show_all=True,
        )
    if by == "offset":
        return await person.look(
            query_msg_by_offset,
            topic=topic,
            broker_name=fields.needed("broker", "a broker's name"),
            queue_id=fields.number("queue", 0, 0, 65_535),
            offset=fields.number("offset", 0, 0, LONG_MAX),
            body_format=None,
        )
    found, problems = await person.look(
        consume_message,
        topic=topic,
        broker_name=None,
        queue_id=None,
        offset=None,
        consumer_group=None,
        begin_timestamp=begin,
        end_timestamp=end,
        message_number=MOST_FOUND,
    )
    return found["messages"], problems


async def _one(ask: Asked, msg_id: str) -> tuple[dict[str, Any], list[str]]:
    """A message by its offset message id; with a topic in the address also by its unique key."""
    topic = ask.fields.text("topic") or None
    found, problems = await ask.person.recent(
        f"message {topic} {msg_id}",
        lambda: ask.person.look(
            query_msg_by_id,
            msg_id=msg_id.replace(",", ""),
            topic=topic,
            consumer_group=None,
            client_id=None,
            body_format=None,
        ),
    )
    # A message that cleaning has removed is told by the broker in its own words.
    if not found:
        raise NoSuchThing("; ".join(problems) or f"there is no message {printable(msg_id)}")
    return dict(found[0]), problems


async def _any_member(ask: Asked, group: str) -> str:
    members = (await ask.person.admin.consumer_connection(group)).connection_set
    return min(one.client_id for one in members)


def _properties(text: str) -> dict[str, str]:
    """``name=value`` lines of a form."""
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
    data: dict[str, Any] = {"by": by, "choices": BY, "searched": ask.fields.text("topic") != "" or by == "id"}
    view = View("Messages", data)
    if not (ask.fields.text("topic") or ask.fields.text("id")):
        data["searched"] = False
        return view
    found, view.problems = await _search(ask, by)
    data["found"] = len(found)
    keep = ("by", "topic", "key", "id", "begin", "end", "broker", "queue", "offset")
    # The list has no bodies: two hundred of them may be large, and each has a page of its own.
    rows = [{name: value for name, value in row.items() if name not in ("body", "bodyBase64")} for row in found]
    view.tables["messages"] = table(
        rows,
        MESSAGES,
        wanted(ask.fields.values, keep=keep),
        searched=("msgId", "keys", "tags"),
        sort="-storeTimestamp",
    )
    return view


async def one_message(ask: Asked, msg_id: str) -> View:
    row, problems = await _one(ask, msg_id)
    body = base64.b64decode(row.pop("bodyBase64"))
    row.pop("body")
    # A body is somebody's bytes, and may take long: other people's pages go on.
    shown = await trio.to_thread.run_sync(preview, body, ask.fields.text("form"))
    data = {
        "message": row,
        "bodySize": len(body),
        "body": shown.text,
        "shownAs": shown.form,
        "forms": shown.possible,
        "isCut": shown.is_cut,
        "groups": sorted({track["consumerGroup"] for track in row["tracks"]}),
    }
    return View(f"Message {printable(row['msgId'])}", data, problems=problems)


async def body_of(ask: Asked, msg_id: str) -> Download:
    row, _ = await _one(ask, msg_id)
    return Download(base64.b64decode(row["bodyBase64"]), "application/octet-stream", f"{row['offsetMsgId']}.bin")


async def trace(ask: Asked) -> View:
    msg_id = ask.fields.text("id")
    view = View("Trace", {"msgId": msg_id, "traceTopic": ask.fields.text("topic")})
    if not msg_id:
        return view
    try:
        steps, view.problems = await ask.person.look(
            query_msg_trace_by_id,
            msg_id=msg_id,
            trace_topic=ask.fields.text("topic") or TRACE_TOPIC,
            begin_timestamp=0,
            end_timestamp=LONG_MAX,
            max_num=MOST_FOUND,
        )
    except RouteNotFound as error:
        # Nobody has traced yet.
        steps, view.problems = [], [explain(error)]
    view.tables["steps"] = table(steps, STEPS, wanted({"size": "500"}), searched=(), sort="timestamp")
    if steps:
        view.pictures["steps"] = steps_chart(
            [(f"{row['type']} {row['group']}", row["timestamp"], row["costTime"] or 0) for row in steps],
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
    (result,) = await ask.person.run(
        query_msg_by_id, msg_id=msg_id, topic=None, consumer_group=group, client_id=client_id, body_format=None
    )
    text = f"consumer {client_id} of group {group} got the message again: {result['consumeResult']}"
    return Done(f"/messages/{msg_id}", printable(text))
