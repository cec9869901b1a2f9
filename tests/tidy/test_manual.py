"""The manual: each page is in the navigation and says what it is for; twelve questions of users have answers."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manual import blocks
from tests.tidy.tree import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OUTSIDE = sorted([*ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "bench" / "RESULTS.md"])

# Pages whose programs a reader may run side by side.
TRIED = ["README.md", *(f"docs/{page}" for page in PAGES if page.startswith(("get-started/", "guides/")))]
# What makes a member of the group that its argument ``group`` names.
MEMBERS = ("PushConsumer", "PullConsumer", "SimpleConsumer", "RocketBroker", "RocketRouter")

# question of the start page → the page and the heading that answer it, and what an answer must have
ANSWERS = {
    "Where is my message?": ("operate/when-something-is-wrong.md", "A message is missing", "queryMsgByKey"),
    "Why is it late?": ("operate/when-something-is-wrong.md", "A message is late", "consumerProgress"),
    "Why did it come twice?": ("operate/when-something-is-wrong.md", "A message came twice", "at least once"),
    "Which mode do I need?": ("operate/which-mode.md", "In short", "DLedger mode"),
    "How do I upgrade?": ("operate/upgrade.md", "The order", "Servers before their clients"),
    "How do I secure it?": ("operate/security-cluster.md", "In one step", "mqadmin secureCluster"),
    "How do I test my service?": ("guides/test-your-service.md", "pytest", "skylark.testing import cluster"),
    "How big must the disk be?": ("operate/disks.md", "How big must the disk be?", "messages a second"),
    "How do I move from RocketMQ?": ("guides/move-from-rocketmq.md", "Take over a broker's directory", "mqshutdown"),
    "How do I see what happens?": ("operate/watch.md", "Is the cluster well?", "mqadmin doctor"),
    "How do I scale?": ("operate/grow-and-shrink.md", "Growing", "cloneTopics"),
    "How do I read it in Spark?": ("guides/spark.md", "Spark", 'spark.read.format("rocketmq")'),
}


def navigation(items: list[dict[str, object]]) -> Iterator[str]:
    for item in items:
        for target in item.values():
            if isinstance(target, str):
                yield target
            else:
                assert isinstance(target, list)
                yield from navigation(target)


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next heading of its level or a higher one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no heading {heading}"
    return found[2]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {anchor(heading.replace("`", "")) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_link_from_outside_of_the_manual_leads_to_a_heading(path: Path) -> None:
    """The strict build judges links within docs/ only."""
    links = re.findall(r"\]\(([^)#:]*\.md)?#([^)]+)\)", path.read_text(encoding="utf-8"))
    dead = [
        f"{target}#{name}" for target, name in links if name not in anchors(path.parent / target if target else path)
    ]
    assert dead == []


def members(page: str) -> Iterator[tuple[str, str]]:
    """The group and the subscriptions of each member that a page's Python programs make."""
    calls = (
        node
        for block in blocks(page)
        if block.language == "python"
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MEMBERS
    )
    for call in calls:
        given = {argument.arg: ast.unparse(argument.value) for argument in call.keywords}
        if "group" in given:
            yield given["group"], given.get("subscriptions", "")


def test_programs_of_different_pages_do_not_share_a_group() -> None:
    """They would take each other's messages, and those of different subscriptions would lose some."""
    pages = defaultdict(set)
    subscriptions = defaultdict(set)
    for page in TRIED:
        for group, subscribed in members(page):
            pages[group].add(page)
            subscriptions[group].add(subscribed)
    assert len(pages) > 15
    assert {group: found for group, found in pages.items() if len(found) > 1} == {}
    assert {group: found for group, found in subscriptions.items() if len(found) > 1} == {}


def test_each_page_is_in_the_navigation_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(navigation(project["nav"])) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_first_what_it_is_for(page: str) -> None:
    text = re.sub(r"<!--.*?-->\s*", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    title, first = text.split("\n\n", 2)[:2]
    assert re.fullmatch(r"# \S.*", title), "one title, then an empty line"
    assert re.match(r"[`*\[\w]", first), f"no sentence after the title: {first[:60]}"


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered_within_two_clicks(question: str) -> None:
    page, heading, answer = ANSWERS[question]
    (row,) = re.findall(rf"^\| {re.escape(question)} \| (.*) \|$", section("index.md", "Questions"), re.MULTILINE)
    link, fragment = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", row)[0]
    assert link == page
    assert fragment in ("", anchor(heading)), "the link leads to another heading"
    assert answer in section(page, heading)


def test_all_questions_of_the_start_page_are_tested() -> None:
    asked = re.findall(r"^\| (.*\?) \| ", section("index.md", "Questions"), re.MULTILINE)
    assert asked == list(ANSWERS) and len(asked) == 12
