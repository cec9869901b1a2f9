from urllib.parse import parse_qsl

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.showing.tables import MOST_ON_PAGE, Column, table, wanted


@lazy_dataclass(frozen=True, slots=True)
class Row:
    name: str
    lag: int | None


COLUMNS = (Column("name", "Name"), Column("lag", "Lag", is_number=True))
rows_strategy = st.lists(st.builds(Row, st.text(max_size=5), st.none() | st.integers(0, 9)), max_size=30)
addresses = st.dictionaries(st.sampled_from(("q", "sort", "page", "size", "kind")), st.text(max_size=6))


def rows(count: int) -> list[Row]:
    return [Row(f"t{number:03}", number % 7) for number in range(count)]


@given(rows_strategy, addresses)
def test_any_address_gives_a_page(every: list[Row], address: dict[str, str]) -> None:
    asked = wanted(address, keep=("kind",))
    shown = table(every, COLUMNS, asked, searched=("name",))
    assert shown.total == len(every) >= shown.found >= len(shown.rows)
    assert 1 <= shown.wanted.page <= shown.pages
    assert len(shown.rows) <= MOST_ON_PAGE
    assert all(asked.q.casefold() in row.name.casefold() for row in shown.rows)


@given(rows_strategy, st.sampled_from(("name", "-name", "lag", "-lag")), st.integers(1, 7))
def test_pages_together_are_all_rows_in_order(every: list[Row], sort: str, size: int) -> None:
    first = table(every, COLUMNS, wanted({"sort": sort, "size": str(size)}), searched=())
    pages = [
        table(every, COLUMNS, wanted(dict(parse_qsl(first.page_link(number)))), searched=()).rows
        for number in range(1, first.pages + 1)
    ]
    listed = [row for page in pages for row in page]
    name = sort.removeprefix("-")
    keys = [
        (getattr(row, name) is not None, getattr(row, name) if getattr(row, name) is not None else 0) for row in listed
    ]
    if name == "name":
        keys = [(True, getattr(row, name).casefold()) for row in listed]
    assert keys == sorted(keys, reverse=sort.startswith("-"))
    assert sorted(map(repr, listed)) == sorted(map(repr, every))


def test_a_filter_finds_parts_in_any_case() -> None:
    shown = table(rows(20), COLUMNS, wanted({"q": " T01 "}), searched=("name",))
    assert (shown.found, shown.total) == (10, 20)


def test_a_number_sorts_with_the_largest_first() -> None:
    shown = table(rows(9), COLUMNS, wanted({}), searched=())
    by_lag = table(rows(9), COLUMNS, wanted(dict(parse_qsl(shown.sort_link(COLUMNS[1])))), searched=())
    assert [row.lag for row in by_lag.rows] == sorted((row.lag for row in rows(9)), reverse=True)
    assert (by_lag.direction(COLUMNS[1]), by_lag.direction(COLUMNS[0])) == ("descending", "")
    again = table(rows(9), COLUMNS, wanted(dict(parse_qsl(by_lag.sort_link(COLUMNS[1])))), searched=())
    assert again.rows[0].lag == 0


def test_a_page_that_is_not_there_is_the_last_one() -> None:
    shown = table(rows(120), COLUMNS, wanted({"page": "99"}), searched=(), sort="name")
    assert (shown.wanted.page, shown.pages, shown.first, len(shown.rows)) == (3, 3, 101, 20)


def test_links_keep_what_the_page_needs() -> None:
    shown = table(rows(120), COLUMNS, wanted({"kind": "dead letters", "q": "t"}, keep=("kind",)), searched=("name",))
    assert dict(parse_qsl(shown.page_link(2))) == {"kind": "dead letters", "q": "t", "page": "2"}
