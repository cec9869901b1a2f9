"""One search over the names of clusters, brokers, topics and groups; links to searches for messages. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, urlencode

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.showing.texts import count
from skylark.mqconsole.watching.snapshot import Snapshot
from skylark.sdk.admin.topology import role_text

#: The most hits of one kind that are shown; the list pages have all hits.
MOST_OF_A_KIND: Final = 50
#: Hexadecimal digits of RocketMQ's message ids: with an IPv4 address, or more with IPv6 and in unique keys.
_ID_DIGITS: Final = 32
_LONGEST_QUERY: Final = 255


@lazy_dataclass(frozen=True, slots=True)
class Hit:
    """A thing whose name contains the text; ``link`` is the address of its page."""

    kind: str
    name: str
    link: str
    detail: str = ""


@lazy_dataclass(frozen=True, slots=True)
class Hits:
    """The best hits of one kind; ``found`` is the number of all hits."""

    title: str
    shown: list[Hit]
    found: int


def search(snapshot: Snapshot, text: str) -> list[Hits]:
    """Things with ``text`` in the name, in upper or lower case: equal names first, then names that begin with it."""
    wanted = text.strip()[:_LONGEST_QUERY].casefold()
    if not wanted:
        return []
    kinds = (
        ("Brokers", _brokers(snapshot)),
        ("Groups", _groups(snapshot)),
        ("Topics", _topics(snapshot)),
    )
    found = []
    for title, every in kinds:
        hits = sorted(
            (one for one in every if wanted in f"{one.name} {one.detail}".casefold()),
            key=lambda one: (
                one.name.casefold() != wanted,
                not one.name.casefold().startswith(wanted),
                wanted not in one.name.casefold(),
                one.name,
            ),
        )
        if hits:
            found.append(Hits(title, hits[:MOST_OF_A_KIND], len(hits)))
    messages = list(_messages(text.strip()[:_LONGEST_QUERY]))
    return [*found, Hits("Messages", messages, len(messages))]


def _brokers(snapshot: Snapshot) -> Iterable[Hit]:
    for row in snapshot.brokers:
        where = f"{row.broker_name} in {row.cluster_name}" + (", away" if row.error else "")
        detail = f"{role_text(row.broker_id)} of {where}"
        yield Hit("broker", row.broker_addr, f"/brokers/{quote(row.broker_addr, safe='')}", detail)


def _groups(snapshot: Snapshot) -> Iterable[Hit]:
    for group in snapshot.groups:
        yield Hit("group", group.group, f"/groups/{quote(group.group, safe='')}", f"lag {count(group.lag)}")


def _topics(snapshot: Snapshot) -> Iterable[Hit]:
    for row in snapshot.topics:
        yield Hit("topic", row.topic, f"/topics/{quote(row.topic, safe='')}", row.kind)


def _messages(text: str) -> Iterator[Hit]:
    """Links to searches for messages: brokers search only when somebody follows a link."""
    if len(text) >= _ID_DIGITS and all(char in "0123456789abcdefABCDEF" for char in text):
        yield Hit("message", f"the message with the id {text}", f"/messages?{urlencode({'by': 'id', 'id': text})}")
        yield Hit("trace", f"the trace of {text}", f"/trace?{urlencode({'id': text})}")
    link = f"/messages?{urlencode({'by': 'key', 'key': text})}"
    yield Hit("key", f"messages with the key {text}", link, "choose a topic there")
