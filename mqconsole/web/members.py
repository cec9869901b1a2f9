"""The members of a group: the table of members, and the page of one member."""

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from skylark.mqcommon.errors import BrokerError, RouteNotFound
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.tables import Column, Table, table, wanted
from skylark.mqconsole.showing.work import QueueKey, Work, mean_ms
from skylark.mqconsole.web.asking import Asked, NoSuchThing, View
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.members import ConnectedClient, MemberQueue, MemberStatus, PoppedQueue, member_status
from skylark.sdk.admin.reports.report import FLAT, named, plain

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
#: A broker's code for a member that is not connected.
_NOT_CONNECTED: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)


def add_members(site: Site) -> None:
    """Register the page."""

    # A client's id may have any character, so the id is not a part of the path.
    site.page("/groups/<group>/member", Role.READER, "member.html", one_member)


@lazy_dataclass(frozen=True, slots=True)
class Figures:
    """The work of a member in figures; all None for a member that does not report its work."""

    queue_count: int | None = None
    #: Messages in memory.
    cached: int | None = None
    #: Messages a second that the member's handlers have consumed.
    consume_tps: float | None = None
    handler_ms: float | None = None
    concurrency: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class ConnectedMember:
    """A connected consumer, and its work."""

    client: ConnectedClient = field(metadata=FLAT)
    figures: Figures = field(metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class QueueOfMember:
    """A queue that a member pulls or pops from; None for values that the member does not report."""

    topic: str
    broker_name: str
    queue_id: int
    cached: int
    commit_offset: int | None
    last_pull_ms: int = field(metadata=named("lastPull"))
    last_consume_ms: int | None = field(metadata=named("lastConsume"))
    state: str


def work_of(member: MemberStatus) -> Work | None:
    """The work of a member; None if its application pulls by itself, without a handler."""
    properties = member.properties
    if properties.get("PROP_CONSUME_TYPE") == "CONSUME_ACTIVELY":
        return None
    queues = [one for one in member.queues if not one.is_dropped]
    popped = [one for one in member.popped_queues if not one.is_dropped]
    cached = {_key(one): one.cached_count for one in queues}
    cached |= {_key(one): one.wait_ack_count for one in popped}
    threads = properties.get("PROP_THREADPOOL_CORE_SIZE", "")
    return Work(
        consumed_per_s=sum(one.consumed_tps for one in member.rates),
        failed_per_s=sum(one.failed_tps for one in member.rates),
        handler_ms=mean_ms((one.handler_ms, one.consumed_tps + one.failed_tps) for one in member.rates),
        queues=len(queues) + len(popped),
        cached={key: count for key, count in cached.items() if count > 0},
        is_orderly=properties.get("PROP_CONSUMEORDERLY") == "true",
        concurrency=int(threads) if threads.isascii() and threads.isdigit() and len(threads) < 10 else None,
    )


def _key(one: MemberQueue | PoppedQueue) -> QueueKey:
    return one.topic, one.broker_name, one.queue_id


def figures(work: Work | None) -> Figures:
    """The figures of a member; ``work`` is None for a member that does not report its work."""
    if work is None:
        return Figures()
    return Figures(work.queues, work.cached_count, work.consumed_per_s, work.handler_ms, work.concurrency)


def members_table(rows: Iterable[ConnectedMember]) -> Table:
    """The table of connected consumers, sorted by messages in memory, the most first."""
    return table(rows, MEMBERS, wanted({"size": "500"}), searched=(), sort="-cached")


async def one_member(ask: Asked, group: str) -> View:
    client, person = ask.fields.needed("id", "the id of a client"), ask.person
    try:
        member = await person.recent(f"member {group} {client}", lambda: member_status(person.admin, group, client))
    except RouteNotFound:
        raise NoSuchThing(f"group {group} has no member") from None
    except BrokerError as error:
        if error.code not in _NOT_CONNECTED:
            raise
        raise NoSuchThing(f"group {group} has no member {client} that answers: {explain(error)}") from None
    started = member.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    data = {
        "group": group,
        "client": client,
        "startedMs": int(started) if started.isascii() and started.isdigit() else None,
        **plain(figures(work_of(member))),
        "subscriptions": member.subscriptions,
        "properties": member.properties,
    }
    queues = [*map(_pulled, member.queues), *map(_popped, member.popped_queues)]
    tables = {
        "queues": table(
            queues, QUEUES, wanted(ask.fields.values, keep=("id",)), searched=("topic", "brokerName"), sort="-cached"
        ),
        "rates": table(member.rates, RATES, wanted({"size": "500"}), searched=(), sort="topic"),
    }
    return View(f"Member of {group}", data, tables)


def _pulled(one: MemberQueue) -> QueueOfMember:
    state = "given up" if one.is_dropped else "locked" if one.is_locked else ""
    return QueueOfMember(
        one.topic,
        one.broker_name,
        one.queue_id,
        one.cached_count,
        one.commit_offset,
        one.last_pull_timestamp_ms,
        one.last_consume_timestamp_ms,
        state,
    )


def _popped(one: PoppedQueue) -> QueueOfMember:
    # The broker keeps the offset of a popped queue; the member reports no time of consuming.
    state = "given up" if one.is_dropped else "popped"
    return QueueOfMember(
        one.topic,
        one.broker_name,
        one.queue_id,
        one.wait_ack_count,
        None,
        one.last_pop_timestamp_ms,
        None,
        state,
    )
