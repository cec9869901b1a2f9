"""Whatever stands in a name, a property or a body: it never becomes markup, and never a link to somewhere else."""

from dataclasses import field, make_dataclass
from functools import cache
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people.people import People
from skylark.mqconsole.people.person import Cluster
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing.previews import preview
from skylark.mqconsole.showing.tables import table, wanted
from skylark.mqconsole.watching.roll import AwayBroker
from skylark.mqconsole.watching.snapshot import Snapshot
from skylark.mqconsole.web.asking import View
from skylark.mqconsole.web.groups import GROUPS, LETTERS, QUEUES
from skylark.mqconsole.web.members import MEMBERS, RATES
from skylark.mqconsole.web.members import QUEUES as MEMBER_QUEUES
from skylark.mqconsole.web.messages import MESSAGES, STEPS
from skylark.mqconsole.web.system import FINDINGS, POLICIES, USERS
from skylark.mqconsole.web.topics import TOPICS
from skylark.remoting.protocol.requests.acl import AccessExplanation, AccessStep, PlainAccessConfig
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.sdk.admin.reports.accounts import AccessAnswer, BrokerAccounts
from skylark.sdk.admin.reports.groups import GroupConfig
from skylark.sdk.admin.reports.members import SubscribedTopic
from skylark.sdk.admin.reports.message_report import MessageReport
from skylark.sdk.admin.reports.messages import MessageTrack, TrackedMessage
from skylark.sdk.admin.reports.report import named
from tests.mqconsole.consoles import lonely_site

# Texts that would do harm, and any others.
HARM = st.sampled_from(
    (
        "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "javascript:alert(1)",
        "</textarea><svg onload=alert(1)>", "{{ 7 * 7 }}", "&lt;b&gt;", "\u202e<b>", "\x00<i>", "//evil.example",
        "data:text/html,<b>", "a\" autofocus onfocus=\"alert(1)", "</title><script>", "--><script>", "%3Cb%3E",
    )
)  # fmt: skip
texts = HARM | st.text(max_size=40)


def environment() -> Environment:
    people = People(Cluster("127.0.0.1:9", 1_000), None, login=True, session_s=60, secret=b"s", snapshot=Snapshot)
    site = lonely_site(people, ConsoleOptions(login=True))
    env: Environment = site.app.jinja_env
    return env


ENVIRONMENT = environment()


# The attributes of a chosen tab or column: an element may have the same name as a chosen one.
OF_CHOICES = ("aria-current", "aria-sort")


class Tags(HTMLParser):
    """The elements of a page with the names of their attributes, and where its links go."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs if name not in OF_CHOICES)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", ()))


class Somebody:
    """The person who is logged in, whose name is shown on each page."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.role = Role.ADMIN


def tags_of(template: str, view: View, text: str) -> Tags:
    away = [AwayBroker(text, text, 0, f"a{text}", 1, True, text), AwayBroker(text, text, None, "", 1, False, text)]
    html = ENVIRONMENT.get_template(template).render(
        view=view, **view.data, tables=view.tables, pictures={}, person=Somebody(text), role=Role, has_login=True,
        snapshot=Snapshot(error=text, away=away), ills={"FAIL": 1, "WARN": 0},
        token="t", notices=[("bad", text), ("good", text)], here=f"/{text}",
        args={"topic": text, "key": text, "id": text, "where": text, "at": text},
    )  # fmt: skip
    parser = Tags()
    parser.feed(html)
    parser.close()
    return parser


def message_view(text: str, body: bytes) -> View:
    shown = preview(body)
    report = MessageReport(
        msg_id=text, offset_msg_id=text, topic=text, tags=text, keys=text, broker_name=text, queue_id=0,
        queue_offset=0, physical_offset=0, size_bytes=0, reconsume_times=0, born_timestamp_ms=0,
        store_timestamp_ms=0, born_host=text, store_host=text, sys_flag=0, flag=0, prepared_transaction_offset=0,
        properties={f"a{text}": text, "b": text},
    )  # fmt: skip
    message = TrackedMessage(report, (MessageTrack(text, text, text),))
    data = {
        "message": message, "body": shown.text, "shownAs": "text", "forms": ("text", "hex"), "isCut": True,
        "bodySize": len(body), "groups": [text],
    }  # fmt: skip
    return View(text, data, problems=[text])


def row_of(columns: Any, text: str) -> Any:
    """A report with ``text`` in all columns, and in the member that boxes are named after."""
    values = {column.name: [text] if column.name in ("actions", "sourceIps") else None if column.is_number else text
              for column in columns} | {"offsetMsgId": text}  # fmt: skip
    members = [(f"m{at}", object, field(metadata=named(name))) for at, name in enumerate(values)]
    return make_dataclass("Row", members)(*values.values())


def list_views(text: str) -> dict[str, View]:
    asked = wanted({"q": "", "sort": text, "kind": text}, keep=("kind",))

    def one(columns: Any) -> Any:
        return table([row_of(columns, text)], columns, asked, searched=())

    facts = {
        "kind": text, "kinds": (text,), "types": (text,), "clusters": [text, "b"], "group": text, "topic": text,
        "isCut": True, "most": 5, "by": "key", "choices": {"key": text}, "searched": True, "msgId": text,
        "traceTopic": text, "counts": dict.fromkeys(("FAIL", "WARN", "INFO", "OK"), 1),
        "files": [BrokerAccounts(text, [], [PlainAccessConfig(text, topic_perms=[text])])],
    }  # fmt: skip
    return {
        "topics.html": View(text, facts, {"topics": one(TOPICS)}),
        "groups.html": View(text, facts, {"groups": one(GROUPS)}),
        "messages.html": View(text, facts, {"messages": one(MESSAGES)}),
        "dead.html": View(text, facts, {"letters": one(LETTERS)}),
        "trace.html": View(text, facts, {"steps": one(STEPS)}),
        "accounts.html": View(text, facts, {"users": one(USERS), "policies": one(POLICIES)}, problems=[text]),
        "doctor.html": View(text, facts, {"findings": one(FINDINGS)}),
        "search.html": View(text, {"q": text, "kinds": [
            {"title": "Topics", "found": 9, "shown": [{"link": "/topics/a", "name": text, "detail": text}]}
        ]}),
        "error.html": View(text, {"text": text}),
        "login.html": View(text, {"next": text, "failure": text, "name": text}),
        "group.html": View(text, facts | {
            "lag": 5, "oldestMs": 1, "consumeTps": 0.0, "pullTps": 0.0, "handlerMs": None, "deadLetters": 1,
            "messageModel": text, "reasons": [text],
            "disagreements": [text], "span": "hour", "lines": [text], "topics": [text], "members": [
                {"clientId": text, "clientAddr": text, "language": text, "versionDesc": text, "queueCount": None,
                 "cached": 1, "consumeTps": 0.5, "handlerMs": 113.0, "concurrency": 1}
            ], "subscriptions": [SubscribedTopic(text, text, "TAG")],
            "configs": [GroupConfig(text, text, SubscriptionGroupConfig(text, attributes={text + "x": text}))],
        }, {"queues": one(QUEUES), "consumers": one(MEMBERS)}, problems=[text]),
        "member.html": View(text, facts | {
            "client": text, "startedMs": 1, "queueCount": 1, "cached": 1, "consumeTps": 1.0, "handlerMs": None,
            "concurrency": None, "subscriptions": [SubscribedTopic(text, text, "TAG")],
            "properties": {f"a{text}": text},
        }, {"queues": one(MEMBER_QUEUES), "rates": one(RATES)}, problems=[text]),
        "explain.html": View(text, facts | {"answers": [
            AccessAnswer(text, AccessExplanation(False, text, [AccessStep(text, text, text)]))
        ]}),
    }  # fmt: skip


PLAIN = "plain"
MESSAGE = "message.html"


@cache
def expected() -> dict[str, Tags]:
    """The tags of each page without odd text."""
    pages = list_views(PLAIN) | {MESSAGE: message_view(PLAIN, b"plain")}
    return {name: tags_of(name, view, PLAIN) for name, view in pages.items()}


def check(found: Tags, expected: Tags, text: str) -> None:
    # An empty or equal name may change which optional parts are there, but never adds an element of its own.
    known = set(expected.found)
    assert [one for one in found.found if one not in known] == [] or not text.strip(), text
    assert all(link.startswith(("/", "?", "#main")) and not link.startswith(("//", "/\\")) for link in found.links), (
        text
    )


def test_with_several_clusters_none_is_chosen() -> None:
    template = ENVIRONMENT.from_string('{% from "parts.html" import cluster_field %}{{ cluster_field(clusters) }}')
    several, one = template.render(clusters=["one", "two"]), template.render(clusters=["one"])
    assert '<select name="cluster" required><option value="">choose</option><option>one</option>' in several
    assert '<input type="hidden" name="cluster" value="one">' in one


@given(texts)
def test_no_name_becomes_markup(text: str) -> None:
    for name, view in list_views(text).items():
        check(tags_of(name, view, text), expected()[name], text)


@given(texts, st.binary(max_size=200) | HARM.map(str.encode))
def test_no_message_becomes_markup(text: str, body: bytes) -> None:
    check(tags_of(MESSAGE, message_view(text, body), text), expected()[MESSAGE], text)


@given(HARM, HARM)
def test_a_page_with_harm_in_it_has_exactly_the_elements_of_a_plain_one(text: str, body: str) -> None:
    for name, view in list_views(text).items():
        assert tags_of(name, view, text).found == expected()[name].found, name
    assert tags_of(MESSAGE, message_view(text, body.encode()), text).found == expected()[MESSAGE].found
