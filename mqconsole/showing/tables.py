"""Rows of a table: filtered, sorted and cut to a page, as the address of the page says. Pure.

The address has ``q`` (a text that one of the searched columns contains, in any case), ``sort`` (a column; with a minus
sign the largest first), ``page`` (from 1) and ``size``. Invalid parts are ignored, so old bookmarks open.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import member

Row = Any
PAGE_SIZE: Final = 50
MOST_ON_PAGE: Final = 500
_MOST_DIGITS: Final = 9


@lazy_dataclass(frozen=True, slots=True)
class Column:
    """``name`` is the member of the rows, as JSON has it. ``show`` makes the text; a number is aligned to the right."""

    name: str
    title: str
    show: Callable[[Any], str] = str
    is_number: bool = False
    #: An explanation of the column, if its title is not enough.
    hint: str = ""


@lazy_dataclass(frozen=True, slots=True)
class Wanted:
    """What the address of a page asks for."""

    q: str = ""
    sort: str = ""
    page: int = 1
    size: int = PAGE_SIZE
    #: Other parts of the address, which links keep.
    kept: tuple[tuple[str, str], ...] = ()

    def link(self, *, sort: str | None = None, page: int | None = None) -> str:
        """The part of an address after the question mark, with another order or page."""
        parts = {
            **dict(self.kept),
            "q": self.q,
            "sort": self.sort if sort is None else sort,
            "page": str(self.page if page is None else page),
            "size": str(self.size),
        }
        usual = {"page": "1", "size": str(PAGE_SIZE)}
        return urlencode({name: value for name, value in parts.items() if value not in ("", usual.get(name))})


def wanted(address: Mapping[str, str], *, keep: Sequence[str] = ()) -> Wanted:
    """Read the parts of an address."""
    return Wanted(
        address.get("q", "").strip(),
        address.get("sort", ""),
        max(_number(address.get("page", ""), 1), 1),
        min(max(_number(address.get("size", ""), PAGE_SIZE), 1), MOST_ON_PAGE),
        tuple((name, address[name]) for name in keep if address.get(name)),
    )


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else default


@lazy_dataclass(frozen=True, slots=True)
class Table:
    """A page of rows. ``found``: the number of rows on all pages; ``total``: the number without the filter."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    found: int
    total: int
    wanted: Wanted

    @property
    def pages(self) -> int:
        return max(-(-self.found // self.wanted.size), 1)

    @property
    def first(self) -> int:
        """The number of the first row on this page, from 1; 0 when there is none."""
        return (self.wanted.page - 1) * self.wanted.size + 1 if self.rows else 0

    def direction(self, column: Column) -> str:
        """How the column is sorted, as aria-sort has it; empty when the table is not sorted by it."""
        return {column.name: "ascending", f"-{column.name}": "descending"}.get(self.wanted.sort, "")

    def sort_link(self, column: Column) -> str:
        """The link that sorts by the column: numbers the largest first; the reverse if the table is sorted so."""
        first, second = (f"-{column.name}", column.name) if column.is_number else (column.name, f"-{column.name}")
        return self.wanted.link(sort=second if self.wanted.sort == first else first, page=1)

    def page_link(self, page: int) -> str:
        return self.wanted.link(page=page)

    def value(self, row: Row, name: str) -> Any:
        """A row's value in the column ``name``."""
        return member(row, name)

    def report(self) -> "TablePage":
        """The page for JSON."""
        return TablePage(self.rows, self.found, self.total, self.wanted.page, self.pages)


@lazy_dataclass(frozen=True, slots=True)
class TablePage:
    """A page of rows, as JSON has it; see `Table`."""

    rows: Sequence[Row]
    found: int
    total: int
    page: int
    pages: int


def table(
    rows: Iterable[Row], columns: Sequence[Column], asked: Wanted, *, searched: Sequence[str], sort: str = ""
) -> Table:
    """One page. ``searched`` are the columns that ``q`` searches; ``sort`` is the default order."""
    every = list(rows)
    found = every
    if asked.q:
        part = asked.q.casefold()
        found = [row for row in every if any(part in str(member(row, name)).casefold() for name in searched)]
    names = {column.name for column in columns}
    chosen = asked.sort if asked.sort.removeprefix("-") in names else sort
    name = chosen.removeprefix("-")
    if name:
        found = sorted(found, key=lambda row: _order(member(row, name)), reverse=chosen.startswith("-"))
    page = min(asked.page, max(-(-len(found) // asked.size), 1))
    shown = Wanted(asked.q, chosen, page, asked.size, asked.kept)
    return Table(columns, found[(page - 1) * asked.size : page * asked.size], len(found), len(every), shown)


def _order(value: Any) -> tuple[int, Any]:
    """Unknown values first, then numbers, then texts: a column may have all three kinds."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return 2, str(value).casefold()
