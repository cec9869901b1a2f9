"""Tables in pages: all that was there all the time is in them, whatever comes and goes meanwhile."""

from collections.abc import ItemsView
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.meta import table_pages
from skylark.broker.meta.table_pages import Cursor, answer_whole_or_page
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import decode_body, loads
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.replication import FIRST_PAGE, PageRequestHeader, PageResponseHeader
from tests.broker.desk import Desk
from tests.support.caller import Caller


class Table:
    """Rows, and how many were removed."""

    def __init__(self, count: int) -> None:
        self.rows = {f"k{number}": "v" for number in range(count)}
        self.cursor = Cursor()
        self.removals = 0

    def change(self, removed: int, added: int) -> None:
        for name in list(self.rows)[:: max(removed, 1)] if removed else []:
            del self.rows[name]
            self.removals += 1
        for number in range(added):
            self.rows[f"new{len(self.rows)}-{self.removals}-{number}"] = "v"

    def page(self, asked: PageRequestHeader, values: int = 3, channel: Channel | None = None) -> Command:
        channel = channel or Caller().channel
        request = Command(21, asked.to_ext(), codec=CBOR)
        return finish(answer_whole_or_page(
            GET_BROKER_RUNTIME_INFO, channel, request, self.rows, self.cursor, self.removals,
            lambda rows: KVTable(dict(rows)), values=values,
        ))  # fmt: skip


@given(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=5))
async def test_pages_miss_no_row_that_was_there_all_the_time(count: int, changes: list[tuple[int, int]]) -> None:
    table = Table(count)
    always = set(table.rows)
    seen: set[str] = set()
    page: PageRequestHeader | None = FIRST_PAGE
    while page is not None:
        answer = table.page(page)
        seen |= decode_body(KVTable, answer.body, CBOR).table.keys()
        page = PageResponseHeader.from_answer(answer.ext).next
        if changes:
            table.change(*changes.pop())
        always &= table.rows.keys()
    assert always <= seen


class Walked(dict[str, str]):
    """Counts how often it was looked through from its beginning."""

    def __init__(self, rows: dict[str, str]) -> None:
        super().__init__(rows)
        self.walks = 0

    def items(self) -> ItemsView[str, str]:  # type: ignore[override]
        self.walks += 1
        return super().items()


async def test_a_page_begins_where_the_last_one_ended() -> None:
    table = Table(20)
    walked = table.rows = Walked(table.rows)
    first = table.page(FIRST_PAGE)
    page = PageResponseHeader.from_answer(first.ext).next
    for number in range(1, 5):
        assert page is not None
        answer = table.page(page)
        assert list(decode_body(KVTable, answer.body, CBOR).table) == [f"k{3 * number + at}" for at in range(3)]
        page = PageResponseHeader.from_answer(answer.ext).next
    assert walked.walks == 1
    assert table.page(FIRST_PAGE).body == first.body  # another slave
    assert walked.walks == 2
    assert page is not None
    table.page(page)
    walked["new"] = "v"
    page = PageResponseHeader.from_answer(table.page(page).ext).next
    assert page is not None
    assert "new" in decode_body(KVTable, table.page(page).body, CBOR).table


def test_rows_added_after_the_last_page_are_found() -> None:
    cursor, table = Cursor(), {"a": "1", "b": "2"}
    assert cursor.read(table, 0, 0, 5, lambda row: 1) == {"a": "1", "b": "2"}
    table["c"] = "3"
    assert cursor.read(table, 2, 0, 5, lambda row: 1) == {"c": "3"}


def test_a_row_put_and_another_removed_are_seen() -> None:
    cursor, table = Cursor(), dict.fromkeys("abcdef", "v")
    assert list(cursor.read(table, 0, 0, 2, lambda row: 1)) == ["a", "b"]
    del table["a"]
    table["z"] = "v"
    assert list(cursor.read(table, 2, 1, 2, lambda row: 1)) == ["d", "e"]


async def test_a_page_that_is_too_large_is_made_smaller(caplog: pytest.LogCaptureFixture) -> None:
    channel = Caller(max_frame_bytes=10_000).channel
    table = Table(0)
    table.rows = {"a": "x" * 3_000, "b": "x" * 3_000, "c": "x" * 9_000, "d": "x"}
    found, page = [], FIRST_PAGE
    while page is not None:
        answer = table.page(page, 100, channel)
        found.append(sorted(decode_body(KVTable, answer.body, CBOR).table))
        page = PageResponseHeader.from_answer(answer.ext).next  # type: ignore[assignment]
    assert found == [["a"], ["b"], [], ["d"]]
    assert "c cannot be copied by slaves" in caplog.text


async def test_a_whole_table_that_does_not_fit_is_refused_with_the_remedy() -> None:
    channel = Caller(max_frame_bytes=10_000).channel
    table = Table(2_000)
    with pytest.raises(RequestRefused, match="entries fit into a frame of 10000 bytes; use a Skylark slave"):
        table.page(PageRequestHeader(), channel=channel)


async def test_topics_groups_and_offsets_have_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    for number in range(25):
        desk.meta.topics.create_on_send(f"T{number}", "TBW102", 4)
        desk.meta.groups.get_or_create(f"g{number}")
        desk.meta.offsets.commit(f"g{number}", "T0", 0, number)
    monkeypatch.setattr(table_pages, "PAGE_VALUES", 10)
    monkeypatch.setattr("skylark.broker.meta.offset_handlers.PAGE_OFFSETS", 10)
    for code, member in ((21, "topicConfigTable"), (201, "subscriptionGroupTable"), (43, "offsetTable")):
        whole = loads((await desk.ask(code)).body)[member]
        found: dict[str, Any] = {}
        page: PageRequestHeader | None = FIRST_PAGE
        count = 0
        while page is not None:
            answer = await desk.ask(code, page.to_ext())
            found |= loads(answer.body)[member]
            page = PageResponseHeader.from_answer(answer.ext).next
            count += 1
        assert found == whole
        assert count >= (1 if code != 43 else 3)
