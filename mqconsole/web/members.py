"""The members of a group: the table of them, and what one of them does."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from skylark.mqadmin.commands.clients import consumer_status
from skylark.mqcommon.errors import BrokerError, RouteNotFound
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.tables import Column, Table, table, wanted
from skylark.mqconsole.showing.work import Work, work_of
from skylark.mqconsole.web.asking import Asked, NoSuchThing, View
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.admin.failures import explain

MEMBERS = (
    Column("clientId", "Client"),
    Column("clientAddr", "Address"),
    Column("language", "Language"),
    Column("versionDesc", "Version"),
    Column("queueCount", "Queues", texts.count, is_number=True),
    Column("cached", "In memory", texts.count, is_number=True, hint="messages that wait for a handler"),
    Column("consumeTps", "Consumed /s", texts.count, is_number=True),
    Column("handlerMs", "Handler takes", texts.duration, is_number=True, hint="mean time of a call of its handler"),
)
QUEUES = (
    Column("topic", "Topic"),
    Column("brokerName", "Set"),
    Column("queueId", "Queue", is_number=True),
    Column("cached", "In memory", texts.count, is_number=True, hint="messages that no handler has ended with"),
    Column("commitOffset", "Consumed to", texts.count, is_number=True),
    Column("lastPull", "Last pull", texts.moment, is_number=True),
    Column("lastConsume", "Last consumed", texts.moment, is_number=True, hint="when a handler ended last"),
    Column("state", "State"),
)
RATES = (
    Column("topic", "Topic"),
    Column("consumeOKTPS", "Consumed /s", texts.count, is_number=True),
    Column("consumeRT", "Handler takes", texts.duration, is_number=True),
    Column("consumeFailedTPS", "Failed /s", texts.count, is_number=True),
    Column("consumeFailedMsgs", "Failed in the last hour", texts.count, is_number=True),
    Column("pullTPS", "Pulled /s", texts.count, is_number=True),
    Column("pullRT", "A pull takes", texts.duration, is_number=True),
)
#: What a broker answers about a member that is not connected.
_NOT_CONNECTED: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)


def add_members(site: Site) -> None:
    """Register the page."""

    # A client chooses its id, which may have any character, so the id is no part of the path.
    site.page("/groups/<group>/member", Role.READER, "member.html", one_member)


def figures(work: Work | None) -> dict[str, Any]:
    """What a member does; all None for one that does not tell."""
    return {
        "queueCount": None if work is None else work.queues,
        "cached": None if work is None else work.cached_count,
        "consumeTps": None if work is None else work.consumed_per_s,
        "handlerMs": None if work is None else work.handler_ms,
        "concurrency": None if work is None else work.concurrency,
    }


def members_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The table of connected consumers, those with most messages in memory first."""
    return table(rows, MEMBERS, wanted({"size": "500"}), searched=(), sort="-cached")


async def one_member(ask: Asked, group: str) -> View:
    client, person = ask.fields.needed("id", "the id of a client"), ask.person
    try:
        found, problems = await person.recent(
            f"member {group} {client}",
            lambda: person.look(
                consumer_status, consumer_group=group, client_id=client, broker_addr=None, jstack=False
            ),
        )
    except RouteNotFound:
        raise NoSuchThing(f"group {group} has no member") from None
    except BrokerError as error:
        if error.code not in _NOT_CONNECTED:
            raise
        raise NoSuchThing(f"group {group} has no member {client} that answers: {explain(error)}") from None
    (row,) = found["consumers"]
    started = row["properties"].get("PROP_CONSUMER_START_TIMESTAMP", "")
    data = {
        "group": group,
        "client": client,
        "startedMs": int(started) if started.isascii() and started.isdigit() else None,
        **figures(work_of(row)),
        "subscriptions": row["subscriptions"],
        "properties": row["properties"],
    }
    queues = [_queue_row(one) for one in row["queues"]] + [_popped_row(one) for one in row["popQueues"]]
    tables = {
        "queues": table(
            queues, QUEUES, wanted(ask.fields.values, keep=("id",)), searched=("topic", "brokerName"), sort="-cached"
        ),
        "rates": table(row["rates"], RATES, wanted({"size": "500"}), searched=(), sort="topic"),
    }
    return View(f"Member of {group}", data, tables, problems=list(problems))


def _queue_row(one: Mapping[str, Any]) -> dict[str, Any]:
    state = "given up" if one["droped"] else "locked" if one["locked"] else ""
    return {
        **_place(one),
        "cached": one["cachedMsgCount"],
        "commitOffset": one["commitOffset"],
        "lastPull": one["lastPullTimestamp"],
        "lastConsume": one["lastConsumeTimestamp"],
        "state": state,
    }


def _popped_row(one: Mapping[str, Any]) -> dict[str, Any]:
    # The broker has the offset of a queue that is popped from, and no time of consuming is told.
    state = "given up" if one["droped"] else "popped"
    return {
        **_place(one),
        "cached": one["waitAckCount"],
        "commitOffset": None,
        "lastPull": one["lastPopTimestamp"],
        "lastConsume": None,
        "state": state,
    }


def _place(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in ("topic", "brokerName", "queueId")}
